"""Build the rows of a log from its stored columns, with the steps printed on their lines.

- If steps are printed in thousands (``1K``), their distance is inferred from the first steps.
- If a line contains the epoch, the step within it and the length of the epoch, its step through all
  epochs is computed. The epoch may be on a heading above, and the length on the last line of the
  epoch.
- If an evaluation prints its batches, only the last row is kept, which has the mean of all batches.
- Values that several lines repeat (print and logging, processes, a final table) are kept once.
- The mean loss at the end of an epoch is dropped if batches have losses, and so is the mean of all
  steps at the end of a training, which is printed with its runtime.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import takewhile

import numpy as np
from msgspec.structs import replace

from hpcrun.curves.curve import is_increasing
from hpcrun.curves.durations import times_by_form
from hpcrun.curves.names import (
    EPOCH,
    EVAL_LOSS,
    LOSS,
    LOSSES,
    STEP_SECONDS,
    split_of,
)
from hpcrun.curves.passes import (
    Bools,
    Floats,
    Ints,
    find_changes,
    restarts_each_epoch,
)
from hpcrun.curves.rows import (
    FROM_BAR,
    OWN_STEP,
    PRIORITY_DRAWN_LOSS,
    PRIORITY_OWN_LOSS,
    PRIORITY_TRAINING,
    ProgressBar,
    Rows,
    fill_missing,
    join_columns,
    join_steps,
    known_epochs,
)
from hpcrun.curves.scope import scope_by_batches, scope_by_context
from hpcrun.curves.store import StoredLog, StoredRows, states_other_quantities, states_results

_THOUSAND = 1000
# Larger numbers are neither epochs nor steps.
_MAX_EPOCHS = 1e6
_MAX_STEP = 1 << 62
# If more rows have the same step, they do not come from several processes, and the number is not a
# step.
_MAX_ROWS_AT_ONE_STEP = 64
# Fewer rows do not show whether their steps rise and fall alternately.
_MIN_ALTERNATING_ROWS = 8
# Relative difference up to which two printed values are equal.
_EQUAL_TOLERANCE = 1e-3
# Rows repeat others if this share of them does. They are compared with the longest columns only.
_MIN_REPEATED_SHARE, _MAX_COMPARED = 0.9, 16
# Rows are duplicates if this share of them is printed equally often.
_MIN_DUPLICATED_SHARE = 0.8
# More names of data on which a metric was computed are counts of steps or epochs.
_MAX_DATA = 16
# Losses of batches are at least this many times as numerous as means of epochs.
_MIN_BATCHES_PER_MEAN = 2


def read_rows(log: StoredLog) -> list[Rows]:
    """Build all rows of a log; steps of the training count through all epochs where possible."""
    marks = [each for each in log.marks if each.epoch is not None]
    if len(marks) == 1 and (marks[0].epoch or 0.0) > 1:
        marks = []  # "epoch = 100" is a setting
    headings = np.array([each.offset for each in marks], dtype=np.int64)
    epochs = np.array([each.epoch for each in marks], dtype=np.float64)
    times = times_by_form(log)
    forms = [*log.forms.values()]
    rows = [
        _build_rows(named, headings, epochs, times.get(id(form)))
        for form, named in zip(forms, _name_data(forms), strict=True)
    ]
    blocks = [each for each in log.marks if each.split and each.epoch is None]
    drawn = [
        each
        for each, form in zip(rows, forms, strict=True)
        if form.layout.format == "keras" and headings.size
    ]
    others = [each for each in rows if each not in drawn]
    drawn = _drop_redrawn_bars(scope_by_batches(drawn, headings), headings)
    rows = scope_by_context([*drawn, *others], [*marks, *blocks])
    rows = _keep_evaluation_means(rows, headings)
    rows = _drop_epoch_means(_drop_repeated_losses(rows))
    return _count_through_epochs(rows)


def _name_data(forms: Sequence[StoredRows]) -> list[StoredRows]:
    """Add the name of the data to the names of metrics that were computed over several data.

    Losses of ``[val c4]`` and ``[val wiki]`` become ``eval_c4_loss`` and ``eval_wiki_loss``; those
    of a single evaluation remain ``eval_loss``. Many different names are counts.
    """
    data: dict[str, set[str]] = {}
    for form in forms:
        for name in form.layout.names:
            if split_of(name) == form.layout.scope.split:
                data.setdefault(name, set()).add(form.layout.scope.data)
    found = []
    for form in forms:
        split, on = form.layout.scope.split, form.layout.scope.data
        if on:
            names = tuple(
                f"{split}_{on}_{name.removeprefix(f'{split}_')}"
                if 1 < len(data.get(name, ())) <= _MAX_DATA
                else name
                for name in form.layout.names
            )
            form = replace(form, layout=replace(form.layout, names=names))
        found.append(form)
    return found


def _build_rows(form: StoredRows, headings: Ints, epochs_of: Floats, times: Floats | None) -> Rows:
    """Build the rows of one layout; their epochs may come from the headings above them."""
    layout, names, columns = form.layout, form.layout.names, [*map(np.asarray, form.columns)]
    bar = None if layout.bar is None else ProgressBar(layout.bar, form.total)
    priority, source = PRIORITY_TRAINING, OWN_STEP
    if layout.scope.split != "train":
        priority = 0
    elif LOSS in names:
        priority, source = (PRIORITY_DRAWN_LOSS, FROM_BAR) if bar else (PRIORITY_OWN_LOSS, OWN_STEP)
    offsets = np.asarray(form.offsets)
    steps, epochs = (
        None if column is None else np.asarray(column) for column in (form.steps, form.epochs)
    )
    if epochs is None:
        epochs = epochs_from_headings(
            offsets, headings, epochs_of, 1 if priority and form.steps is None else 0
        )
    elif priority and bar is None and EPOCH not in names:
        names, columns = (*names, EPOCH), [*columns, epochs]
    if steps is not None and layout.is_rounded:
        steps = restore_rounded_steps(steps)
    may_end = bar and source == FROM_BAR and epochs is None and len(offsets) > 2
    if (
        may_end and steps is not None and int(steps.min()) == form.total
    ):  # only drawn when it is full
        bar, steps, priority, source = None, None, PRIORITY_OWN_LOSS, OWN_STEP
    positions = (offsets, steps, epochs, times)
    own = layout.rank, bar, form.total, layout.scope.span
    is_scoped = layout.scope.is_stated
    rows = Rows(names, columns, *positions, source, priority, *own, is_scoped=is_scoped)
    if states_results(form) or states_other_quantities(form):
        # These say nothing about the progress of the training.
        rows = replace(rows, priority=0, is_result=form.steps is None and form.epochs is None)
    return _drop_duplicates(rows)


def _drop_redrawn_bars(rows: Sequence[Rows], headings: Ints) -> list[Rows]:
    """Keep the last drawing of Keras's bar in each epoch; the others show running means."""
    kept = []
    for is_training in (True, False):
        drawn = [each for each in rows if (each.priority > 0) == is_training]
        offsets = np.sort(join_columns(each.offsets for each in drawn))
        above = np.searchsorted(headings, offsets, "right")
        redrawn = offsets[:-1][above[1:] == above[:-1]]
        kept += [each.select(~np.isin(each.offsets, redrawn)) for each in drawn]
    return [each for each in kept if len(each)]


