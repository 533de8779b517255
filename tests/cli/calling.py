"""Call hpcrun as a user does: in a project, with an empty home, on the command line."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import json
import os
import pty
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from hpcrun.cli.main import main
from hpcrun.files import take_new_notices
from hpcrun.remote import Connect
from tests import hpcrun_forks
from tests.curves.report.window import Window

ROOT = Path(__file__).parent.parent.parent


# hpcrun with its standard output in a file, and with progress shown immediately.
_PATIENT = """
import os
os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
import hpcrun.cli.output
hpcrun.cli.output.LONG_WORK_S = hpcrun.cli.output.REDRAW_INTERVAL_S = 0.0
from hpcrun.cli.main import main
main()
"""


class Done:
    """The result of a call."""

    def __init__(self, argv: Sequence[str], code: int, out: str, err: str) -> None:
        self.argv, self.code, self.out, self.err = list(argv), code, out, err

    @property
    def json(self) -> Any:
        assert self.out, self
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"{self.argv} -> {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Caller:
    """A project with an hpcrun.yaml, its runs folder, and methods to call hpcrun in it.

    Slurm's commands are only those that a test puts into ``tools``.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.project = folder / "my project"
        self.runs = folder / "runs"
        self.tools = folder / "bin"
        self.environ = {**environ, "PATH": f"{self.tools}:{_tools()}"}
        self.connect: Connect | None = None  # the usual umask
        # Marks all processes that a run starts, in any session.
        self.mark = uuid.uuid4().hex
        self.environ["HPCRUN_TEST"] = self.environ["TEST_MARK"] = self.mark
        self.project.mkdir()
        self.tools.mkdir()
        self.write("hpcrun.yaml", f'runs_dir: "{self.runs}"\ncache_dir: "{folder}/cache"\n')

    def write(self, name: str, text: str) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def __call__(self, *argv: str, entry: Callable[[], object] | None = None) -> Done:
        """Call hpcrun in this process, which is fast, for commands that leave no processes behind.

        ``entry``: another function that reads the command line. A ``run`` that is not refused
        ends all children of its process, so it needs a separate process.
        """
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in "oe"]
        code: Any = 0
        with _standing_in(self.environ, self.project, ["hpcrun", *argv]):
            try:
                with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                    (entry or partial(main, self.connect))()
            except SystemExit as end:
                code = end.code
        texts = []
        for stream in streams:
            stream.flush()
            buffer = stream.buffer
            assert isinstance(buffer, io.BytesIO)
            texts.append(buffer.getvalue().decode())
        assert isinstance(code, int), code
        return Done(argv, code, *texts)

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start hpcrun as a separate process."""
        return subprocess.Popen(
            [sys.executable, "-m", "hpcrun", *argv],
            cwd=self.project,
            env=self.environ | {"PYTHONPATH": str(ROOT)},
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **options,
            },
        )

    def on_terminal(
        self, *argv: str, columns: int = 80, rows: int = 40, env: Mapping[str, str] | None = None
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start a process on a new terminal; return it and the controlling side of it."""
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        program = argv if argv[0] == sys.executable else (sys.executable, "-m", "hpcrun", *argv)
        process = subprocess.Popen(
            program,
            cwd=self.project,
            env=self.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", **(env or {})},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        return process, main

    def drawn(self, *argv: str, columns: int = 80, **env: str) -> str:
        """Run a process on a terminal to its end; return its output."""
        process, main = self.on_terminal(*argv, columns=columns, env=env)
        got = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(main, 65536):
                got += piece
        process.wait()
        os.close(main)
        return got.decode()

    def insist_on_bar(self, label: str, *argv: str, **env: str) -> None:
        """Assert that progress is drawn only on a terminal's stderr, and is cleared afterwards.

        Test --json and pipes with other calls.
        """
        got = self.drawn(sys.executable, "-c", _PATIENT, *argv, columns=80, **env)
        window = Window(80, 40)
        window.write(got)
        assert f"{label}  [" in got, got
        assert label not in window.text and "25" in window.modes, window.text
        printed = (self.project / "printed").read_text()
        assert printed and label not in printed and "\x1b" not in printed

    def process(self, *argv: str) -> Done:
        """Run hpcrun as a separate process to its end."""
        env = self.environ | {"PYTHONPATH": str(ROOT)}
        done = hpcrun_forks.run(argv, cwd=self.project, env=env)
        return Done(argv, done.returncode, done.stdout, done.stderr)

    def left(self) -> list[str]:
        """Return the processes started here that are still running."""
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (proc / "environ").read_bytes():
                    found.append(f"{proc.name}: {(proc / 'cmdline').read_bytes()!r}")
        return found


@contextlib.contextmanager
def _standing_in(environ: dict[str, str], folder: Path, argv: list[str]) -> Iterator[None]:
    before = dict(os.environ), Path.cwd(), sys.argv
    take_new_notices()  # processes that use hpcrun as a library
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv = argv
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        os.chdir(before[1])
        sys.argv = before[2]


TOOLS = (
    *("bash", "sh", "env", "cat", "date", "echo", "false", "cksum", "git", "grep", "ip"),
    *("mkdir", "mv", "printf", "rm", "sed", "sleep", "touch", "true", "uname", "id", "setsid"),
)


@cache
def _tools() -> str:
    """Create a folder for PATH with the commands of a machine without Slurm."""
    folder = Path(tempfile.mkdtemp(prefix="hpcrun-tools-"))
    atexit.register(shutil.rmtree, folder)
    for name in TOOLS:
        if place := shutil.which(name):
            (folder / name).symlink_to(place)
    return str(folder)


def replay(folder: Path, command: str, answer: tuple[int, str, str]) -> Path:
    """Create a command that replays an answer of Slurm; return the file that records its calls."""
    code, out, err = answer
    calls = folder / f"{command}.calls"
    script = folder / command
    script.unlink(missing_ok=True)
    script.write_text(
        f'#!/bin/sh\necho "$PWD|$*" >>"{calls}"\n'
        # A working squeue always prints its column names.
        f'case "{command} $*" in "squeue --me --format=%i") echo JOBID; exit {code} ;; esac\n'
        f"printf %s {shlex.quote(out)}\nprintf %s {shlex.quote(err)} >&2\nexit {code}\n"
    )
    script.chmod(0o755)
    return calls
