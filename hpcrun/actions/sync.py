"""Send the metrics of runs to an experiment tracker, and continue where an earlier call ended."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hpcrun.actions.follow_curve import CurveFollower
from hpcrun.actions.parse import CurveLog
from hpcrun.actions.run_facts import read_run_facts
from hpcrun.context import Context
from hpcrun.curves import Curve, metric_tags, x_axis
from hpcrun.errors import InputError, OutOfReach
from hpcrun.files import write_error
from hpcrun.monitor import find_sources, status_of
from hpcrun.plan import Plan, format_label
from hpcrun.runs import (
    OK_STATES,
    History,
    JobStatus,
    NodeSeries,
    RunFolder,
    attempt_indices,
    parse_creation_time,
    read_history,
    read_node_usage,
    read_optional_record,
    read_plan,
    read_task,
    write_record,
)
from hpcrun.trackers import SYSTEM_PREFIX, MetricPoint, TrackedRun, Tracker

# Points of a growing log are sent at most this often.
SEND_INTERVAL_S = 10.0
# Of the time since the last points, at most one part in this many is spent on deriving the curves.
_CPU_SHARE = 10
# Steps that a tracker's 64-bit integer, and a float in between, can represent.
_MAX_STEP = 1 << 53

# A point that was sent: the index of the metric's name in SyncRecord.names, its step and its value.
_SENT_POINT = np.dtype([("metric", "<u4"), ("step", "<i8"), ("value", "<f8")])
# Instead of a metric: the tracker discarded the earlier points from this step on, those of the
# system metrics if the value is 1, and those of all other metrics if it is 0.
_DISCARD = 0xFFFFFFFF


class SyncRecord(Struct, kw_only=True):
    """What a machine recorded about a run in a tracker, beside the points that were sent.

    Attributes:
        tracker_id: The tracker's id of the run.
        names: The names of the metrics, which the points refer to by index.
    """

    tracker_id: str = ""
    names: list[str] = []


class MetricSeries(Struct, frozen=True):
    """A metric as it is sent: one value for each of its increasing steps."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]


