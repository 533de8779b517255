"""Join: rows without a step get the step of the rows around them.

Many lines say what was measured but not at which step: the dictionaries of the HF Trainer, between
the drawings of a progress bar; ``validation loss: 2.9`` between the lines of the steps. They are
placed in four ways at once, and which one to believe is decided when the curve is asked for
(``Tally.choose``):

- BEFORE: the step of the last row before them that counts steps;
- AFTER: that of the next such row. Of the two the one is right in which steps grow as the epochs
  that the rows print, or that lies at regular steps: an evaluation every 250 steps that stands
  between 249 and 250 belongs to 250. A row before the first step, or after the last one, has only
  one neighbour;
- by epoch: rows of which there is one for each whole epoch, printed or marked, where no counter
  counts through all epochs;
- by their order alone, where the rows come in lumps, several to a step: a log written by a process
  that buffers its output does not say which row belongs to which drawing of the bar.

The rows that count steps are those of the training with steps of their own; in a log without, the
drawings of the training bar.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hpcrun.metrics.curves.placed import (
    AFTER,
    BEFORE,
    DRAWN,
    LEVEL_OF_DRAWN_LOSS,
    LEVEL_OF_LOSS,
    LEVEL_OF_OWN_LOSS,
    LEVEL_OF_TRAINING,
    OWN,
    Kind,
    Rows,
    Steps,
    merge_steps,
    split,
)
from hpcrun.metrics.curves.tally import BY_EPOCH, Tally
from hpcrun.metrics.curves.training_bar import Bar, Bars, bar_of, epoch_of, may_train
from hpcrun.metrics.names import EPOCH, LOSS, LR, STEP_SECONDS
from hpcrun.metrics.row import Frame

_TRAIN = "train"
_EVALUATED = ("eval", "val", "test")


class Placing(NamedTuple):
    """Rows by the step, by the epoch, by their order; where a bar shows that it was resumed."""

    by_step: list[Rows]
    by_epoch: list[Rows]
    in_order: list[Rows]
    restarts: list[int]


class Joiner:
    """Places the rows of one log.

    >>> from hpcrun.metrics.row import Layout
    >>> bar = Frame(Layout("tqdm", "train", None, "", ()), [0, 20], [1, 2], None, None, (), 9)
    >>> layout = Layout("dict", "train", None, None, ("loss",))
    >>> losses = Frame(layout, [10, 30], None, None, None, ([3.0, 2.5],))
    >>> placing = Joiner(Tally()).place([bar, losses])
    >>> [(rows.side, rows.steps) for rows in placing.by_step if rows.names]
    [('before', [1, 2]), ('after', [2])]
    """

    def __init__(self, tally: Tally) -> None:
        """``tally`` counts how well it works."""
        # The epoch that the last mark named.
        self.epoch: float | None = None
        self.bars = Bars()
        self._tally = tally
        self._has_own_steps = False
        # The last step that was counted, and its epoch.
        self._last: int | None = None
        self._last_epoch: float | None = None
        # What the training bar last showed of evaluations.
        self._shown: dict[str, float] = {}
        # The last row of each kind, which waits for the next step; whether they had none before.
        self._waiting: dict[Kind, tuple[Rows, bool]] = {}

    def place(self, frames: Sequence[Frame]) -> Placing:
        """Place the rows of frames between which no mark stands."""
        placing = Placing([], [], [], [])
        own: list[Rows] = []
        drawn: list[tuple[Bar, Rows]] = []
        loose: list[Rows] = []
        for frame in frames:
            rows = self._rows(frame)
            bar = frame.layout.bar
            if frame.steps is not None and bar is None:
                own.append(rows)
                continue
            if frame.steps is not None and bar is not None:
                drawn.append((bar_of(bar, frame.total), rows))
            if frame.steps is None or not rows.level:
                loose.append(_without_summary(rows))
        firsts = [rows.offsets[0] for rows in own if rows.level]
        if firsts and not self._has_own_steps:
            if drawn or loose:
                early, loose = split(loose, min(firsts))
                parts = [(bar, split([rows], min(firsts))) for bar, rows in drawn]
                drawn = [(bar, rows) for bar, (_, late) in parts for rows in late]
                early_drawn = [(bar, rows) for bar, (before, _) in parts for rows in before]
                self._join(placing, [], early_drawn, early)
            self._has_own_steps = True
        self._join(placing, own, drawn, loose)
        return placing

    def finish(self) -> list[Rows]:
        """Place what waits for a step that will not come."""
        return [] if self._last is None else self._release(None, self._last)

    def _rows(self, frame: Frame) -> Rows:
        layout = frame.layout
        epochs: Sequence[float] | None = frame.epochs
        if epochs is None:
            epoch = None if layout.bar is None else epoch_of(layout.bar)
            epoch = self.epoch if epoch is None else epoch
            epochs = None if epoch is None else [epoch] * len(frame)
        names, columns = layout.names, frame.columns
        level, side = LEVEL_OF_TRAINING, OWN
        if layout.split != _TRAIN:
            level = 0
        elif LOSS in names:
            level = LEVEL_OF_OWN_LOSS if layout.bar is None else LEVEL_OF_DRAWN_LOSS
            side = OWN if layout.bar is None else DRAWN
        if level and frame.epochs is not None and layout.bar is None and EPOCH not in names:
            names, columns = (*names, EPOCH), (*columns, frame.epochs)
        return Rows(
            names,
            side,
            layout.rank,
            level,
            frame.offsets,
            frame.steps or [],
            epochs,
            frame.times,
            columns,
            layout.format,
            frame.total,
            layout.bar is not None,
        )

    def _join(
        self,
        placing: Placing,
        own: list[Rows],
        drawn: list[tuple[Bar, Rows]],
        loose: list[Rows],
    ) -> None:
        placing.by_step.extend(own)
        placing.by_step.extend(self._fresh([rows for _, rows in drawn if rows.side == DRAWN]))
        for bar, rows in drawn:
            if rows.side != DRAWN and rows.level and rows.names and may_train(bar):
                placing.by_step.append(rows.at(rows.offsets, rows.steps, side_of(bar), 0))
        trained = [rows for rows in (*own, *loose) if rows.level and LOSS in rows.names]
        evaluated = [rows for rows in loose if not rows.level]
        steps, restarts = self.bars.follow(drawn, trained, evaluated)
        placing.restarts.extend(restarts)
        if self._has_own_steps:
            counting = [rows for rows in own if rows.level]
            if not loose:  # the first step and the last are all that is asked for
                counting = [rows.only([0, len(rows.steps) - 1]) for rows in counting]
            steps = merge_steps(counting)
        if steps.steps and self._waiting:
            placing.by_step.extend(self._release(steps.offsets[0], steps.steps[0]))
        for rows in loose:
            if rows.names:
                self._place_loose(rows, steps, placing)
        if steps.steps:
            self._last, self._last_epoch = steps.steps[-1], steps.epochs[-1]

    def _fresh(self, drawn: Sequence[Rows]) -> list[Rows]:
        """Leave out what a bar of the training still shows from before.

        That is the results of an evaluation, until the next one; and all that it shows at 0 with
        the loss of the epoch before.
        """
        found = []
        losses = self._new(drawn, LOSS)
        evaluated = {name for rows in drawn for name in rows.names if name.startswith(_EVALUATED)}
        for name in sorted(evaluated):
            showing = [rows for rows in drawn if name in rows.names]
            for rows, new in zip(showing, self._new(showing, name), strict=True):
                part = rows.of([name], [rows.columns[rows.names.index(name)]]).only(sorted(new))
                found.append(part.at(part.offsets, part.steps, DRAWN, 0))
        for rows, new in zip(drawn, losses, strict=True):
            if 0 in rows.steps:
                rows = rows.only([at for at, step in enumerate(rows.steps) if step or at in new])
            rest = [index for index, name in enumerate(rows.names) if name not in evaluated]
            columns = [rows.columns[index] for index in rest]
            found.append(rows.of([rows.names[index] for index in rest], columns))
        return [rows for rows in found if rows.steps]

    def _new(self, drawn: Sequence[Rows], name: str) -> list[set[int]]:
        """Find where a metric is another than in the drawing before, for each of the rows."""
        told = sorted(
            (offset, which, index, value)
            for which, rows in enumerate(drawn)
            for index, (offset, value) in enumerate(
                zip(rows.offsets, rows.columns[rows.names.index(name)], strict=True)
            )
        )
        new: list[set[int]] = [set() for _ in drawn]
        shown = self._shown.get(name)
        for _, which, index, value in told:
            if value != shown:
                new[which].add(index)
                shown = value
        if shown is not None:
            self._shown[name] = shown
        return new

    def _place_loose(self, rows: Rows, steps: Steps, placing: Placing) -> None:
        epochs = rows.epochs
        if epochs is not None and all(float(epoch).is_integer() for epoch in epochs):
            whole = [int(epoch) for epoch in epochs]
            side, level = (DRAWN, 0) if rows.on_bar else (OWN, rows.level)
            placing.by_epoch.append(rows.at(rows.offsets, whole, side, level))
            if not rows.on_bar:
                self._tally.place(rows.kind, BY_EPOCH, whole)
        if not rows.on_bar:
            self._tally.count(rows.kind, len(rows.offsets))
            placing.in_order.append(rows)
        self._place_among(rows, steps, placing)

    def _place_among(self, rows: Rows, steps: Steps, placing: Placing) -> None:
        """Give rows the steps before them and after them."""
        has_epochs = rows.epochs is not None
        level = LEVEL_OF_LOSS if rows.level and LOSS in rows.names else 0
        count = len(rows.offsets)
        places = [bisect_right(steps.offsets, offset) for offset in rows.offsets]
        early = 0 if self._last is not None else bisect_right(places, 0)
        late = bisect_right(places, len(steps.steps) - 1)
        if early and steps.steps and not rows.on_bar:
            at = [steps.offsets[0]] * early, [steps.steps[0]] * early
            self._put(placing, rows.cut(0, early).at(*at, BEFORE, level), has_epochs)
        if early < count:
            rest = rows.cut(early, count)
            before = [steps.steps[at - 1] if at else self._last for at in places[early:]]
            known = [step for step in before if step is not None]
            if rest.epochs is None:
                epochs = [steps.epochs[at - 1] if at else self._last_epoch for at in places[early:]]
                rest = rest.in_epochs(epochs)
            self._put(placing, rest.at(rest.offsets, known, BEFORE, level), has_epochs)
        if rows.on_bar:
            return
        if late:
            after = [steps.offsets[at] for at in places[:late]]
            known = [steps.steps[at] for at in places[:late]]
            self._put(placing, rows.cut(0, late).at(after, known, AFTER, 0), has_epochs)
        if late < count:
            last = rows.cut(count - 1, count)
            self._waiting[rows.kind] = (last.at(last.offsets, [], OWN, level), early == count)

    def _put(self, placing: Placing, rows: Rows, has_epochs: bool) -> None:
        """``has_epochs``: of the rows' own, and not those of the step that they were given."""
        if rows.on_bar:
            rows = rows.at(rows.offsets, rows.steps, DRAWN, 0)
        else:
            epochs = rows.epochs if has_epochs else None
            self._tally.place(rows.kind, rows.side, rows.steps, epochs or ())
        placing.by_step.append(rows)

    def _release(self, offset: int | None, step: int) -> list[Rows]:
        """Place the rows that wait for a step."""
        released = []
        waiting = sorted(self._waiting.values(), key=lambda each: each[0].offsets[0])
        for rows, has_none_before in waiting:
            offsets = rows.offsets if offset is None else [offset]
            sides = [(AFTER, 0), (BEFORE, rows.level)] if has_none_before else [(AFTER, 0)]
            for side, level in sides:
                self._tally.place(rows.kind, side, [step], rows.epochs or ())
                if offset is None and not has_none_before:
                    self._tally.excuse(rows.kind, side)
                released.append(rows.at(offsets, [step], side, level))
        self._waiting = {}
        return released


def side_of(bar: Bar) -> str:
    """Name the side of what a bar tells of its own."""
    return f"bar {bar.description} {bar.total}"


def _without_summary(rows: Rows) -> Rows:
    """Leave out what is no measurement at a step.

    That is the mean loss that closes a training, beside how long it ran, and how long the steps of
    a bar take that is not the training's. With a learning rate beside it the loss is that of a
    step: a Trainer that counts tokens tells how long it has run at each.
    """
    sums_up = any(name.endswith("runtime") for name in rows.names) and LR not in rows.names
    kept = [
        index
        for index, name in enumerate(rows.names)
        if not (sums_up and name == LOSS) and not (rows.on_bar and name.endswith(STEP_SECONDS))
    ]
    if len(kept) == len(rows.names):
        return rows
    return rows.of([rows.names[index] for index in kept], [rows.columns[index] for index in kept])
