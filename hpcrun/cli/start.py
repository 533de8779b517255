"""The entry point of the command line, which ends on Ctrl-C without a traceback at any moment."""

import os
import signal
import sys


def main() -> None:
    """Import the command line, which takes seconds on a cold network file system, and run it.

    During the imports and after the end, Ctrl-C terminates the process silently: there is nothing
    to clean up.
    """
    # nohup ignores SIGINT, which must stay so.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _reopen_closed_streams()
    from hpcrun.cli.main import main as run  # the imports that Ctrl-C may interrupt

    try:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # while an error is printed
        sys.exit(130)
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _reopen_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed (`>&-`).

    Otherwise the next file that is opened gets the number of the stream, and commands that hpcrun
    starts write to that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(null, True)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
