"""Signals that wait until what must not be cut in two is done, or end a thing as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def defer_signals() -> Iterator[list[int]]:
    """Hold Ctrl-C and a dropped line back until Slurm's answer is recorded; give what has come.

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
    """Let TERM and HUP end this as Ctrl-C does, with what is to be tidied up; nohup's HUP stays."""

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
