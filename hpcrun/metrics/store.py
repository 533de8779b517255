"""Store: what the logs of a run say, as plain columns; nothing is decided here.

The rows of a log are kept by their form (``Form``): all rows of one layout are columns of one
length, eight bytes a number. What stands between the rows (an epoch begins, the job resumes) is
kept beside them by its place in the log. ``hpcrun.metrics.derive`` makes the curve of it.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, repeat
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from hpcrun.metrics.names import LOSS, MEASURED, like_a_loss
from hpcrun.metrics.row import Frame, Layout, Placed

MOST_BYTES = 2 << 30
# Of more metrics only those that matter most are kept: a log whose lines name a metric of their own
# each must not fill the memory.
MOST_METRICS = 10_000
_MOST_FORMS = 50_000
_BYTES_OF_A_FORM = 1000
_ENOUGH_ROWS = 3
_NUMBER = re.compile(r"\d[\d.]*")
_EPOCH = re.compile(r"\bepochs?\b[\s:#\[(]*(\d{1,9})", re.IGNORECASE)


class Form(Frame, eq=False):
    """The rows of one layout in one log.

    ``rows`` counts those that the log has, also where not all are kept.
    """

    rows: int = 0


class Log(Struct, eq=False):
    """One log file of an attempt: its forms in the order of their first rows, and its marks."""

    attempt: int
    file: int
    forms: dict[object, Form] = {}
    marks: list[Placed] = []


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

    def __init__(self, *, every: int = 1, most_bytes: int = MOST_BYTES) -> None:
        """Keep every ``every``-th row of a form, and fewer once there are ``most_bytes``."""
        self.every = every
        self.asked_every = every
        self.leaves_out_metrics = False
        self.logs: list[Log] = []
        self._logs: dict[tuple[int, int], Log] = {}
        self._log: Log | None = None
        self._names: set[str] = set()
        self._bytes, self._most_bytes = 0, most_bytes

    def begin(self, attempt: int, file: int = 0) -> None:
        """Go on with a log file, or begin it; a further attempt is a requeue."""
        log = self._logs.get((attempt, file))
        if log is None:
            log = self._logs[attempt, file] = Log(attempt, file)
            self.logs.append(log)
            self.logs.sort(key=lambda log: (log.attempt, log.file))
        self._log = log

    def add(self, pieces: Sequence[Frame | Placed]) -> None:
        """Keep what stands next in the log."""
        if self._log is None:
            raise ValueError("begin() says first which log this is")
        for piece in pieces:
            if isinstance(piece, Placed):
                self._log.marks.append(piece)
            elif piece.offsets:
                self._put(self._log, piece)
        while self._bytes > self._most_bytes and self.every < 1 << 30:
            self._halve()

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
        with losses that differ and are no mere counts.
        """
        rows: dict[Layout, list[Form]] = {}
        for log in self.logs:
            for form in log.forms.values():
                if not form.layout.is_sure:
                    rows.setdefault(form.layout, []).append(form)
        unproven = {layout for layout, forms in rows.items() if not _recurs(forms)}
        if not unproven:
            return self.logs
        return [
            replace(log, forms={k: v for k, v in log.forms.items() if v.layout not in unproven})
            for log in self.logs
        ]

    def _put(self, log: Log, frame: Frame) -> None:
        layout, epochs = frame.layout, frame.epochs
        bar = layout.bar
        if bar is not None and epochs is None and (epoch := epoch_of(bar)) is not None:
            epochs = array("d", [epoch]) * len(frame.offsets)
        has = (frame.steps is not None, epochs is not None, frame.times is not None)
        # Bars are told apart by their descriptions without numbers, and their totals.
        # Beside an epoch the total may be its length.
        key: tuple[object, ...] = (layout, *has, None if epochs is None else frame.total)
        if bar is not None:
            name = bar_name(bar)
            key = (name, frame.total, layout.format, layout.split, layout.rank, layout.names, *has)
        form = log.forms.get(key)
        if form is None:
            names = self._known(layout.names)
            if names is None or len(log.forms) >= _MOST_FORMS:
                return
            layout = replace(layout, bar=None if bar is None else bar_name(bar), names=names)
            form = log.forms[key] = Form(
                layout,
                array("q"),
                None if frame.steps is None else array("q"),
                None if epochs is None else array("d"),
                None if frame.times is None else array("d"),
                tuple(array("d") for _ in names),
                frame.total,
            )
            self._bytes += _BYTES_OF_A_FORM
        # The drawings of a bar give the rows between them their steps: asked for, those are kept.
        counts = bar is not None and LOSS not in form.layout.names
        every = self.every // self.asked_every if counts else self.every
        first = -form.rows % every
        form.rows += len(frame.offsets)
        if frame.total is not None:
            form.total = max(frame.total, form.total or 0)
        columns = frame.columns
        if form.layout.names != frame.layout.names:
            kept = dict(zip(frame.layout.names, columns, strict=True))
            columns = tuple(kept[name] for name in form.layout.names)
        places = (frame.offsets, frame.steps, epochs, frame.times)
        given = [*(each for each in places if each is not None), *columns]
        kept_before = len(form.offsets)
        for column, more in zip(form.arrays(), given, strict=True):
            column.extend(more if every == 1 else more[first::every])
        self._bytes += 8 * len(given) * (len(form.offsets) - kept_before)

    def _known(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return which metrics of a new form are kept; None if none of them is."""
        if len(self._names) + len(names) > MOST_METRICS:
            kept = tuple(name for name in names if name in self._names or name in MEASURED)
            self.leaves_out_metrics |= len(kept) < len(names)
            if names and not kept:
                return None
            names = kept
        self._names.update(names)
        return names

    def _halve(self) -> None:
        """Keep every second of the rows that are kept."""
        self.every *= 2
        self._bytes = 0
        for log in self.logs:
            for form in log.forms.values():
                self._bytes += _BYTES_OF_A_FORM
                for column in form.arrays():
                    column[:] = column[::2]
                    self._bytes += 8 * len(column)


def _recurs(forms: Sequence[Form]) -> bool:
    """Whether rows of one layout are measurements by their number and their losses."""
    if sum(form.rows for form in forms) < _ENOUGH_ROWS:
        return False
    for index, name in enumerate(forms[0].layout.names):
        if like_a_loss(name):
            columns = [form.columns[index] for form in forms]
            differ = any(value != columns[0][0] for value in chain(*columns))
            if differ and not all(value.is_integer() for value in chain(*columns)):
                return True
    return False


@lru_cache(maxsize=1024)
def bar_name(description: str) -> str:
    """Return the description of a bar without what changes in it.

    >>> bar_name("Epoch 3/20") == bar_name("Epoch 4/20") != bar_name("")
    True
    """
    return _NUMBER.sub("#", description)


@lru_cache(maxsize=1024)
def epoch_of(description: str) -> float | None:
    """Return the epoch that a bar's description names.

    >>> epoch_of("Epoch 3/20"), epoch_of("Training")
    (3.0, None)
    """
    found = _EPOCH.search(description)
    return float(found[1]) if found else None


class Sample(Struct, frozen=True, array_like=True, gc=False):
    """One measurement, as it stands in the log; views such as "one value per step" are derived.

    ``offset`` is the byte at which the line begins in its log file. ``step`` and ``epoch`` are
    what the same line says, or None. ``name`` is canonical where ``hpcrun.metrics.names`` knows
    the spelling, else as the log has it. ``value`` may be nan or infinite.
    """

    attempt: int
    offset: int
    epoch: float | None
    step: int | None
    split: str
    name: str
    value: float


class Samples:
    """The samples of a run, line by line as each log has them; columns of one length.

    >>> store = Store()
    >>> store.begin(0)
    >>> layout = Layout("json", "train", None, None, ("loss", "lr"))
    >>> store.add([Frame(layout, [0, 40], [1, 2], None, None, ([2.5, 2.0], [0.1, 0.2]))])
    >>> samples = Samples(store)
    >>> len(samples), samples.columns()["name"], samples.columns()["value"]
    (4, ['loss', 'lr', 'loss', 'lr'], [2.5, 0.1, 2.0, 0.2])
    >>> next(iter(samples))
    Sample(attempt=0, offset=0, epoch=None, step=1, split='train', name='loss', value=2.5)
    """

    def __init__(self, store: Store) -> None:
        """Show what is stored."""
        self._logs = store.proven()

    def __len__(self) -> int:
        """Count the samples."""
        forms = (form for log in self._logs for form in log.forms.values())
        return sum(len(form.offsets) * len(form.columns) for form in forms)

    def __iter__(self) -> Iterator[Sample]:
        """Go through the samples one by one."""
        for log in self._logs:
            forms = list(log.forms.values())
            places = (zip(form.offsets, repeat(n), count()) for n, form in enumerate(forms))
            for offset, number, row in heapq.merge(*places):
                form = forms[number]
                layout = form.layout
                epoch = None if form.epochs is None else form.epochs[row]
                step = None if form.steps is None else form.steps[row]
                for name, column in zip(layout.names, form.columns, strict=True):
                    yield Sample(log.attempt, offset, epoch, step, layout.split, name, column[row])

    def columns(self) -> dict[str, list[Any]]:
        """Return the samples as columns, one for each field of ``Sample``."""
        fields = zip(*(astuple(sample) for sample in self), strict=True)
        columns = [list(field) for field in fields] or [[] for _ in Sample.__struct_fields__]
        return dict(zip(Sample.__struct_fields__, columns, strict=True))
