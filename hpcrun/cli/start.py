"""Where the command line begins: Ctrl-C is no traceback, while it is imported or after its end."""

# Not signal, which takes longer to import than all that comes before it.
import _signal  # type: ignore[import-not-found]
import gc
import os
import sys


def main() -> None:
    """Import the command line, which takes seconds on a cold network file system, and run it."""
    gc.set_threshold(50_000)  # what is imported stays: to look through it again and again is slow
    is_usual = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # nohup: ignored
    if is_usual:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # nothing is done yet that must be undone
    _reopen_closed_streams()
    from hpcrun.cli.main import main as run

    try:
        if is_usual:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # while the error is shown
        sys.exit(130)
    finally:
        if is_usual:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # nor is anything at Python's own end


def _reopen_closed_streams() -> None:
    """Open /dev/null where the caller has closed a stream (>&-): else the next file has its number,
    and commands that are started write into that."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(null, True)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
