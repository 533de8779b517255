"""Waits for any number of runs at once: looks at their files often, and asks Slurm seldom.

Effects: reads files, few Slurm commands. Never changes or cancels anything.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import read_history, refresh
from hpcrun.slurm.states import UNKNOWN

# How often the files of the runs are looked at, and Slurm is asked, in seconds: twice a minute at
# most while nothing happens (squeue(1), PERFORMANCE), in quick succession only after news.
FILES_EVERY = (0.1, 1.0)
SLURM_EVERY = 30.0
# Each look at a file is a request to the file server.
RUNS_A_SECOND = 100
AFTER_NEWS = (0.3, 1.0, 2.0, 4.0, 8.0)
# Slurm may call a run over before its last files arrive from the nodes; a job that was killed
# outright has none, so the wait is short.
FILES_LATE = 5.0


def follow_runs(
    context: Context,
    runs: Sequence[RunFolder],
    *,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[RunStatus]:
    """Give each run's status when its state changes, until all are over, or for so many seconds.

    Only runs that are not over yet are asked about, all with one squeue. While Slurm is silent
    their state is UNKNOWN, and the waiting goes on. An end is given once.
    """
    for step in run_steps(context, runs, timeout=timeout):
        if isinstance(step, float):
            sleep(step)
        else:
            yield step


def run_steps(
    context: Context, runs: Sequence[RunFolder], *, timeout: float | None = None
) -> Iterator[RunStatus | float]:
    """Give what follow_runs() gives, and the pauses between: seconds that the caller sleeps."""
    begin = time.monotonic()
    live = list(dict.fromkeys(runs))
    shown: dict[Path, tuple[str, str]] = {}
    signs: list[tuple[int, bool]] = []
    pauses: Iterator[float] = iter(())
    due, pause, is_silent = begin, FILES_EVERY[0], False
    while live:
        now_signs = [_signs(run) for run in live]
        if now_signs != signs:
            signs, pauses, due = now_signs, iter(AFTER_NEWS), time.monotonic()
            pause = FILES_EVERY[0]
        if time.monotonic() >= due:
            over = []
            statuses = status_of(context, live)
            was_silent, is_silent = is_silent, any(s.verdict.state == UNKNOWN for s in statuses)
            if was_silent and not is_silent:
                pauses = iter(AFTER_NEWS)  # Slurm is back, and learns now what it has missed
            for status in statuses:
                state = (status.verdict.state, status.verdict.reason)
                if status.verdict.final:
                    over.append(status)
                elif shown.get(status.run.path) != state:
                    shown[status.run.path] = state
                    yield status
            gone = {status.run for status in over}
            signs = [sign for run, sign in zip(live, signs, strict=True) if run not in gone]
            live = [run for run in live if run not in gone]
            yield from _with_last_files(over)
            due = time.monotonic() + next(pauses, SLURM_EVERY * random.uniform(0.9, 1.1))
        left = None if timeout is None else begin + timeout - time.monotonic()
        if not live or (left is not None and left <= 0):
            return
        yield pause if left is None else min(pause, left)
        pause = min(pause * 1.3, max(FILES_EVERY[1], len(live) / RUNS_A_SECOND))


def _signs(run: RunFolder) -> tuple[int, bool]:
    """How many attempts a run's folder shows, and whether the last one has ended."""
    try:
        names = [entry.name for entry in os.scandir(run.attempts)]
    except OSError:
        names = []
    attempts = [int(name) for name in names if name.isdigit()]
    end = f"{run.attempts}/{max(attempts, default=0)}/end.json"
    return len(attempts), os.access(end, os.F_OK)


def _with_last_files(over: Sequence[RunStatus]) -> Iterator[RunStatus | float]:
    """Give runs that are over with their end records, all together waited for a moment."""
    waiting = list(over)
    deadline = time.monotonic() + FILES_LATE
    while waiting:
        is_late = time.monotonic() >= deadline
        still = []
        for status in waiting:
            refresh(status.run)
            history = read_history(status.run)
            end = history.last.end if history.last else None
            if end is not None and status.verdict.exit_code is None:
                verdict = structs.replace(status.verdict, exit_code=end.exit_code)
                status = structs.replace(status, history=history, verdict=verdict)
            settled = end is not None or history.last is None or status.verdict.source == "record"
            if settled or is_late:
                yield status
            else:
                still.append(status)
        waiting = still
        if waiting:
            yield 0.2
