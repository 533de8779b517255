"""Steps: which steps the rows of a log belong to.

Many lines say what was measured but not at which step: the dictionaries of the HF Trainer, between
the drawings of a progress bar; ``validation loss: 2.9`` between the lines of the steps. The rows
that *count* are those of the training with steps of their own, or the drawings of the training bar:
those by which more of the losses without a step are told apart. A row without a step is placed

- BEFORE: at the last step that was counted before it;
- AFTER: at the next one. Of the two the one is right in which steps grow as the epochs that the
  rows print, or that lies at regular steps: an evaluation every 250 steps that stands between 249
  and 250 belongs to 250. A row before the first step, or after the last one, has one neighbour;
- by epoch: if there is one for each whole epoch, printed or marked, where no counter counts through
  all epochs;
- LATE: where the rows come in lumps, several to a step, as a process prints that buffers its
  output: by the share of the epoch that they print (``lumps``);
- by its order alone, where they print none.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress, islice, pairwise, repeat
from operator import lt, ne

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.metrics.bars import Bar, Drawings, resumptions, training_bars
from hpcrun.metrics.lumps import find_scale
from hpcrun.metrics.names import LOSS
from hpcrun.metrics.own_steps import (
    AFTER,
    BEFORE,
    BY_EPOCH,
    DRAWN,
    IN_ORDER,
    LATE,
    LEVEL_OF_LOSS,
    OWN,
    Counted,
    Rows,
    headings_of,
    join_steps,
    merged,
    merged_order,
    names_epochs,
    pick,
    rows_of,
    side_of,
    through_epochs,
    with_closing_epochs,
    without_summary,
)
from hpcrun.metrics.phases import without_evaluations, without_means
from hpcrun.metrics.store import Log

# This share of a metric's rows must have steps of their own for these to be believed.
_ENOUGH = 0.9
# Steps lie in proportion to the epochs if they are less than this away from it on average. Epochs
# that are rounded too much do not tell.
_STRAYS = 0.25
_TELLING = 4
# Steps of each form that are looked at for that.
_LOOKED_AT = 4096
# An epoch beyond this is none.
_LARGEST = 1 << 53
_EVALUATED = ("eval", "val", "test")


class Steps(Struct, eq=False):
    """The rows of a log with all the steps that they may have.

    ``by_step``: rows with steps, those without one both BEFORE and AFTER. ``by_epoch``: those that
    have no step but a whole epoch, as their step; ``loose``: the ones without a step, bars aside.
    ``training`` is the bar that counts the training; ``resumed`` where it was resumed.
    """

    log: Log
    by_step: list[Rows]
    by_epoch: list[Rows]
    loose: list[Rows]
    training: Bar | None
    resumed: list[int]
    through_epochs: bool

    def by_name(self) -> dict[str, Steps]:
        """Part the rows by the metrics that they have: one of thousands is found at once."""
        parts: dict[str, Steps] = {}
        for kind in ("by_step", "by_epoch", "loose"):
            for rows in getattr(self, kind):
                for name in {*rows.names}:
                    if name not in parts:
                        parts[name] = replace(self, by_step=[], by_epoch=[], loose=[])
                    getattr(parts[name], kind).append(rows)
        return parts


def find_steps(log: Log) -> Steps:
    """Find the steps of the rows of a log.

    >>> from hpcrun.metrics.row import Frame, Layout
    >>> from hpcrun.metrics.store import Store
    >>> bar = Frame(Layout("tqdm", "train", None, "", ()), [0, 20], [1, 2], None, None, (), 9)
    >>> layout = Layout("dict", "train", None, None, ("loss",))
    >>> losses = Frame(layout, [10, 30], None, None, None, ([3.0, 2.5],))
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add([bar, losses])
    >>> [(rows.side, [*rows.steps]) for rows in find_steps(store.logs[0]).by_step if rows.names]
    [('before', [1, 2]), ('after', [2, 2])]
    """
    headings = headings_of(log)
    rows = without_means([rows_of(form, headings) for form in log.forms.values()])
    rows = without_evaluations(rows)
    own = [each for each in rows if each.steps and each.bar is None]
    own = through_epochs(own if names_epochs(own) else with_closing_epochs(own, rows))
    drawn = [each for each in rows if each.steps and each.bar is not None]
    loose = [without_summary(each) for each in rows if not each.steps or not _is_placed(each)]
    trained = [each for each in (*own, *loose) if each.level and LOSS in each.names]
    bars = [
        each
        for each in drawn
        if each.bar and each.level and (each.side == DRAWN or each.bar.may_train)
    ]
    drawings = _drawings(bars)
    offsets = sorted(chain.from_iterable(each.offsets for each in trained))
    evaluated = sorted(each.offsets[0] for each in loose if not each.level)
    found = training_bars(drawings, offsets, evaluated)
    resumed: list[int] = []
    for number, indices in found:
        bar = drawings[number]
        places, steps = pick(bar.offsets, indices), pick(bar.steps, indices)
        if any(map(lt, islice(steps, 1, None), steps)):
            resumed += resumptions(places, steps, bar.bar.total)
    counts = _counts(own, [_counted_by(drawings[n], bars, indices) for n, indices in found], loose)
    by_step = [*own, *_fresh([each for each in drawn if each.side == DRAWN])]
    for each in bars:
        if each.side != DRAWN and each.names and each.bar is not None:
            by_step.append(replace(each, side=side_of(each.bar), level=0))
    by_epoch = []
    for each in loose:
        if each.names:
            by_epoch += _at_epochs(each)
            by_step += _among(each, counts)
    if found and counts.steps:
        by_step += _late(by_step, drawings[found[-1][0]].bar.total)
    return Steps(
        log,
        by_step,
        by_epoch,
        [each for each in loose if each.names and each.bar is None],
        drawings[found[-1][0]].bar if found else None,
        sorted(resumed),
        any(each.length for each in own),
    )


def _is_placed(rows: Rows) -> bool:
    return rows.bar is None or rows.level > 0


def _drawings(bars: Sequence[Rows]) -> list[Drawings]:
    """Join the drawings of each bar, whatever it shows."""
    of_bar: dict[Bar, list[Rows]] = {}
    for each in bars:
        if each.bar is not None:
            of_bar.setdefault(each.bar, []).append(each)
    found = []
    for bar, rows in of_bar.items():
        order = merged_order([each.offsets for each in rows])
        offsets = merged(order, [each.offsets for each in rows])
        steps = merged(order, [each.steps for each in rows])
        shows_loss = any(each.side == DRAWN for each in rows)
        found.append(Drawings(bar, offsets, steps, shows_loss))
    return found


def _counted_by(drawings: Drawings, bars: Sequence[Rows], indices: Sequence[int]) -> Counted:
    rows = [each for each in bars if each.bar == drawings.bar]
    epochs = None
    if all(each.epochs is not None for each in rows):
        order = merged_order([each.offsets for each in rows])
        epochs = pick(merged(order, [each.epochs or () for each in rows]), indices)
    return Counted(pick(drawings.offsets, indices), pick(drawings.steps, indices), epochs)


def _counts(own: Sequence[Rows], by_bars: Sequence[Counted], loose: Sequence[Rows]) -> Counted:
    """Choose the steps that count: of rows that have their own, or of the training bar."""
    by_rows = join_steps(
        [Counted(each.offsets, each.steps, each.epochs) for each in own if each.level]
    )
    by_bar = join_steps(by_bars)
    losses = [each for each in loose if each.level and LOSS in each.names and each.bar is None]
    if not by_rows.steps or not by_bar.steps or not losses:
        return by_rows if by_rows.steps else by_bar
    apart = [
        sum(len({*map(bisect_right, repeat(counts.offsets), each.offsets)}) for each in losses)
        for counts in (by_rows, by_bar)
    ]
    return by_bar if apart[1] > apart[0] else by_rows


def _fresh(drawn: Sequence[Rows]) -> list[Rows]:
    """Leave out what a bar of the training still shows from before.

    That is the results of an evaluation, until the next one; and all that it shows at 0 with the
    loss of the epoch before.
    """
    found = []
    evaluated = {name for rows in drawn for name in rows.names if name.startswith(_EVALUATED)}
    for name in sorted(evaluated):
        showing = [rows for rows in drawn if name in rows.names]
        for rows, new in zip(showing, _changed(showing, name), strict=True):
            found.append(replace(rows.of([name]).only(new), level=0))
    losses = _changed(drawn, LOSS) if any(0 in rows.steps for rows in drawn) else []
    for number, rows in enumerate(drawn):
        kept = rows.of([name for name in rows.names if name not in evaluated])
        if 0 in rows.steps:
            known = {*losses[number]}
            kept = kept.only([at for at, step in enumerate(rows.steps) if step or at in known])
        found.append(kept)
    return [rows for rows in found if rows.steps]


def _changed(drawn: Sequence[Rows], name: str) -> list[list[int]]:
    """Find where a metric is another than in the drawing before, for each of the rows."""
    values = [rows.columns[rows.names.index(name)] for rows in drawn]
    order = merged_order([rows.offsets for rows in drawn])
    which = merged(order, [[number] * len(rows.offsets) for number, rows in enumerate(drawn)])
    index = merged(order, [range(len(rows.offsets)) for rows in drawn])
    changed: list[list[int]] = [[] for _ in drawn]
    shown: float | None = None
    for number, at, value in zip(which, index, merged(order, values), strict=True):
        if value != shown:
            changed[number].append(at)
            shown = value
    return changed


def _at_epochs(rows: Rows) -> list[Rows]:
    """Return the rows with their epochs as steps, if all that have any have whole ones."""
    if rows.epochs is None:
        return []
    epochs = rows.epochs
    if math.isnan(sum(epochs)):
        known = [index for index, epoch in enumerate(epochs) if not math.isnan(epoch)]
        rows, epochs = rows.only(known), pick(epochs, known)
    if not epochs or not all(map(float.is_integer, epochs)) or max(map(abs, epochs)) > _LARGEST:
        return []
    side, level = (OWN, rows.level) if rows.bar is None else (DRAWN, 0)
    steps = array("q", map(int, epochs))
    moved = [True, *map(ne, steps, islice(steps, 1, None))]
    return [replace(rows, steps=steps, side=side, level=level, moved=moved)]


def _among(rows: Rows, counts: Counted) -> list[Rows]:
    """Give rows the steps before them and after them."""
    count = len(counts.steps)
    if not count:
        return []
    places = [*map(bisect_right, repeat(counts.offsets), rows.offsets)]
    early = bisect_right(places, 0)
    if rows.bar is not None:
        rows, places = rows.only(range(early, len(places))), places[early:]
        early = 0
        if not places:
            return []
    before = [place - 1 for place in places]
    before[:early] = [0] * early
    offsets = array("q", rows.offsets)
    offsets[:early] = array("q", [counts.offsets[0]]) * early
    epochs = rows.epochs
    if epochs is None and counts.epochs is not None:
        epochs = pick(counts.epochs, before)
    level = LEVEL_OF_LOSS if rows.level and LOSS in rows.names else 0
    placed = replace(
        rows,
        offsets=offsets,
        steps=pick(counts.steps, before),
        epochs=epochs,
        says_epochs=rows.epochs is not None,
        moved=_moved(counts, before),
        side=BEFORE if rows.bar is None else DRAWN,
        level=level if rows.bar is None else 0,
    )
    if rows.bar is not None:
        return [placed]
    late = bisect_left(places, count)
    after = [*places[:late], *repeat(count - 1, len(places) - late)]
    offsets = array("q", pick(counts.offsets, after))
    offsets[late:] = array("q", rows.offsets[late:])
    steps = pick(counts.steps, after)
    moved = _moved(counts, after)
    # The last row has nothing after it: that its step is that of the one before shows nothing.
    moved[-1] |= late < len(places)
    after_it = replace(rows, offsets=offsets, steps=steps, side=AFTER, level=0, moved=moved)
    after_it.places = rows.offsets
    return [placed, after_it]


def _late(by_step: Sequence[Rows], total: int | None) -> list[Rows]:
    """Place rows by the epochs that they print, if they come in lumps and tell their steps so."""
    said = [each for each in by_step if each.bar is None and each.epochs and each.says_epochs]
    after = [each for each in said if each.side == AFTER]
    losses = [each for each in after if LOSS in each.names]
    if total is None or not losses:
        return []
    for side in (BEFORE, AFTER):
        placed = [each for each in by_step if each.side == side and LOSS in each.names]
        rows = sum(len(each.moved) for each in placed)
        if sum(sum(each.moved) for each in placed) >= _ENOUGH * rows:
            return []
    order = merged_order([each.places for each in losses])
    epochs = merged(order, [each.epochs or () for each in losses])
    if all(map(float.is_integer, epochs)):
        return []
    scale = find_scale(epochs, merged(order, [each.steps for each in losses]), total)
    if scale is None:
        return []
    rank = dict(zip(order, range(len(order)), strict=True))
    steps, done, found = scale.steps_of(epochs), 0, []
    for each in after:
        own: list[int] = [scale.step_of(epoch) for epoch in each.epochs or ()]
        if LOSS in each.names:
            own = [steps[rank[done + number]] for number in range(len(own))]
            done += len(own)
        found.append(replace(each, offsets=each.places, steps=array("q", own), side=LATE))
    return found


def _moved(counts: Counted, places: Sequence[int]) -> list[bool]:
    """Find which rows stand at another step than the row before, or at the same one a lap later."""
    steps: Sequence[object] = pick(counts.steps, places)
    if any(map(lt, islice(counts.steps, 1, None), counts.steps)):
        laps = [0, *accumulate(map(lt, islice(counts.steps, 1, None), counts.steps))]
        steps = list(zip(pick(laps, places), steps, strict=True))
    return [True, *map(ne, steps, islice(steps, 1, None))]


def choose_way(name: str, logs: Sequence[Steps], *, counts_all: bool) -> str:
    """Choose how to place a metric's rows without a step: BEFORE, AFTER, BY_EPOCH or IN_ORDER.

    ``counts_all``: the counter of steps does not start again within the run.
    """
    if any(each.side == LATE and name in each.names for log in logs for each in log.by_step):
        return LATE
    rows: dict[str, list[Rows]] = {BEFORE: [], AFTER: [], BY_EPOCH: []}
    needed = 1.0
    for log in logs:
        needed += _ENOUGH * sum(len(each.offsets) for each in log.loose if name in each.names)
        for each in log.by_step:
            if name in each.names and each.side in (BEFORE, AFTER):
                rows[each.side].append(each)
        rows[BY_EPOCH] += [each for each in log.by_epoch if name in each.names and each.bar is None]
    needed = max(1.0, needed - 1.0)
    moves = {way: sum(sum(each.moved) for each in placed) for way, placed in rows.items()}
    good = {way for way in moves if moves[way] >= needed}
    if BY_EPOCH in good and not counts_all:
        return BY_EPOCH
    if {BEFORE, AFTER} <= good and any(log.through_epochs for log in logs):
        return BEFORE  # what stands between two epochs is of the one that ends
    if {BEFORE, AFTER} <= good:
        strays = {way: _strays(rows[way]) for way in (BEFORE, AFTER)}
        better, worse = sorted(strays, key=lambda way: strays[way])
        if strays[better] < _STRAYS and strays[better] + 0.1 < strays[worse]:
            return better
        regular = {way: _regularity(rows[way]) for way in (BEFORE, AFTER)}
        return AFTER if regular[AFTER] > regular[BEFORE] + 0.25 else BEFORE
    return next((way for way in (BEFORE, AFTER, BY_EPOCH) if way in good), IN_ORDER)


def _strays(placed: Iterable[Rows]) -> float:
    """Return how far steps lie from where the printed epochs have them on average, in steps.

    >>> def rows(steps, epochs):
    ...     moved = [True] * len(steps)
    ...     places = (steps, steps, epochs, None)
    ...     return Rows((), (), *places, "", 0, None, "", None, None, moved=moved)
    >>> epochs = [0.125, 0.25, 0.375, 0.5]
    >>> _strays([rows([0, 1, 2, 3], epochs)]), _strays([rows([1, 2, 3, 4], epochs)])
    (0.375, 0.0)
    """
    pairs = [
        pair
        for rows in placed
        if rows.epochs is not None and rows.says_epochs
        for pair in islice(
            compress(zip(rows.epochs, rows.steps, strict=True), rows.moved), _LOOKED_AT
        )
        if not math.isnan(pair[0])
    ]
    if len(pairs) < _TELLING or not max(pairs)[0] > 0:
        return math.inf
    last_epoch, last = max(pairs)
    return sum(abs(step - last * epoch / last_epoch) for epoch, step in pairs) / len(pairs)


def _regularity(placed: Iterable[Rows]) -> float:
    """Return the share of steps that are multiples of their usual distance.

    All are if it is the same step each time: the last one of each epoch.
    """
    moved = (compress(rows.steps, rows.moved) for rows in placed)
    steps = [step for each in moved for step in islice(each, _LOOKED_AT)]
    gaps = Counter(high - low for low, high in pairwise(steps) if high > low)
    if not gaps:
        return float(len({*steps}) == 1)
    usual = gaps.most_common(1)[0][0]
    return sum(step % usual == 0 for step in steps) / len(steps)
