"""Live curves on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

import click
from msgspec import structs

from hpcrun.actions import CurveFollower, Followed, add_cause, parse_runs
from hpcrun.cli.output import can_draw, print_note, replace_unencodable, width_and_height
from hpcrun.cli.show_curve import draw_report
from hpcrun.context import Context
from hpcrun.curves import ParsedRun, Screen
from hpcrun.text import Display, truncate_start
from hpcrun.views import describe_reason, format_verdict

# Minimum seconds between two drawings, and minimum pause as a multiple of the time for deriving and
# drawing the curves, which bounds the CPU load.
_EVERY = 0.5
_SHARE = 10


def watch_curve(
    context: Context,
    words: Sequence[str],
    *,
    patterns: Sequence[str],
    metric: str | None,
    full: bool,
    every: int,
    is_quiet: bool,
) -> tuple[list[ParsedRun], bool]:
    """Follow the named runs and logs to their end; return the runs, and whether all succeeded.

    A log file has no known end: Ctrl-C ends it, and prints the last report.
    """
    is_drawn = can_draw() and not is_quiet
    if is_drawn:
        # a note would appear in the picture
        context = structs.replace(context, waiting=nullcontext)
    follower = CurveFollower(context, words, patterns=patterns, every=every)
    try:
        if is_drawn:
            _draw_on(context, follower, metric)
        else:
            follower.wait(None)
        last = follower.snapshot()
    except KeyboardInterrupt:
        last = follower.snapshot()
        followed = " and ".join(status.label for status in last.statuses if status is not None)
        if followed:
            print_note(f"stopped following {followed}, which continues")
            raise
    for status in last.statuses:
        if status is not None and status.final:
            print_note(format_verdict(add_cause(context, status), Display(colour=True)))
    if follower.has_pipe:
        return last.runs, last.ok
    if not follower.has_all():
        follower.wait(0.0)
        return follower.snapshot().runs, last.ok
    # Parse again from the start: late lines of the nodes are now in their place.
    return parse_runs(context, words, patterns=patterns, full=full, every=every), last.ok


def _draw_on(context: Context, follower: CurveFollower, metric: str | None) -> None:
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    with Screen(sys.stdout, keyboard) as screen:
        every = 0.0
        screen.draw(["reading ..."])
        while not follower.wait(every, lambda: screen.is_stale):
            begun = time.monotonic()
            screen.draw(_draw_page(context, follower.snapshot(), metric))
            every = max(_EVERY, _SHARE * (time.monotonic() - begun))


def _draw_page(context: Context, followed: Followed, metric: str | None) -> list[str]:
    width, height = width_and_height()
    found = [run for run in followed.runs if run.curve.metrics]
    if found:
        size = width - 1, height - 1
        rows = draw_report(context, found, metric=metric or None, size=size).splitlines()
    else:
        names = ", ".join(run.source for run in followed.runs)
        rows = [truncate_start(f"{names}: no metrics yet", width - 1)]
    rows = [*rows, *[""] * (height - 1 - len(rows))][: height - 1]
    bottom = truncate_start(_format_footer(followed), width - 1)
    rows = [*rows, click.style(bottom, dim=True)] if height > 1 else rows
    return [replace_unencodable(row) for row in rows]


def _format_footer(followed: Followed) -> str:
    states = [
        f"{status.label} {status.state}"
        + (f" ({describe_reason(status.verdict)})" if status.verdict.reason else "")
        for status in followed.statuses
        if status is not None
    ]
    size = sum(run.bytes for run in followed.runs)
    news = f"{time.strftime('%H:%M:%S')}, {size:,} bytes"
    return " - ".join([*states, news, "Ctrl-C ends the following"])
