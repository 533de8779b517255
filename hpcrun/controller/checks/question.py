"""A command that is asked something aside: its answer counts if it comes in time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence


class Question:
    """A command started at once, whose answer is read later; what it says on stderr is nothing."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the command where it is on the PATH."""
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        program = shutil.which(argv[0], path=environ.get("PATH"))
        if program is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                [program, *argv[1:]],
                env={**environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def answer(self, patience: float) -> tuple[int, str] | None:
        """Give the exit code and the output; None where there is none.

        ``patience`` is in seconds, counted from the start of the command.
        """
        process = self._process
        if process is None:
            return None
        left = max(0.0, patience - (time.monotonic() - self._began))
        try:
            out, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            self.drop()
            return None
        except BaseException:  # Ctrl-C
            self.drop()
            raise
        return process.returncode, out.decode("utf-8", "replace")

    def drop(self) -> None:
        """End the command and what it started; its answer is wanted no more."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        # A process that hangs in a dead file system cannot end: it is not waited for long.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
