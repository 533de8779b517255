"""The cluster is here: commands are processes of this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError, OutOfReach
from hpcrun.ownership import describe_insecure_path
from hpcrun.remote.transport import TRASH, Answers, Query, Result

# Login nodes allow few processes, and little memory.
_NOT_STARTED = {
    errno.EAGAIN: "as many processes of yours run as are allowed here: end some (ulimit -u)",
    errno.ENOMEM: "as much memory of yours is in use as is allowed here (ulimit -v)",
    errno.EMFILE: "as many files are open as are allowed here (ulimit -n)",
}


class LocalTransport:
    """Runs commands here, with one environment.

    At ``deadline`` (by time.monotonic) every command is cut off, whatever its own limit. Each runs
    inside ``waiting``. None runs with a slurm.conf that others can change, since Slurm's commands
    load the libraries that it names; but the one of hpcrun's own environment is the user's choice.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        deadline: float | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.env = dict(env)
        self.deadline = deadline
        self.waiting = waiting

    def open(self) -> None:
        """Do nothing: the cluster is here."""

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        stdin: str | None = None,
    ) -> Result:
        """Run a command to its end; see Transport."""
        self._check_slurm_conf()
        if self.deadline is not None:
            timeout = min(timeout, self.deadline - time.monotonic())
            if timeout <= 0:
                # As if it had been asked: no other question would be answered either.
                raise OutOfReach(f"{argv[0]} was not asked: the time was up", maybe_done=True)
        try:
            with self.waiting():
                return _run_bounded(
                    argv,
                    cwd=cwd,
                    env=self.env if env is None else env,
                    timeout=timeout,
                    stdin=stdin,
                )
        except FileNotFoundError as error:
            if cwd is not None and error.filename == cwd:
                raise HpcrunError(f"{cwd}: no such folder") from error
            raise OutOfReach(
                f"{argv[0]}: command not found",
                fix="is this a machine of the cluster? To try hpcrun without one: "
                "hpcrun sandbox up, or hpcrun run",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise OutOfReach(
                f"{argv[0]} gave no answer in {timeout:.3g} s", maybe_done=True
            ) from error
        except OSError as error:
            raise OutOfReach(
                f"{argv[0]} cannot be started here: {error.strerror}",
                fix=_NOT_STARTED.get(error.errno or 0, ""),
            ) from error

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Answer queries one by one; see Transport."""
        return Answers({query: query.answer_here(self) for query in queries})

    def wrap_command(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command itself; see Transport."""
        return list(argv), dict(self.env if env is None else env)

    def run_script(self, script: str, on_output: Callable[[bytes], None]) -> Result:
        """Run a script; see Transport."""
        import tempfile  # here: few calls bring anything

        with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as stderr:
            text.write(os.fsencode(script))
            text.seek(0)
            argv, pipe = ["bash", "--norc", "-s"], subprocess.PIPE
            with subprocess.Popen(argv, stdin=text, stdout=pipe, stderr=stderr) as process:
                assert process.stdout is not None
                while data := os.read(process.stdout.fileno(), 1 << 16):
                    on_output(data)
            stderr.seek(0)
            return Result(argv, process.returncode, "", os.fsdecode(stderr.read(1 << 16)))

    def forward_port(self, host: str, port: int, helper: Sequence[str] = ()) -> tuple[str, int]:
        """Return the port itself; see Transport."""
        return host, port

    def _check_slurm_conf(self) -> None:
        conf = self.env.get("SLURM_CONF")
        if conf is None or conf == os.environ.get("SLURM_CONF"):
            return
        with contextlib.suppress(OSError):  # it is not there: Slurm's commands say so
            if why := describe_insecure_path(Path(conf)):
                raise OutOfReach(
                    f"{conf} is not used: {why}", fix=f"if you trust it: export SLURM_CONF={conf}"
                )

    def fetch_changes(
        self, run_dirs: Iterable[Path], *, whole: bool = False, follow: bool = False
    ) -> None:
        """Do nothing: the folders are the cluster's own."""

    def copy_outputs(
        self, paths: Sequence[str], *, whole: bool = True
    ) -> tuple[list[Path], dict[str, str]]:
        """Return the files themselves; see Transport."""
        return [Path(path) for path in paths], {}

    def submit_directories(
        self,
        run_dirs: Sequence[Path],
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float = 60,
    ) -> Result:
        """Run a command in the first of some folders, which lie on the cluster already."""
        return self.run(argv, cwd=str(run_dirs[0]), env=env, timeout=timeout)

    def upload_files(self, paths: Sequence[Path]) -> None:
        """Do nothing: the files are the cluster's own."""

    def remove_directories(self, run_dirs: Sequence[Path]) -> None:
        """Move folders out of sight at once, then remove them; see Transport.

        No folder is made for them: a full disk, or a quota of files, may have no room for one. A
        signal waits.
        """
        moved: list[tuple[Path, Path]] = []
        from hpcrun.signals import defer_signals  # here: only who delivers needs it

        with defer_signals():
            try:
                for path in run_dirs:
                    aside = path.with_name(f"{TRASH}{os.urandom(8).hex()}")
                    with contextlib.suppress(FileNotFoundError):
                        os.utime(path)  # what is young is left to who sets it aside
                        path.rename(aside)
                        moved.append((path, aside))
            except OSError:
                for path, aside in moved:
                    aside.rename(path)
                raise
        for _, aside in moved:
            _remove_tree(aside)


def _run_bounded(
    argv: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    timeout: float,
    stdin: str | None,
) -> Result:
    """Run a command; after ``timeout`` seconds, or Ctrl-C, terminate it and all that it started.

    Raises OSError, TimeoutExpired.
    """
    process = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="surrogateescape",
        # Ctrl-C on the terminal is for hpcrun to handle, not for a half-done Slurm command.
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
                with contextlib.suppress(OSError):
                    stream.close()
            # A process that hangs in a dead file system cannot end: do not wait for it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    return Result(list(argv), process.returncode, stdout, stderr)


def _remove_tree(trash: Path) -> None:
    """Remove a folder for good; folders without write permission too. Links are not followed."""
    import shutil  # here: it imports three libraries of compression, and most calls remove nothing

    shutil.rmtree(trash, ignore_errors=True)
    if not trash.exists():
        return
    for where, folders, _ in os.walk(str(trash)):
        for name in ("", *folders):
            folder = Path(where, name)
            if not folder.is_symlink():
                with contextlib.suppress(OSError):
                    folder.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(trash)
