"""Writes event files of TensorBoard, one folder per run, and one for its system metrics.

A point cannot be changed in an event file. The file has a mark instead, a session that starts at a
step, from which on TensorBoard discards what it read before. This is how a resumed training with
SummaryWriter(purge_step=...) replaces the steps that it repeats.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hpcrun.files import write_error
from hpcrun.trackers.tracker import SYSTEM_PREFIX, MetricPoint, TrackedRun, check_package

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

_EVENT_FILE_PREFIX = "events.out.tfevents."


class TensorboardTracker:
    """See Tracker."""

    is_rewindable = True
    batch_size = 100_000

    def __init__(self, folder: Path) -> None:
        check_package("tensorboard", "tensorboard")
        self._folder = folder
        self._files: dict[Path, IO[bytes]] = {}
        self.destination = os.path.realpath(folder)

    def has_run(self, run: TrackedRun, tracker_id: str) -> bool:
        return any((self._folder / run.run_id).glob(f"{_EVENT_FILE_PREFIX}*"))

    def open(self, run: TrackedRun, tracker_id: str) -> str:
        from tensorboard.plugins.text.summary_v2 import text_pb

        # The folder is always the run's own, whatever an earlier record says.
        self._run = run.run_id
        if not tracker_id:
            rows = [*run.tags.items(), *run.config.items()]
            table = "".join(f"| {_escape(key)} | {_escape(value)} |\n" for key, value in rows)
            text = f"{run.notes}\n\n| setting | value |\n|---|---|\n{table}"
            # Before step 0, from which on all points may be replaced later.
            self._write(self._folder / self._run, [(-1, run.started_at, text_pb("hpcrun", text))])
        return self._run

    def send(self, points: Sequence[MetricPoint], since: int | None) -> None:
        """Append points; the names of all must be system metrics, or of none."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        is_system = points[0].name.startswith(SYSTEM_PREFIX)
        folder = self._folder / self._run / ("system" if is_system else "")
        events = [
            (
                point.step,
                point.at,
                Summary(
                    value=[
                        Summary.Value(
                            tag=point.name.removeprefix(SYSTEM_PREFIX), simple_value=point.value
                        )
                    ]
                ),
            )
            for point in points
        ]
        self._write(folder, events, since)

    def _write(
        self, folder: Path, events: Sequence[tuple[int, float, Summary]], since: int | None = None
    ) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            is_new = folder not in self._files
            if is_new:
                self._files[folder] = _create_event_file(folder)
            file = self._files[folder]
            records = RecordWriter(file)
            if is_new:
                records.write(Event(file_version="brain.Event:2").SerializeToString())
            if since is not None:
                start = SessionLog(status=SessionLog.START)
                records.write(
                    Event(step=since, wall_time=events[0][1], session_log=start).SerializeToString()
                )
            for step, at, summary in events:
                event = Event(step=step, wall_time=at, summary=summary)
                records.write(event.SerializeToString())
            file.flush()
        except OSError as error:
            raise write_error(folder, error) from error

    def close(self, state: str, ended_at: float | None) -> str:
        for file in self._files.values():
            file.close()
        self._files.clear()
        return f"tensorboard --logdir {self._folder}"


def _create_event_file(folder: Path) -> IO[bytes]:
    """Create an event file after all others, as TensorBoard reads them in the order of names."""
    folder.mkdir(parents=True, exist_ok=True)
    now = int(time.time())
    for path in folder.glob(f"{_EVENT_FILE_PREFIX}*"):
        stamp = path.name.removeprefix(_EVENT_FILE_PREFIX).partition(".")[0]
        now = max(now, int(stamp) + 1 if stamp.isdecimal() else now)
    return (folder / f"{_EVENT_FILE_PREFIX}{now:010d}.{socket.gethostname()}.hpcrun").open("xb")


def _escape(text: str) -> str:
    """Escape a cell of a table in Markdown."""
    return " ".join(text.split()).replace("|", "\\|")
