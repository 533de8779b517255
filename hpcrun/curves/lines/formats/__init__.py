"""Format: one form of a line that the generic reader would miss, or misread.

An entry is a pattern with what its parts mean, beside an example; tests/curves/look_alikes.txt has
a line near it that must yield nothing. Named groups of the pattern are fields of the line:
``step``, ``total``, ``epoch`` and ``rank`` say where it stands, ``rounded`` is a step that is
printed in few digits, ``split`` is of what the line is; ``number`` is the metric that ``key``
names, every other group is a metric of that name. They are read as pairs of a line of the generic
reader, with the group ``rest`` behind them. A job's own pattern (``own_format``) is an entry like
any other.

A progress bar (tqdm/std.py, ``format_meter``) shows by itself what it is, ``12/100 [00:10<01:20,
1.10it/s, loss=0.5]``: so text behind it (a warning that another process printed into the line)
does no harm. The rate is the duration of a step; whether
the bar is one of training at all is for those to say who see more than a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from hpcrun.curves.lines.fields import NUMBER, Field, Found, build_row, finite
from hpcrun.curves.lines.generic import scan
from hpcrun.curves.lines.prefixes import Line
from hpcrun.curves.names import EPOCH_RANK, SPLITS, STEP_RANK, fold
from hpcrun.curves.row import Mark, Row, Table
from hpcrun.patterns import pattern_of

Answer = Row | Mark | Table | None


class Format(Struct, frozen=True):
    """One form of a line.

    ``needle``: a part of every line in this form, as printed. ``pattern`` is matched from the begin
    of the line without its prefixes, as far as it goes. ``names`` gives keys, folded, another name,
    with a unit for numbers that have none; an empty one drops the key. ``split``: what the line is
    of, where the pattern alone shows it. ``sure``: the pattern alone shows that something was
    measured. ``verbatim``: its metrics keep the names that the line gives them, as a summary is no
    point of a curve. ``read`` replaces all this by a function of the match and the line.
    """

    name: str
    needle: str
    pattern: re.Pattern[str]
    example: str = ""
    names: dict[str, str] = {}
    split: str = ""
    sure: bool = False
    verbatim: bool = False
    read: Callable[[re.Match[str], Line], Answer] | None = None

    def read_stripped(self, line: Line) -> Answer:
        """Read a line without its prefixes; None if it is not in this form."""
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
        if total:
            groups["step"] = f"{groups['step']}/{total}"
        pairs = (f"{key}={text.replace(',', '')}, " for key, text in groups.items() if text)
        found = scan("".join(pairs) + rest)
        if found is None:
            return None
        found.fields = [named for field in found.fields if (named := self._named(field))]
        found.split = split or SPLITS.get(line.tag, found.split)
        verbatim = [field.key for field in found.fields if self.verbatim]
        row = build_row(found, sure=self.sure, verbatim=verbatim)
        return structs.replace(row, is_rounded=True) if row and rounded else row

    def _named(self, field: Field) -> Field | None:
        if (known := self.names.get(fold(field.key))) is None:
            return None if field.key[0] == "/" else field
        name, _, unit = known.partition(" ")
        return structs.replace(field, key=name, unit=field.unit or unit) if name else None


# "avg_loss": what Coqui TTS calls the mean over an evaluation.
_SPLITS = {**SPLITS, "avg": "eval"}
_GROUP = pattern_of(r"\(\?P<\w+>")


def own_format(name: str, pattern: str) -> Format:
    """Make an entry of a pattern that a user wrote; it is searched for anywhere in a line.

    Raises ``re.error`` for a pattern that is none, ``ValueError`` for one without a named group.

    >>> mine = own_format("mine", "i=(?P<step>[0-9]+) l=(?P<loss>[0-9.]+)")
    >>> mine.read_stripped(Line("at i=3 l=2.5")).values
    (('loss', 2.5),)
    """
    if not _GROUP.search(pattern):
        raise ValueError("the pattern has no named group, such as (?P<loss>[0-9.]+)")
    whole = re.compile(rf".*?(?:{pattern})", re.DOTALL)
    return Format(name, "", whole, sure=True)


def form(name: str, needle: str, pattern: str, example: str, **options: Any) -> Format:
    """Make an entry of the table; in its pattern ⟨N⟩ is a number.

    >>> mine = form("mine", "loss ", "loss (?P<loss>⟨N⟩)", "", sure=True)
    >>> mine.read_stripped(Line("loss 2")).values
    (('loss', 2.0),)
    """
    pattern = pattern.replace("⟨N⟩", f"(?:{NUMBER})")
    return Format(name, needle, pattern_of(pattern), example, **options)


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
    """Find the numbers of the progress bar on a line."""
    meter = _METER.search(text) if "[" in text else None
    if meter is None or (meter["unit"] is None and text[: meter.start()].rstrip()[-1:] != "|"):
        return None
    return meter


def read_bar(meter: re.Match[str]) -> Row | None:
    """Read a line with a progress bar: its place, and what it says of it.

    Numbers of the description are no part of ``bar``, which names the bar: they change.

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
    elif postfix:  # parts that are no pairs are passed over
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
    return build_row(Found(fields, split=split, bar=title))


def _scaled(text: str | None) -> float | None:
    """Return the number that a counter shows, if it is one: "1.71k".

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
    """Read a bar's description: its split, and what it measures."""
    tune = _TORCHTUNE.match(text)
    found = scan(f"epoch {tune[1]}, step {tune[2]}, {text[tune.end() :]}" if tune else text)
    if found is None:
        return SPLITS.get(text.split(" ", 1)[0].lower().strip(":.…"), ""), []
    # The bar counts the steps; what its description counts are epochs.
    fields = [field for field in found.fields if tune or fold(field.key) not in STEP_RANK]
    if found.counters and not any(fold(field.key) in EPOCH_RANK for field in fields):
        fields.append(Field("epoch", float(found.counters[0][0])))
    return found.split, fields
