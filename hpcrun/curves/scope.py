"""Decide what the values of a log were computed over: their scope.

Values belong to the training, to an evaluation or to a test, and cover a step, an epoch or the
whole run (``row.Scope``). Every decision on that is in this module. The evidence, in this order:

1. *The line*: its format or a prefix (``[valid]``); a word under a known key (``phase: val``); a
   word before its values (``Test: [10/90]``); the first of its names, if the others name no split
   (``test acc: 0.9, loss: 0.5``); its losses, if all of them are those of an evaluation. A name
   with a split of its own (``val_loss``) keeps it.
2. *The bars*, for lines that name no split: another number of batches than that of the epoch
   (Keras), and the alternation of two progress bars.
3. *The headings* above such lines (``Eval epoch: 3``, ``***** Eval results *****``).
4. *The lines above* those without a position: the evaluation that is right above each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from hpcrun.curves.names import (
    EPOCH,
    EPOCH_RANK,
    EPOCH_SECONDS,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    MEASURED,
    OF_THE_RUN,
    SPLIT_SPELLINGS,
    SPLITS,
    STEP_SECONDS,
    TEST_LOSS,
    fold,
    is_loss_name,
    is_position_key,
    is_step_key,
    name_in,
    name_of,
    split_of,
    words,
)
from hpcrun.curves.passes import Ints, find_changes
from hpcrun.curves.row import Field, LineFields, Mark, Scope
from hpcrun.curves.rows import OWN_STEP, Rows, join_columns, join_steps, known_epochs

# Metrics that are measured separately in each split.
_SPLIT_METRICS = MEASURED - OF_THE_RUN - {GRAD_NORM, EPOCH_SECONDS}
# Words of names for means over many steps.
_MEAN = words("avg avr average averaged mean epoch")
_SPLIT_KEY_ENDS = ("stage", "phase", "stagename", "mode")
# An evaluation has hardly more batches than the training.
_MAX_EVALUATION_RATIO = 1.1


def decide_split(found: LineFields) -> str:
    """Decide the split that a line states for all of its values; "" if it states none.

    Names that follow the name of an evaluation get its split (``Field.split``).

    >>> decide_split(LineFields([Field("stage", "val"), Field("loss", 2.5)]))
    'eval'
    >>> found = LineFields([Field("test acc", 0.75), Field("loss", 2.5)], is_text=True)
    >>> decide_split(found), found.fields[1].split
    ('', 'test')
    """
    if found.is_text:
        _spread_first_split(found.fields)
        _spread_splits_to_repeated_names(found.fields)
        is_common = all(field.split == found.split for field in found.fields)
        split = found.whole_split or (found.split if is_common else "")
    else:
        split = found.whole_split or found.split
    for field in found.fields:
        key = fold(field.key)
        if is_step_key(field.key, field.unit) or (key in EPOCH_RANK and not field.unit):
            split = split or field.split
        elif isinstance(field.value, str):
            split = _split_in(key, field.value) or split
    return split


def decide_scope(
    fields: Sequence[Field], split: str, values: dict[str, float]
) -> tuple[Scope, dict[str, float]]:
    """Decide the scope of a line; return it with the values under their names in that scope.

    Args:
        fields: The fields of the line.
        split: The split that the line states, or "".
        values: The values by name.

    >>> decide_scope([], "", {"eval_loss": 2.5, "samples_per_second": 8.0})[1]
    {'eval_loss': 2.5, 'eval_samples_per_second': 8.0}
    """
    if not split and LOSS not in values and EVAL_LOSS in values:
        split = "eval"
        values = {
            name_in(split, name) if name in _SPLIT_METRICS else name: value
            for name, value in values.items()
        }
    elif not split and LOSS not in values and TEST_LOSS in values:
        split = "test"
    is_mean = any(
        field.value == values.get(LOSS)
        and not _MEAN.isdisjoint(fold(field.key).split("_"))
        and name_of(field.key) == LOSS
        for field in fields
    )
    sums_up = LR not in values and any(name.endswith("runtime") for name in values)
    span = "run" if sums_up else "epoch" if is_mean else "step"
    return Scope(split or "train", span, is_stated=bool(split)), values


def _spread_first_split(fields: list[Field]) -> None:
    """Apply the split that the first metric names to the others: "test acc: 76.8%, loss: 0.68".

    This applies only if none of the following fields names a split. A loss next to a learning rate
    or a norm of gradients is that of the training ("val acc: 0.5 | loss: 3.5 | lr: 0.001"), and so
    is a metric that repeats the first one ("val loss: 2.5 | loss: 3.5").
    """
    behind = 1 + next((n for n, field in enumerate(fields) if not is_position_key(field.key)), 0)
    word, _, first = fold(fields[behind - 1].key).partition("_") if fields else ("", "", "")
    side, others = SPLITS.get(word, ""), fields[behind:]
    if side not in ("eval", "test") or any(split_of(each.key) or each.split for each in others):
        return
    metrics = {name_of(each.key) for each in others}
    is_loss_of_step = LOSS in metrics and not metrics.isdisjoint((LR, GRAD_NORM))
    if not is_loss_of_step and first not in {fold(each.key) for each in others}:
        fields[behind:] = [replace(each, split=side) for each in others]


def _spread_splits_to_repeated_names(fields: list[Field]) -> None:
    """Apply splits to names that repeat: "Train Loss: 2.5 Acc: 0.5 | Val Loss: 2.75 Acc: 0.25".

    A name that has the split already begins the values of the training: "val acc: 0.5 loss: 2.75 |
    acc: 0.75 loss: 2.5".

    >>> fields = [Field(key, 0.5) for key in ("train loss", "acc", "val loss", "acc")]
    >>> _spread_splits_to_repeated_names(fields)
    >>> [field.split for field in fields]
    ['', '', '', 'eval']
    """
    names = [fold(field.key) for field in fields]
    repeated = {name for name in names if names.count(name) > 1 and not is_position_key(name)}
    split, known = "", set[str]()  # the names that have the split
    for index, (name, field) in enumerate(zip(names, fields, strict=True)):
        own = split_of(field.key) or field.split
        word, _, rest = name.partition("_")
        metric = rest if rest and word in SPLITS else name
        if own:
            known = known if own == split else set()
            split = own
        elif metric in known:
            split = ""
        if split and not is_position_key(name):
            known.add(metric)
        if name in repeated and split in ("eval", "test"):
            fields[index] = replace(field, split=split)


def _split_in(key: str, value: str) -> str:
    """Return the split that a word names: under a known key, or alone under any key, or "".

    >>> _split_in("type", "val_epoch"), _split_in("stagename", "val"), _split_in("net", "test")
    ('eval', 'eval', '')
    """
    word = value.lower()
    if key in SPLIT_SPELLINGS:
        return SPLITS.get(word, "") or SPLITS.get(fold(value).partition("_")[0], "")
    return SPLITS.get(word, "") if key.endswith(_SPLIT_KEY_ENDS) else ""


def scope_by_context(rows: Sequence[Rows], headings: Sequence[Mark]) -> list[Rows]:
    """Give rows whose lines name no split the split of their context.

    Args:
        rows: The rows of a log.
        headings: The headings of epochs, and of blocks of results, which have no epoch.
    """
    blocks = [each for each in headings if each.epoch is None]
    headings = [each for each in headings if each.epoch is not None]
    found = _separate_alternating_evaluations(rows)
    offsets = np.array([each.offset for each in headings], dtype=np.int64)
    splits = [each.split for each in headings]
    if 0 < 2 * sum(map(bool, splits)) <= len(splits):  # the training has headings too
        found = [part for each in found for part in _split_by_heading(each, offsets, splits)]
    return _scope_by_lines_above(found, blocks)


def scope_by_batches(rows: Sequence[Rows], headings: Ints) -> list[Rows]:
    """Treat Keras's bar as an evaluation's where another number of batches follows the epoch's own.

    The first bar below the heading of an epoch is that of ``fit()``; ``evaluate()`` draws the same
    bar without a heading. That is a test if ``fit()`` evaluates each epoch, too. Numbers of batches
    are unknown on lines without a counter.

    Args:
        rows: The rows of Keras's bars.
        headings: Offsets of the headings of epochs.
    """
    offsets = join_columns(each.offsets for each in rows)
    order = np.argsort(offsets, kind="stable")
    totals = np.repeat([each.total or 0 for each in rows], [*map(len, rows)])[order]
    offsets = offsets[order]
    above = np.searchsorted(headings, offsets, "right")
    firsts = totals[np.searchsorted(above, above)]  # the first bar below the same heading
    is_other = (above > 0) & (totals > 0) & (firsts > 0) & (totals != firsts)
    evaluated = offsets[is_other]
    split = "test" if any(split_of(name) == "eval" for x in rows for name in x.names) else "eval"
    found = []
    for each in rows:
        is_evaluated = np.isin(each.offsets, evaluated)
        found += [each.select(~is_evaluated), _assign_split(each.select(is_evaluated), split)]
    return [each for each in found if len(each)]


def _assign_split(rows: Rows, split: str) -> Rows:
    """Return rows of the training as those of a split."""
    return replace(rows, names=tuple(name_in(split, name) for name in rows.names), priority=0)


def _separate_alternating_evaluations(rows: Sequence[Rows]) -> list[Rows]:
    """Treat rows as an evaluation's if they have the training's form and alternate with it.

    The training comes first. The other rows have another total, hardly higher, and reach it each
    time, unlike a bar of epochs around one of batches; their last values are means.
    """
    found = [*rows]
    counted = [each for each in rows if each.has_losses and each.total and each.steps is not None]
    kinds: dict[tuple[object, ...], list[Rows]] = {}
    for x in sorted(counted, key=lambda x: x.offsets[0]):
        kinds.setdefault((x.bar.description if x.bar else None, x.rank, x.names), []).append(x)
    for kind, same in kinds.items():
        totals = [*dict.fromkeys(each.total for each in same)]
        if len(totals) != 2 or (totals[1] or 0) > _MAX_EVALUATION_RATIO * (totals[0] or 0):
            continue
        others = [each for each in same if each.total == totals[1]]
        known = [{*known_epochs([x for x in same if x.total == end]).tolist()} for end in totals]
        if len(known[0] ^ known[1]) > 1 or not (known[0] or kind[0] is not None):
            continue  # every epoch must be trained and evaluated
        drawn = join_steps(others)
        trained = np.sort(join_columns(each.offsets for each in same if each.total == totals[0]))
        turns = np.searchsorted(trained, drawn.offsets)
        is_end = np.append(turns[1:] != turns[:-1], True)
        ends = drawn.steps[is_end]
        if len(ends) < 2 or (ends[:-1] != totals[1]).any():
            continue
        found = [each for each in found if each not in others]
        for each in others:
            shown = each.select(np.isin(each.offsets, drawn.offsets[is_end]))
            shown = shown.select_columns([name for name in each.names if name != STEP_SECONDS])
            shown = _assign_split(shown, "eval")
            found.append(replace(shown, steps=None, bar=None, source=OWN_STEP))
    return [each for each in found if len(each)]


def _split_by_heading(rows: Rows, headings: Ints, splits: Sequence[str]) -> list[Rows]:
    """Separate rows without steps below headings such as "Eval epoch: 3" from the training's."""
    if rows.is_scoped or not rows.priority or rows.bar is not None or rows.steps is not None:
        return [rows]
    above = np.array(["", *splits])[np.searchsorted(headings, rows.offsets, "right")]
    parts = []
    for split in dict.fromkeys(above.tolist()):
        part = rows.select(above == split)
        parts.append(_assign_split(part, split) if split else part)
    return parts


