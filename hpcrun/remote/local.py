"""Transport for a cluster on this machine: commands are local processes."""

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
from hpcrun.signals import defer_signals

# Login nodes limit the processes and the memory of each user.
_NOT_STARTED = {
    errno.EAGAIN: "you have reached your limit of processes on this machine (ulimit -u)",
    errno.ENOMEM: "you have reached your memory limit on this machine (ulimit -v)",
    errno.EMFILE: "you have reached your limit of open files on this machine (ulimit -n)",
}


class LocalTransport:
    """Runs commands on this machine, with one environment.

    Every command is terminated at ``deadline`` (in time.monotonic() seconds) even if its own
    timeout is longer, and runs inside the context manager ``waiting``. Slurm's commands load the
    libraries that slurm.conf names, so no command runs with a slurm.conf that other users can
    change, unless it is the one in hpcrun's own environment, which is the user's choice.
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
        """Do nothing: the cluster is this machine."""

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
                # Treated as a command that ran: no other command would be answered either.
                raise OutOfReach(f"deadline reached before {argv[0]} ran", maybe_done=True)
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
                fix="run hpcrun on a login node of the cluster; to try it without a cluster: "
                "hpcrun sandbox up, or hpcrun run",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise OutOfReach(
                f"{argv[0]} did not respond within {timeout:.3g} s", maybe_done=True
            ) from error
        except OSError as error:
            raise OutOfReach(
                f"{argv[0]} cannot be started: {error.strerror}",
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
        import tempfile  # deferred: slow to load, and few commands download files

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
        with contextlib.suppress(OSError):  # a missing file is reported by Slurm's commands
            if why := describe_insecure_path(Path(conf)):
                raise OutOfReach(
                    f"{conf} is ignored: {why}", fix=f"if you trust it: export SLURM_CONF={conf}"
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
        """Run a command in the first of some folders, which are already on the cluster."""
        return self.run(argv, cwd=str(run_dirs[0]), env=env, timeout=timeout)

    def upload_files(self, paths: Sequence[Path]) -> None:
        """Do nothing: the files are the cluster's own."""

    def remove_directories(self, run_dirs: Sequence[Path]) -> None:
        """Rename folders out of the way at once, then remove them; see Transport.

        No trash folder is created for them, since a full disk or a file quota may not allow one.
        Signals are deferred.
        """
        moved: list[tuple[Path, Path]] = []
        with defer_signals():
            try:
                for path in run_dirs:
                    aside = path.with_name(f"{TRASH}{os.urandom(8).hex()}")
                    with contextlib.suppress(FileNotFoundError):
                        # a recent mtime protects the folder from cleanup by another process
                        os.utime(path)
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
    """Run a command; after ``timeout`` seconds, or Ctrl-C, kill its whole process group.

    Raises:
        OSError: It cannot be started.
        TimeoutExpired: It did not end in time.
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
        # hpcrun handles Ctrl-C; it must not interrupt a Slurm command halfway.
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            # A process blocked by a dead file system cannot be killed: do not wait long for it. On
            # a busy machine, the end of others takes a moment.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
        # They are open if the command has ended, and a process that it started holds them.
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            with contextlib.suppress(OSError):
                stream.close()
    return Result(list(argv), process.returncode, stdout, stderr)


def _remove_tree(trash: Path) -> None:
    """Delete a folder, also without write permission. Symbolic links are not followed."""
    import shutil  # deferred: it loads three compression libraries, and few commands remove files

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
