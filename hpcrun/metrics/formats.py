"""The forms of a metric line: one table, each with its example and its look-alike.

Pure.

Nothing is invented: a line counts only if *all* of it, after the prefixes that launchers and
loggers put in front, is in one of these forms, and if it says that something was measured. A
line with a step must hold at least one of ``names.MEASURED``; a line without a step must hold a
loss. Its other numbers then come along under the names that the log gives them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from hpcrun.metrics.names import (
    EPOCH_SPELLINGS,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LOSSES,
    LR,
    MEASURED,
    MEMORY_BYTES,
    RANK_SPELLINGS,
    SPELLINGS,
    SPLIT_SPELLINGS,
    SPLITS,
    STEP_SPELLINGS,
    UNIT_SPELLINGS,
    canonical,
    fold,
    with_unit,
)

# A counter beyond this is no counter; it is also what every JSON reader holds exactly.
LARGEST_COUNT = 2**53


class Row(Struct, frozen=True, gc=False):
    """What one line measured."""

    step: int | None
    epoch: float | None
    split: str
    rank: int | None
    values: tuple[tuple[str, float], ...]


class Field(Struct, frozen=True, gc=False):
    """One key of a line with its value: a number (``unit`` as printed) or a word."""

    key: str
    value: float | str
    unit: str = ""


class Line(Struct, frozen=True, gc=False):
    """A line without its prefixes, and the ranks that these name.

    ``rank`` comes from a prefix that can be nothing else (``[rank3]:``); ``label`` from a bare
    number (``3:``, as srun --label prints), which could also be a count of the program's own.
    """

    text: str
    rank: int | None = None
    label: int | None = None


class Format(Struct, frozen=True):
    """One form of a metric line.

    ``needles``: every line in this form holds one of them, in lower case, with ``after`` (a
    regular expression) at its end; the reader looks no further at a line without. ``read`` gets
    the line without prefixes. ``example`` yields a row and ``look_alike`` none: the tests hold
    both.
    """

    name: str
    needles: tuple[bytes, ...]
    after: bytes
    read: Callable[[str], Row | None]
    example: str
    look_alike: str
    # Whether a line shows that it is whole: else the last word of an unfinished line may be cut.
    shows_its_end: bool = False


# Colours, cursor movements, window titles and links (ECMA-48 CSI and OSC sequences).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")

_PREFIX = re.compile(
    r"""
      \[ (?P<tag> [^\[\]]{1,200} ) \] :?                              # [rank0]: [INFO] [2026-...]
    | [ ]{0,8} (?P<label> \d{1,6} ) : (?=\s)                          # srun --label
    | (?: (?: \d{4}[-/]\d\d[-/]\d\d [T ] | \d\d/\d\d (?: /\d{2,4} )? [ ] )?   # a time
        \d\d:\d\d (?: :\d\d (?: [.,]\d{1,9} )? )? (?: Z | [ ]?[+-]\d\d:?\d\d )? [:,]? (?=\s) )
    | (?: DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL ) (?: :[\w.]{1,80}: | : | (?![\w=]) )
    | (?P<between> [-|] [ \t]+ (?: [\w.:<>/]{1,80} [ \t]+ (?= [-|][ \t] ) )? )      # " - name - "
    """,
    re.VERBOSE | re.ASCII,
)
_RANK = re.compile(r"(?:rank|default)[ _]?(\d{1,6})", re.IGNORECASE | re.ASCII)
_MOST_PREFIXES = 12


def strip_prefixes(text: str) -> Line:
    """Take off escape sequences and what launchers and loggers print before a message.

    At most one blank goes with each prefix, so that an indented message stays indented.

    >>> strip_prefixes("[rank3]: [2026-11-20 08:04:09,098] [INFO] [train.py:7:log] step=1")
    Line(text='step=1', rank=3, label=None)
    >>> strip_prefixes("2: 2026-11-20 08:04:09 - trainer - INFO - step=1 - loss=2")
    Line(text='step=1 - loss=2', rank=None, label=2)
    """
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    start, rank, label = 0, None, None
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(text, start)
        if found is None or (found["between"] and not start):
            break
        if found["tag"] and (tagged := _RANK.fullmatch(found["tag"])):
            rank = int(tagged[1])
        if found["label"]:
            label = int(found["label"])
        start = found.end()
        if text[start : start + 1] in (" ", "\t"):
            start += 1
    return Line(text[start:].rstrip(), rank, label)


def _count(value: float | str) -> int | None:
    """Return a step number, None if the value is none."""
    if isinstance(value, str) or not 0 <= value < LARGEST_COUNT or value != int(value):
        return None
    return int(value)


# Keys that say where a sample stands.
_WHERE = frozenset({*STEP_SPELLINGS, *EPOCH_SPELLINGS, *RANK_SPELLINGS})
# What an evaluation measures of its own; the rest (lr, memory) is a fact of the run.
_OF_THE_RUN = frozenset({LR, GRAD_NORM, MEMORY_BYTES})


def build_row(fields: Sequence[Field], *, may_lack_step: bool) -> Row | None:
    """Build the row that the fields of one line say, None if they are no measurement.

    >>> build_row([Field("step", 3.0), Field("loss", 2.5)], may_lack_step=True)
    Row(step=3, epoch=None, split='train', rank=None, values=(('loss', 2.5),))
    >>> build_row([Field("step", 30.0), Field("lr", 0.1)], may_lack_step=True)  # a scheduler's
    """
    by_key = {fold(field.key): field for field in fields}
    step: int | None = None
    for key in STEP_SPELLINGS:
        if counter := by_key.get(key):
            step = None if counter.unit else _count(counter.value)
            if step is None:
                return None
            break
    epoch = next((by_key[key].value for key in EPOCH_SPELLINGS if key in by_key), None)
    if not isinstance(epoch, float) or not math.isfinite(epoch):
        epoch = None
    rank = next((_count(by_key[key].value) for key in RANK_SPELLINGS if key in by_key), None)
    said = (by_key[key].value for key in SPLIT_SPELLINGS if key in by_key)
    split = next((SPLITS[word] for word in map(str, said) if word in SPLITS), "")

    values: dict[str, float] = {}
    for key, field in by_key.items():
        if not isinstance(field.value, float) or key in _WHERE:
            continue
        scaled = with_unit(field.key, field.unit) if field.unit else canonical(field.key)
        if scaled is None:
            continue
        name, factor = scaled
        # Two spellings of one metric in a line (loss, train_loss): the canonical one is meant.
        if name in values or (name != key and name in by_key):
            name, factor = field.key, 1.0
        values[name] = field.value * factor
    measured = MEASURED & values.keys()
    if not measured or (step is None and (not may_lack_step or not LOSSES & measured)):
        return None

    if not split:
        split = "eval" if EVAL_LOSS in values and LOSS not in values else "train"
    return Row(
        step,
        epoch,
        split,
        rank,
        tuple((_name_in(split, name), value) for name, value in values.items()),
    )


def _name_in(split: str, name: str) -> str:
    """Return the name of a metric in a split: what an evaluation took is not a training step's.

    >>> _name_in("eval", "loss"), _name_in("eval", "eval_loss"), _name_in("eval", "lr")
    ('eval_loss', 'eval_loss', 'lr')
    """
    own = split != "train" and name in MEASURED - _OF_THE_RUN and not name.startswith("eval_")
    return f"{split}_{name}" if own else name


def _finite(text: str) -> float:
    """Return the number a literal spells; a literal beyond what a float holds is an error."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_int=_finite)


