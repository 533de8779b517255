"""Derive the curve of a run from everything that its logs contain.

The logs are stored as columns (``store``); the curve is a view of them. Decisions, in this order:

1. *The steps of rows*: those on their lines (``own_steps``); otherwise those of neighbouring lines
   or of the training's progress bar, or steps that follow from epochs (``steps``).
2. *Epochs and restarts* (``passes``): the rows that show the progress best are followed through the
   log. Where their step falls, another epoch or run begins, or the run was resumed. A later attempt
   or a resumption replaces what it repeats: points at and after its first step are dropped, because
   the weights that they belonged to are lost.
3. *Rows without steps*: before, after, by epoch, or by their order (``steps``). If some rows of a
   metric have a step, those without are dropped (a closing summary), unless few have one.
4. *Which log and rank*: the first file and the lowest rank in it, unless another has more than
   twice as many points. Values on progress bars count only if no lines have the metric, or the bar
   has more than twice as many points and they are no running means of the lines' values.
5. *One value for each step*: the last one in the log. If the counter restarts with each epoch and
   there is one training loss for each epoch, the epoch is the step.
6. *Several trainings in one log*: the last one is shown, or the one that the user selects.
7. *What users should know*: restarts, the total number of steps, and notes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from hpcrun.curves.curve import Curve, Restart, Series, build_series
from hpcrun.curves.durations import (
    add_attempts,
    bar_time,
    elapsed_time,
    epoch_time,
    line_time,
    stated_time,
    step_time,
    time_between_stamps,
)
from hpcrun.curves.names import EPOCH, LOSS, LOSSES, MEMORY_BYTES, is_loss_name
from hpcrun.curves.passes import (
    FULL_BAR_SHARE,
    CountedSteps,
    CounterTurn,
    Floats,
    Ints,
    StepCounter,
    find_changes,
    follow_counter,
    restarts_each_epoch,
)
from hpcrun.curves.rows import (
    FROM_BAR,
    FROM_NEIGHBOUR,
    OWN_STEP,
    PRIORITY_PLACED_LOSS,
    ProgressBar,
    Rows,
    fill_missing,
    join_columns,
    join_epochs,
    join_steps,
)
from hpcrun.curves.steps import BY_EPOCH, IN_ORDER, LogSteps, choose_placement, find_steps
from hpcrun.curves.store import Store, StoredLog, StoredRows, choose_stand_in_loss, cut_log

# Fractional epochs are followed like a counter, in ten-thousandths.
_EPOCH_PARTS = 10_000
_MAX_EPOCHS = 1e9
# Other losses that a note suggests for --metric.
_MAX_SUGGESTED_LOSSES = 5
# Epochs whose lengths differ by less than this factor belong to the same training.
_SAME_TRAINING_LENGTH_RATIO = 1.5
# Rows with steps are ignored if there are fewer than 10 and fewer than a tenth of those without.
_FEW_ROWS, _SMALL_SHARE = 10, 0.1
# A bar shows running means if it ends, at three lines or more, at their values as printed.
_MIN_COVERED = 0.5
_MIN_MEANS, _PRINTED_TOLERANCE = 3, 2e-3
# The index of a pass (a run and its epoch), and a step.
_PassAndStep = tuple[int, int]
# The fields of MetricPoints that all metrics of the same rows share.
_Points = tuple[list[Rows], Ints, Ints, Floats, list[int]]
_END_OF_LOG = 1 << 62
# Within a training, an evaluation or a checkpoint hardly takes longer.
_LONG_PAUSE_S = 3600.0
_OTHER_RUN = "read as another run in the same file, not as a requeue"
_NEXT_EPOCH = "read as the next epoch, or another run in the same file, not as a requeue"
_UNKNOWN = "their steps are unknown, so they are plotted in order"
# Metrics that the Trainer prints after a training or an evaluation, and those of a bare bar.
_TRAINER_METRICS = frozenset({"train_runtime", "eval_runtime", "train_steps_per_second"})
_BAR_METRICS = frozenset({"step_seconds", "epoch"})
_REPEATED = "the run was resumed, and its lines have no steps: repeated parts are plotted twice"


def derive_curve(
    store: Store,
    build: Callable[..., Series] = build_series,
    training: int | None = None,
    *,
    all_trainings: bool = False,
) -> Curve:
    """Derive the curve.

    Args:
        store: The rows parsed from the logs.
        build: Makes a series of steps, values and times, and may thin it.
        training: Number of the training to show of several in one log; None for the last one.
        all_trainings: Keep the points of all trainings in one log, instead of showing one.

    >>> from hpcrun.curves.row import Frame, RowLayout, Scope
    >>> def losses(steps, values):
    ...     layout = RowLayout("json", Scope(), None, None, ("loss",))
    ...     return [Frame(layout, [*range(len(steps))], steps, None, None, (values,))]
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add(losses([1, 2, 3], [9.0, 8.0, 7.0]))
    >>> store.begin(1)
    >>> store.add(losses([2], [6.0]))
    >>> derive_curve(store).steps("loss"), derive_curve(store).values("loss")
    ([1, 2], [9.0, 6.0])
    >>> derive_curve(store).restarts
    (Restart(attempt=1, lost_at=3, resumed_at=2, replayed=2, cause=''),)
    """
    logs, stand_in = choose_stand_in_loss(store.proven_logs())
    selector = PointSelector([find_steps(log) for log in logs])
    notes: list[str] = []
    trainings = [] if all_trainings else _find_trainings(selector)
    if trainings:
        shown = min(training or len(trainings), len(trainings))
        logs = [cut_log(logs[0], *trainings[shown - 1])]
        selector = PointSelector([find_steps(log) for log in logs])
        which = "the last one" if shown == len(trainings) else f"number {shown}"
        notes.append(
            f"the file contains {len(trainings)} trainings, one after the other: {which} is shown; "
            "--training N shows another"
        )
    bar, losses = selector.training, selector.find(LOSS)
    metrics = {}
    for name in selector.names():
        # Process one metric at a time, because the columns of all metrics together would need far
        # more memory than the store.
        column = losses if name == LOSS else selector.find(name)
        if column is not None:
            by_epoch = all(map(selector.is_logged_once_per_epoch, (losses, column)))
            metrics[name] = build(*column.series_columns(by_epoch=by_epoch))
    axis = selector.choose_axis(losses)
    total = None
    if axis is selector.by_step and not selector.within_epoch:
        total = axis.total
        if total is None and bar is not None and not any(x.through_epochs for x in selector.logs):
            total = bar.total
    is_buffered = axis is selector.by_step and any(log.is_buffered for log in selector.logs)
    is_unknown = axis is selector.in_order and bar is not None
    notes += axis.notes(losses)
    if is_buffered or is_unknown:
        notes.append(
            "the losses come in groups between updates of the progress bar, as if the program "
            "buffered its output: "
            + ("their steps are computed from their epochs" if is_buffered else _UNKNOWN)
        )
    others = [name for name in metrics if is_loss_name(name) and metrics[name].summary.count > 1]
    others = [name for name in others if name not in (LOSS, stand_in)]
    suggestion = (
        f"--metric plots another ({', '.join(others[:_MAX_SUGGESTED_LOSSES])})" if others else ""
    )
    if losses is None:
        notes += _explain_missing_loss(metrics)
    elif stand_in:
        notes.append(f"no metric named loss: using {stand_in}" + (suggestion and f"; {suggestion}"))
    restarts = tuple(axis.restarts())
    counts_epochs = axis is not selector.by_step or selector.within_epoch
    seconds, seconds_from = _measure_time(
        logs, metrics, selector, len(restarts), counts_epochs=counts_epochs
    )
    return Curve(
        metrics,
        restarts,
        total,
        (*notes, *store.notes()),
        _name_axis(selector, losses, axis),
        seconds,
        seconds_from,
        _is_over(logs),
        _peak_memory(selector),
        max(len(trainings), 1),
    )


def _find_trainings(selector: PointSelector) -> list[tuple[int, int]]:
    """Return the offsets at which the trainings in a log begin and end, if it contains several.

    A counter that falls to its start is that of another training if the epoch falls, too, if the
    log says in between that the training is over, or after a pause of an hour that is longer than
    the training before it. Otherwise it may count within epochs that the log does not show.
    """
    if len(selector.logs) != 1:
        return []  # attempts of a run, or the logs of its ranks
    (log,), axis = selector.logs, selector.choose_axis(selector.find(LOSS))
    main = axis.main_counters[0]
    counted = main.counted
    if counted is None:
        return []
    timed = [rows for rows in main.rows if rows.times is not None]
    offsets = join_columns(rows.offsets for rows in timed)
    order = np.argsort(offsets, kind="stable")
    times = join_columns(rows.times for rows in timed if rows.times is not None)[order]

    def time_at(offset: int) -> float:
        """Return the time of the first row at an offset or below it, or nan."""
        row = int(np.searchsorted(offsets[order], offset))
        return float(times[row]) if row < len(times) else math.nan

    starts, gaps = [0], list[tuple[int, int]]()
    for turn in main.turns:
        if turn.reached is None or turn.is_resumption:
            continue
        index = int(np.searchsorted(counted.offsets, turn.offset))
        before = int(counted.offsets[index - 1])
        marks = [each for each in log.log.marks if before < each.offset < turn.offset]
        if axis is not selector.by_step:
            falls = True
        elif axis.within_epochs:
            falls = 0 <= turn.at.epoch < turn.reached.epoch
        else:
            falls = counted.epochs is not None and bool(
                counted.epochs[index] < counted.epochs[index - 1]
            )
        time, begun = (time_at(offset) for offset in (before, starts[-1]))
        pauses = time_at(turn.offset) - time > max(time - begun, _LONG_PAUSE_S)
        if falls or pauses or any(each.ends for each in marks):
            headings = [x.offset for x in marks if x.epoch is not None and x.split in ("", "train")]
            starts.append(headings[-1] if headings else turn.offset)
            gaps.append((before, starts[-1]))
    # More starts than points in each are those of an inner loop, such as the epochs of each round.
    if not gaps or len(starts) ** 2 > len(counted.steps):
        return []
    trainings, begun = [], 0
    for before, after in gaps:
        steps = counted.offsets[(counted.offsets >= begun) & (counted.offsets <= before)]
        end, start = _find_border(log.log, begun, steps, after)
        trainings.append((begun, end))
        begun = start
    return [*trainings, (begun, _END_OF_LOG)]


def _find_border(log: StoredLog, begun: int, counted: Ints, after: int) -> tuple[int, int]:
    """Return the offsets at which a training ends, and at which the next one begins.

    They differ if rows between the two may belong to either. Results that the training had not
    printed before the line that ends it, such as those of a test, are its own. Without such a line,
    the next training begins with the first row that repeats a metric, more often than the training
    did between its own steps. A metric that trainings print before their first step, and that does
    not repeat, may be that of either.

    Args:
        log: The log with both trainings.
        begun: Offset at which the training begins.
        counted: Offsets of the lines with its steps.
        after: Offset of the first line with a step of the next training, or of its heading.
    """
    first, before = int(counted[0]), int(counted[-1])
    forms: dict[tuple[str, int | None, str], list[StoredRows]] = {}
    for form in log.forms.values():
        if form.layout.bar is None:
            for name in form.layout.names:
                key = (name, form.layout.rank, form.layout.scope.data)
                forms.setdefault(key, []).append(form)
    results = []  # of each metric between the trainings: the offsets and positions of its rows
    for same in forms.values():
        parts = [_read_places(form, begun, after) for form in same]
        offsets, positions = (join_columns(columns) for columns in zip(*parts, strict=True))
        if offsets.size and offsets.max() > before:
            order = np.argsort(offsets, kind="stable")
            results.append((offsets[order], positions[order]))
    if stated := [x.offset for x in log.marks if x.ends and before < x.offset < after]:
        border = stated[-1] + 1
        known = [offsets[offsets >= border] for offsets, _ in results if offsets[0] < border]
        new = [offsets for offsets, _ in results if offsets[0] >= border]
        limit = min((int(each[0]) for each in known if each.size), default=after)
        border = max([border, *(int(x) + 1 for each in new for x in each if x < limit)])
        return border, border
    repeated, unclear = [after], [after]
    for offsets, positions in results:
        inside = offsets > before
        own = np.searchsorted(counted, offsets[(offsets > first) & ~inside])
        usual = int(np.bincount(own).max()) if own.size else 1
        places = [*zip(offsets[inside].tolist(), positions[inside].tolist(), strict=True)]
        for (_, last), (offset, position) in [*pairwise(places)][usual - 1 :]:
            if not position > last:
                repeated.append(offset)
        if offsets[0] < first:
            repeated += [offset for offset, position in places if position <= positions[0]]
            unclear += [offset for offset, position in places if math.isnan(position)]
    start = min(repeated)
    return (start, start) if start < after else (min(unclear), after)


def _read_places(form: StoredRows, start: int, end: int) -> tuple[Ints, Floats]:
    """Return the offsets of the rows in a part of a log, and their steps or epochs, or nan."""
    part = slice(*(bisect_left(form.offsets, at) for at in (start, end)))
    offsets = np.array(form.offsets[part], np.int64)
    positions = form.epochs if form.steps is None else form.steps
    known = None if positions is None else np.array(positions[part], float)
    return offsets, fill_missing(known, len(offsets))


def _name_axis(selector: PointSelector, losses: MetricPoints | None, axis: StepAxis) -> str:
    """Return what the steps of the loss count."""
    if axis.in_order:
        return "point"
    if axis is selector.by_epoch or selector.is_logged_once_per_epoch(losses):
        return "epoch"
    known = [each for each in axis.rows_of(LOSS) if each.epochs is not None]
    counts_epochs = known and all(
        each.steps is not None and bool((each.steps == each.epochs).all()) for each in known
    )
    return "epoch" if counts_epochs and len(known) == len(axis.rows_of(LOSS)) else "step"


def _measure_time(
    logs: Sequence[StoredLog],
    metrics: Mapping[str, Series],
    selector: PointSelector,
    restarts: int,
    *,
    counts_epochs: bool,
) -> tuple[float | None, str]:
    """Return how long the run took in seconds, and where the log shows it."""
    drawn, count, training = None, 0, selector.training
    if training is not None and _is_drawn_between_losses(selector, training):
        bars = [bar_time(log, training.description, training.total) for log in logs]
        drawn = sum(seconds for seconds, _ in bars if seconds) or None
        count = max(count for _, count in bars)
    # A bar that begins again with each epoch excludes the time between epochs.
    is_whole = count <= 1 + restarts and _covers_losses(selector, training)
    by_steps = step_time(metrics, counts_epochs=counts_epochs)
    choices = (
        (add_attempts(logs, stated_time), "stated"),
        (add_attempts(logs, elapsed_time), "stated"),
        (drawn if is_whole else None, "progress bar"),
        (add_attempts(logs, time_between_stamps), "time stamps"),
        (add_attempts(logs, epoch_time), "sum of epochs"),
        (None if is_whole else drawn, "progress bars of epochs"),
        (add_attempts(logs, line_time), "sum of steps"),
        (by_steps, "sum of steps"),
    )
    return next(((seconds, where) for seconds, where in choices if seconds), (None, ""))


def _loss_offsets(log: LogSteps) -> Ints:
    """Return the sorted byte offsets of the losses of the training."""
    rows = (*log.by_step, *log.without_steps)
    offsets = np.sort(join_columns(each.offsets for each in rows if each.has_losses))
    return offsets[find_changes(offsets)]  # np.unique would import numpy.ma


def _drawing_offsets(log: LogSteps, bar: ProgressBar | None) -> Ints:
    """Return the sorted byte offsets of the drawings of a bar."""
    forms = log.log.forms.values()
    drawn = [np.asarray(x.offsets) for x in forms if bar and (x.layout.bar, x.total) == bar]
    return np.sort(join_columns(drawn))


def _is_drawn_between_losses(selector: PointSelector, bar: ProgressBar) -> bool:
    """Return False if most losses are printed without a drawing of the bar near them.

    Such a bar measures the evaluations between the losses. Losses count that have a drawing between
    them and the loss before, or between the drawings of one pass of the bar.
    """
    near = total = 0
    for log in selector.logs:
        losses, drawn = _loss_offsets(log), _drawing_offsets(log, bar)
        if not losses.size or not drawn.size:
            continue
        above = np.searchsorted(drawn, losses)
        steps = _drawn_steps(log, bar)
        inside = (above > 0) & (above < len(drawn))
        inside[inside] = steps[above[inside]] > steps[above[inside] - 1]
        near += int((find_changes(above) | inside).sum())
        total += len(losses)
    return total < _MIN_MEANS or near >= _MIN_COVERED * total


def _drawn_steps(log: LogSteps, bar: ProgressBar) -> Ints:
    """Return the steps that a bar shows, in the order of its drawings."""
    forms = [x for x in log.log.forms.values() if (x.layout.bar, x.total) == bar]
    offsets = join_columns(np.asarray(form.offsets) for form in forms)
    steps = [np.zeros(len(x), np.int64) if x.steps is None else np.asarray(x.steps) for x in forms]
    return np.concatenate(steps)[np.argsort(offsets, kind="stable")]


def _covers_losses(selector: PointSelector, bar: ProgressBar | None) -> bool:
    """Return True if a bar is drawn from before most losses of the training to after them."""
    losses = join_columns(_loss_offsets(log) for log in selector.logs)
    drawn = join_columns(_drawing_offsets(log, bar) for log in selector.logs)
    if not losses.size or not drawn.size:
        return True
    inside = (losses >= drawn.min()) & (losses <= drawn.max())
    return bool(inside.mean() >= _MIN_COVERED or losses.size < _MIN_MEANS)


def _is_over(logs: Sequence[StoredLog]) -> bool:
    """Return True if the last log shows that the training has ended."""
    if not logs:
        return False
    trained = [
        form.offsets[-1]
        for form in logs[-1].forms.values()
        if LOSS in form.layout.names and form.layout.scope.split == "train"
    ]
    last = max(trained, default=0)
    ended = any(mark.ends and mark.offset > last for mark in logs[-1].marks)
    return ended or any(
        "train_runtime" in form.layout.names and form.offsets[-1] > last
        for form in logs[-1].forms.values()
    )


def _peak_memory(selector: PointSelector) -> float | None:
    """Return the most memory that lines of the training state; those of the start do not count."""
    found = []
    for axis in (selector.by_step, selector.by_epoch, selector.in_order):
        found += [
            float(np.nanmax(column))
            for rows in axis.rows_of(MEMORY_BYTES)
            if not np.isnan(column := rows.column(MEMORY_BYTES)).all()
        ]
    return max(found, default=None)


def _explain_missing_loss(names: Collection[str]) -> list[str]:
    """Explain a log without a training loss that shows other traces of a training.

    >>> _explain_missing_loss({"step_seconds", "train_runtime"})[0][:57]
    "no step was logged: Hugging Face's Trainer logs every 500"
    """
    fix = "TrainingArguments(logging_steps=10), or --logging_steps 10, adds the curve"
    if _TRAINER_METRICS & set(names):
        return [
            f"no step was logged: Hugging Face's Trainer logs every 500 steps by default; {fix}"
        ]
    if names and set(names) <= _BAR_METRICS:
        return [
            "no loss in the log, only progress bars: Hugging Face's Trainer logs every 500 steps "
            f"by default; {fix}; other scripts have to print the loss"
        ]
    return []


class MetricPoints(NamedTuple):
    """The points of one metric: one for each step, in the order of the run.

    Attributes:
        axis: The axis on which the points are ordered.
        source: The origin of the steps.
        values: The value of each point.
        rows: The rows that contain the points.
        which: Indices of the points among the values of all ``rows``.
        steps: The step of each point.
        times: The timestamp of each point in seconds; nan if unknown.
        epochs: Epochs of the passes that the points belong to.
    """

    axis: StepAxis
    source: str
    values: Floats
    rows: Sequence[Rows]
    which: Ints
    steps: Ints
    times: Floats
    epochs: list[int]

    def series_columns(self, *, by_epoch: bool) -> tuple[Ints, Floats, Floats | None]:
        """Return steps, values and times; with ``by_epoch``, epochs instead of steps."""
        numbers = np.full(len(self.values), None) if self.axis.in_order else self.steps
        lacks_times = 2 * np.isnan(self.times).sum() >= len(self.times)
        steps = np.asarray(self.epochs) if by_epoch else numbers
        return steps, self.values, None if lacks_times else self.times

    @property
    def offsets_and_values(self) -> tuple[Ints, Floats]:
        """The offsets of the points in the log, sorted, and their values."""
        offsets = join_columns(each.offsets for each in self.rows)[self.which]
        order = np.argsort(offsets, kind="stable")
        return offsets[order], self.values[order]

    @property
    def work(self) -> float:
        """The mean value times the number of steps: of step_seconds, the duration of a bar."""
        return float(self.steps[-1] * self.values.mean())


class LogCounter(Struct, eq=False):
    """The progress that one log shows on one axis.

    Attributes:
        log: The log.
        rows: Its rows on the axis.
        counted: The steps of the rows that show the progress, or None.
        rows_by_name: The rows by metric.
        counter: State of the step counter at the end of the log.
        begins: Run and epoch at the start of the log.
        turns: Positions at which the counter falls.
    """

    log: LogSteps
    rows: list[Rows]
    counted: CountedSteps | None
    rows_by_name: dict[str, list[Rows]] = {}
    counter: StepCounter = field(default_factory=StepCounter)
    begins: tuple[int, int] = (0, 0)
    turns: list[CounterTurn] = []

    def __post_init__(self) -> None:
        for each in self.rows:
            for name in dict.fromkeys(each.names):
                self.rows_by_name.setdefault(name, []).append(each)

    def by_rank(self, name: str, source: str | None) -> list[list[Rows]]:
        """Return the rows of a metric and source for each rank, the lowest first."""
        of_rank: dict[int, list[Rows]] = {}
        for each in self.rows_by_name.get(name, ()):
            if source in (None, each.source):
                of_rank.setdefault(-1 if each.rank is None else each.rank, []).append(each)
        return [of_rank[rank] for rank in sorted(of_rank)]


class StepAxis:
    """One way to order the rows of a run.

    ``kind`` is the field of LogSteps that has the rows: ``by_step``, ``by_epoch``, or
    ``without_steps``, whose order alone counts.
    """

    def __init__(self, kind: str, logs: Sequence[LogSteps]) -> None:
        self.kind, self.in_order = kind, kind == "without_steps"
        # The rows and points of the previous metric: many metrics have the same rows.
        self._rows: list[Rows] = []
        self._points: _Points | None = None
        # Which rows show the progress, and the main log of each attempt: the first that has them.
        rows = chain.from_iterable(getattr(log, kind) for log in logs)
        self.priority = 0 if self.in_order else max((each.priority for each in rows), default=0)
        self.attempts = [
            [LogCounter(log, rows := getattr(log, kind), self._count(rows)) for log in each]
            for _, each in groupby(logs, key=lambda log: log.log.attempt)
        ]
        main_counters = [
            next((log_counter for log_counter in each if log_counter.counted), None)
            for each in self.attempts
        ]
        self.main_counters = [
            main or each[0] for main, each in zip(main_counters, self.attempts, strict=True)
        ]
        self.counted = [main.counted for main in self.main_counters if main.counted]
        self.within_epochs = restarts_each_epoch(self.counted)
        self.counter = StepCounter()
        for number, attempt in enumerate(self.attempts):
            highest = self.counter.highest
            for log_counter in attempt:
                log_counter.begins = (self.counter.run, highest.epoch if highest else 0)
                log_counter.counter = replace(self.counter, ends={**self.counter.ends})
                if log_counter.counted is None:
                    continue
                marks = [-1] if number else []
                if not self.in_order:
                    marks += [each.offset for each in log_counter.log.log.marks if each.restart]
                within = self.within_epochs
                log_counter.turns = follow_counter(
                    log_counter.counted, marks, log_counter.counter, within_epochs=within
                )
            self.counter = self.main_counters[number].counter
        # The passes, numbered: each run and epoch. A step occurs in each at most once.
        counters = [*chain.from_iterable(self.attempts)]
        begun = {
            (turn.run, turn.at.epoch) for log_counter in counters for turn in log_counter.turns
        }
        begun.update(log_counter.begins for log_counter in counters)
        self.passes = {each: number for number, each in enumerate(sorted(begun))}
        # The first position of each attempt that later attempts repeat.
        self.cuts: list[_PassAndStep] = [(len(begun), 0)]
        for main in reversed(self.main_counters[1:]):
            self.cuts.insert(0, self._cuts(main.turns, self.cuts[0])[0])
        # Other trainings in the same file: their lengths, their numbers of losses, their runs.
        self.length, self.others, self.left_out = self._find_trainings()

    def _count(self, rows: Sequence[Rows]) -> CountedSteps | None:
        """Join the rows that show the progress, printed by the first rank that has them.

        Without steps, the fractional epochs of the training losses are used as a counter: the HF
        Trainer prints how far the epoch is, but no step. Where that falls, the job was resumed, or
        another run begins. Which points were repeated is unknown, so all are kept in order.
        """
        if self.in_order:
            rows = [each for each in rows if each.has_losses and EPOCH in each.names]
            rows = [replace(each, epochs=each.column(EPOCH)) for each in rows]
            offsets, epochs = join_epochs(rows)
            is_known = (epochs >= 0) & (epochs < _MAX_EPOCHS)
            parts = np.rint(epochs[is_known] * _EPOCH_PARTS).astype(np.int64)
            return CountedSteps(offsets[is_known], parts) if parts.size else None
        rows = [each for each in rows if each.priority == self.priority and each.steps is not None]
        if not self.priority:  # no rows of the training: evaluations separate the runs
            rows = [each for each in rows if LOSSES.intersection(each.names)]
        if not rows:
            return None
        first = min(rows, key=lambda each: each.offsets[0])
        return join_steps(
            [
                each
                for each in rows
                if each.rank == first.rank
                and (each.priority >= PRIORITY_PLACED_LOSS or each.names == first.names)
            ]
        )

    def rows_of(self, name: str) -> list[Rows]:
        """Return all rows that have a metric, of every log."""
        counters = chain.from_iterable(self.attempts)
        return [rows for log_counter in counters for rows in log_counter.rows_by_name.get(name, ())]

    def _find_trainings(self) -> tuple[int, list[tuple[int, int]], set[int]]:
        """Find the main training, if one file has several with epochs of different lengths.

        Returns its epoch length, the (epoch length, number of losses) of the others, and the runs
        of the others.
        """
        length_of: dict[int, int] = {}
        rows: Counter[int] = Counter()
        for main in self.main_counters:
            counted = main.counted
            if counted is None or counted.lengths is None or not main.log.through_epochs:
                continue
            starts = np.searchsorted(counted.offsets, [turn.offset for turn in main.turns])
            bounds = [0, *starts.tolist(), len(counted.offsets)]
            runs = [main.begins[0], *(turn.run for turn in main.turns)]
            for run, (start, end) in zip(runs, pairwise(bounds), strict=True):
                if start < end:
                    length_of[run] = max(0, int(counted.lengths[end - 1]))
                    rows[length_of[run]] += end - start
        (length, _), *others = rows.most_common() or [(0, 0)]
        others = [
            each
            for each in others
            if not length / _SAME_TRAINING_LENGTH_RATIO
            <= each[0]
            <= length * _SAME_TRAINING_LENGTH_RATIO
        ]
        return length, others, {run for run, each in length_of.items() if each in dict(others)}

    @property
    def total(self) -> int | None:
        """The total number of steps, as the rows that show the progress name it."""
        epochs = join_columns(each.epochs for each in self.counted if each.epochs is not None)
        epochs = epochs[np.isfinite(epochs)]
        # With whole epochs it may be the length of an epoch, until the counter exceeds one.
        is_whole = epochs.size > 0 and epochs[-1] % 1 == 0
        if is_whole and (self.within_epochs or (np.floor(epochs) == epochs[-1]).all()):
            return None
        totals = (each.total for each in reversed(self.counted))
        return next((total for total in totals if total is not None), None)

    def restarts(self) -> list[Restart]:
        """Return all restarts, including those between attempts."""
        found = []
        reached: int | None = None
        for number, main in enumerate(self.main_counters):
            index, counted = main.log.log.attempt, main.counted
            again = [turn for turn in main.turns if turn.is_resumption]
            for turn in again:
                lost_at = turn.reached.step if turn.reached else None
                found.append(Restart(index, lost_at, turn.at.step, turn.replayed or 0))
            if number and not again:
                at = int(counted.steps[0]) if counted else None
                found.append(Restart(index, reached, at, 0))
            reached = main.counter.highest.step if main.counter.highest else None
        return [Restart(each.attempt, None, None, 0) for each in found] if self.in_order else found

    def notes(self, losses: MetricPoints | None) -> Iterator[str]:
        """Yield notes on falls of the counter, on several processes, and on values not shown."""
        falls: dict[tuple[str, str], list[str]] = {}
        main_counters = [(main, main.counted) for main in self.main_counters if main.counted]
        for turn, counted in (
            (turn, counted) for main, counted in main_counters for turn in main.turns
        ):
            if turn.reached is not None and self.in_order:
                meaning = _REPEATED if turn.is_resumption else _OTHER_RUN
                reached, resumed = (each.step / _EPOCH_PARTS for each in (turn.reached, turn.at))
                where = f"{reached:g} to {resumed:g}"
                falls.setdefault(("the epoch falls from", meaning), []).append(where)
            elif turn.reached is not None and not turn.is_resumption:
                full = (counted.total or math.inf) * (FULL_BAR_SHARE if counted.is_bar else 1)
                meaning = _NEXT_EPOCH if turn.reached.step >= full else _OTHER_RUN
                what = "the step counter restarts after"
                falls.setdefault((what, meaning), []).append(f"step {turn.reached.step}")
        for (what, meaning), places in falls.items():
            others = sum(place != places[0] for place in places)
            more = f" and at {others} other place{'s' if others > 1 else ''}" if others else ""
            yield f"{what} {places[0]}{more}: {meaning}"
        for length, count in self.others:
            yield (
                f"the file also has a training with {length} steps in all or per epoch instead of "
                f"{self.length}: its {count} losses are ignored"
            )
        processes = max((round(self._processes(main.rows)) for main, _ in main_counters), default=1)
        rows = sum(len(counted.steps) for _, counted in main_counters)
        behind = sum(main.counter.behind for main, _ in main_counters)
        shown = 0 if losses is None else len(losses.values)
        if processes > 1:
            yield (
                f"each step appears {processes} times with different values and no rank, as if "
                "several processes printed it: the last value of each step is used"
            )
        elif (
            losses is not None
            and behind > _SMALL_SHARE * rows
            and shown < (1 - _SMALL_SHARE) * rows
        ):
            yield (
                f"{shown:,} of {rows:,} losses are shown: the step counter returns {behind:,} "
                "times to earlier steps, and the last value of each step is used"
            )
        count = sum(
            len(x) for main, _ in main_counters for x in main.log.without_steps if x.has_losses
        )
        if (
            losses is not None
            and self.kind == "by_step"
            and losses.source == OWN_STEP
            and count > rows
        ):
            yield f"{count:,} losses without a step are not shown"

    def _processes(self, rows: Sequence[Rows]) -> float:
        """Return how many processes print the same steps: rows per distinct step.

        Rows that are printed repeatedly within an epoch, with the epoch as the step, are those of
        one process.
        """
        count = repeats = 0
        for each in rows:
            steps, is_own = each.steps, each.source == OWN_STEP and each.rank is None
            if steps is None or not is_own or each.priority != self.priority:
                continue
            is_epoch = each.epochs is not None and np.array_equal(steps, each.epochs)
            if each.names and not is_epoch:
                values = each.column(LOSS) if LOSS in each.names else each.columns[0]
                count += len(each)
                again = ~find_changes(steps) & find_changes(values)
                again &= True if each.epochs is None else ~find_changes(each.epochs)
                repeats += int(again.sum())
        return count / (count - repeats) if count else 1

    def points(self, name: str, source: str = OWN_STEP) -> MetricPoints | None:
        """Return the points of a metric whose steps come from one source, or None."""
        any_source = None if self.in_order else source
        candidates = [
            [
                (log_counter, rows)
                for log_counter in attempt
                for rows in log_counter.by_rank(name, any_source)
            ]
            for attempt in self.attempts
        ]
        rows = [each for _, known in chain.from_iterable(candidates) for each in known]
        if rows != self._rows:
            self._rows, self._points = rows, self._choose_points(candidates)
        if self._points is None:
            return None
        rows, which, *_ = self._points
        values = join_columns(each.column(name) for each in rows)[which]
        return MetricPoints(self, source, values, *self._points)

    def _choose_points(
        self, candidates: Sequence[Sequence[tuple[LogCounter, list[Rows]]]]
    ) -> _Points | None:
        """Choose a log and a rank for each attempt, and the last point of each step.

        It is the first log, and the lowest rank in it, unless another has more than twice as many
        points: the first may print a single line of its own.
        """
        rows: list[Rows] = []
        chosen = []
        for attempt, cut in zip(candidates, self.cuts, strict=True):
            places = [self._select_points(*each, cut) for each in attempt]
            most = max((len(numbers) for numbers, *_ in places), default=0)
            for (_, known), (numbers, passes, steps) in zip(attempt, places, strict=True):
                if 2 * len(numbers) >= most:
                    if rows:
                        numbers = numbers + sum(map(len, rows))
                    chosen.append((numbers, passes, steps))
                    rows += known
                    break
        if not chosen:
            return None
        numbers, passes, steps = map(join_columns, zip(*chosen, strict=True))
        if self.in_order:
            steps = np.arange(len(numbers))  # every point is kept
        last = _select_last_of_steps(passes, steps)
        others = [number for (run, _), number in self.passes.items() if run in self.left_out]
        is_shown = ~np.isin(passes[last], others)
        if is_shown.any():
            last = last[is_shown]
        numbers = numbers[last]
        times = join_columns(fill_missing(each.times, len(each)) for each in rows)[numbers]
        begun, passes = [*self.passes], passes[last]
        epochs = [begun[number][1] for number in passes[find_changes(passes)]]
        return (rows, numbers, steps[last], times, epochs) if numbers.size else None

    def _select_points(
        self, log_counter: LogCounter, rows: Sequence[Rows], cut: _PassAndStep
    ) -> tuple[Ints, Ints, Ints]:
        """Return the indices of the points that count, with the pass and the step of each.

        Points that are repeated later are dropped; later attempts repeat those from ``cut`` on.
        """
        offsets = join_columns(each.offsets for each in rows)
        order = np.argsort(offsets, kind="stable")
        if self.in_order:
            return order, np.full(len(order), self.passes[log_counter.begins]), order
        steps = join_columns(each.steps for each in rows if each.steps is not None)[order]
        turns = np.searchsorted(
            [turn.offset for turn in log_counter.turns], offsets[order], "right"
        )
        begins = [log_counter.begins, *((turn.run, turn.at.epoch) for turn in log_counter.turns)]
        passes = np.array([self.passes[each] for each in begins], np.int32)[turns]
        cuts = self._cuts(log_counter.turns, cut)
        if cuts[0] < (len(self.passes), 0):
            last, end = np.array(cuts)[turns].T
            is_kept = (passes < last) | ((passes == last) & (steps < end))
            order, passes, steps = order[is_kept], passes[is_kept], steps[is_kept]
        del offsets, turns  # columns of a long log are large
        last = _select_last_of_steps(passes, steps)
        return order[last], passes[last], steps[last]

    def _cuts(self, turns: Sequence[CounterTurn], cut: _PassAndStep) -> list[_PassAndStep]:
        """Return where later repetitions of the run begin, at its start and after each turn."""
        cuts = [cut]
        for turn in reversed(turns):
            place = (self.passes[turn.run, turn.at.epoch], turn.at.step)
            cuts.append(min(cuts[-1], place) if turn.is_resumption else cuts[-1])
        return cuts[::-1]


def _select_last_of_steps(passes: Ints, steps: Ints) -> Ints:
    """Return the indices of the last point of each pass and step, in their order."""
    if (passes == passes[:1]).all() and (steps[1:] >= steps[:-1]).all():
        return np.flatnonzero(np.append(steps[1:] != steps[:-1], True)[: len(steps)])
    order = np.lexsort((steps, passes))
    differs = find_changes(passes[order])[1:] | find_changes(steps[order])[1:]
    return np.append(order[:-1][differs], order[-1:])


def _are_running_means(drawn: MetricPoints, lines: MetricPoints) -> bool:
    """Return True if a bar shows running means, whose final values are then printed on lines.

    A running mean ends at the value of the line, and it changes less and less within an epoch; the
    loss of each batch does not.
    """
    offsets, means = lines.offsets_and_values
    places, values = drawn.offsets_and_values
    ends = np.searchsorted(places, offsets)
    if len(means) < _MIN_MEANS or not ends.all():
        return False
    if len({*join_epochs(drawn.rows)[1].tolist()}) > len(means):
        return False  # the bar itself counts epochs
    meets = np.isclose(values[ends - 1], means, rtol=_PRINTED_TOLERANCE, equal_nan=True)
    parts = [np.abs(np.diff(part)) for part in np.split(values, ends)[:-1]]
    early = sum(float(part[: len(part) // 2].sum()) for part in parts)
    late = sum(float(part[len(part) // 2 :].sum()) for part in parts)
    return bool(meets.mean() > 1 - _SMALL_SHARE and 2 * late < early)


class PointSelector:
    """Selects the points of each metric to show."""

    def __init__(self, logs: Sequence[LogSteps]) -> None:
        self.logs = logs
        self.by_step, self.by_epoch, self.in_order = (
            StepAxis(kind, logs) for kind in ("by_step", "by_epoch", "without_steps")
        )
        self.training = next((log.training for log in reversed(logs) if log.training), None)
        # A bar called "Epoch" restarts with each epoch.
        is_through = any(log.through_epochs for log in logs)
        description = self.training.description if self.training and not is_through else ""
        self.within_epoch = self.by_step.within_epochs or "epoch" in description.lower()

    def choose_axis(self, losses: MetricPoints | None) -> StepAxis:
        """Return the axis of the losses, or without losses the best one."""
        counted = [axis for axis in (self.by_step, self.by_epoch) if axis.priority]
        return losses.axis if losses is not None else [*counted, self.in_order][0]

    def names(self) -> list[str]:
        """List the metrics."""
        axes = (self.by_step, self.by_epoch, self.in_order)
        counters = (
            log_counter for axis in axes for attempt in axis.attempts for log_counter in attempt
        )
        return [
            *dict.fromkeys(name for log_counter in counters for name in log_counter.rows_by_name)
        ]

    def find(self, name: str) -> MetricPoints | None:
        """Find the points of a metric: those of its lines, otherwise those of a bar."""
        sides = [*dict.fromkeys(each.source for each in self.by_step.rows_of(name))]
        lines = self._of_lines(name, sides)
        drawn = self.by_step.points(name, FROM_BAR) if FROM_BAR in sides else None
        if lines is not None and (
            drawn is None
            or 2 * len(lines.values) >= len(drawn.values)
            or _are_running_means(drawn, lines)
        ):
            return lines
        if drawn is not None:
            return drawn
        # The bar of the training, otherwise the bar that took longest.
        training = self.training.source if self.training else None
        bars = [self.by_step.points(name, source) for source in sides if source.startswith("bar ")]
        found = [column for column in bars if column is not None]
        return max(found, key=lambda bar: (bar.source == training, bar.work), default=None)

    def _of_lines(self, name: str, sides: Sequence[str]) -> MetricPoints | None:
        without_steps, at_epochs = self.in_order.rows_of(name), self.by_epoch.rows_of(name)
        if not all(each.is_result for each in self.by_step.rows_of(name) + at_epochs):
            # Scores without a position may repeat those with one.
            without_steps = [each for each in without_steps if not each.is_result]
            at_epochs = [each for each in at_epochs if not each.is_result]
        own = self.by_step.points(name) if OWN_STEP in sides else None
        if own is not None:
            least = min(_FEW_ROWS, _SMALL_SHARE * sum(map(len, without_steps)))
            if len(own.values) >= max(least, sum(each.distinct_steps for each in at_epochs) / 2):
                return own
        if not without_steps:
            return own
        placed = [each for each in self.by_step.rows_of(name) if each.source == FROM_NEIGHBOUR]
        way = choose_placement(without_steps, placed, at_epochs, counts_all=not self.within_epoch)
        if way == BY_EPOCH and name != LOSS and self._has_losses_in_order:
            way = IN_ORDER
        found = None
        if way in sides:
            found = self.by_step.points(name, way)
            if found is not None and 2 * len(found.values) < sum(map(len, without_steps)):
                found = None  # the bar beside them counts something that restarts repeatedly
        elif way == BY_EPOCH:
            found = self.by_epoch.points(name)
        return found or self.in_order.points(name)

    @cached_property
    def _has_losses_in_order(self) -> bool:
        losses = self.find(LOSS)
        return losses is not None and losses.axis is self.in_order

    def is_logged_once_per_epoch(self, column: MetricPoints | None) -> bool:
        """Return True if a metric is logged once per epoch, so its step is uninformative."""
        if column is None or not self.within_epoch or column.axis is not self.by_step:
            return False
        return len(column.values) == len(column.epochs) > 1
