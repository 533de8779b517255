"""Store: what the logs of a run say, as plain columns; nothing is decided here.

The rows of a log are kept by their form (``Form``): all rows of one layout are columns of one
length, eight bytes a number. What stands between the rows (an epoch begins, the job resumes) is
kept beside them by its place in the log. ``hpcrun.curves.derive`` makes the curve of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
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
    like_a_loss,
    rank_for_loss,
    split_of,
)
from hpcrun.curves.row import Frame, Layout, Mark

# Deriving a curve takes about as much again.
MOST_BYTES = 1 << 30
# Of more metrics only those that matter most are kept: a log whose lines name a metric of their own
# each must not fill the memory.
MOST_METRICS = 10_000
_MOST_FORMS = 50_000
_BYTES_OF_A_FORM = 1000
_MOST_MARKS = 100_000
# Trainings have their totals; where each line has another ("5/5", "6/6") it is none of them.
_MOST_TOTALS = 100
_ENOUGH_ROWS = 3


class Form(Frame, eq=False):
    """The rows of one layout in one log.

    ``rows`` counts those that the log has. Every ``every``-th is kept, ``asked`` by the user; where
    memory asks for fewer, the last one too.
    """

    rows: int = 0
    every: int = 1
    asked: int = 1

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return _BYTES_OF_A_FORM + 8 * len(self) * len(self.arrays())

    def grow(self, frame: Frame) -> None:
        """Keep what follows."""
        kept, first = -(-self.rows // self.every), -self.rows % self.every
        self.rows += len(frame)
        keeps_last = self.every > self.asked and (self.rows - 1) % self.every > 0
        for column, more in zip(self.arrays(), frame.arrays(), strict=True):
            del column[kept:]
            column.extend(more if self.every == 1 else more[first :: self.every])
            if keeps_last:
                column.append(more[-1])

    def halve(self) -> None:
        """Keep every second row, and the last one."""
        kept = -(-self.rows // self.every)
        self.every *= 2
        for column in self.arrays():
            last = column[-1:] if len(column) > kept or kept % 2 == 0 else column[:0]
            column[:] = column[:kept:2] + last


class Log(Struct, eq=False):
    """One log file of an attempt: its forms in the order of their first rows, and its marks."""

    attempt: int
    file: int
    forms: dict[object, Form] = {}
    marks: list[Mark] = []


class Store:
    """Keeps the rows of a run's logs.

    >>> layout = Layout("json", "train", None, None, ("loss", "lr"))
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
        most_bytes: int = MOST_BYTES,
        hides: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Keep every ``every``-th row of a form, and fewer once there are ``most_bytes``.

        ``hides``: which names are left out.
        """
        self._leaves_out_metrics = False
        self.logs: list[Log] = []
        self._logs: dict[tuple[int, int], Log] = {}
        self._log: Log | None = None
        self._names: set[str] = set()
        self._totals: dict[object, set[int]] = {}
        self._every, self._bytes, self._most_bytes = every, 0, most_bytes
        self._hides = hides

    def begin(self, attempt: int, file: int = 0) -> None:
        """Go on with a log file, or begin it; a further attempt is a requeue."""
        log = self._logs.get((attempt, file))
        if log is None:
            log = self._logs[attempt, file] = Log(attempt, file)
            self.logs.append(log)
            self.logs.sort(key=lambda log: (log.attempt, log.file))
        self._log = log

    def add(self, pieces: Sequence[Frame | Mark]) -> None:
        """Keep what stands next in the log."""
        if self._log is None:
            raise ValueError("begin() says first which log this is")
        marks = self._log.marks
        for piece in pieces:
            if isinstance(piece, Mark):
                last = replace(marks[-1], offset=piece.offset) if marks else None
                is_new = piece.restart or piece != last
                marks += [piece] if is_new and len(marks) < _MOST_MARKS else []
            elif piece.offsets:
                self._put(self._log, piece)
        while self._bytes > self._most_bytes and self._halve():
            pass

    def notes(self) -> Iterator[str]:
        """Yield what people should know of what is not kept."""
        if self._leaves_out_metrics:
            yield (
                f"{MOST_METRICS:,} metrics and more: of those that came later only the losses, the "
                "gradient norm, rates and memory are kept"
            )
        forms = (form for log in self.logs for form in log.forms.values())
        every = max((form.every for form in forms if form.every > form.asked), default=1)
        if every > 1:
            yield (
                "the log is too long to keep all of it in memory: of its rows every "
                f"{every}th of a form counts"
            )

    def formats(self) -> tuple[str, ...]:
        """Return the forms in which rows were found, most frequent first."""
        counts: dict[str, int] = {}
        for log in self.proven():
            for form in log.forms.values():
                counts[form.layout.format] = counts.get(form.layout.format, 0) + form.rows
        return tuple(sorted(counts, key=lambda name: -counts[name]))

    def proven(self) -> list[Log]:
        """Return the logs without the forms of lines that turned out to be no measurements.

        What a line alone does not show, the log does: prose and settings do not repeat themselves
        with the same names and other numbers. Of a form that is not sure there must be three rows,
        with losses that differ and are no mere counts; and it is asked only for what surer lines,
        bars aside, do not have: for losses of which it has more than twice as many. A last line
        that was cut off has the first of their names.
        """
        sure: dict[str, int] = {}
        unsure: dict[Layout, list[Form]] = {}
        for form in (form for log in self.logs for form in log.forms.values()):
            if not form.layout.is_sure:
                unsure.setdefault(form.layout, []).append(form)
            elif form.layout.bar is None:
                for name in form.layout.names:
                    sure[name] = sure.get(name, 0) + form.rows
        proven = {layout.names for layout, forms in unsure.items() if _recurs(forms, sure)}
        lengths = {len(each.names) for each in unsure if each.names}
        proven |= {names[:end] for names in proven for end in lengths}
        unproven = {layout for layout in unsure if layout.names not in proven}
        if not unproven:
            return self.logs
        return [
            replace(log, forms={k: v for k, v in log.forms.items() if v.layout not in unproven})
            for log in self.logs
        ]

    def _put(self, log: Log, frame: Frame) -> None:
        layout = frame.layout
        if layout.bar is None and frame.total is not None and frame.epochs is None:
            without = replace(frame, total=None)
            totals = self._totals.setdefault((log.attempt, log.file, without.kind), set())
            if len(totals) < _MOST_TOTALS:
                totals.add(frame.total)
            elif frame.total not in totals:
                frame = without
        form = log.forms.get(frame.kind)
        if form is None and layout.is_rounded:  # those before it had less than a thousand steps
            exact = replace(frame, layout=replace(layout, is_rounded=False)).kind
            if form := log.forms.pop(exact, None):
                form.layout = replace(form.layout, is_rounded=True)
                log.forms[frame.kind] = form
        if form is None:
            names = self._known(layout.names)
            if names is None or len(log.forms) >= _MOST_FORMS:
                return
            # The drawings of a bar give the rows between them their steps: those are kept.
            every = 1 if _counts(layout) else self._every
            form = log.forms[frame.kind] = Form(
                replace(layout, names=names),
                array("q"),
                None if frame.steps is None else array("q"),
                None if frame.epochs is None else array("d"),
                None if frame.times is None else array("d"),
                tuple(array("d") for _ in names),
                frame.total,
                every=every,
                asked=every,
            )
        if form.layout.names != layout.names:
            known = dict(zip(layout.names, frame.columns, strict=True))
            frame = replace(frame, columns=tuple(known[name] for name in form.layout.names))
        self._bytes -= form.bytes if form.rows else 0
        form.grow(frame)
        self._bytes += form.bytes

    def _known(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return which metrics of a new form are kept; None if none of them is."""
        names = tuple(name for name in names if not self._hides(name))
        if len(self._names) + len(names) > MOST_METRICS:
            kept = tuple(name for name in names if name in self._names or name in MEASURED)
            self._leaves_out_metrics |= len(kept) < len(names)
            if names and not kept:
                return None
            names = kept
        self._names.update(names)
        return names

    def _halve(self) -> bool:
        """Keep every second of the rows that are kept; return whether that takes less.

        The drawings of bars stay as long as other rows take more than they do.
        """
        forms = [form for log in self.logs for form in log.forms.values()]
        others = [form for form in forms if not _counts(form.layout)]
        takes = sum(form.bytes for form in others)
        for form in others if 2 * takes > self._bytes else forms:
            form.halve()
        before, self._bytes = self._bytes, sum(form.bytes for form in forms)
        return self._bytes < before