def read_json_line(text: str) -> Row | None:
    """Read one JSON object; Python's NaN and Infinity are numbers, nested values are left out.

    >>> read_json_line('{"step": 2, "loss": NaN, "note": "x"}')
    Row(step=2, epoch=None, split='train', rank=None, values=(('loss', nan),))
    >>> read_json_line('{"config": {"step": 2, "loss": 1.0}}')
    """
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        values = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    fields = [
        Field(key, value if isinstance(value, float | str) else "")
        for key, value in values.items()
        if value is not None
    ]
    return build_row(fields, may_lack_step=True)


_KEY = r"[A-Za-z_][\w./%-]{0,80}(?:[ ][A-Za-z_][\w./%-]{0,80}){0,3}"
# Bounded repeats: a line that nearly fits costs no more than one that does.
_NUMBER = (
    r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,4})?"
    r"|[+-]?(?:[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)"
)
_PAIR = re.compile(
    rf"""
    (?P<key> {_KEY} ) (?P<sign> [ ]?[:=] ) [ \t]*
    (?: (?P<number> {_NUMBER} ) (?: (?P<unit> [A-Za-z]{{1,4}} ) | [ ]? / [ ]? \d+ (?P<of>) )?
      | (?P<word> [^\s,;|="'(){{}}\[\]]* [^\s,;|="'(){{}}\[\]:] ) )
    (?: [ \t]* [,;|] [ \t]* | [ \t]+ - [ \t]+ | [ \t]+ | $ )
    """,
    re.VERBOSE | re.ASCII,
)
_CLOCK = re.compile(r"\d+(?::\d\d)+", re.ASCII)
_KNOWN = frozenset({*_WHERE, *UNIT_SPELLINGS, *SPLIT_SPELLINGS, *SPELLINGS})


