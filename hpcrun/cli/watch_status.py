"""hpcrun status --watch: the same picture, drawn anew as it changes."""

from __future__ import annotations

import contextlib
import io
import random
import sys
import time
from contextlib import nullcontext

import click
from msgspec import structs

from hpcrun.cli.output import is_terminal, note, width_and_height
from hpcrun.cli.status_view import Shown, show
from hpcrun.controller.context import Context
from hpcrun.controller.state.status import Memory
from hpcrun.errors import InputError
from hpcrun.report.live import Screen
from hpcrun.views.table import cells, cut

# In seconds: the runs' files cost little; Slurm is asked twice a minute at most (squeue(1),
# PERFORMANCE), and less often while nothing changes.
_FILES, _SLURM, _SLURM_AT_MOST = 2.0, 30.0, 120.0
_SLICE = 0.1


class _Page(io.StringIO):
    """Catches what would be printed, as on the terminal behind it."""

    encoding = property(lambda self: sys.__stdout__.encoding if sys.__stdout__ else "ascii")

    def isatty(self) -> bool:
        return True


def watch_status(context: Context, word: str | None, count: int | None, *, each_task: bool) -> int:
    """Draw until Ctrl-C, or until all that is shown is over; then print it once more.

    Raises InputError where the output is no terminal.
    """
    if not is_terminal():
        raise InputError(
            "--watch draws on a terminal",
            fix="hpcrun wait waits for runs; a loop may call hpcrun status twice a minute",
        )
    memory = Memory()
    keyboard = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
    page, shown = _page(context, word, count, each_task, memory)  # errors before the picture
    context = structs.replace(context, waiting=nullcontext)  # a word would stand in the picture
    with Screen(sys.stdout, keyboard) as screen:
        asked_at, wait, due = time.monotonic(), _SLURM, time.monotonic() + _SLURM
        look, states = asked_at + _FILES, shown.states
        while not (shown.is_over and word is not None):
            screen.draw(_fitted(page, due - time.monotonic()))
            while time.monotonic() < look and not screen.is_stale:
                time.sleep(_SLICE)
            look = time.monotonic() + _FILES
            if time.monotonic() >= due:
                memory.clear()
            is_asked = not memory
            page, shown = _page(context, word, count, each_task, memory)
            is_news = shown.states != states
            if is_asked:
                asked_at, states = time.monotonic(), shown.states
            if is_asked or is_news:  # the files tell of what Slurm has not been asked about yet
                wait = _SLURM if is_news else min(wait * 1.5, _SLURM_AT_MOST)
                due = asked_at + wait * random.uniform(1.0, 1.1)
    for line in page:
        sys.stdout.write(line + "\n")
    if shown.silent:
        note(f"Slurm is out of reach: {shown.silent}")
    return shown.exit_code


def _page(
    context: Context, word: str | None, count: int | None, each_task: bool, memory: Memory
) -> tuple[list[str], Shown]:
    caught = _Page()
    with contextlib.redirect_stdout(caught):
        shown = show(context, word, count, each_task=each_task, memory=memory)
    return caught.getvalue().splitlines(), shown


def _fitted(page: list[str], left: float) -> list[str]:
    """As many lines as the window has; below them when Slurm is asked again."""
    width, height = width_and_height()
    foot = f"Slurm is asked again in {max(left, 0):.0f} s; Ctrl-C ends this"
    room = max(height - 2, 1)
    cut_off = [f"... {len(page) - room + 1} more lines"] if len(page) > room else []
    kept = page[: room - 1] if cut_off else page
    return [_cut(line, width - 1) for line in [*kept, *cut_off, "", foot]]


def _cut(line: str, width: int) -> str:
    plain = click.unstyle(line)
    return line if cells(plain) <= width else cut(plain, width)
