"""Writes metrics to trackio's local database, which ``trackio show`` displays.

https://github.com/gradio-app/trackio: its log() has no parameter for the time of a point, so this
calls the function that writes the database, as trackio's own importers do.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError, InputError
from hpcrun.trackers.tracker import SYSTEM_PREFIX, MetricPoint, TrackedRun, check_package

# Names that trackio's log() writes with a prefix, because its tables have columns with these names.
_RESERVED = frozenset(("project", "run", "timestamp", "step", "time", "metrics"))


class TrackioTracker:
    """See Tracker."""

    is_rewindable = False
    batch_size = 10_000

    def __init__(self, environ: Mapping[str, str], folder: Path | None, project: str) -> None:
        check_package("trackio", "trackio")
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            if environ.get(name):
                raise InputError(
                    f"--to trackio writes trackio's local database, but {name} is set",
                    fix=f"unset {name}; `trackio sync` uploads a local project to a Space",
                )
        if folder is not None or environ.get("TRACKIO_DIR"):
            # trackio reads it when it is imported.
            os.environ["TRACKIO_DIR"] = str(folder or environ["TRACKIO_DIR"])
        with _errors():
            from trackio.utils import TRACKIO_DIR

            self._storage().validate_project_name(project)
        self._folder, self._project = Path(TRACKIO_DIR), project
        self.destination = f"{os.path.realpath(self._folder)} {project}"

    def _storage(self) -> Any:
        from trackio.sqlite_storage import SQLiteStorage

        return SQLiteStorage

    def has_run(self, run: TrackedRun, tracker_id: str) -> bool:
        with _errors():
            records = self._storage().get_run_records(self._project)
        return any(record["id"] == run.run_id for record in records)

    def open(self, run: TrackedRun, tracker_id: str) -> str:
        self._run = run
        # trackio stores the settings of a run together with its first points.
        self._config: dict[str, Any] | None = {
            **run.config,
            "hpcrun": run.tags,
            "_Username": run.user,
            "_Created": _format_time(run.started_at),
            "_Group": run.group or None,
        }
        return run.run_id

    def send(self, points: Sequence[MetricPoint], since: int | None) -> None:
        rows = []
        for point in points:
            name = point.name.removeprefix(SYSTEM_PREFIX)
            rows.append({f"__{name}" if name in _RESERVED else name: point.value})
        known = {
            "timestamps": [_format_time(point.at) for point in points],
            # The database ignores a row whose id it has.
            "log_ids": [self._identify(point) for point in points],
            "run_id": self._run.run_id,
        }
        target = (self._project, self._run.name, rows)
        with _errors():
            if points[0].name.startswith(SYSTEM_PREFIX):
                self._storage().bulk_log_system(*target, **known)
                return
            steps = [point.step for point in points]
            self._storage().bulk_log(*target, steps=steps, config=self._config, **known)
        self._config = None

    def _identify(self, point: MetricPoint) -> str:
        text = f"{self._run.run_id} {point.name} {point.step} {point.value!r}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def close(self, state: str, ended_at: float | None) -> str:
        return f"trackio show --project {self._project} (in {self._folder})"


def _format_time(at: float) -> str:
    """Format a time as trackio does.

    >>> _format_time(1795162500.0)
    '2026-11-20T08:15:00+00:00'
    """
    return datetime.fromtimestamp(at, timezone.utc).isoformat()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, ValueError) as error:
        raise HpcrunError(f"trackio: {str(error).splitlines()[0]}") from error
    except (ImportError, AttributeError, TypeError) as error:
        raise HpcrunError(
            f"trackio: this version is not supported ({error})", fix="pip install -U trackio"
        ) from error