class SentPoints:
    """The points of a run that a tracker has, in a folder of the run's cache.

    Only one process writes there. A point is recorded after it was sent, so a process that is
    killed in between sends it again.
    """

    def __init__(self, folder: Path) -> None:
        """Read the points. Raises InputError if the folder cannot be written."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise write_error(folder, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise InputError(
                f"{folder.parent.parent.parent.name}: another hpcrun sync sends it there already",
                fix="let it continue, or end it first",
            ) from error
        except OSError:
            pass  # some network file systems have no locks
        record = read_optional_record(folder / "sync.json", SyncRecord)
        if record is None:  # without it, the points have no names
            (folder / "points").unlink(missing_ok=True)
        self.record = record or SyncRecord()
        self._known: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        self._read()

    def _read(self) -> None:
        path, size = self._folder / "points", _SENT_POINT.itemsize
        try:
            data = path.read_bytes()
            if len(data) % size:  # the process was killed while it wrote the last point
                os.truncate(path, len(data) - len(data) % size)
        except FileNotFoundError:
            return
        except OSError as error:
            raise write_error(path, error) from error
        points = _drop_discarded(
            np.frombuffer(data[: len(data) - len(data) % size], _SENT_POINT), self.record.names
        )
        for index, name in enumerate(self.record.names):
            own = points[points["metric"] == index]
            self._remember(name, own["step"], own["value"])

    def _remember(self, name: str, steps: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        before = self._known.get(name)
        if before is not None:
            steps, values = np.append(before[0], steps), np.append(before[1], values)
        last_steps, last_values = _keep_last(steps, values)
        self._known[name] = last_steps, last_values

    def find_unsent(self, name: str, series: MetricSeries) -> NDArray[np.bool_]:
        """Return which points of a metric were not sent, or with another value."""
        if name not in self._known or not len(self._known[name][0]):
            return np.ones(len(series.steps), bool)
        steps, values = self._known[name]
        places = np.minimum(np.searchsorted(steps, series.steps), len(steps) - 1)
        sent = values[places]
        is_equal = (sent == series.values) | (np.isnan(sent) & np.isnan(series.values))
        is_unsent: NDArray[np.bool_] = (steps[places] != series.steps) | ~is_equal
        return is_unsent

    def last_step(self, name: str) -> int | None:
        """Return the highest step of a metric that was sent."""
        known = self._known.get(name)
        return int(known[0][-1]) if known is not None and len(known[0]) else None

    def add(self, points: Sequence[MetricPoint]) -> None:
        """Record points that were sent. Raises InputError."""
        names = self.record.names
        new = dict.fromkeys(point.name for point in points if point.name not in names)
        if new:
            names += new
            self.save()
        indices = {name: index for index, name in enumerate(names)}
        self._append([(indices[each.name], each.step, each.value) for each in points])

    def _append(self, rows: list[tuple[int, int, float]]) -> None:
        path = self._folder / "points"
        try:
            with path.open("ab") as file:
                file.write(np.array(rows, _SENT_POINT).tobytes())
        except OSError as error:
            raise write_error(path, error) from error

    def discard(self, since: int, *, is_system: bool) -> None:
        """Record that the tracker discards the points from a step on. Raises InputError."""
        kept = {
            name: (steps[steps < since], values[steps < since])
            for name, (steps, values) in self._known.items()
            if name.startswith(SYSTEM_PREFIX) == is_system and (steps >= since).any()
        }
        if kept:
            self._append([(_DISCARD, since, float(is_system))])
            self._known |= kept

    def reset(self) -> None:
        """Forget everything, as the tracker has lost the run. Raises InputError."""
        path = self._folder / "points"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
        self.record, self._known = SyncRecord(), {}
        self.save()

    def remember(self, points: Sequence[MetricPoint]) -> None:
        """Take recorded points into account in the next comparison."""
        by_name: dict[str, list[MetricPoint]] = {}
        for point in points:
            by_name.setdefault(point.name, []).append(point)
        for name, own in by_name.items():
            steps = np.array([point.step for point in own], np.int64)
            self._remember(name, steps, np.array([point.value for point in own], float))

    def save(self) -> None:
        """Write the record. Raises InputError."""
        write_record(self._folder / "sync.json", self.record)

    def close(self) -> None:
        os.close(self._lock)


class RunSync:
    """Sends the metrics of one run to a tracker."""

    def __init__(self, context: Context, run: RunFolder, kind: str, tracker: Tracker) -> None:
        """Open the run in the tracker. Raises InputError, OutOfReach, HpcrunError."""
        self.run, self._tracker = run, tracker
        self._history, plan = read_history(run), read_plan(run)
        tracked = describe_run(context, run, plan, self._history)
        self._started_at = tracked.started_at
        place = hashlib.sha256(tracker.destination.encode()).hexdigest()[:12]
        self._sent = SentPoints(run.path / "cache" / "sync" / f"{kind}-{place}")
        try:
            if self._sent.record.tracker_id and not tracker.has_run(
                tracked, self._sent.record.tracker_id
            ):
                self._sent.reset()
            tracker_id = tracker.open(tracked, self._sent.record.tracker_id)
            if tracker_id != self._sent.record.tracker_id:
                self._sent.record.tracker_id = tracker_id
                self._sent.save()
        except BaseException:
            self._sent.close()
            raise
        # An earlier process may have sent points without recording them.
        self._may_have_more = {True, False}

    def send(self, curve: Curve) -> int:
        """Send the new points of the curve and of the nodes; return their number.

        Raises OutOfReach if the tracker cannot be reached; nothing is lost then.
        """
        usage = [
            node
            for attempt in attempt_indices(self.run)
            for node in read_node_usage(self.run, attempt)
        ]
        metrics = build_series_of_curve(curve, self._started_at)
        system = build_series_of_nodes(usage, self._started_at)
        return self._send(metrics, is_system=False) + self._send(system, is_system=True)

    def _send(self, metrics: dict[str, MetricSeries], *, is_system: bool) -> int:
        unsent = {name: self._sent.find_unsent(name, each) for name, each in metrics.items()}
        firsts = [int(metrics[name].steps[mask][0]) for name, mask in unsent.items() if mask.any()]
        if not firsts:
            return 0
        since = None
        if self._tracker.is_rewindable and (
            is_system in self._may_have_more or self._is_rewritten(metrics, unsent)
        ):
            since = min(firsts)
            unsent = {name: metrics[name].steps >= since for name in metrics}
        points = _sort_points(metrics, unsent)
        done: list[MetricPoint] = []
        if since is not None:
            # Recorded first: after an interruption, points may be sent twice but are never missing.
            self._may_have_more.add(is_system)
            self._sent.discard(since, is_system=is_system)
        try:
            for start in range(0, len(points), self._tracker.batch_size):
                part = points[start : start + self._tracker.batch_size]
                self._tracker.send(part, since if start == 0 else None)
                self._sent.add(part)
                done += part
                self._may_have_more.discard(is_system)
        finally:
            self._sent.remember(done)
        return len(points)

    def _is_rewritten(
        self, metrics: dict[str, MetricSeries], unsent: dict[str, NDArray[np.bool_]]
    ) -> bool:
        """Return True if a point comes before one that was sent, as after a restart."""
        for name, mask in unsent.items():
            last = self._sent.last_step(name)
            if last is not None and mask.any() and metrics[name].steps[mask][0] <= last:
                return True
        return False

    def close(self, status: JobStatus | None) -> str:
        """Record the state of the run; return where the tracker shows it."""
        state = status.state if status is not None and status.final else ""
        if status is not None and state in OK_STATES:
            state = "COMPLETED"  # Slurm's own state of a run that its search pruned
        try:
            return self._tracker.close(state, status.ended_at if status is not None else None)
        finally:
            self._sent.close()


class RunSyncs:
    """Sends the metrics of several runs, each of which is opened when it has begun.

    Attributes:
        counts: The number of points that were sent, by run.
    """

    def __init__(
        self,
        context: Context,
        kind: str,
        make: Callable[[str], Tracker],
        project: str | None,
        runs: Sequence[RunFolder],
    ) -> None:
        """Create the trackers. Raises InputError if one cannot be used."""
        self._context, self._kind = context, kind
        self._trackers = {run: make(project or _project_of(run)) for run in runs}
        self._open: dict[RunFolder, RunSync] = {}
        self.counts = dict.fromkeys(runs, 0)

    def send(self, run: RunFolder, curve: Curve) -> None:
        """Send what is new. Raises InputError, OutOfReach, HpcrunError."""
        if run not in self._open:
            if not curve.metrics and not any(each.begin for each in read_history(run).attempts):
                return
            self._open[run] = RunSync(self._context, run, self._kind, self._trackers[run])
        self.counts[run] += self._open[run].send(curve)

    def close(self, run: RunFolder, status: JobStatus | None) -> str:
        """Record the state of a run; return where it is shown, or "" if it has not begun."""
        return self._open.pop(run).close(status) if run in self._open else ""

    def close_all(self) -> None:
        """Close what an error or Ctrl-C has left open, without hiding it."""
        for run in [*self._open]:
            with contextlib.suppress(Exception):
                self.close(run, None)


def sync_runs(
    context: Context,
    words: Sequence[str],
    kind: str,
    make: Callable[[str], Tracker],
    tell: Callable[[str], None],
    *,
    project: str | None,
    follow: bool,
) -> bool:
    """Send the metrics of runs to a tracker; return False if a followed run failed.

    Args:
        make: Creates the tracker for a run of a project.
        tell: Reports one line to the user.
        project: The project or experiment; None for the name of each run's project.
        follow: Continue until the runs have ended.
    """
    sources = find_sources(context, words, is_awaited=True)
    for source in sources:
        if source.run is None:
            raise InputError(
                f"{source.name}: not a run of hpcrun, whose records sync needs",
                fix="hpcrun parse --tensorboard DIR writes event files for any log",
            )
    runs = [source.run for source in sources if source.run is not None]
    syncs = RunSyncs(context, kind, make, project, runs)
    try:
        ok = not follow or _follow(context, words, syncs, tell)
        statuses = {status.run: status for status in status_of(context, runs)}
        for source in sources:
            if (run := source.run) is not None:
                # Read the logs from the start: late lines of the nodes are now in their place.
                log = CurveLog(context, source)
                log.read()
                syncs.send(run, log.curve(all_trainings=True, full=True))
                shown = syncs.close(run, statuses.get(run))
                text = f"{syncs.counts[run]:,} new points: {shown}" if shown else "not begun yet"
                tell(f"{run.run_id}: {text}")
    finally:
        syncs.close_all()
    return ok


def _follow(
    context: Context, words: Sequence[str], syncs: RunSyncs, tell: Callable[[str], None]
) -> bool:
    """Send what is new until all runs have ended; return True if all succeeded."""
    follower = CurveFollower(context, words)
    every, is_lost, retry_at = 0.0, False, 0.0

    def is_retry_due() -> bool:
        return is_lost and time.monotonic() >= retry_at

    while True:
        is_over = follower.wait(every, is_retry_due)
        begun = time.monotonic()
        curves = follower.read_curves()
        try:
            for source, curve, _ in curves:
                if source.run is not None:
                    syncs.send(source.run, curve)
            is_lost = False
        except OutOfReach as error:
            if not is_lost:
                tell(f"{error.message}; trying again")
            is_lost = True
        if is_over:
            return all(status is None or status.ok for _, _, status in curves)
        every = max(SEND_INTERVAL_S, _CPU_SHARE * (time.monotonic() - begun))
        retry_at = time.monotonic() + every


def describe_run(
    context: Context, run: RunFolder, plan: Plan | None, history: History
) -> TrackedRun:
    """Describe a run for a tracker, without secrets."""
    begins = [each.begin for each in history.attempts if each.begin is not None]
    started_at = begins[0].begun_at if begins else parse_creation_time(run.run_id)
    task, submitted = read_task(run), history.submitted
    tags = {"run_id": run.run_id, "cluster": context.cluster.name}
    name = run.run_id
    user = ""
    if plan is not None:
        name, user = plan.name, plan.provenance.user
        tags |= {
            "job": plan.name,
            "run_dir": plan.run_dir,
            "project": plan.provenance.project,
            "command": plan.provenance.command,
            "git_commit": plan.provenance.git_commit or "",
        }
        if plan.provenance.git_dirty:
            tags["git_dirty"] = "true"
    if task is not None:
        name = f"{name} {format_label(task.values)}"
        tags["sweep"] = task.sweep_id
    jobs = [begin.job_id for begin in begins if begin.job_id]
    if submitted is not None and submitted.job_id:
        jobs.insert(0, submitted.job_id)
    tags["slurm_jobs"] = " ".join(dict.fromkeys(jobs))
    place = tags.get("run_dir", str(run.path))
    host = f"{context.cluster.host}:" if context.cluster.host else ""
    return TrackedRun(
        run_id=run.run_id,
        name=name,
        project="",
        group=task.sweep_id if task is not None else "",
        config=read_run_facts(run)[0],
        tags={key: value for key, value in tags.items() if value},
        notes=f"Run `{run.run_id}` of hpcrun, in `{host}{place}`: `hpcrun status {run.run_id}`",
        user=user,
        started_at=started_at,
    )


def _project_of(run: RunFolder) -> str:
    """Return the name of the directory of a run's project."""
    plan = read_plan(run)
    return (Path(plan.provenance.project).name if plan is not None else "") or "hpcrun"