def _scope_by_lines_above(rows: Sequence[Rows], blocks: Sequence[Mark]) -> list[Rows]:
    """Give lines without a split and a position the split of what is right above them.

    That is the heading of a block (``***** Eval results *****``), a line of an evaluation or one of
    the training. All lines of a layout must be below the same split. A loss must also be the only
    one of its layout in each block, because losses of batches may follow any heading.
    """
    found = [*rows]
    for is_open in (_is_open_loss, _is_open_result):
        lines = [x for x in found if x.bar is None and x.names and not is_open(x)]
        lines = [x for x in lines if not x.is_result]
        context = _Context(lines, blocks)
        for number, each in enumerate(found):
            if not is_open(each) or not context.offsets.size:
                continue
            split = context.split_above(each)
            if split and (each.is_result or context.is_alone_in_blocks(each)):
                found[number] = _assign_split(each, split)
    return found


def _is_open_loss(rows: Rows) -> bool:
    """Return True for losses without a split and a position."""
    is_placed = rows.steps is not None or EPOCH in rows.names
    is_loss = rows.priority > 0 and any(map(is_loss_name, rows.names)) and rows.bar is None
    return is_loss and not (is_placed or rows.is_scoped or any(map(split_of, rows.names)))


def _is_open_result(rows: Rows) -> bool:
    """Return True for scores without a split and a position."""
    return rows.is_result and not (rows.is_scoped or any(map(split_of, rows.names)))


