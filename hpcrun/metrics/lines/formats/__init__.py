"""Format: one form of a line that the generic reader would miss, or misread.

An entry is a pattern with what its parts mean, beside an example and a look-alike that must yield
nothing. Named groups of the pattern are fields of the line: ``step``, ``total``, ``epoch`` and
``rank`` say where it stands, every other group is a metric of that name. A group ``rest`` is read
as the generic reader reads a line. A job's own pattern (``own_format``) is an entry like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from hpcrun.metrics.lines.fields import NUMBER, Field, Shape, build_row, finite
from hpcrun.metrics.lines.generic import scan
from hpcrun.metrics.lines.prefixes import Line
from hpcrun.metrics.names import SPLITS, fold
from hpcrun.metrics.row import Mark, Row, Table
from hpcrun.patterns import pattern_of

Answer = Row | Mark | Table | None


class Format(Struct, frozen=True):
    """One form of a line.

    ``needle``: a part of every line in this form, as printed. ``pattern`` is matched from the begin
    of the line without its prefixes, as far as it goes. ``names`` gives keys, folded, another
    name; an empty one drops the key. ``split``: what the line is of, where the pattern alone tells.
    ``sure``: the pattern alone shows that something was measured. ``verbatim``: its metrics keep
    the names that the line gives them, as a summary is no point of a curve. ``read`` replaces all
    this by a function of the match and the line. ``example`` yields a row, ``look_alike`` none.
    """

    name: str
    needle: str
    pattern: re.Pattern[str]
    example: str
    look_alike: str
    names: dict[str, str] = {}
    split: str = ""
    sure: bool = False
    verbatim: bool = False
    read: Callable[[re.Match[str], Line], Answer] | None = None

    def answer(self, line: Line) -> Answer:
        """Read a line without its prefixes; None if it is not in this form."""
        if self.needle not in line.text:
            return None
        found = self.pattern.match(line.text)
        if found is None:
            return None
        return self.read(found, line) if self.read else self._read_groups(found)

    def _read_groups(self, found: re.Match[str]) -> Row | None:
        fields = fields_of_groups(found)
        if fields is None:
            return None
        split = self.split or SPLITS.get(found.groupdict().get("split") or "", "")
        shape = Shape(split=split)
        if rest := found.groupdict().get("rest"):
            scanned = scan(rest)
            if scanned is None:
                return None
            fields += scanned.fields
            shape = Shape(tuple(scanned.counters), split or scanned.split)
        fields = [named for field in fields if (named := self._named(field)) is not None]
        return build_row(fields, shape, sure=self.sure, verbatim=self.verbatim)

    def _named(self, field: Field) -> Field | None:
        name = self.names.get(fold(field.key))
        if name is None:
            return None if field.key[0] == "/" else field
        return Field(name, field.value, field.unit, field.of, field.split) if name else None


def fields_of_groups(found: re.Match[str]) -> list[Field] | None:
    """Return the named groups of a match as fields; None if a number is none."""
    groups = found.groupdict()
    total = groups.get("total")
    fields = []
    for key, text in groups.items():
        if text is None or key in ("rest", "total", "split"):
            continue
        try:
            value = finite(text.replace(",", ""))
            of = finite(total) if key == "step" and total else None
        except ValueError:
            return None
        fields.append(Field(key, value, of=of))
    return fields


_GROUP = pattern_of(r"\(\?P<\w+>")


def own_format(name: str, pattern: str) -> Format:
    """Make an entry of a pattern that a user wrote; it is searched for anywhere in a line.

    Raises ``re.error`` for a pattern that is none, ``ValueError`` for one without a named group.

    >>> mine = own_format("mine", "i=(?P<step>[0-9]+) l=(?P<loss>[0-9.]+)")
    >>> mine.answer(Line("at i=3 l=2.5")).values
    (('loss', 2.5),)
    """
    if not _GROUP.search(pattern):
        raise ValueError("the pattern has no named group, such as (?P<loss>[0-9.]+)")
    whole = re.compile(rf".*?(?:{pattern})", re.DOTALL)
    return Format(name=name, needle="", pattern=whole, example="", look_alike="", sure=True)


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which N stands for a number and I for a count.

    >>> bool(compiled(r"loss (?P<loss>⟨N⟩)").fullmatch("loss 2.5e-3"))
    True
    """
    return pattern_of(pattern.replace("⟨N⟩", f"(?:{NUMBER})").replace("⟨I⟩", r"[ ]{0,12}\d{1,15}"))