def build_series_of_curve(curve: Curve, started_at: float) -> dict[str, MetricSeries]:
    """Return the metrics of a curve by the names that trackers use.

    Without steps, or if the step counter restarts, the points are numbered. Without time stamps,
    the times are the start of the run plus the durations of the steps, if the log has those.
    """
    found = {}
    for name, tag in metric_tags(curve).items():
        series = curve.metrics[name]
        steps = x_axis(curve, name, "step") or x_axis(curve, name, "order") or []
        times = np.full(len(steps), started_at)
        if series.times is not None:
            stamps = np.array(series.times, float)
            times = np.where(np.isfinite(stamps), stamps, times)
        elif (seconds := x_axis(curve, name, "time")) is not None:
            times = times + np.array(seconds)
        found[tag] = _make_series(np.array(steps, float), times, np.array(series.values, float))
    return found


def build_series_of_nodes(
    nodes: Sequence[NodeSeries], started_at: float
) -> dict[str, MetricSeries]:
    """Return the use of the nodes of all attempts; the step is in seconds since the run began.

    Only percentages, GiB and W are used as units.
    """
    columns: dict[str, list[tuple[float, float | None]]] = {}
    is_single = len({node.rank for node in nodes}) < 2
    for node in nodes:
        prefix = "system/" if is_single else f"system/node{node.rank}/"
        cpus = node.cpus or 0
        busy = [
            None if each is None or not cpus else 100 * each / cpus
            for each in node.cpus_busy_series
        ]
        rows: list[tuple[str, Sequence[float | None]]] = [
            ("cpu_percent", busy),
            ("memory_gib", [_gib(each) for each in node.memories]),
        ]
        for index, gpu in enumerate(node.gpus):
            rows += [
                (f"gpu{index}_percent", gpu.utilizations),
                (f"gpu{index}_memory_gib", [_gib(each) for each in gpu.memories]),
                (f"gpu{index}_watts", gpu.powers),
            ]
        for name, values in rows:
            columns.setdefault(prefix + name, []).extend(zip(node.times, values, strict=True))
    found = {}
    for name, pairs in columns.items():
        known = [(at, value) for at, value in pairs if value is not None]
        if known:
            times = np.array([at for at, _ in known], float)
            # The clock of a node may be behind that of the first one.
            steps = np.maximum(0.0, np.floor(times - started_at))
            found[name] = _make_series(steps, times, np.array([each for _, each in known], float))
    return found


