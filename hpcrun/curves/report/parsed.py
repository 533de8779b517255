"""ParsedRun: the metrics parsed from the logs of a run, with its metadata, and tables of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, repeat
from typing import Any

from msgspec import Struct, structs

from hpcrun.curves.curve import Curve, Series, build_series, is_increasing
from hpcrun.curves.derive import derive_curve
from hpcrun.curves.names import EPOCH, EVAL_LOSS, GRAD_NORM, LOSS, LR, MEMORY_BYTES
from hpcrun.curves.store import Store


class Sample(Struct, frozen=True, array_like=True, gc=False):
    """One measurement exactly as logged, before any merging of values that share a step.

    Attributes:
        attempt: Index of the attempt whose log contains the measurement.
        offset: Byte offset of the line in its log file.
        epoch: Epoch printed on the same line, or None.
        step: Step printed on the same line, or None.
        split: Data split, such as "train".
        name: Canonical name if ``hpcrun.curves.names`` knows the spelling, otherwise the name in
            the log.
        value: The value; may be nan or infinite.
    """

    attempt: int
    offset: int
    epoch: float | None
    step: int | None
    split: str
    name: str
    value: float


class Samples:
    """The samples of a run, in log order.

    >>> from hpcrun.curves.row import Frame, RowLayout, Scope
    >>> store = Store()
    >>> store.begin(0)
    >>> layout = RowLayout("json", Scope(), None, None, ("loss", "lr"))
    >>> store.add([Frame(layout, [0, 40], [1, 2], None, None, ([2.5, 2.0], [0.1, 0.2]))])
    >>> samples = Samples(store)
    >>> len(samples), [sample.value for sample in samples]
    (4, [2.5, 0.1, 2.0, 0.2])
    >>> next(iter(samples))
    Sample(attempt=0, offset=0, epoch=None, step=1, split='train', name='loss', value=2.5)
    """

    def __init__(self, store: Store) -> None:
        """Create a read-only view of a store."""
        self._logs = store.proven_logs()

    def __len__(self) -> int:
        """Count the samples."""
        forms = (form for log in self._logs for form in log.forms.values())
        return sum(len(form) * len(form.columns) for form in forms)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples in log order."""
        for log in self._logs:
            forms = list(log.forms.values())
            places = (zip(form.offsets, repeat(n), count()) for n, form in enumerate(forms))
            for offset, number, row in heapq.merge(*places):
                form = forms[number]
                layout = form.layout
                epoch = None if form.epochs is None else form.epochs[row]
                step = None if form.steps is None else form.steps[row]
                for name, column in zip(layout.names, form.columns, strict=True):
                    yield Sample(
                        log.attempt, offset, epoch, step, layout.scope.split, name, column[row]
                    )


class Usage(Struct, frozen=True):
    """What hpcrun measured in the ranks of a run.

    Attributes:
        peak_memory: Highest peak of reserved memory of any GPU, in bytes.
        peak_allocated: Highest peak of memory in tensors of any GPU, in bytes.
        gpu_memory: Memory of that GPU in bytes.
        loop_seconds: Time between the first and the last batch of rank 0, with evaluations.
        estimated_memory: Memory of one GPU as estimated at submission, in bytes.
        step_seconds: Mean time of a step, by when it appeared in the log.
        data_shares: For each rank the share of its time that it waited for its data loaders.
    """

    peak_memory: int | None = None
    peak_allocated: int | None = None
    gpu_memory: int | None = None
    loop_seconds: float | None = None
    data_shares: dict[int, float] = {}
    estimated_memory: int | None = None
    step_seconds: float | None = None


# The columns of ParsedRun.attempts.
ATTEMPT_COLUMNS = ("attempt", "began", "nodes", "time", "steps", "ended by", "then")


class ParsedRun(Struct, frozen=True):
    """The metrics parsed from the logs of one run, and the run's metadata.

    Attributes:
        source: The file, job or run as the user named it.
        formats: The line formats in which samples were found, most frequent first.
        samples: The individual samples; empty unless they were requested.
        curve: The metrics, one series each.
        files: Number of log files that were read.
        lines: Number of lines before the first line with a metric.
        bytes: Number of bytes that were read.
        warnings: Warnings about the curve, set by the caller; empty for a healthy log.
        facts: Settings of a run of hpcrun, named as in its job file
            ("batch.micro_batch_per_gpu": "4"), so that runs can be distinguished; empty for a
            plain log.
        gpus: Number of GPUs; None for a plain log.
        spare_gpus: Number of GPUs on spare nodes.
        seconds: Running time of all attempts in seconds; None for a plain log.
        attempts: One row of ``ATTEMPT_COLUMNS`` per attempt, if the run was started more than once.
        cost: The total cost of these attempts, as text.
        failure: The cause of failure; "" if the run did not fail or has not ended.
        usage: GPU memory, and time spent waiting for data.
        unused: What looks like a metric and is not used, with the reason; empty unless requested.
        stated: Numbers that the program states at its start, such as its parameters.
    """

    source: str
    formats: tuple[str, ...]
    samples: Samples
    curve: Curve
    files: int
    lines: int
    bytes: int
    warnings: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    gpus: int | None = None
    spare_gpus: int = 0
    seconds: float | None = None
    attempts: tuple[tuple[str, ...], ...] = ()
    cost: str = ""
    failure: str = ""
    usage: Usage = Usage()
    unused: tuple[str, ...] = ()
    stated: dict[str, str] = {}

    @property
    def points(self) -> int:
        """The number of points of the training loss."""
        return summary.count if (summary := self.curve.summary(LOSS)) else 0

    def columns(self) -> dict[str, list[float | None]]:
        """Return a table for pandas with a row per step and a column per metric."""
        return curve_columns(self.curve)


