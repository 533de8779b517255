"""The cluster is here: commands are processes of this machine."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from hpcrun.errors import HpcrunError, OutOfReach
from hpcrun.transport import Result


class LocalTransport:
    """Runs commands here, with one environment.

    At ``deadline`` (by time.monotonic) every command is cut off, whatever its own limit. Each runs
    inside ``waiting``.
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
        if self.deadline is not None:
            timeout = min(timeout, self.deadline - time.monotonic())
            if timeout <= 0:
                # As if it had been asked: no other question would be answered either.
                raise OutOfReach(f"{argv[0]} was not asked: the time was up", maybe_done=True)
        try:
            with self.waiting():
                done = subprocess.run(
                    list(argv),
                    cwd=cwd,
                    env=dict(env) if env is not None else self.env,
                    stdin=subprocess.DEVNULL if stdin is None else None,
                    input=stdin,
                    capture_output=True,
                    timeout=timeout,
                    encoding="utf-8",
                    errors="surrogateescape",
                    check=False,
                    # Ctrl-C on the terminal is for us to handle, not for a half-done Slurm command.
                    start_new_session=True,
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
            raise _not_started(argv[0], error) from error
        return Result(list(argv), done.returncode, done.stdout, done.stderr)

    def read(self, path: str, offset: int, limit: int) -> bytes:
        """Read up to ``limit`` bytes from ``offset``; see Transport."""
        with open(path, "rb") as file:  # noqa: PTH123 - a str of any bytes, opened in the hot loop
            file.seek(offset)
            return file.read(limit)

    def size(self, path: str) -> int:
        """Tell a file's size in bytes; see Transport."""
        try:
            return os.stat(path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return 0


def _not_started(program: str, error: OSError) -> OutOfReach:
    """Say which command was not started: login nodes allow few processes, and little memory."""
    fixes = {
        errno.EAGAIN: "as many processes of yours run as are allowed here: end some (ulimit -u)",
        errno.ENOMEM: "as much memory of yours is in use as is allowed here (ulimit -v)",
        errno.EMFILE: "as many files are open as are allowed here (ulimit -n)",
    }
    return OutOfReach(
        f"{program} cannot be started here: {error.strerror}",
        fix=fixes.get(error.errno or 0, ""),
    )