class _Context:
    """The lines and headings of a log that state a split, in the order of the log."""

    def __init__(self, lines: Sequence[Rows], blocks: Sequence[Mark]) -> None:
        self._blocks = np.array([each.offset for each in blocks], dtype=np.int64)
        named = [{split_of(name) for name in each.names} & {"eval", "test"} for each in lines]
        splits = [
            "" if x.priority else next(iter(n), "") for x, n in zip(lines, named, strict=True)
        ]
        counts = [*map(len, lines), *(1 for _ in blocks)]
        offsets = join_columns([*(each.offsets for each in lines), self._blocks])
        order = np.argsort(offsets, kind="stable")
        self.offsets = offsets[order]
        self._splits = [*splits, *(each.split for each in blocks)]
        self._sources = np.repeat(np.arange(len(counts)), counts)[order]

    def split_above(self, rows: Rows) -> str:
        """Return the evaluation that is right above all rows, or ""."""
        above = np.searchsorted(self.offsets, rows.offsets) - 1
        if above.min() < 0:
            return ""
        splits = {self._splits[source] for source in {*self._sources[above].tolist()}}
        split = splits.pop() if len(splits) == 1 else ""
        return split if split in ("eval", "test") else ""

    def is_alone_in_blocks(self, rows: Rows) -> bool:
        """Return True if each row has a heading of its own above it."""
        above = np.searchsorted(self._blocks, rows.offsets)
        return bool(above.min() > 0 and find_changes(above).all())
