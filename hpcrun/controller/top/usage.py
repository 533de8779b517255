"""How busy a running job's nodes are, by a step beside the job's while somebody looks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from hpcrun.assets import shipped
from hpcrun.controller.top.usage_lines import NodeUse, UsageLines
from hpcrun.slurm.commands import beside_argv

STEP_NAME = "hpcrun-top"
# Seconds between two looks at a node; the second comes soon, since use is a difference.
EVERY, SOON = 5.0, 1.0
# A step that fails is begun again after so many seconds, and then given up.
_AGAIN = (15.0, 60.0)
_PIECE = 1 << 16
# The end of a step's input ends it; one that cannot hear is asked by signals, seconds apart.
_PATIENCE = (2.0, 1.0)


class UsageStep:
    """A usage step of one job.

    ``trouble`` says why it tells nothing, if it could not begin; ``is_over``: it was given up.

    It takes no resources, so the job does not notice. Its input is a pipe from this process: when
    this process dies, however it does, the pipe closes and the step ends. A step that nobody has
    asked for a minute ends too.
    """

    def __init__(
        self, number: str, nodes: int, env: Mapping[str, str], version: tuple[int, int] | None
    ) -> None:
        """Nothing is started yet. ``number`` is the job's; of an array's task its own."""
        self.trouble = ""
        self.is_over = False
        self._argv = beside_argv(number, nodes, STEP_NAME, ["bash", "-c", _script()], version)
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = UsageLines()
        self._errors = b""
        self._failures = 0
        self._next = 0.0
        self._asked = 0

    def uses(self) -> list[NodeUse]:
        """How busy each node was, as far as it has told."""
        return self._lines.uses()

    @property
    def has_failed(self) -> bool:
        """Whether the step has ended at least once without a word from a node."""
        return self.is_over or self._failures > 0

    def look(self, now: float) -> bool:
        """Do what is due at a time of the monotonic clock; tell whether there is news."""
        if self.is_over:
            return False
        if self._process is None:
            if now >= self._next:
                self._start(now)
            return False
        news = self._read()
        if self._process.poll() is not None:
            self._failed(now)
        elif now >= self._next:
            self._ask(now)
        return news

    def close(self) -> None:
        """End the step."""
        process, self._process = self._process, None
        if process is not None:
            _close(process)

    def end_input(self) -> None:
        """Let the step end by itself; close() then has less to wait for."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _start(self, now: float) -> None:
        try:
            process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                # Ctrl-C on the terminal is top's to handle.
                start_new_session=True,
            )
        except OSError as error:
            self.is_over = True
            is_missing = isinstance(error, FileNotFoundError)
            self.trouble = "srun: command not found" if is_missing else f"srun: {error.strerror}"
            return
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self._process, self._lines, self._errors = process, UsageLines(), b""
        self._asked = 0
        self._ask(now)

    def _ask(self, now: float) -> None:
        """Ask for a look at the nodes."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # full or closed: then the step is ending
            os.write(self._process.stdin.fileno(), b"\n")
        self._asked += 1
        self._next = now + (SOON if self._asked == 1 else EVERY)

    def _read(self) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        said = _drain(self._process.stdout.fileno())
        self._errors = (self._errors + _drain(self._process.stderr.fileno()))[-_PIECE:]
        self._lines.feed(said.decode("utf-8", "replace"))
        return bool(said)

    def _failed(self, now: float) -> None:
        """The step is over: the job's end, a node that is gone, or no leave to add a step."""
        self._read()
        process, self._process = self._process, None
        assert process is not None
        _close(process)
        if self._lines.uses():
            self._failures, self.trouble = 0, ""
        else:
            self._failures += 1
            code = process.returncode
            self.trouble = _last_words(self._errors) or f"srun ended with code {code}"
        self.is_over = self._failures > len(_AGAIN)
        if not self.is_over:
            self._next = now + _AGAIN[max(0, self._failures - 1)]


def close_all(steps: list[UsageStep]) -> None:
    """End several steps: all at once, since each may take a moment."""
    for step in steps:
        step.end_input()
    for step in steps:
        step.close()


def _script() -> str:
    return (shipped("templates") / "usage.sh").read_text(encoding="utf-8")


def _close(process: subprocess.Popen[bytes]) -> None:
    """End srun, which ends its step; never leave before it has, nor wait without end."""
    for number, patience in zip((None, signal.SIGTERM), _PATIENCE, strict=True):
        if number is None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        else:
            process.send_signal(number)
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            # Its last words would fill the pipe, and it would never end.
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                _drain(stream.fileno())
            time.sleep(0.02)
        if process.poll() is not None:
            break
    else:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def _drain(descriptor: int) -> bytes:
    """Read what is there."""
    found = b""
    with contextlib.suppress(OSError):
        while len(found) < 16 * _PIECE and (piece := os.read(descriptor, _PIECE)):
            found += piece
    return found


def _last_words(errors: bytes) -> str:
    """What srun said last, without its prefixes."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if "error" in line] or lines
    return told[-1].removeprefix("srun: ").removeprefix("error: ").strip() if told else ""
