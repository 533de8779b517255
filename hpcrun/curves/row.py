"""Types for the contents of a single line of a log, and for many rows as columns.

``read_line`` returns a Row for a line with measurements, a Mark for a line that only shows the
position of the run, and a TableHead for a line with the column names of the rows below it.
LogReader collects rows in Frames, which need a fraction of the time and memory.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    Ints = array[int]
    Floats = array[float]
else:  # Python 3.11 has no array[int]
    Ints = Floats = array


# The format of lines that print a metric only when it has improved.
IMPROVEMENTS = "improvements"


class Scope(NamedTuple):
    """What the values of a line were computed over; ``hpcrun.curves.scope`` decides it.

    Attributes:
        split: The data: "train", "eval" or "test".
        span: "step" for values at one point of the training, "epoch" for the mean of an epoch,
            "run" for a summary of the whole training.
        data: The name of the data in a prefix (``[val c4]``), or "". It becomes part of the names
            of metrics if the same metric was computed over several data.
        is_stated: Whether the line names the split, which its context then does not decide.
    """

    split: str = "train"
    span: str = "step"
    data: str = ""
    is_stated: bool = False


class Field(Struct, frozen=True, gc=False):
    """A key and its value on a line.

    Attributes:
        key: The key as printed.
        value: A number, or a word.
        unit: The unit of the number as printed, or "".
        of: The number after a slash: the 100 of "12/100"; otherwise None.
        split: The split named before the field ("Val -"), or "".
    """

    key: str
    value: float | str
    unit: str = ""
    of: float | None = None
    split: str = ""


class LineFields(Struct):
    """The keys and values found on a line.

    Attributes:
        fields: the keys and values in order.
        counters: pairs of count and total without a key, ``[10/90]``. The last one counts
            steps, the one before it epochs.
        split: the split that the words of the line named last.
        whole_split: the split of the whole line, by its format or a prefix.
        bar: description of the progress bar on the line, if any.
        stray_items: number of words and numbers that belong to no item (``generic``).
        has_dict: the line contains a JSON object or a Python dict.
        is_text: the line is read as words, names and numbers.
        is_code: the line may be source code or a setting.
    """

    fields: list[Field]
    counters: list[tuple[int, int | None]] = []
    split: str = ""
    whole_split: str = ""
    bar: str | None = None
    stray_items: int = 0
    has_dict: bool = False
    is_text: bool = False
    is_code: bool = False


class Row(Struct, frozen=True, gc=False):
    """The measurements on one line.

    Attributes:
        step, epoch: as printed on the line, or None.
        scope: what the values were computed over.
        rank: the rank that printed the line, if the line shows it.
        values: pairs of name and value. Names are canonical if ``names`` knows them.
        total: total number of steps, if printed: the 100 of ``12/100``.
        bar: description of the progress bar on the line ("" if it has none), or None. A bar without
            values is a row, too: lines without a step get its step.
        is_rounded: this format prints steps beyond a thousand in thousands (``1K``).
        is_sure: the line alone shows that it is a measurement. Other lines are measurements only if
            they recur with other values (``Store.proven_logs``).
    """

    step: int | None = None
    epoch: float | None = None
    scope: Scope = Scope()
    rank: int | None = None
    values: tuple[tuple[str, float], ...] = ()
    total: int | None = None
    bar: str | None = None
    is_rounded: bool = False
    is_sure: bool = True


class Mark(Struct, frozen=True, gc=False):
    """A line without measurements that shows the position of the run.

    Attributes:
        epoch: an epoch begins ("Epoch 3/20"), or its evaluation or test, as ``split`` says.
        split: what begins; without an epoch, a block of results ("***** Eval results *****").
        restart: the job was requeued here, or the program says that it resumes.
        step: the step it resumes at, if printed.
        ends: the program says that the training is over.
        seconds: how long the training took, as stated.
        is_lap: the seconds are those of an epoch or since the line before.
        time, clock: the time stamp of the first or last line that has one (``lines.times``).
        offset: byte at which the line begins.
    """

    epoch: float | None = None
    restart: bool = False
    step: int | None = None
    split: str = ""
    ends: bool = False
    seconds: float | None = None
    is_lap: bool = False
    time: float | None = None
    clock: str = ""
    offset: int = 0

    @property
    def is_duration(self) -> bool:
        """Whether the line only states how long a part of the training took."""
        begins = self.epoch is not None or self.split or self.restart or self.ends
        return self.seconds is not None and not begins


class TableHead(Struct, frozen=True, gc=False):
    """The head of a table.

    Attributes:
        kind: How cells are separated, such as "pipes" or "csv".
        columns: Names of the columns; empty for the upper line of a head with two lines.
        text: The line itself if cells may be recognized by their positions, otherwise "".
    """

    kind: str
    columns: tuple[str, ...]
    text: str = ""


class RowLayout(Struct, frozen=True, gc=False):
    """The properties that all rows of a frame share; ``names`` are the metrics of the columns."""

    format: str
    scope: Scope
    rank: int | None
    bar: str | None
    names: tuple[str, ...]
    is_rounded: bool = False
    is_sure: bool = True


class Frame(Struct, gc=False):
    """Rows of one layout in the order of the log, as columns of one length.

    Attributes:
        offsets: bytes at which the lines begin.
        steps, epochs: None if the lines have none.
        times: seconds since 1970 by the time stamps of the lines, None without. UTC is assumed;
            without a date, they are seconds since midnight. For a progress bar without time stamps,
            the seconds since it was first drawn.
        columns: values, one column for each of ``layout.names``.
        total: total number of steps on all of the lines, of the run or of an epoch.
        clock: how the times were printed (``lines.times``).
    """

    layout: RowLayout
    offsets: Ints
    steps: Ints | None
    epochs: Floats | None
    times: Floats | None
    columns: tuple[Floats, ...]
    total: int | None = None
    clock: str = ""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets)

    @property
    def kind(self) -> object:
        """Key of the frames that can be joined."""
        has = (self.steps is not None, self.epochs is not None, self.times is not None)
        # Progress bars and trainings are distinguished by their totals.
        return self.layout, has, self.total, self.clock

    def arrays(self) -> list[array[Any]]:
        """List all columns."""
        places = (self.offsets, self.steps, self.epochs, self.times)
        return [*(each for each in places if each is not None), *self.columns]
