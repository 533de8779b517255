"""A command that redraws the terminal until it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import click

from tests.cli.calling import Caller

WATCH = """\
import sys
from hpcrun.monitor import poll
files, poll.QUERY_PAUSE_S, poll.MAX_QUERY_PAUSE_S = map(float, sys.argv[1:4])
from hpcrun.cli import watch_status
watch_status._FILES_EVERY = files
sys.argv = ["hpcrun", "status", "--watch", *sys.argv[4:]]
from hpcrun.cli.main import main
main()
"""


class Watching:
    """hpcrun status --watch on a terminal, with modified intervals."""

    def __init__(self, hpcrun: Caller, *argv: str, files: float = 0.1, slurm: float = 600) -> None:
        seconds = (str(files), str(slurm), str(8 * slurm))
        self.process, self.main = hpcrun.on_terminal(
            sys.executable, "-c", WATCH, *seconds, *argv, columns=120
        )
        self.got = b""

    def pictures(self, count: int) -> list[str]:
        """Wait for more refreshes; raises the error of the terminal if the process ends."""
        begin = len(self.got)
        while self.got.count(b"\x1b[?2026l", begin) < count:
            self.got += os.read(self.main, 65536)
        return click.unstyle(self.got[begin:].decode()).split("\x1b[?2026l")[:count]

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(self.main, 65536):
                self.got += piece
        os.close(self.main)
        assert self.process.wait() == 130 and b"Traceback" not in self.got