def peak_memory(run: ParsedRun) -> float | None:
    """Return the peak memory of a GPU in bytes: as recorded, otherwise as logged."""
    if run.usage.peak_memory:
        return run.usage.peak_memory
    if run.curve.peak_memory:
        return run.curve.peak_memory
    logged = run.curve.summary(MEMORY_BYTES)
    # Some loggers print 0 on CPUs.
    return logged.max.value if logged and logged.max and logged.max.value > 0 else None


def parse_stored(
    source: str,
    store: Store,
    *,
    build: Callable[..., Series] = build_series,
    keep_samples: bool = False,
    files: int = 1,
    lines: int = 0,
    size: int = 0,
    notes: Sequence[str] = (),
    training: int | None = None,
) -> ParsedRun:
    """Build a run from the stored rows of its logs.

    Args:
        source: The file, job or run as the user named it.
        store: The rows parsed from the logs.
        build: Builds each series from its points, and may thin them.
        keep_samples: Whether to keep the individual samples too.
        files: Number of log files that were read.
        lines: Number of lines before the first line with a metric.
        size: Number of bytes that were read.
        notes: Additional notes for the curve.
        training: Number of the training to show of several in one log; None for the last one.

    >>> from hpcrun.curves.lines.log_reader import LogReader
    >>> store, reader = Store(), LogReader()
    >>> store.begin(0)
    >>> store.add(reader.feed(b"step=1 loss=2.5\\nstep=2 loss=2.25\\n"))
    >>> parse_stored("a.log", store).points
    2
    """
    curve = derive_curve(store, build, training)
    curve = structs.replace(curve, notes=(*curve.notes, *notes))
    return ParsedRun(
        source=source,
        formats=store.formats(),
        samples=Samples(store if keep_samples else Store()),
        curve=curve,
        files=files,
        lines=lines,
        bytes=size,
    )


# ---- a curve as a table: a row per step, a column per metric
#
# Metrics are joined by step. If a log has no steps, or if its step counter restarts, only metrics
# that were logged on the same lines share rows. All other metrics get separate rows, because the
# log does not show which values belong together.

_FIRST = (EPOCH, LOSS, EVAL_LOSS, LR, GRAD_NORM)

Row = dict[str, float | None]


def curve_columns(curve: Curve) -> dict[str, list[float | None]]:
    """Return the table as columns of equal length, with nan for values that were not logged.

    The column "step" contains None if the log has no steps. The column "time" exists if the log
    has timestamps, and holds seconds since 1970.

    >>> metrics = {"loss": build_series([1, 2], [2.5, 2.25]), "lr": build_series([2], [0.1])}
    >>> curve_columns(Curve(metrics, ()))
    {'step': [1, 2], 'loss': [2.5, 2.25], 'lr': [nan, 0.1]}
    """
    rows = list(curve_rows(curve))
    names = column_names([curve])
    return {
        name: [row.get(name, None if name == "step" else math.nan) for row in rows]
        for name in names
    }


def column_names(curves: Sequence[Curve]) -> list[str]:
    """Return the column names of a table of curves, the most important metrics first."""
    metrics = dict.fromkeys(name for curve in curves for name in curve.metrics)
    named = [name for name in _FIRST if name in metrics]
    named += [name for name in metrics if name not in _FIRST]
    timed = any(series.times for curve in curves for series in curve.metrics.values())
    return ["step", *(["time"] if timed else []), *map(column_name, named)]


def column_name(name: str) -> str:
    """Return the column name of a metric, prefixed if it equals the name of a built-in column.

    >>> column_name("loss"), column_name("time")
    ('loss', 'metric.time')
    """
    return f"metric.{name}" if name in ("source", "step", "time") else name


def curve_rows(curve: Curve) -> Iterator[Row]:
    """Yield the rows of a curve, joined by step if steps are unambiguous, otherwise in blocks."""
    by_step: dict[Any, Row] = {}
    blocks: dict[object, list[Row]] = {}
    for name, series in curve.metrics.items():
        if is_increasing(series.steps):
            rows = [by_step.setdefault(step, {"step": step}) for step in series.steps]
        else:
            places = (tuple(series.steps), tuple(series.times or ()))
            rows = blocks.setdefault(places, [{"step": step} for step in series.steps])
        for row, value in zip(rows, series.values, strict=True):
            row[column_name(name)] = value
        for row, moment in zip(rows, series.times or (), strict=False):
            if math.isfinite(moment):
                row.setdefault("time", moment)
    yield from (by_step[step] for step in sorted(by_step))
    yield from chain.from_iterable(blocks.values())