def _drop_duplicates(rows: Rows) -> Rows:
    """Drop rows printed repeatedly: by print and logging, or by each of several processes."""
    epochs = rows.epochs
    if rows.steps is not None or epochs is None or (np.floor(epochs) != epochs).any():
        return rows
    first = np.flatnonzero(np.any([find_changes(each) for each in (*rows.columns, epochs)], axis=0))
    counts = np.diff(np.append(first, len(rows)))
    often = (counts > 1) & (counts == counts[0])
    return rows.select(first) if often.mean() >= _MIN_DUPLICATED_SHARE else rows


def restore_rounded_steps(printed: Ints) -> Ints | None:
    """Return exact steps for those printed in thousands, from the distance of the first ones.

    Steps below a thousand are exact. Where steps fall, the run was resumed, at the first step that
    is consistent with what was printed. None if the distance does not explain the printed steps.

    >>> restore_rounded_steps(np.array([400, 800, 1000, 2000, 2000, 1000, 2000])).tolist()
    [400, 800, 1200, 1600, 2000, 1200, 1600]
    >>> restore_rounded_steps(np.array([400, 800, 3000])), restore_rounded_steps(np.array([1000]))
    (None, None)
    """
    exact = [*takewhile(_THOUSAND.__gt__, printed.tolist())]
    if not exact:
        return None
    stride = (exact[-1] - exact[-2] if len(exact) > 1 else exact[0]) or 1
    steps = []
    for part in np.split(printed, np.flatnonzero(printed[1:] < printed[:-1]) + 1):
        # The range of first steps that is consistent with every printed step.
        counted = np.arange(len(part)) * stride
        unit = np.select([part >= _THOUSAND**2, part >= _THOUSAND], [_THOUSAND**2, _THOUSAND], 0)
        low = max(0, int((np.maximum(part - unit // 2, unit) - counted).max()))
        high = min(_MAX_STEP, int((part + unit // 2 - counted).min()))
        first = low if low == high else low + (exact[0] - low) % stride
        if not low <= first <= high:
            return None
        steps.append(first + counted)
    return np.concatenate(steps)


def epochs_from_headings(
    offsets: Ints, headings: Ints, epochs: Floats, least: int
) -> Floats | None:
    """Return the epoch of the last heading above each row; None if there is none.

    Rows above the first heading belong to the previous epoch, unless that is below ``least``.
    """
    if not headings.size or offsets[-1] < headings[0]:
        return None
    first = epochs[0] - 1 if epochs[0] > least else math.nan
    found: Floats = np.append(first, epochs)[np.searchsorted(headings, offsets, "right")]
    return found


def _keep_evaluation_means(rows: Sequence[Rows], headings: Ints) -> list[Rows]:
    """Keep the last row of each evaluation that prints its batches: it has the mean of all.

    Metrics that a line without a counter then repeats are dropped.
    """
    trained = np.sort(join_columns([headings, *(each.offsets for each in rows if each.priority)]))
    evaluations = [each for each in rows if not each.priority and each.bar is None]
    closing = [each for each in evaluations if not each.total and each.steps is None]
    closed = {name for each in closing for name in each.names}
    found = []
    for each in rows:
        if each.total and each in evaluations:
            gaps = np.searchsorted(trained, each.offsets)
            is_last = np.append(gaps[1:] != gaps[:-1], True)
            if _restarts_after(each, is_last):
                each = each.select(is_last).select_columns(
                    [name for name in each.names if name not in closed]
                )
                each.steps = None
        found.append(each)
    return found


def _restarts_after(rows: Rows, is_last: Bools) -> bool:
    """Return True if the steps restart after the last row of each evaluation, and only there."""
    if rows.steps is None:
        return True
    falls = rows.steps[1:] < rows.steps[:-1]
    return bool(falls.any() and (falls == is_last[:-1]).all())


def _drop_repeated_losses(rows: Sequence[Rows]) -> list[Rows]:
    """Drop losses that other lines repeat with a step or epoch that these rows lack.

    Losses that repeat earlier lines in the same order, such as a final table, are dropped too.
    """
    compared = {*LOSSES, EPOCH}
    longest: dict[object, list[Rows]] = {}
    lines = [each for each in rows if each.bar is None and compared.intersection(each.names)]
    for each in sorted(lines, key=len, reverse=True):
        for name in compared.intersection(each.names):
            others = longest.setdefault((name, each.rank), [])
            others += [each] if len(others) < _MAX_COMPARED else []
    found = {}
    for each in lines:
        repeated = {
            name
            for name in compared.intersection(each.names)
            if any(_is_repetition(each, other, name) for other in longest[name, each.rank])
        }
        kept = [name for name in each.names if name not in repeated]
        if repeated:
            found[each] = replace(
                each.select_columns(kept), priority=min(each.priority, PRIORITY_TRAINING)
            )
    return [found.get(each, each) for each in rows]


def _is_repetition(rows: Rows, other: Rows, name: str) -> bool:
    """Return True if nearly all rows repeat the values of rows with better positions."""
    values, known = rows.column(name), other.column(name)
    less, more = ((x.steps is not None, x.epochs is not None) for x in (rows, other))
    if rows.steps is None and more > less:
        # The other's row before or after each row.
        beside = np.append(math.nan, np.append(known, math.nan))
        behind = np.searchsorted(other.offsets, rows.offsets)
        near = np.isclose([beside[behind], beside[behind + 1]], values, rtol=_EQUAL_TOLERANCE).any(
            axis=0
        )
    elif rows.steps is None and more == less and len(values) == len(known) > _MIN_BATCHES_PER_MEAN:
        near = np.isclose(values, known, rtol=_EQUAL_TOLERANCE) & (other.offsets < rows.offsets)
    else:
        return False
    return bool(near.mean() >= _MIN_REPEATED_SHARE)


def _drop_epoch_means(rows: Sequence[Rows]) -> list[Rows]:
    """Drop mean losses of epochs if batches have losses; use the epoch lengths on such lines."""
    none = [each for each in rows if _is_no_counter(each)]
    named = [each for each in none if each.epochs is not None]
    if len({each.highest for each in named}) == 1 and len(named) < len(rows):
        own = [x for x in rows if x.has_own_steps and x.epochs is not None and not x.total]
        counted = join_steps([each for each in own if each not in named])
        falls = (counted.steps[1:] <= counted.steps[:-1]).sum()
        if counted.steps.max(initial=0) <= named[0].highest and 2 * falls >= sum(map(len, named)):
            none = [each for each in none if each not in named]
            for each in own:
                each.total = named[0].highest
    rows = [replace(each, steps=None) if each in none else each for each in rows]
    own = [each for each in rows if each.has_losses and each.has_own_steps]
    most = max(own, key=len, default=None)
    fewer = [each for each in own if most and _is_mean_of(each, most)]
    rows = [
        each.select_columns([n for n in each.names if n != LOSS]) if each in fewer else each
        for each in rows
    ]
    lost = [each for each in rows if each.has_losses and each.bar is None]
    means = [each for each in lost if each.span == "epoch" or EVAL_LOSS in each.names]
    batches = [each for each in lost if each not in means]
    count, of_means = sum(map(len, batches)), sum(map(len, means))
    has_steps = any(each.steps is not None for each in lost)
    if not means or has_steps or count < _MIN_BATCHES_PER_MEAN * of_means:
        return rows
    shown, closed = known_epochs(batches), known_epochs(means)
    if shown.size and not np.isin(closed, shown).all():
        return rows  # rows of a table that have both losses belong to other epochs
    return [
        each.select_columns([name for name in each.names if name != LOSS])
        if each in means
        else each
        for each in rows
    ]


def _is_mean_of(rows: Rows, most: Rows) -> bool:
    """Return True if nearly all rows are means of many more rows, up to their step or epoch."""
    if (
        most.steps is None
        or rows.rank != most.rank
        or _MIN_BATCHES_PER_MEAN * len(rows) > len(most)
    ):
        return False
    before = np.searchsorted(most.offsets, rows.offsets) - 1
    is_mean = most.steps[before] == rows.steps
    if rows.epochs is not None and most.epochs is not None and len(rows) > _MIN_BATCHES_PER_MEAN:
        ends = np.append(most.epochs, math.inf)
        is_end = (most.epochs[before] == rows.epochs) & (ends[before + 1] != rows.epochs)
        is_mean |= is_end if find_changes(rows.epochs).all() else False
    return bool(((before >= 0) & is_mean).mean() >= _MIN_REPEATED_SHARE)


def _is_no_counter(rows: Rows) -> bool:
    """Return True if steps are all equal ("Epoch: 5, Step: 540") or alternately rise and fall."""
    steps, epochs = rows.steps, rows.epochs
    if steps is None or not rows.has_own_steps or rows.total:
        return False
    if (steps != steps[0]).any():
        falls = (steps[:-1] - steps[1:])[steps[1:] < steps[:-1]]
        if epochs is not None or not _MIN_ALTERNATING_ROWS < len(steps) <= 4 * len(falls):
            return False
        gaps = np.sort(np.diff(np.sort(steps)))  # regular gaps: rows are merely out of order
        uneven = 2 * (gaps > 0).sum() + 2 > len(steps) and find_changes(gaps).sum() > 2
        return bool(uneven and 4 * falls.mean() >= steps.max() - steps.min())
    return (
        len(steps) > _MAX_ROWS_AT_ONE_STEP
        if epochs is None
        else len(steps) > 1 and bool(find_changes(epochs).all())
    )


def _count_through_epochs(rows: Sequence[Rows]) -> list[Rows]:
    """Count steps through all epochs where lines have the epoch, its step, and its length.

    This is done for lines of the training, evaluations between them, and each bar of the training.
    """
    named = [
        x
        for x in rows
        if x.steps is not None and x.epochs is not None and not _rises_through_epochs(x)
    ]
    trained = [each for each in named if each.has_own_steps or (each.has_losses and each.bar)]
    ends = {each.total for each in trained if each.total}
    named = [x for x in named if x in trained or (x.bar is None and x.total in ends)]
    through: dict[Rows, Rows] = {}
    for bar in dict.fromkeys(each.bar for each in named):
        own = [each for each in named if each.bar == bar]
        through |= zip(own, _add_epoch_lengths(own), strict=True)
    found = [through.get(each, each) for each in rows]
    return [each for each in found if len(each)]


def _rises_through_epochs(rows: Rows) -> bool:
    """Return True if the steps already rise through all epochs: "Epoch 3 | step 700/9000"."""
    several = rows.epochs is not None and (rows.epochs != rows.epochs[0]).any()
    return bool(
        several
        and len(rows) > _MIN_BATCHES_PER_MEAN
        and rows.steps is not None
        and is_increasing(rows.steps)
    )


def _add_epoch_lengths(own: Sequence[Rows]) -> Sequence[Rows]:
    """Return rows with step = epoch * length + step, if their steps restart with each epoch.

    Epochs count from 0 or from 1, as the first one shows.
    """
    lengths = [each for each in own if each.total and each.highest <= each.total]
    if not lengths:
        return own
    usual = max(lengths, key=len).total or 0
    longest = max(each.total or 0 for each in lengths)
    most = np.abs(known_epochs(own)).max(initial=0)
    counted = join_steps([each for each in lengths if each.total == usual])
    epochs = known_epochs(lengths)
    is_logged_once_per_epoch = bool((epochs[1:] != epochs[:-1]).all())
    if (
        most > _MAX_EPOCHS
        or most * longest > _MAX_STEP
        or is_logged_once_per_epoch
        or (epochs % 1).any()
        or not (counted.steps[1:] < counted.steps[:-1]).any()
        or not restarts_each_epoch([counted])
    ):
        return own
    base = 0 if float(known_epochs(own).min()) < 1 else 1
    begins = _find_epoch_begins(lengths, base, usual)
    found = []
    for each in own:
        length = (each.total or 0) if each in lengths else usual
        steps = each.steps
        if steps is None or each.highest > length:
            found.append(each)
            continue
        if (steps == 0).any() and (steps == length).any() and each.bar is None:
            length += 1  # steps 0 and length are both printed
        epochs = fill_missing(each.epochs, len(each))
        steps = _restore_last_steps(steps, epochs, length)
        done = np.where(np.isfinite(epochs), np.trunc(epochs) - base, 0).astype(np.int64)
        before = done * length
        if begins is not None and each in lengths:
            before = begins[np.clip(done, 0, len(begins) - 1)]
        through = replace(each, steps=before + steps, total=None, length=length)
        # At step 0, a bar repeats the end of the epoch before.
        found.append(through.select((steps > 0) | (done == 0)) if each.bar else through)
    return found


def _restore_last_steps(steps: Ints, epochs: Floats, length: int) -> Ints:
    """Return steps with the end of the epoch where the last one of an epoch is lower.

    PyTorch's examples count samples as the number of batches times the size of the present batch,
    and the last batch of an epoch is smaller.

    >>> epochs = np.array([1.0, 1, 1, 2, 2])
    >>> _restore_last_steps(np.array([0, 64, 96, 64, 0]), epochs, 512).tolist()
    [0, 64, 96, 64, 0]
    >>> _restore_last_steps(np.array([0, 64, 30, 0, 64]), epochs, 112).tolist()
    [0, 64, 111, 0, 64]
    """
    is_same = epochs[1:] == epochs[:-1]
    stride = np.diff(steps)[is_same].max(initial=0)
    is_low = np.append(
        False, (steps[1:] < steps[:-1]) & is_same & (steps[:-1] + 2 * stride >= length)
    )
    is_last = np.append(~is_same, True)
    # The next epoch begins at this length if its first step is 0.
    return np.where(is_low & is_last, length - (steps.min() == 0), steps)


def _find_epoch_begins(lengths: Sequence[Rows], base: int, usual: int) -> Ints | None:
    """Return how many steps precede each epoch, if epochs differ in length.

    None if all have the same length, or one has several, as in several trainings.
    """
    length_of: dict[int, int] = {}
    for each in lengths:
        for epoch in np.unique(known_epochs([each])).astype(int).tolist():
            if length_of.setdefault(epoch - base, each.total or usual) != (each.total or usual):
                return None
    if len({*length_of.values()}) < 2 or min(length_of) < 0 or max(length_of) > _MAX_EPOCHS:
        return None
    known = [length_of.get(epoch, usual) for epoch in range(max(length_of) + 1)]
    begins: Ints = np.cumsum([0, *known[:-1]])
    return begins


def drop_summary(rows: Rows, others: Collection[str] = ()) -> Rows:
    """Drop values that were not measured at a step.

    These are the mean loss that closes a training, beside its runtime, and the step times of bars
    without steps. With a learning rate, the loss belongs to a step: a Trainer that counts tokens
    logs its runtime at each step. Other metrics of the summary that further lines have (``others``)
    are their means.
    """
    sums_up = rows.span == "run"
    return rows.select_columns(
        [
            name
            for name in rows.names
            if not (sums_up and (name == LOSS or (name in others and name != EPOCH)))
            and not (rows.bar is not None and name.endswith(STEP_SECONDS))
        ]
    )
