"""Row: what one line of a log says, read by itself; Frame: many rows of one kind, as columns.

The reader of lines (``hpcrun.curves.lines``) gives a Row for a line that measures something, a
Mark for one that only says where the run stands, a Table for the head of a table, whose rows follow
without names. The Reader gathers rows in Frames: the same samples at a fraction of the time.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    Ints = array[int]
    Floats = array[float]
else:  # Python 3.11 has no array[int]
    Ints = Floats = array


class Row(Struct, frozen=True, gc=False):
    """What one line measured.

    ``step`` and ``epoch`` are what the line itself says, or None; ``total`` is how many steps the
    run will have, where the line shows it (the 100 of ``12/100``). ``split`` is "train", "eval" or
    "test"; ``rank`` the rank that printed the line, where it says so. ``values`` are (name, value)
    pairs, each name canonical where ``names`` knows it, else as the log has it.

    ``bar`` is the description of a progress bar that stands on the line ("" for a bar without
    one), None if there is no bar. A bar without values of its own is a row too: it gives its step
    to the lines around it that have none. ``is_rounded``: the form of the line prints its step with
    a letter for thousands once there are that many (``1K``). ``is_mean``: the line calls its
    training loss a mean. ``is_sure``: the line alone shows that it is a measurement; others are one
    if they recur with other values (``Store.proven_logs``).
    """

    step: int | None = None
    epoch: float | None = None
    split: str = "train"
    rank: int | None = None
    values: tuple[tuple[str, float], ...] = ()
    total: int | None = None
    bar: str | None = None
    is_rounded: bool = False
    is_mean: bool = False
    is_sure: bool = True


class Mark(Struct, frozen=True, gc=False):
    """A line that measures nothing but says where the run stands.

    ``epoch``: an epoch begins ("Epoch 3/20": 3), or its evaluation or test, as ``split`` says
    ("Eval epoch: 3"). ``restart``: the job was requeued here, or a
    program says that it resumes; ``step`` is then the step it resumes at, where the line shows it.
    ``offset``: the byte at which its line begins in the log.
    """

    epoch: float | None = None
    restart: bool = False
    step: int | None = None
    split: str = ""
    offset: int = 0


class Table(Struct, frozen=True, gc=False):
    """The head of a table: ``kind`` is the form that its rows are in, ``columns`` their names.

    ``text`` is the line, where the place of a cell may tell its column. Of a head over two lines
    the upper one is a table without columns.
    """

    kind: str
    columns: tuple[str, ...]
    text: str = ""


class Layout(Struct, frozen=True, gc=False):
    """What rows must share to stand in one frame. ``names`` are the columns' metrics."""

    format: str
    split: str
    rank: int | None
    bar: str | None
    names: tuple[str, ...]
    is_rounded: bool = False
    is_mean: bool = False
    is_sure: bool = True


class Frame(Struct, gc=False):
    """Rows of one layout in the order of the log, as columns of one length.

    ``offsets``: the byte at which each line begins. ``steps`` and ``epochs``: None where the lines
    have none. ``times``: seconds since 1970 by the lines' own time stamps (UTC assumed; since the
    year 1 where they lack the date), None without. ``columns``: one for each of ``layout.names``.
    ``total``: the one that all rows name, of steps or of those of an epoch. Integers are of type
    "q", the others "d".
    """

    layout: Layout
    offsets: Ints
    steps: Ints | None
    epochs: Floats | None
    times: Floats | None
    columns: tuple[Floats, ...]
    total: int | None = None

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets)

    @property
    def kind(self) -> object:
        """What frames that may be joined have in common."""
        has = (self.steps is not None, self.epochs is not None, self.times is not None)
        # Bars are distinguished by their totals, trainings by how long they, or their epochs, are.
        return self.layout, has, self.total

    def arrays(self) -> list[array[Any]]:
        """List all columns."""
        places = (self.offsets, self.steps, self.epochs, self.times)
        return [*(each for each in places if each is not None), *self.columns]
