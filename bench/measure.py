"""Measure the wall-clock time of a command, and the memory of it and its children."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_EVERY = 0.02


class Measured(NamedTuple):
    """Wall-clock seconds, and peak memory of all processes in bytes (0 if not measured)."""

    seconds: float
    memory: int
    output: bytes


def measure(command: Sequence[str], *, memory: bool = False) -> Measured:
    """Run a command to its end. Raises CalledProcessError if it fails.

    Memory is the proportional set size (shared memory counts once), sampled every 20 ms.
    """
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    most = [0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_EVERY):
            most[0] = max(most[0], _held(process.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    if memory:
        watcher.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - started
    stop.set()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Measured(seconds, most[0], output)


def _held(pid: int) -> int:
    """Sum the proportional set sizes of a process and its children in bytes."""
    total = 0
    for each in (pid, *_children(pid)):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024


def _children(pid: int) -> list[int]:
    found = []
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    for child in map(int, words):
        found += [child, *_children(child)]
    return found
