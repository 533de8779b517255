"""Store the rows of a run's logs as plain columns, without any decision.

The rows of a log are stored by layout (``StoredRows``): all rows of a layout are columns of one
length, eight bytes a number. Marks between rows (an epoch begins, the job resumes) are stored with
their offsets. ``hpcrun.curves.derive`` derives the curve.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.curves.names import (
    EVAL_LOSS,
    LOSS,
    LR,
    MEASURED,
    TEST_LOSS,
    TRAIN_LOSS,
    fold,
    is_evident_score,
    is_loss_name,
    is_score_name,
    split_of,
    stand_in_rank,
    words,
)
from hpcrun.curves.row import IMPROVEMENTS, Frame, Mark, RowLayout

# Deriving a curve needs about as much memory again.
MAX_BYTES = 1 << 30
# Beyond this many metrics, only the most important are kept: a log that names another metric on
# each line must not fill the memory.
MAX_METRICS = 10_000
_MAX_LAYOUTS = 50_000
_BYTES_PER_LAYOUT = 1000
_MAX_MARKS = 100_000
# From this number of laps on, their sum is unknown.
MAX_LAPS = 400_000
# A total that differs on each line ("5/5", "6/6") is not the total of a training.
_MAX_TOTALS = 100
_MIN_RECURRING_ROWS = 3
_MIN_TRAINING_ROWS = 2
# Words of scores of a whole evaluation.
_OVERALL = words("mean avg average overall")


class StoredRows(Frame, eq=False):
    """The rows of one layout in one log.

    If memory is short and rows are dropped, the last row is always kept.

    Attributes:
        rows: Number of rows in the log.
        every: Every N-th row is kept.
        requested_every: The value of ``every`` that the user requested.
    """

    rows: int = 0
    every: int = 1
    requested_every: int = 1

    @property
    def bytes(self) -> int:
        """Memory in bytes, approximately."""
        return _BYTES_PER_LAYOUT + 8 * len(self) * len(self.arrays())

    def grow(self, frame: Frame) -> None:
        """Append the rows that follow in the log."""
        kept, first = -(-self.rows // self.every), -self.rows % self.every
        self.rows += len(frame)
        keeps_last = self.every > self.requested_every and (self.rows - 1) % self.every > 0
        for column, more in zip(self.arrays(), frame.arrays(), strict=True):
            del column[kept:]
            column.extend(more if self.every == 1 else more[first :: self.every])
            if keeps_last:
                column.append(more[-1])

    def halve(self) -> None:
        """Drop every second row, but not the last one."""
        kept = -(-self.rows // self.every)
        self.every *= 2
        for column in self.arrays():
            last = column[-1:] if len(column) > kept or kept % 2 == 0 else column[:0]
            column[:] = column[:kept:2] + last


class StoredLog(Struct, eq=False):
    """One log file of an attempt: its rows in the order of their first lines, and its marks.

    ``stamps`` are the first and the last time stamp of each clock, of any lines. ``laps`` are the
    marks that state only how long a part of the training took; they may be as many as its steps.
    """

    attempt: int
    file: int
    forms: dict[object, StoredRows] = {}
    marks: list[Mark] = []
    stamps: list[Mark] = []
    laps: list[Mark] = []

    def add_stamp(self, mark: Mark) -> None:
        """Keep a time stamp if it is the first or the last one of its clock."""
        others = [each for each in self.stamps if each.clock != mark.clock]
        same = [*(each for each in self.stamps if each.clock == mark.clock), mark]
        same.sort(key=lambda each: each.offset)
        self.stamps = [*others, same[0], *([same[-1]] if len(same) > 1 else [])]


def cut_log(log: StoredLog, start: int, end: int) -> StoredLog:
    """Return the part of a log that begins at an offset and ends before another."""
    forms: dict[object, StoredRows] = {}
    for key, form in log.forms.items():
        first, last = bisect_left(form.offsets, start), bisect_left(form.offsets, end)
        if first < last:
            forms[key] = replace(
                form,
                offsets=form.offsets[first:last],
                steps=None if form.steps is None else form.steps[first:last],
                epochs=None if form.epochs is None else form.epochs[first:last],
                times=None if form.times is None else form.times[first:last],
                columns=tuple(column[first:last] for column in form.columns),
                rows=last - first,
            )
    marks, stamps, laps = (
        [each for each in marks if start <= each.offset < end]
        for marks in (log.marks, log.stamps, log.laps)
    )
    return StoredLog(log.attempt, log.file, forms, marks, stamps, laps)


class Store:
    """The rows of a run's logs.

    >>> from hpcrun.curves.row import Scope
    >>> layout = RowLayout("json", Scope(), None, None, ("loss", "lr"))
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add([Frame(layout, [0, 40], [1, 2], None, None, ([2.5, 2.0], [0.1, 0.2]))])
    >>> store.add([Frame(layout, [80], [3], None, None, ([1.5], [0.3]))])
    >>> [(form.steps.tolist(), form.columns[0].tolist()) for form in store.logs[0].forms.values()]
    [([1, 2, 3], [2.5, 2.0, 1.5])]
    """

    def __init__(
        self,
        *,
        every: int = 1,
        max_bytes: int = MAX_BYTES,
        is_hidden: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Create an empty store.

        Args:
            every: keep every N-th row of each layout.
            max_bytes: keep fewer rows than that once the store is larger.
            is_hidden: names of metrics that are dropped.
        """
        self._dropped_metrics = False
        self.logs: list[StoredLog] = []
        self._log_of_file: dict[tuple[int, int], StoredLog] = {}
        self._log: StoredLog | None = None
        self._names: set[str] = set()
        self._totals: dict[object, set[int]] = {}
        self._every, self._bytes, self._max_bytes = every, 0, max_bytes
        self._is_hidden = is_hidden

    def begin(self, attempt: int, file: int = 0) -> None:
        """Select the log file whose rows are added next. A higher attempt is a requeue."""
        log = self._log_of_file.get((attempt, file))
        if log is None:
            log = self._log_of_file[attempt, file] = StoredLog(attempt, file)
            self.logs.append(log)
            self.logs.sort(key=lambda log: (log.attempt, log.file))
        self._log = log

    def add(self, pieces: Sequence[Frame | Mark]) -> None:
        """Add the next rows and marks of the log."""
        if self._log is None:
            raise ValueError("call begin() first to select the log")
        marks = self._log.marks
        for piece in pieces:
            if isinstance(piece, Mark) and piece.time is not None:
                self._log.add_stamp(piece)
            elif isinstance(piece, Mark) and piece.ends:
                known = (each.offset for each in marks if each.ends)
                marks += [] if piece.offset in known or len(marks) >= _MAX_MARKS else [piece]
            elif isinstance(piece, Mark) and piece.is_duration:
                self._log.laps += [piece] if len(self._log.laps) < MAX_LAPS else []
            elif isinstance(piece, Mark):
                last = replace(marks[-1], offset=piece.offset) if marks else None
                is_block = piece.split != "" and piece.epoch is None
                is_new = piece.restart or is_block or piece.seconds is not None or piece != last
                marks += [piece] if is_new and len(marks) < _MAX_MARKS else []
            elif piece.offsets:
                self._add_frame(self._log, piece)
        while self._bytes > self._max_bytes and self._halve():
            pass

    def notes(self) -> Iterator[str]:
        """Yield notes on rows and metrics that are not kept."""
        if self._dropped_metrics:
            yield (
                f"more than {MAX_METRICS:,} metrics: of the later ones, only losses, gradient "
                "norm, rates and memory are kept"
            )
        forms = (form for log in self.logs for form in log.forms.values())
        every = max((form.every for form in forms if form.every > form.requested_every), default=1)
        if every > 1:
            yield (
                "the log is too long to keep in memory: only every "
                f"{every}th row of each layout is used"
            )

    def formats(self) -> tuple[str, ...]:
        """Return the names of the formats of all rows, the most frequent first."""
        counts: dict[str, int] = {}
        for log in self.proven_logs():
            for form in log.forms.values():
                counts[form.layout.format] = counts.get(form.layout.format, 0) + form.rows
        return tuple(sorted(counts, key=lambda name: -counts[name]))

    def proven_logs(self) -> list[StoredLog]:
        """Return the logs without lines that turned out not to be measurements.

        A single line may not show whether it is a measurement, but the whole log does: prose and
        settings do not recur with the same names and other numbers. A layout that is not sure needs
        three rows, with losses that differ and are not all integers, and more than twice as many of
        these losses as sure lines have, not counting bars. Scores without a position, and other
        quantities with one that vary, count if the log has losses of a training. Truncated lines,
        which have only the first of the names, are treated like complete lines.
        """
        sure: dict[str, int] = {}
        unsure: dict[RowLayout, list[StoredRows]] = {}
        for form in (form for log in self.logs for form in log.forms.values()):
            if not form.layout.is_sure:
                unsure.setdefault(form.layout, []).append(form)
            elif form.layout.bar is None:
                for name in form.layout.names:
                    sure[name] = sure.get(name, 0) + form.rows
        proven_names = {
            layout.names for layout, forms in unsure.items() if _is_recurring(forms, sure)
        }
        trains = any(LOSS in names for names in proven_names)
        trains |= any(
            form.layout.is_sure and form.rows >= _MIN_TRAINING_ROWS and _has_training_loss(form)
            for log in self.logs
            for form in log.forms.values()
        )
        trains |= any(sum(x.epoch is not None for x in log.marks) > 1 for log in self.logs)
        if trains:
            proven_names |= self._proven_by_training(unsure)
        else:
            proven_names |= {
                layout.names for layout, forms in unsure.items() if self._states_scores(forms)
            }
        lengths = {len(each.names) for each in unsure if each.names}
        proven_names |= {names[:end] for names in proven_names for end in lengths}
        unproven = {layout for layout in unsure if layout.names not in proven_names}
        unproven |= self._find_improvements(unproven)
        if not unproven:
            return self.logs
        return [
            replace(log, forms={k: v for k, v in log.forms.items() if v.layout not in unproven})
            for log in self.logs
        ]

    def _find_improvements(self, unproven: Collection[RowLayout]) -> set[RowLayout]:
        """Return the layouts that repeat values of other lines when a metric has improved."""
        layouts = [form.layout for log in self.logs for form in log.forms.values()]
        others = {
            name
            for layout in layouts
            if layout.format != IMPROVEMENTS and layout.bar is None and layout not in unproven
            for name in layout.names
        }
        return {
            layout
            for layout in layouts
            if layout.format == IMPROVEMENTS and others.issuperset(layout.names)
        }

    def _proven_by_training(
        self, unsure: Mapping[RowLayout, Sequence[StoredRows]]
    ) -> set[tuple[str, ...]]:
        """Return the names of unsure layouts that count beside the losses of a training."""
        blocks = {
            id(form): [each for each in log.marks if each.split and each.epoch is None]
            for log in self.logs
            for form in log.forms.values()
        }
        return {
            layout.names
            for layout, forms in unsure.items()
            if all(states_results(x) or _states_evaluation(x, blocks[id(x)]) for x in forms)
            or (all(map(states_other_quantities, forms)) and _varies(forms))
        }

    def _states_scores(self, forms: Sequence[StoredRows]) -> bool:
        """Return True if rows state scores that need no training beside them.

        Their names are those of an evaluation, each is below the heading of one, or they recur.
        """
        names = forms[0].layout.names
        scores = [*filter(is_evident_score, names)]
        if not scores or any(map(is_loss_name, names)):
            return False
        if _varies(forms):
            return True
        is_fraction = any(not v.is_integer() for x in forms for c in x.columns for v in c)
        is_tagged = all(
            split_of(name) in ("eval", "test") or not _OVERALL.isdisjoint(fold(name).split("_"))
            for name in scores
        )
        placed = any(x.steps is not None or x.epochs is not None for x in forms)
        return is_fraction and not placed and (is_tagged or self._are_below_headings(forms))

    def _are_below_headings(self, forms: Sequence[StoredRows]) -> bool:
        """Return True if each row is below the heading of an evaluation."""
        for log in self.logs:
            offsets = [x.offset for x in log.marks if x.split in ("eval", "test")]
            for form in forms:
                if form in log.forms.values() and form.offsets[0] < min(offsets, default=1 << 62):
                    return False
        return True

    def _add_frame(self, log: StoredLog, frame: Frame) -> None:
        layout = frame.layout
        if layout.bar is None and frame.total is not None and frame.epochs is None:
            without = replace(frame, total=None)
            totals = self._totals.setdefault((log.attempt, log.file, without.kind), set())
            if len(totals) < _MAX_TOTALS:
                totals.add(frame.total)
            elif frame.total not in totals:
                frame = without
        form = log.forms.get(frame.kind)
        if form is None and layout.is_rounded:  # earlier steps were below a thousand
            exact = replace(frame, layout=replace(layout, is_rounded=False)).kind
            if form := log.forms.pop(exact, None):
                form.layout = replace(form.layout, is_rounded=True)
                log.forms[frame.kind] = form
        if form is None:
            names = self._select_names(layout.names)
            if names is None or len(log.forms) >= _MAX_LAYOUTS:
                return
            # Rows between the drawings of a bar get their steps from it, so all are kept.
            every = 1 if _is_progress_bar(layout) else self._every
            form = log.forms[frame.kind] = StoredRows(
                replace(layout, names=names),
                array("q"),
                None if frame.steps is None else array("q"),
                None if frame.epochs is None else array("d"),
                None if frame.times is None else array("d"),
                tuple(array("d") for _ in names),
                frame.total,
                frame.clock,
                every=every,
                requested_every=every,
            )
        if form.layout.names != layout.names:
            known = dict(zip(layout.names, frame.columns, strict=True))
            frame = replace(frame, columns=tuple(known[name] for name in form.layout.names))
        self._bytes -= form.bytes if form.rows else 0
        form.grow(frame)
        self._bytes += form.bytes

    def _select_names(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the metrics of a new layout that are kept, or None to drop the layout."""
        names = tuple(name for name in names if not self._is_hidden(name))
        if len(self._names) + len(names) > MAX_METRICS:
            kept = tuple(name for name in names if name in self._names or name in MEASURED)
            self._dropped_metrics |= len(kept) < len(names)
            if names and not kept:
                return None
            names = kept
        self._names.update(names)
        return names

    def _halve(self) -> bool:
        """Drop every second row; return whether that saved memory.

        Drawings of bars are kept as long as they need less memory than the other rows.
        """
        forms = [form for log in self.logs for form in log.forms.values()]
        others = [form for form in forms if not _is_progress_bar(form.layout)]
        takes = sum(form.bytes for form in others)
        for form in others if 2 * takes > self._bytes else forms:
            form.halve()
        before, self._bytes = self._bytes, sum(form.bytes for form in forms)
        return self._bytes < before


def _is_progress_bar(layout: RowLayout) -> bool:
    """Return True for drawings of a progress bar without a loss."""
    return layout.bar is not None and LOSS not in layout.names


def choose_stand_in_loss(logs: list[StoredLog]) -> tuple[list[StoredLog], str]:
    """Rename the metric that stands in for the loss, in logs without a metric of that name.

    The metric is one whose name is known as a substitute, or the only loss. Of several losses, the
    first one is copied to ``loss``. The loss of an evaluation is treated in the same way.

    Returns:
        The logs, and the original name of the metric ("" if nothing was renamed).
    """
    # The mean loss of a whole run is no point of its curve.
    forms = [form for log in logs for form in log.forms.values() if form.layout.scope.span != "run"]
    rows: dict[str, int] = {}
    for form in forms:
        rows |= {name: rows.get(name, 0) + form.rows for name in form.layout.names}
    lost = (rows[n] for n in rows if is_loss_name(n) or stand_in_rank(n) is not None)
    most = max(lost, default=0)
    # Ignore names that occur rarely, such as a different name on the last line.
    ranks = ((stand_in_rank(name), name) for name in rows if 10 * rows[name] > most)
    ranked = sorted((rank, name) for rank, name in ranks if rank is not None)
    splits = {name: split_of(name) or "train" for name in rows if is_loss_name(name)}
    only = {split: [n for n in splits if splits[n] == split] for split in ("train", "eval", "test")}
    # nanoGPT estimates both losses; without another training loss, its estimate is used.
    if any(TRAIN_LOSS in form.layout.names and form.rows > 1 for form in forms):
        only["train"] = [TRAIN_LOSS]
    chosen = ranked[0][1] if ranked else next(iter(only["train"]), "")
    if LOSS in rows or not chosen:
        return logs, ""
    is_first = not ranked and len(only["train"]) > 1
    called, copied = ({}, {chosen: LOSS}) if is_first else ({chosen: LOSS}, {})
    for split, name in (("eval", EVAL_LOSS), ("test", TEST_LOSS)):
        if name not in rows and only[split]:
            if len(only[split]) == 1:
                called.setdefault(only[split][0], name)
            elif is_first:
                own = chosen.rpartition("/")[2]  # the evaluation loss of the same kind is preferred
                copied[min(only[split], key=lambda n: not n.endswith(own))] = name

    def renamed(form: StoredRows) -> StoredRows:
        if form.layout.scope.span == "run":
            return form
        known = tuple(called.get(name, name) for name in form.layout.names)
        scope = form.layout.scope
        if chosen == TRAIN_LOSS in form.layout.names:
            scope = scope._replace(split="train")
        columns = form.columns
        for own, name in copied.items():
            if own in known:
                columns, known = (*columns, columns[known.index(own)]), (*known, name)
        layout = replace(form.layout, names=known, scope=scope)
        return replace(form, layout=layout, columns=columns)

    logs = [
        replace(log, forms={key: renamed(form) for key, form in log.forms.items()}) for log in logs
    ]
    return logs, "" if chosen == TRAIN_LOSS else chosen


def _has_training_loss(form: StoredRows) -> bool:
    """Return True if rows have a loss that is not named after an evaluation."""
    return any(
        is_loss_name(name) and split_of(name) not in ("eval", "test") for name in form.layout.names
    )


def states_results(form: StoredRows) -> bool:
    """Return True if rows state scores and no loss, and have no position."""
    names = form.layout.names
    is_placed = form.steps is not None or form.epochs is not None
    scores = any(map(is_score_name, names)) and not any(map(is_loss_name, names))
    return scores and not is_placed and not form.layout.is_sure


def states_other_quantities(form: StoredRows) -> bool:
    """Return True if rows state quantities of unknown names and no loss, at a step or an epoch."""
    is_placed = form.steps is not None or form.epochs is not None
    is_unsure = is_placed and not form.layout.is_sure and form.layout.names
    return bool(is_unsure) and not any(map(is_loss_name, form.layout.names))


def _varies(forms: Sequence[StoredRows]) -> bool:
    """Return True if there are enough rows, whose values differ and are not all integers."""
    if sum(form.rows for form in forms) < _MIN_RECURRING_ROWS:
        return False
    columns = ([*chain(*(form.columns[n] for form in forms))] for n in range(len(forms[0].columns)))
    return any(
        any(value != column[0] for value in column) and not all(map(float.is_integer, column))
        for column in columns
    )


def _states_evaluation(form: StoredRows, blocks: Sequence[Mark]) -> bool:
    """Return True if rows state the losses of an evaluation, and have no position.

    Their names say that they are those of an evaluation, or each row has the heading of an
    evaluation of its own (``blocks``).
    """
    losses = [name for name in form.layout.names if is_loss_name(name)]
    if not losses or form.steps is not None or form.epochs is not None:
        return False
    if all(split_of(name) in ("eval", "test") for name in losses):
        return True
    offsets = [each.offset for each in blocks]
    above = {bisect_right(offsets, offset) for offset in form.offsets}
    is_alone = 0 not in above and len(above) == len(form.offsets)
    return is_alone and all(blocks[at - 1].split != "train" for at in above)


def _is_recurring(forms: Sequence[StoredRows], sure: dict[str, int]) -> bool:
    """Return True if the rows of a layout are measurements, by their number and their losses.

    Args:
        forms: The rows of the layout in each log.
        sure: Number of sure rows by metric.
    """
    rows = sum(form.rows for form in forms)
    if rows < _MIN_RECURRING_ROWS:
        return False
    if not forms[0].layout.names:  # headings such as "iter = 20" must rise
        steps = [step for form in forms for step in form.steps or ()]
        return steps == sorted({*steps})
    for index, name in enumerate(forms[0].layout.names):
        if (is_loss_name(name) or (name == LR and sure)) and rows > 2 * sure.get(name, 0):
            columns = [form.columns[index] for form in forms]
            differ = any(value != columns[0][0] for value in chain(*columns))
            if differ and not all(value.is_integer() for value in chain(*columns)):
                return True
    return False
