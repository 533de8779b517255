"""Signals that wait until what must not be cut in two is done."""

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
