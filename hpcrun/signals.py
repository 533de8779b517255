"""Signal handling: defer signals around operations that must complete, or treat them as Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def defer_signals() -> Iterator[list[int]]:
    """Defer SIGINT, SIGTERM and SIGHUP until the end of the block; yield the received signals.

    Use it where Slurm's response must be recorded: an interrupted submission could leave a running
    job without a record.
    """
    caught: list[int] = []
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is None:
                # The embedding program installed this handler from C, so Python could not restore
                # it.
                continue
            before[number] = signal.signal(number, lambda number, frame: caught.append(number))
    except ValueError:  # Only the main thread can set signal handlers.
        yield caught
        return
    try:
        yield caught
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
    for one in caught:
        signal.raise_signal(one)


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, with cleanup; nohup's ignored SIGHUP stays ignored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    try:
        for number in former:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
