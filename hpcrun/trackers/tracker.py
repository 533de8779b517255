"""What every tracker has in common: a run, and points of its metrics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple, Protocol

from msgspec import Struct

from hpcrun.errors import InputError

# Metrics with this prefix describe the nodes; their step is in seconds since the run began.
SYSTEM_PREFIX = "system/"


class MetricPoint(NamedTuple):
    """A value of a metric; ``at`` is in seconds since the epoch."""

    name: str
    step: int
    at: float
    value: float


class TrackedRun(Struct, frozen=True, kw_only=True):
    """What a tracker shows of a run besides its metrics. Nothing in it is secret.

    Attributes:
        run_id: Identifies the run in every tracker; all its attempts are one run there.
        project: The experiment of MLflow, or the project of W&B and trackio.
        group: The sweep of the run; "" without one.
        config: The settings of the run, by key.
        tags: Facts about the run, such as its commit and its jobs, by key.
        notes: A text in Markdown: where the run is.
        started_at: The start of the first attempt, in seconds since the epoch.
    """

    run_id: str
    name: str
    project: str
    group: str
    config: dict[str, str]
    tags: dict[str, str]
    notes: str
    user: str
    started_at: float


class Tracker(Protocol):
    """Receives the metrics of one run.

    Attributes:
        destination: Identifies the place of the run in the tracker, without secrets.
        is_rewindable: Whether ``send`` can replace points that were sent before.
        batch_size: The highest number of points for one call of ``send``.
    """

    destination: str
    is_rewindable: bool
    batch_size: int

    def has_run(self, run: TrackedRun, tracker_id: str) -> bool:
        """Return False if the run of an earlier call was deleted in the tracker."""

    def open(self, run: TrackedRun, tracker_id: str) -> str:
        """Create the run, or find the one of an earlier call; return the tracker's id of it.

        Args:
            tracker_id: What an earlier call has returned; "" if unknown.
        """

    def send(self, points: Sequence[MetricPoint], since: int | None) -> None:
        """Store points; they are stored when the method returns.

        Args:
            since: Discard the points from this step on first; None, unless is_rewindable.
        """

    def close(self, state: str, ended_at: float | None) -> str:
        """Record the state; return where the run is shown.

        Args:
            state: The state of the job in Slurm's words; "" if it has not ended.
        """


def check_package(tracker: str, package: str) -> None:
    """Raise InputError if the Python package of a tracker is missing.

    >>> check_package("mlflow", "json")
    """
    if find_spec(package) is None:
        install = {"mlflow": "mlflow-skinny"}.get(package, package)
        raise InputError(
            f"--to {tracker} needs the package {install}",
            fix=f"{sys.executable} -m pip install {install}",
        )
