"""Line formats that the generic reader would miss or misread, and progress bars.

A format is a pattern with an example; tests/curves/look_alikes.txt has a similar line that must
yield nothing. The named groups of the pattern are fields of the line: ``step``, ``total``,
``epoch``, ``rank`` and ``split``; ``rounded`` is a step printed with few digits; ``number`` is the
value of the metric that ``key`` names; any other group is a metric of that name. The generic reader
reads them as names and values, followed by the group ``rest``. A user's own pattern
(``own_format``) is a format like any other.

A progress bar (tqdm/std.py, ``format_meter``) is unmistakable, ``12/100 [00:10<01:20, 1.10it/s,
loss=0.5]``, so text after it (a warning of another process) does no harm. Its rate is stored as the
duration of a step. Whether the bar belongs to the training is decided later, from the whole log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from hpcrun.curves.lines.fields import NUMBER, build_row, finite
from hpcrun.curves.lines.generic import scan
from hpcrun.curves.lines.prefixes import StrippedLine
from hpcrun.curves.names import EPOCH_RANK, SPLITS, STEP_RANK, fold
from hpcrun.curves.row import Field, LineFields, Mark, Row, TableHead
from hpcrun.patterns import pattern_of

Answer = Row | Mark | TableHead | None


class LineFormat(Struct, frozen=True):
    """A known format of lines.

    Attributes:
        name: shown to users.
        needle: text that every line of the format contains.
        pattern: matched at the start of the line without its prefixes.
        example: a line of the format.
        names: folded key -> other name, with a unit for numbers that have none. An empty name drops
            the key.
        split: the split of the lines, if the pattern alone shows it.
        sure: the pattern alone shows that the line is a measurement.
        verbatim: metrics keep the names on the line, because a summary is no point of a curve.
        read: a function of the match and the line that replaces all this.
    """

    name: str
    needle: str
    pattern: re.Pattern[str]
    example: str = ""
    names: dict[str, str] = {}
    split: str = ""
    sure: bool = False
    verbatim: bool = False
    read: Callable[[re.Match[str], StrippedLine], Answer] | None = None

    def read_stripped(self, line: StrippedLine) -> Answer:
        """Read a line without its prefixes; return None if it has another format."""
        matched = self.pattern.match(line.text)
        if matched is None:
            return None
        if self.read:
            return self.read(matched, line)
        groups = matched.groupdict()
        split = _SPLITS.get((groups.pop("split", None) or "").lower(), self.split)
        rest, total = groups.pop("rest", None) or "", groups.pop("total", None)
        if key := groups.pop("key", None):
            groups[key] = groups.pop("number")
        if rounded := groups.pop("rounded", None):
            groups["step"] = rounded
        if total and "step" in groups:
            groups["step"], total = f"{groups['step']}/{total}", None
        pairs = (f"{key}={text.replace(',', '')}, " for key, text in groups.items() if text)
        found = scan("".join(pairs) + rest)
        if found is None:
            return None
        found.fields = [named for field in found.fields if (named := self._named(field))]
        found.whole_split = split or SPLITS.get(line.tag, found.split)
        verbatim = [field.key for field in found.fields if self.verbatim]
        row = build_row(found, sure=self.sure, verbatim=verbatim)
        if row and total:
            row = structs.replace(row, total=int(total))
        return structs.replace(row, is_rounded=True) if row and rounded else row

    def _named(self, field: Field) -> Field | None:
        if (known := self.names.get(fold(field.key))) is None:
            return None if field.key[0] == "/" else field
        name, _, unit = known.partition(" ")
        return structs.replace(field, key=name, unit=field.unit or unit) if name else None


# Coqui TTS prints the mean over an evaluation as "avg_loss".
_SPLITS = {**SPLITS, "avg": "eval"}
_GROUP = pattern_of(r"\(\?P<\w+>")


def own_format(name: str, pattern: str) -> LineFormat:
    """Build a format from a user's pattern, which may match anywhere in a line.

    Raises:
        re.error: The pattern is invalid.
        ValueError: The pattern has no named group.

    >>> mine = own_format("mine", "i=(?P<step>[0-9]+) l=(?P<loss>[0-9.]+)")
    >>> mine.read_stripped(StrippedLine("at i=3 l=2.5")).values
    (('loss', 2.5),)
    """
    if not _GROUP.search(pattern):
        raise ValueError("the pattern has no named group, such as (?P<loss>[0-9.]+)")
    whole = re.compile(rf".*?(?:{pattern})", re.DOTALL)
    return LineFormat(name, "", whole, sure=True)


def form(name: str, needle: str, pattern: str, example: str, **options: Any) -> LineFormat:
    """Build a known format; ⟨N⟩ in its pattern is a number.

    >>> mine = form("mine", "loss ", "loss (?P<loss>⟨N⟩)", "", sure=True)
    >>> mine.read_stripped(StrippedLine("loss 2")).values
    (('loss', 2.0),)
    """
    pattern = pattern.replace("⟨N⟩", f"(?:{NUMBER})")
    return LineFormat(name, needle, pattern_of(pattern), example, **options)


# The progress bars of tqdm; with unit_scale they count in three digits, "1.00/171", "1.71k/17.1k".
_BAR_TIME = r"(?:\d{1,4} days?, )?\d{1,6}:\d\d(?::\d\d)?"
_BAR_COUNT = r"\d{1,15}(?:\.\d{1,2})?[kMG]?"
_METER = pattern_of(
    rf"""
    (?P<count> (?<![\d.]) {_BAR_COUNT} )
    (?: /(?P<total> {_BAR_COUNT} | \? ) [ ] \[ {_BAR_TIME} < (?: {_BAR_TIME} | \? )
      | (?: it | [ ]?[a-zA-Z]{{2,12}} )? [ ] \[ {_BAR_TIME} (?= , ) )
    (?: , [ ]{{0,4}} (?P<rate> \d[\d.]{{0,15}} | \? ) [ ]?
        (?P<unit> [A-Za-z_]{{1,20}}/s | s/[A-Za-z_]{{1,20}} ) )?
    (?P<more> ,[ ]{{0,4}} )?
    """,
    re.VERBOSE,
)
# Up to the bracket that closes the meter; brackets inside come in pairs.
_POSTFIX = pattern_of(r"((?:[^\[\]]|\[[^\[\]]*\])*)\]")
_DRAWN_BAR = pattern_of(
    r"(?:[ ]{0,3}\d{1,3}%)?\|[^|]{0,4000}\|[ ]{0,9}\Z|[ ]{0,3}\d{1,3}%[ ]{0,9}\Z"
)
# torchtune's description: epoch|step|Loss: 2.3 (pbar.set_description in its recipes).
_TORCHTUNE = pattern_of(r"(\d{1,9})\|(\d{1,15})\|(?=[A-Za-z])")
_BAR_NUMBERS = pattern_of(r"[\d.,/]*\d[\d.,/]*")
_LONGEST_TITLE = 60
_THOUSANDS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def find_bar(text: str) -> re.Match[str] | None:
    """Find the counter of the progress bar on a line."""
    meter = _METER.search(text) if "[" in text else None
    if meter is None or (meter["unit"] is None and text[: meter.start()].rstrip()[-1:] != "|"):
        return None
    return meter


def read_bar(meter: re.Match[str]) -> Row | None:
    """Read a line with a progress bar: its step and the values on it.

    ``Row.bar`` excludes the numbers in the description, because they change.

    >>> row = read_bar(find_bar("Epoch 3:  12%|# | 12/100 [00:10<01:20, 2.0it/s, loss=0.5]"))
    >>> row.step, row.total, row.epoch, row.values, row.bar
    (12, 100, 3.0, (('loss', 0.5), ('step_seconds', 0.5)), 'Epoch')
    """
    count, total, rate = (_scaled(meter[name]) for name in ("count", "total", "rate"))
    if count is None or count % 1:
        return None
    text = meter.string
    description = _DRAWN_BAR.sub("", text[: meter.start()]).strip().removesuffix(":").strip()
    split, fields = _read_description(description)
    postfix = _POSTFIX.match(text, meter.end()) if meter["more"] else None
    if postfix and (whole := scan(postfix[1])):
        fields += whole.fields
    elif postfix:  # parts that are no pairs are ignored
        parts = (scan(part) for part in postfix[1].split(", ")[:200])
        fields += [field for part in parts if part for field in part.fields]
    counts_steps = meter["unit"] in ("it/s", "s/it", None)
    if not (fields or counts_steps):
        return None  # it counts something else
    # Lightning 1's own loss= is a running mean; its bar is known by the version number
    # (lightning/pytorch/callbacks/progress/base.py).
    keys = {field.key for field in fields}
    if "v_num" in keys and keys & {"reduced_train_loss", "train_loss", "train_loss_step"}:
        fields = [field for field in fields if field.key != "loss"]
    if rate is not None and counts_steps:
        fields.append(Field(meter["unit"], rate))
    if not any(fold(field.key) in STEP_RANK and not field.unit for field in fields):
        fields.append(Field("step", count, of=total))
    title = " ".join(_BAR_NUMBERS.sub("", description.split(",", 1)[0]).split())
    title = title[:_LONGEST_TITLE].strip(" :-|[]()=")
    return build_row(LineFields(fields, whole_split=split, bar=title))


def _scaled(text: str | None) -> float | None:
    """Return the number of a counter such as "1.71k", or None.

    >>> _scaled("1.71k"), _scaled("2K"), _scaled("1.01e+03"), _scaled("?")
    (1710.0, 2000.0, 1010.0, None)
    """
    try:
        number, letter = (text or "?")[:-1], (text or "?")[-1]
        if letter in _THOUSANDS:
            return round(finite(number) * _THOUSANDS[letter], 9)
        return finite(number + letter)
    except ValueError:
        return None


def _read_description(text: str) -> tuple[str, list[Field]]:
    """Read the description of a bar: its split and its fields."""
    tune = _TORCHTUNE.match(text)
    found = scan(f"epoch {tune[1]}, step {tune[2]}, {text[tune.end() :]}" if tune else text)
    if found is None:
        return SPLITS.get(text.split(" ", 1)[0].lower().strip(":.…"), ""), []
    # The bar counts steps, so counters in its description are epochs.
    fields = [field for field in found.fields if tune or fold(field.key) not in STEP_RANK]
    if found.counters and not any(fold(field.key) in EPOCH_RANK for field in fields):
        fields.append(Field("epoch", float(found.counters[0][0])))
    return found.split, fields