def _gib(size: int | None) -> float | None:
    return None if size is None else size / (1 << 30)


def _make_series(
    steps: NDArray[np.float64], times: NDArray[np.float64], values: NDArray[np.float64]
) -> MetricSeries:
    is_valid = np.abs(steps) < _MAX_STEP
    whole = steps[is_valid].astype(np.int64)
    return MetricSeries(*_keep_last(whole, times[is_valid], values[is_valid]))


def _keep_last(steps: NDArray[np.int64], *columns: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
    """Sort by step, and keep the last of several points of a step.

    >>> [each.tolist() for each in _keep_last(np.array([2, 1, 2]), np.array([0.1, 0.2, 0.3]))]
    [[1, 2], [0.2, 0.3]]
    """
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    return (ordered[is_last], *(column[order][is_last] for column in columns))


def _drop_discarded(points: NDArray[Any], names: Sequence[str]) -> NDArray[Any]:
    """Return the points of metrics that no later row of the record discards."""
    is_discard = points["metric"] == _DISCARD
    if not is_discard.any():
        return points
    is_of_system = np.array([name.startswith(SYSTEM_PREFIX) for name in names] or [False])
    # Rows whose metric has no name are ignored anyway.
    is_system = is_of_system[np.minimum(points["metric"], len(is_of_system) - 1)]
    is_kept = ~is_discard
    for kind in (False, True):
        limits = np.where(
            is_discard & (points["value"] == kind), points["step"], np.iinfo(np.int64).max
        )
        lowest_later = np.minimum.accumulate(limits[::-1])[::-1]
        is_kept &= (is_system != kind) | (points["step"] < lowest_later)
    kept: NDArray[Any] = points[is_kept]
    return kept


def _sort_points(
    metrics: dict[str, MetricSeries], masks: dict[str, NDArray[np.bool_]]
) -> list[MetricPoint]:
    """Return the selected points in the order of their steps."""
    points = [
        MetricPoint(name, step, at, value)
        for name, each in metrics.items()
        for step, at, value in zip(
            each.steps[masks[name]].tolist(),
            each.times[masks[name]].tolist(),
            each.values[masks[name]].tolist(),
            strict=True,
        )
    ]
    return sorted(points, key=lambda point: point.step)
