"""Logs printed in a framework's own format where the framework cannot run on a few CPUs.

A format is a fact: each one names the file that prints it and the version that was read. What is
around it (start-up, warnings, other ranks, tracebacks) is what such logs have, made up and short.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tests.curves.made.truth import summarise

FORMATS: list[Format] = []


class Log:
    """A log in the making, and what was logged in it."""

    def __init__(self, seed: str) -> None:
        self.text = ""
        self.notes: list[dict[str, Any]] = []
        self.random = random.Random(seed)
        self.clock = datetime(2026, 11, 20, 8, 4, 9)

    def line(self, text: str = "") -> None:
        """Print a line."""
        self.text += text + "\n"

    def note(self, step: int | None, **values: str) -> None:
        """Record the value logged at a step, as printed."""
        self.notes.append({"step": step, **values})

    def losses(self, count: int, first: float, last: float) -> Iterator[float]:
        """Yield a falling loss with some noise."""
        for index in range(count):
            share = math.exp(-4.0 * index / count)
            yield last + (first - last) * share + self.random.gauss(0, 0.01 * last)

    def near(self, value: float, spread: float = 0.02) -> float:
        """Return a noisy measurement of a constant."""
        return value * (1 + self.random.uniform(-spread, spread))

    def wait(self, seconds: float) -> datetime:
        """Advance the time; return the new time."""
        self.clock += timedelta(seconds=seconds)
        return self.clock

    def stamp(self) -> str:
        """Return the time as formatted by Python's logging."""
        return f"{self.clock:%Y-%m-%d %H:%M:%S},{self.clock.microsecond // 1000:03d}"


class Format(NamedTuple):
    """A log, what prints its format, and how to print it."""

    name: str
    source: str
    write: Callable[[Log], None]
    stepless: bool = False
    warnings: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    note: str = ""


def printed(name: str, source: str, **rest: Any) -> Callable[[Any], Any]:
    """Register a function that prints a log."""

    def put(write: Callable[[Log], None]) -> Callable[[Log], None]:
        FORMATS.append(Format(name, source, write, **rest))
        return write

    return put


def make_printed(made: Format) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Print a log; return its file and its entry in the index."""
    log = Log(made.name)
    made.write(log)
    entry = {
        "name": made.name,
        "files": [f"{made.name}.log"],
        "framework": made.source,
        "made_by": f"{made.write.__module__.rpartition('.')[2]}.py {made.write.__name__}",
        **summarise(log.notes, stepless=made.stepless),
        "warnings": list(made.warnings),
        **({"ambiguous": list(made.ambiguous)} if made.ambiguous else {}),
        **({"note": made.note} if made.note else {}),
    }
    return {entry["files"][0]: log.text.encode("utf-8", "surrogateescape")}, entry


def bar(done: int, total: int, seconds: float, postfix: str = "", label: str = "") -> str:
    """Return a bar as tqdm draws it into a file (tqdm/std.py format_meter, 4.67), ten cells wide.

    >>> bar(3, 6, 1.5, ", loss=2.31", "Epoch 0: ")
    'Epoch 0:  50%|█████     | 3/6 [00:01<00:01,  2.00it/s, loss=2.31]'
    """
    cells, part = divmod(80 * done // total, 8)
    drawn = "█" * cells + (" ▏▎▍▌▋▊▉"[part] if part else "")
    rate = done / seconds if done else 0.0
    speed = f"{rate:5.2f}it/s" if rate >= 1 or not done else f"{1 / rate:5.2f}s/it"
    left = "?" if not done else _clock((total - done) / rate)
    head = f"{label}{100 * done / total:3.0f}%|{drawn:<10}| {done}/{total} "
    return f"{head}[{_clock(seconds)}<{left}, {speed if done else '?it/s'}{postfix}]"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/user/project/train.py", line 412, in <module>
    main()
  File "/home/user/project/train.py", line 371, in main
    loss = model(batch["input_ids"], labels=batch["labels"]).loss
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity \
of 79.15 GiB of which 1.32 GiB is free.
"""
