"""hpcrun status --watch: redraws the result of a query as it changes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from msgspec import structs

from hpcrun.actions import EvaluationSubmitter, NotificationSender
from hpcrun.cli.output import can_draw, encodable, output_display, width_and_height
from hpcrun.cli.show_status import QueryCache, StatusQuery, StatusResult, print_status, query_status
from hpcrun.context import Context
from hpcrun.curves import Screen
from hpcrun.errors import InputError, OutOfReach
from hpcrun.monitor import MAX_QUERY_PAUSE_S, QUERY_PAUSE_S, Monitor, QueryPace, WatchedJobs
from hpcrun.runs import JobStatus
from hpcrun.text import truncate

# Seconds between two reads of the runs' own files, and the length of one slice of waiting.
_FILES_EVERY, _SLICE = 2.0, 0.1


class _WatchedQuery(WatchedJobs):
    """A query that is repeated, since other runs may become the newest."""

    def __init__(self, query: StatusQuery) -> None:
        self.is_open = query.word is None
        self.found = StatusResult(kind="listing", statuses=[])
        self._query = query
        self._cache = QueryCache()

    def query(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Repeat it with new answers. Raises InputError, and OutOfReach for the first query."""
        self._cache.clear()
        self.next_check = math.inf  # without an answer the files are not read
        try:
            return self._find(context, pace)
        except OutOfReach as silence:
            if not self.found.statuses:
                raise
            self.found = structs.replace(self.found, silence=silence.message)
            return None

    def check_files(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Read the runs' files again, with Slurm's last answers."""
        now = time.monotonic()
        if now < self.next_check or pace.is_due(now):
            return None
        live = (each for each in self.found.statuses if not each.final)
        pace.refresh(context, [each.run for each in live if each.run is not None])
        return self._find(context, pace)

    def _find(self, context: Context, pace: QueryPace) -> Sequence[JobStatus]:
        before = self.found.states
        self.found = query_status(context, self._query, self._cache)
        self.next_check = time.monotonic() + _FILES_EVERY
        if self.found.states != before:
            pace.request_query(time.monotonic(), apart=QUERY_PAUSE_S)
        return self.found.statuses


def watch_status(context: Context, query: StatusQuery) -> int:
    """Redraw until Ctrl-C, or until the named job is over; then print it once more.

    Raises:
        InputError: The output is not a terminal.
    """
    if not can_draw():
        raise InputError(
            "--watch needs a terminal",
            fix="hpcrun wait waits for runs; a loop may call hpcrun status twice a minute",
        )
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    asked = _WatchedQuery(query)
    monitor = Monitor(context, [asked], calmest=MAX_QUERY_PAUSE_S)
    snapshot = monitor.poll()  # errors are raised before the picture
    # A note about waiting would appear in the picture.
    monitor.context = structs.replace(context, waiting=nullcontext)
    sender, submitter = NotificationSender(monitor.context), EvaluationSubmitter(monitor.context)
    with Screen(sys.stdout, keyboard) as screen:
        while not snapshot.is_over:
            sender.check_if_due(asked.found.statuses)
            submitter.check_if_due(asked.found.statuses)
            screen.draw(_draw_page(asked.found, monitor.seconds_until_query))
            until = time.monotonic() + _FILES_EVERY
            while time.monotonic() < until and not screen.is_stale:
                time.sleep(_SLICE)
            snapshot = monitor.poll()
    sender.finish(asked.found.statuses)
    return print_status(asked.found)


def _draw_page(found: StatusResult, left: float) -> list[str]:
    width, height = width_and_height()
    page = found.lines(output_display())
    foot = f"next refresh in {left:.0f} s; Ctrl-C quits"
    foot = f"no answer: {foot}" if found.silence else foot
    room = max(height - 2, 1)
    cut_off = [f"... {len(page) - room + 1} more lines"] if len(page) > room else []
    kept = page[: room - 1] if cut_off else page
    return [
        truncate(encodable(line), width - 1, output_display())
        for line in [*kept, *cut_off, "", foot]
    ]
