"""The use of a running job's nodes, measured by an additional job step while it is displayed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO

from hpcrun.assets import shipped_folder
from hpcrun.runs import GpuUse, NodeUse, Scope
from hpcrun.slurm import overlap_argv
from hpcrun.text import is_whole_number

# The name of the step, and the prefix of each line that it prints.
STEP_NAME = "hpcrun-top"
# Seconds between samples of a node; the second one follows soon, because use is a difference.
SAMPLE_INTERVAL_S, SECOND_SAMPLE_DELAY_S = 5.0, 1.0
# Seconds before each retry of a failed step; after the last one, the step is given up.
_RETRY_PAUSES_S = (15.0, 60.0)
_PIECE = 1 << 16
# Closing a step's input ends it; if it does not react, signals follow after these timeouts.
_TERMINATE_TIMEOUTS_S = (2.0, 1.0)
_MIB = 1 << 20
_PARTS = re.compile(r"([0-9]+)")
# A longer line without a line end is not output of the step.
_MAX_LINE_BYTES = 1 << 16
_MAX_NODES = 10_000
_MAX_GPUS = 64
# /proc/stat counts in ticks of 1/100 s (USER_HZ on every Linux that Slurm runs on).
_TICKS = 100


class UsageStep:
    """A usage step of one job.

    The step allocates no resources, so it does not affect the job. Its input is a pipe from this
    process: if this process dies for any reason, the pipe closes and the step ends. A step that has
    not been polled for a minute also ends.

    Attributes:
        trouble: The reason why there is no data, if the step could not start.
        is_over: The step was given up.
    """

    def __init__(
        self,
        number: str,
        nodes: int,
        process: Callable[[list[str]], tuple[list[str], dict[str, str]]],
        version: tuple[int, int] | None,
    ) -> None:
        """Prepare the step without starting it.

        Args:
            number: The Slurm id of the job; for an array, that of its task.
            process: Turns the cluster's srun command into a local command and its environment.
        """
        self.trouble = ""
        self.is_over = False
        script = (shipped_folder("templates") / "usage.sh").read_text(encoding="utf-8")
        argv = overlap_argv(number, nodes, STEP_NAME, ["bash", "-c", script], version)
        self._argv, self._env = process(argv)
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: tuple[IO[bytes], ...] = ()  # its stdin, stdout and stderr
        self._lines = UsageLines()
        self._errors = b""
        self._failures = 0
        self._next = 0.0
        self._asked = 0

    def uses(self) -> list[NodeUse]:
        return self._lines.uses()

    @property
    def has_failed(self) -> bool:
        """True if the step has ended at least once without output from a node."""
        return self.is_over or self._failures > 0

    def poll(self, now: float) -> bool:
        """Run everything due at a monotonic time; return True if there is news."""
        if self.is_over:
            return False
        if self._process is None:
            if now >= self._next:
                self._start(now)
            return False
        news = self._read()
        if self._process.poll() is not None:
            self._failed(self._process.returncode, now)
        elif now >= self._next:
            self._request_sample(now)
        return news

    def close(self) -> None:
        """Terminate srun, which ends its step; wait for its exit, but not indefinitely."""
        self.end_input()
        process, self._process = self._process, None
        if process is None:
            return
        for patience, end in zip(
            _TERMINATE_TIMEOUTS_S, (process.terminate, process.kill), strict=True
        ):
            deadline = time.monotonic() + patience
            while process.poll() is None and time.monotonic() < deadline:
                # srun would block on a full pipe and never exit, so its last output is discarded.
                for stream in self._pipes[1:]:
                    _drain(stream)
                time.sleep(0.02)
            if process.poll() is None:
                end()
        process.wait()
        for stream in self._pipes[1:]:
            stream.close()

    def end_input(self) -> None:
        """Ask the step to end, which reduces the waiting time of close()."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._pipes[0].close()

    def _start(self, now: float) -> None:
        try:
            process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                # Ctrl-C on the terminal is handled by top, not by srun.
                start_new_session=True,
            )
        except OSError as error:
            self.is_over = True
            is_missing = isinstance(error, FileNotFoundError)
            self.trouble = "srun: command not found" if is_missing else f"srun: {error.strerror}"
            return
        assert process.stdin and process.stdout and process.stderr
        self._pipes = (process.stdin, process.stdout, process.stderr)
        for stream in self._pipes:
            os.set_blocking(stream.fileno(), False)
        self._process, self._lines, self._errors = process, UsageLines(), b""
        self._asked = 0
        self._request_sample(now)

    def _request_sample(self, now: float) -> None:
        with contextlib.suppress(OSError):  # the pipe is full or closed because the step is ending
            os.write(self._pipes[0].fileno(), b"\n")
        self._asked += 1
        self._next = now + (SECOND_SAMPLE_DELAY_S if self._asked == 1 else SAMPLE_INTERVAL_S)

    def _read(self) -> bool:
        _, stdout, stderr = self._pipes
        output = _drain(stdout)
        self._errors = (self._errors + _drain(stderr))[-_PIECE:]
        self._lines.feed(output.decode("utf-8", "replace"))
        return bool(output)

    def _failed(self, code: int, now: float) -> None:
        """Handle the end of the step: the job ended, a node failed, or steps are not permitted."""
        self._read()
        self.close()
        if self._lines.uses():
            self._failures, self.trouble = 0, ""
        else:
            self._failures += 1
            self.trouble = _last_line(self._errors) or f"srun ended with code {code}"
        self.is_over = self._failures > len(_RETRY_PAUSES_S)
        if not self.is_over:
            self._next = now + _RETRY_PAUSES_S[max(0, self._failures - 1)]


