"""Signals that wait until what must not be cut in two is done; a limit for what takes for ever."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Hold Ctrl-C and a dropped line back until Slurm's answer is recorded.

    Else a job could run that nobody knows.
    """
    caught: list[int] = []
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is None:
                continue  # not Python's, in a program that embeds it: it could not be put back
            before[number] = signal.signal(number, lambda number, frame: caught.append(number))
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
    for one in caught:
        signal.raise_signal(one)


@contextlib.contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raise ``error`` where the block has computed for so long, in seconds of the CPU.

    It ends a search for a pattern that would take years. Only the main thread gets signals: in
    others the block has all the time that it takes.
    """

    def stop(number: int, frame: object) -> None:
        raise error

    try:
        before = signal.signal(signal.SIGVTALRM, stop)
    except ValueError:
        yield
        return
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