def read_pairs(text: str) -> Row | None:
    """Read a line that is pairs from end to end: ``step=3 loss=2.5``, ``Step: 3, Loss: 2.5``.

    >>> read_pairs("Step: 3/100, train loss: 2.5, step_time: 250ms, eta: 0:12:33").values
    (('loss', 2.5), ('step_seconds', 0.25))
    >>> read_pairs("step 3: the loss: 2.5 is too high")
    >>> read_pairs("    loss = 0.0")
    """
    start = len(text) - len(text.lstrip())
    # Without a step, these are how configurations, environments and source code look.
    may_lack_step = start == 0 and not text.endswith((",", ";"))
    fields: list[Field] = []
    while start < len(text):
        found = _PAIR.match(text, start)
        if found is None:
            return None
        start = found.end()
        key, folded = found["key"], fold(found["key"])
        if " " in key and folded not in _KNOWN:
            return None
        if found["sign"].startswith(" ") or (key.isupper() and folded in LOSSES):
            may_lack_step = False
        if found["number"] is None:
            by_colon = found["sign"].endswith(":")
            if by_colon and folded not in SPLIT_SPELLINGS and not _CLOCK.fullmatch(found["word"]):
                return None
            fields.append(Field(key, found["word"]))
        elif found["of"] is not None and folded not in STEP_SPELLINGS + EPOCH_SPELLINGS:
            return None
        else:
            number = found["number"]
            try:
                value = _finite(number) if number[-1] in "0123456789." else float(number)
            except ValueError:
                return None
            fields.append(Field(key, value, found["unit"] or ""))
    # Beside names that nobody knows, a loss without a step may be any number of a report.
    known = all(fold(field.key) in _KNOWN for field in fields)
    return build_row(fields, may_lack_step=may_lack_step and known)


# A row has a loss or a step: so its line has a key that ends like this.
KEY_NEEDLES = (b"loss", b"step", b"iter")
KEY_END = rb'(?:s|ation)?"?[ ]?[:=]'

# The next form is a function above and an entry here. Forms are tried in this order.
FORMATS: tuple[Format, ...] = (
    Format(
        name="json lines",
        needles=KEY_NEEDLES,
        after=KEY_END,
        read=read_json_line,
        example='{"step": 3, "loss": 2.1, "lr": 0.0001}',
        look_alike='{"config": {"step": 3, "loss": 2.1}, "lr": 0.0001, "max_steps": 10}',
        shows_its_end=True,
    ),
    Format(
        name="key=value",
        needles=KEY_NEEDLES,
        after=KEY_END,
        read=read_pairs,
        example="step=3 loss=2.1 lr=1e-4",
        look_alike="train(step=3, loss=2.1, lr=1e-4)",
    ),
)
