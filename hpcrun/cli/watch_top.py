"""The loop of hpcrun top: polls, draws, and reads the keyboard."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import click
from msgspec import structs

from hpcrun.actions import Top
from hpcrun.cli.output import (
    drawing_display,
    emit_json,
    print_line,
    print_lines,
    print_note,
    replace_unencodable,
    width_and_height,
)
from hpcrun.context import Context
from hpcrun.curves import Screen, end_by_signal
from hpcrun.errors import InputError, OutOfReach
from hpcrun.text import cut_text, format_count
from hpcrun.views import format_top, top_json

# Seconds between two polls, between two redraws of unchanged data (clocks), and how long a snapshot
# waits for the nodes.
_LOOK, _DRAW = 0.1, 1.0
_PATIENCE = 8.0
_NO_JOBS = "you have no running or pending jobs; hpcrun status lists past runs"


def print_snapshot(
    context: Context, words: Sequence[str], *, count: int, usage: bool, as_json: bool
) -> int:
    """Print one snapshot once Slurm, the logs and the nodes have answered."""
    with _watching(context, words, count=count, usage=usage) as top:
        begun = time.monotonic()
        while not top.has_all():
            if not top.is_known and top.out_of_reach:
                raise OutOfReach(top.out_of_reach)
            if top.is_known and time.monotonic() - begun > _PATIENCE:
                break
            if not top.poll():
                time.sleep(_LOOK / 2)
        jobs = top.jobs()
        _require_jobs(words, is_empty=not jobs)
        if as_json:
            name = context.cluster.name
            emit_json(top_json(jobs, cluster=name, at=time.time(), left_out=top.left_out))
            return 0
        for block in format_top(jobs, structs.replace(drawing_display(), height=0)):
            print_lines(map(replace_unencodable, block))
        if top.left_out:
            print_line(
                f"and {format_count(top.left_out, 'more job')}: -n {len(jobs) + top.left_out}"
            )
        if not jobs:
            print_line(_NO_JOBS)
    return 0


def watch_top(context: Context, words: Sequence[str], *, count: int, usage: bool) -> int:
    """Redraw until q or Ctrl-C, or until all named jobs are over."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    context = structs.replace(context, waiting=nullcontext)  # a note would appear in the picture
    from hpcrun.actions import EvaluationSubmitter, NotificationSender

    with _watching(context, words, count=count, usage=usage) as top:
        with Screen(sys.stdout, keyboard) as screen:
            screen.draw([cut_text("asking Slurm ...", width_and_height()[0] - 1)])
            was_there, drawn = False, 0.0
            sender, submitter = NotificationSender(context), EvaluationSubmitter(context)
            while True:
                now = time.monotonic()
                news = top.poll()
                is_due = news or screen.is_stale or now - drawn >= _DRAW
                if is_due and (top.is_known or top.out_of_reach):
                    screen.draw([replace_unencodable(row) for row in _draw_page(context, top)])
                    drawn = now
                sender.check_if_due(top.jobs())
                submitter.check_if_due(top.jobs())
                is_empty = top.is_known and not top.jobs()
                if words and is_empty:
                    break
                was_there |= top.is_known
                if _is_quit(keyboard):
                    return 0
        _require_jobs(words, is_empty=not was_there)
        print_note(f"{', '.join(words)}: no longer running or pending")
        print_note(f"  hpcrun status {words[0]}")
    return 0


@contextmanager
def _watching(context: Context, words: Sequence[str], *, count: int, usage: bool) -> Iterator[Top]:
    """Watch jobs, and end the usage steps in any case, also on SIGTERM, SIGHUP and Ctrl-C."""
    polite = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end_by_signal) for number in polite}
    top = Top(context, words, count=count, usage=usage)
    try:
        yield top
    finally:
        top.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _require_jobs(words: Sequence[str], *, is_empty: bool) -> None:
    if words and is_empty:
        raise InputError(
            f"{', '.join(words)}: neither running nor pending", fix=f"hpcrun status {words[0]}"
        )


def _draw_page(context: Context, top: Top) -> list[str]:
    look = drawing_display()
    look, height = structs.replace(look, width=max(1, look.width - 1)), look.height
    jobs = top.jobs()
    blocks = format_top(jobs, look)
    rows: list[str] = []
    shown = 0
    for number, block in enumerate(blocks):
        if len(rows) + len(block) > height - 2:
            if number == 1:  # at least a part of the first job
                rows += block[: max(0, height - 2 - len(rows))]
                shown = 1
            break
        rows += block
        shown = number
    if not jobs and top.is_known:
        rows = [cut_text(_NO_JOBS, look.width)]
    hidden = len(jobs) - shown + top.left_out
    bottom = _format_footer(context, top, hidden)
    rows = [*rows, *[""] * (height - 1 - len(rows))][: max(0, height - 1)]
    text = cut_text(bottom, look.width)
    return [*rows, click.style(text, dim=True) if look.colour else text]


def _format_footer(context: Context, top: Top, hidden: int) -> str:
    parts = [time.strftime("%H:%M:%S")]
    if hidden > 0:
        parts.append(f"{format_count(hidden, 'more job')} not shown")
    if top.out_of_reach:
        parts.append(f"Slurm cannot be reached: {top.out_of_reach}")
    parts += ["q quits; the jobs continue", f"cluster {context.cluster.name}"]
    return " - ".join(parts)


def _is_quit(keyboard: int | None) -> bool:
    """Wait briefly; return True if q was typed."""
    if keyboard is None:
        time.sleep(_LOOK)
        return False
    if not select.select([keyboard], [], [], _LOOK)[0]:
        return False
    typed = os.read(keyboard, 64)
    if not typed:  # the terminal is closed
        raise SystemExit(128 + signal.SIGHUP)
    return b"q" in typed or b"Q" in typed
