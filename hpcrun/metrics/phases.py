"""Phases: which rows are no training's, though their lines look like its own.

A program may print the batches of an evaluation as it prints those of the training, below a heading
or not. Then the counter runs to one end, begins again and runs to another, and so forth in turns:
what ends first is the training. Of an evaluation the last row counts, its mean over all batches.

A line that closes an epoch may say its mean loss. Where the batches have told theirs it is none of
the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice, pairwise
from operator import le, lt

from msgspec.structs import replace

from hpcrun.metrics.names import EVAL_LOSS, LOSS, OF_THE_RUN, name_in
from hpcrun.metrics.own_steps import OWN, Rows, merged, merged_order
from hpcrun.metrics.passes import rises

# Training and validation take turns, or a test comes third.
_TURNS = (2, 3)
# So many losses of batches there are to each mean of an epoch, at least.
_BATCHES = 2


def without_means(rows: Sequence[Rows]) -> list[Rows]:
    """Leave out the mean losses of epochs where no line has a step and batches tell theirs."""
    rows = [replace(each, steps=()) if _counts_the_epoch(each) else each for each in rows]
    lost = [each for each in rows if each.level and LOSS in each.names and each.bar is None]
    means = [each for each in lost if each.is_mean or EVAL_LOSS in each.names]
    batches = [each for each in lost if each not in means]
    # A table may have both losses in some of its rows: those are of epochs of their own.
    others = _epochs(means) - _epochs(batches) if _epochs(batches) else ()
    if any(each.steps for each in lost) or others or _count(batches) < _BATCHES * _count(means):
        return [*rows]
    return [
        each.of([name for name in each.names if name != LOSS]) if each in means else each
        for each in rows
    ]


def _counts_the_epoch(rows: Rows) -> bool:
    """Whether the steps are how many an epoch has: "Epoch: 5, Steps: 540"."""
    steps, epochs = rows.steps, rows.epochs
    if not steps or epochs is None or not rows.level or rows.bar is not None or rows.total:
        return False
    return 1 < len(steps) == steps.count(steps[0]) and all(map(lt, epochs, epochs[1:]))


def _count(rows: Sequence[Rows]) -> int:
    return sum(len(each.offsets) for each in rows)


def _epochs(rows: Sequence[Rows]) -> set[float]:
    epochs = (epoch for each in rows for epoch in each.epochs or ())
    return {epoch for epoch in epochs if not math.isnan(epoch)}


def without_evaluations(rows: Sequence[Rows]) -> list[Rows]:
    """Take the rows of evaluations for what they are.

    >>> steps = [1, 2, 3, 1, 1, 2, 3, 1]
    >>> losses = [9.0, 8.0, 7.0, 7.5, 6.0, 5.0, 4.0, 4.5]
    >>> rows = Rows(
    ...     (LOSS,), [losses], range(8), steps, None, None, OWN, 4, None, "", None, None
    ... )
    >>> [(each.names, *each.columns) for each in without_evaluations([rows])]
    [(('loss',), [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]), (('eval_loss',), [7.5, 4.5])]
    """
    counting = [
        each
        for each in rows
        if each.level and each.steps and each.bar is None and LOSS in each.names
    ]
    if not counting or len({each.rank for each in counting}) > 1:
        return [*rows]
    order = merged_order([each.offsets for each in counting])
    steps = merged(order, [each.steps for each in counting])
    if rises(steps):
        return [*rows]
    falls = enumerate(map(le, islice(steps, 1, None), steps), start=1)
    bounds = [0, *(index for index, falls_here in falls if falls_here), len(steps)]
    turns = _turns([steps[end - 1] for end in bounds[1:]])
    if not turns:
        return [*rows]
    offsets = merged(order, [each.offsets for each in counting])
    trained: set[int] = set()
    closing: set[int] = set()
    for number, (begin, end) in enumerate(pairwise(bounds)):
        if number % turns == 0:
            trained.update(offsets[begin:end])
        elif number % turns == 1:
            closing.add(offsets[end - 1])
    found = []
    for each in rows:
        if each not in counting:
            found.append(each)
            continue
        found.append(_picked(each, trained))
        names = [name for name in each.names if name not in OF_THE_RUN]
        evaluated = _picked(each, closing).of(names)
        found.append(
            replace(
                evaluated,
                names=tuple(name_in("eval", name) for name in names),
                level=0,
                steps=(),
                side=OWN,
            )
        )
    return [each for each in found if each.offsets]


def _picked(rows: Rows, offsets: set[int]) -> Rows:
    return rows.only([at for at, offset in enumerate(rows.offsets) if offset in offsets])


def _turns(ends: Sequence[int]) -> int:
    """Return how many phases take turns, as where their counters end tells; 0 if none do.

    >>> _turns([600, 80, 600, 80, 350]), _turns([600, 600, 600, 20]), _turns([100, 90, 80, 70])
    (2, 0, 0)
    """
    for turns in _TURNS:
        first = ends[:turns]
        if len(ends) < 2 * turns or max(first[1:]) >= first[0]:
            continue
        whole = all(end == first[index % turns] for index, end in enumerate(ends[:-1]))
        if whole and ends[-1] <= first[(len(ends) - 1) % turns]:
            return turns
    return 0
