"""Where the command line begins: Ctrl-C while its libraries are imported is no traceback."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Import the command line, which takes seconds on a cold network file system, and run it."""
    gc.set_threshold(50_000)  # what is imported stays: to look through it again and again is slow
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup: ignored
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is done yet that must be undone
    from hpcrun.cli.main import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