def _counts(layout: Layout) -> bool:
    """Whether rows are drawings of a bar that shows how far the training is, and no loss."""
    return layout.bar is not None and LOSS not in layout.names


def called_loss(logs: list[Log]) -> tuple[list[Log], str]:
    """Call that the loss which stands for it in logs that call nothing so, or is their only one.

    So is an evaluation's only one. Of several, none of which stands for it, the first is the loss
    under its own name, too, as is the evaluation's. Returns its own name beside the logs, "" where
    nothing is renamed.
    """
    forms = [form for log in logs for form in log.forms.values()]
    rows: dict[str, int] = {}
    for form in forms:
        rows |= {name: rows.get(name, 0) + form.rows for name in form.layout.names}
    lost = (rows[n] for n in rows if like_a_loss(n) or rank_for_loss(n) is not None)
    most = max(lost, default=0)
    # A last line may name once what the others call otherwise.
    ranks = ((rank_for_loss(name), name) for name in rows if 10 * rows[name] > most)
    ranked = sorted((rank, name) for rank, name in ranks if rank is not None)
    splits = {name: split_of(name) or "train" for name in rows if like_a_loss(name)}
    only = {split: [n for n in splits if splits[n] == split] for split in ("train", "eval", "test")}
    # nanoGPT estimates both losses; where its script prints no other, the training's counts.
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
                own = chosen.rpartition("/")[2]  # of the same kind
                copied[min(only[split], key=lambda n: not n.endswith(own))] = name

    def renamed(form: Form) -> Form:
        known = tuple(called.get(name, name) for name in form.layout.names)
        split = "train" if chosen == TRAIN_LOSS in form.layout.names else form.layout.split
        columns = form.columns
        for own, name in copied.items():
            if own in known:
                columns, known = (*columns, columns[known.index(own)]), (*known, name)
        layout = replace(form.layout, names=known, split=split)
        return replace(form, layout=layout, columns=columns)

    logs = [
        replace(log, forms={key: renamed(form) for key, form in log.forms.items()}) for log in logs
    ]
    return logs, "" if chosen == TRAIN_LOSS else chosen


def _recurs(forms: Sequence[Form], sure: dict[str, int]) -> bool:
    """Whether rows of one layout are measurements, by their number and their losses.

    ``sure``: how many rows that are have each metric.
    """
    rows = sum(form.rows for form in forms)
    if rows < _ENOUGH_ROWS:
        return False
    if not forms[0].layout.names:  # headings, "iter = 20": they count on
        steps = [step for form in forms for step in form.steps or ()]
        return steps == sorted({*steps})
    for index, name in enumerate(forms[0].layout.names):
        if (like_a_loss(name) or (name == LR and sure)) and rows > 2 * sure.get(name, 0):
            columns = [form.columns[index] for form in forms]
            differ = any(value != columns[0][0] for value in chain(*columns))
            if differ and not all(value.is_integer() for value in chain(*columns)):
                return True
    return False