def close_all(steps: list[UsageStep]) -> None:
    """Close several steps concurrently, because each may take a moment."""
    for step in steps:
        step.end_input()
    for step in steps:
        step.close()


def _drain(stream: IO[bytes]) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while len(found) < 16 * _PIECE and (piece := os.read(stream.fileno(), _PIECE)):
            found += piece
    return found


def _last_line(errors: bytes) -> str:
    """Return the last line that srun printed, without its prefixes."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    reported = [line for line in lines if "error" in line] or lines
    return reported[-1].removeprefix("srun: ").removeprefix("error: ").strip() if reported else ""


# ---- output of the step (templates/usage.sh)


class UsageLines:
    """Parses the output of a usage step, split at arbitrary positions.

    >>> lines = UsageLines()
    >>> for clock, busy in ((10, 1000), (12, 1800)):
    ...     lines.feed(f"hpcrun-top n1 begin {clock}\\nhpcrun-top n1 stat 4 {busy} 0 0 50 0\\n")
    ...     lines.feed("hpcrun-top n1 end\\n")
    >>> [(use.node, use.cpus_busy, use.cpus) for use in lines.uses()]
    [('n1', 4.0, 4)]
    """

    def __init__(self) -> None:
        self._rest = ""
        self._uses: dict[str, NodeUse] = {}
        self._begun: dict[str, dict[str, list[str]]] = {}
        # The last sample of each node: (clock in seconds, busy CPU seconds).
        self._before: dict[str, tuple[float, float]] = {}

    def uses(self) -> list[NodeUse]:
        """Return the known use of each node in Slurm's order: node2 before node10."""
        return [self._uses[node] for node in sorted(self._uses, key=_sort_key)]

    def feed(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            self._rest = ""
        for line in lines:
            mark, _, rest = line.partition(" ")
            node, _, rest = rest.partition(" ")
            word, _, value = rest.partition(" ")
            if mark == STEP_NAME and word:
                self._parse_line(node, word, value)

    def _parse_line(self, node: str, word: str, value: str) -> None:
        if word == "begin" and len(self._begun) < _MAX_NODES:
            self._begun[node] = {}
        reported = self._begun.get(node)
        if reported is None:
            return
        if word == "end":
            self._uses[node] = self._use(node, reported)
            del self._begun[node]
        elif len(values := reported.setdefault(word, [])) < _MAX_GPUS:
            values.append(value)

    def _use(self, node: str, reported: dict[str, list[str]]) -> NodeUse:
        cpus, busy, cpu_of = _parse_cpu(reported)
        clock = _parse_number(_first_value(reported, "begin"))
        before, now = self._before.get(node), None
        if clock is not None and busy is not None:
            now = self._before[node] = (clock, busy)
        share = None
        if before is not None and now is not None and now[0] > before[0]:
            share = max(0.0, (now[1] - before[1]) / (now[0] - before[0]))
            if cpu_of == "node" and cpus:  # ticks and the clock are not sampled at the same instant
                share = min(share, float(cpus))
        memory = _first_value(reported, "memory").split(" ")
        is_told = len(memory) == 3 and memory[0] in ("job", "node")
        memory_of: Scope = "job" if memory[0] == "job" else "node"
        return NodeUse(
            node=node,
            cpus=cpus,
            cpus_busy=None if share is None else round(share, 2),
            cpu_of=cpu_of,
            memory_used=_parse_int(memory[1]) if is_told else None,
            memory_total=_parse_int(memory[2]) if is_told else None,
            memory_of=memory_of if is_told else None,
            gpus=_parse_gpus(reported),
        )


def _sort_key(node: str) -> list[tuple[int, str]]:
    return [(int(part), "") if is_whole_number(part) else (-1, part) for part in _PARTS.split(node)]


def _parse_cpu(reported: dict[str, list[str]]) -> tuple[int | None, float | None, Scope | None]:
    """Parse the number of CPUs, their busy seconds, and the scope of the measurement."""
    own = _first_value(reported, "cpu").split(" ")
    if len(own) == 3 and (busy := _parse_number(own[1])) is not None:
        return _parse_int(own[2]) or None, busy / 1e9, "job"
    count, *fields = _first_value(reported, "stat").split() or [""]
    ticks = [_parse_number(word) for word in fields]
    if len(ticks) < 4 or None in ticks:
        return None, None, None
    # The fields are user nice system idle iowait irq softirq steal; user includes guest times
    # (proc(5)).
    known = [tick or 0.0 for tick in ticks[:8]]
    return _parse_int(count), (sum(known) - sum(known[3:5])) / _TICKS, "node"


def _parse_gpus(reported: dict[str, list[str]]) -> tuple[GpuUse, ...]:
    """Parse the job's GPUs; if more GPUs are visible, they are selected by Slurm's numbers."""
    found = []
    for line in reported.get("gpu", ()):
        fields = [field.strip() for field in line.split(",")]
        index = _parse_int(fields[0])
        if len(fields) == 7 and index is not None:
            found.append((fields[1], _parse_nvidia(index, fields)))
    for line in reported.get("amd", ()):
        fields = line.split(" ")
        index = _parse_int(fields[0])
        if len(fields) == 4 and index is not None:
            used, total = _parse_int(fields[2]), _parse_int(fields[3])
            gpu = GpuUse(
                index=index,
                utilization=_parse_number(fields[1]),
                memory_used=used,
                memory_total=total,
            )
            found.append(("", gpu))
    visible = [word for word in _first_value(reported, "visible").split(",") if word]
    # CUDA accepts a prefix of a UUID (CUDA_VISIBLE_DEVICES=GPU-8932f937).
    begins = tuple(word for word in visible if word.startswith("GPU-"))
    own = [gpu for uuid, gpu in found if str(gpu.index) in visible or uuid.startswith(begins)]
    return tuple(own or [gpu for _, gpu in found])


def _parse_nvidia(index: int, fields: Sequence[str]) -> GpuUse:
    """Parse a line of nvidia-smi; values that a GPU does not report are in brackets, as [N/A]."""
    used, total = (_parse_number(field) for field in fields[3:5])
    return GpuUse(
        index=index,
        utilization=_parse_number(fields[2]),
        memory_used=None if used is None else int(used * _MIB),
        memory_total=None if total is None else int(total * _MIB),
        power_watts=_parse_number(fields[5]),
        temperature_celsius=_parse_number(fields[6]),
    )


def _first_value(reported: dict[str, list[str]], word: str) -> str:
    return reported.get(word, [""])[0]


def _parse_number(text: str) -> float | None:
    """Parse a number; return None for anything else."""
    digits = text.replace(".", "", 1)
    return float(text) if is_whole_number(digits) and len(text) < 25 else None


def _parse_int(text: str) -> int | None:
    number = _parse_number(text)
    return None if number is None else int(number)
