"""Dicts on a line: JSON objects and Python dicts, as fields.

A dict shows by itself that it is whole. Its numbers may be bare, quoted, or wrapped as Python
prints them (``tensor(2.3, device='cuda:0')``, ``np.float64(2.3)``); of a list of learning rates the
first counts.
One level of nesting is opened where its key says what is in there: a split (``{"train":
{"loss": ..}}``) or no more than that these are metrics.
"""

from __future__ import annotations

import json
import math
import re

from hpcrun.metrics.lines.fields import Field
from hpcrun.metrics.lines.spellings import metric_of
from hpcrun.metrics.names import LR, SPLITS, words
from hpcrun.patterns import pattern_of

NUMBER = (
    r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,4})?"
    r"|[+-]?(?:[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)\b"
)
# Keys of a nested dict whose content is the row's own.
_OPENED = words(
    "metrics logs log values scalars stats data results metric train_metrics fields payload extra"
)

_ITEM = pattern_of(
    rf"""
    \s{{0,9}} (?: '(?P<key>[^'\\]{{1,160}})' | "(?P<key2>[^"\\]{{1,160}})" ) \s{{0,9}} : \s{{0,9}}
    (?: (?P<number> {NUMBER} ) (?= \s{{0,9}} [,}}] )
      | (?P<quote>['"]) (?P<quoted> {NUMBER} ) %? (?P=quote)
      | (?: tensor|array|(?:np|numpy|torch|jnp|mx)\.\w{{1,16}}|Array|DeviceArray )
        \( [ ]? \[? (?P<wrapped> {NUMBER} ) \]? [^()]{{0,80}}
        (?: \([^()]{{0,80}}\) [^()]{{0,40}} )? \)
      | '(?P<word>(?:[^'\\]|\\.){{0,2000}})' | "(?P<word2>(?:[^"\\]|\\.){{0,2000}})"
      | \[ [ ]? (?P<listed> {NUMBER} )? [^\[\]{{}}]{{0,2000}} \]
      | \( [^(){{}}]{{0,400}} \)
      | (?P<nested> \{{ )
      | [A-Za-z_][\w.]{{0,60}}
    )
    \s{{0,9}} (?: , | (?= \}} ) )?
    """,
    re.VERBOSE,
)
_CLOSE = pattern_of(r"\s{0,9}\}")
_MOST_ITEMS = 2000


def finite(text: str) -> float:
    """Return the number a literal spells; a literal beyond what a float holds is an error.

    >>> finite("1.63e+6"), finite("nan")
    (1630000.0, nan)
    """
    value = float(text)
    if math.isinf(value) and text[-1] in "0123456789.":
        raise ValueError(text)
    return value


_DECODER = json.JSONDecoder(parse_float=finite, parse_int=finite)


def read_json(text: str, start: int = 0) -> tuple[dict[str, object], int] | None:
    """Decode a JSON object that begins at ``start``; return it and where it ends.

    >>> read_json('x {"a": 1, "b": NaN} y', 2)
    ({'a': 1.0, 'b': nan}, 20)
    """
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return (found, end) if isinstance(found, dict) else None


def read_json_list(text: str) -> list[object] | None:
    """Decode a JSON list; None if the text is none.

    >>> read_json_list("[1, {}]"), read_json_list("[1, 2")
    ([1.0, {}], None)
    """
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def read_dict(text: str, start: int = 0) -> tuple[list[Field], int] | None:
    """Read a JSON object or a Python dict that begins at ``start``; None if it is none, or cut.

    >>> read_dict("{'loss': '2.5', 'lr': [1e-4, 1e-4], 'n': None} tail")
    ([Field(key='loss', value=2.5, unit='', of=None, split=''), \
Field(key='lr', value=0.0001, unit='', of=None, split='')], 46)
    """
    if text.startswith(('{"', '{ "'), start) and (found := read_json(text, start)):
        return fields_of(found[0]), found[1]
    fields: list[Field] = []
    end = _read_items(text, start + 1, fields, "", 0)
    return None if end is None else (fields, end)


def _read_items(text: str, place: int, fields: list[Field], split: str, depth: int) -> int | None:
    """Read ``key: value`` pairs up to the closing brace; return what comes behind it."""
    for _ in range(_MOST_ITEMS):
        if closed := _CLOSE.match(text, place):
            return closed.end()
        found = _ITEM.match(text, place)
        if found is None:
            return None
        key, place = found["key"] or found["key2"], found.end()
        number = found["number"] or found["quoted"] or found["wrapped"] or found["listed"]
        if found["nested"]:
            if depth:
                return None
            inside: list[Field] = []
            end = _read_items(text, place, inside, SPLITS.get(key.lower(), split), depth + 1)
            if end is None:
                return None
            if key.lower() in SPLITS or key.lower() in _OPENED:
                fields += inside
            place = end + 1 if text.startswith(",", end) else end
        elif number and (not found["listed"] or _is_lr(key)):
            try:
                fields.append(Field(key, finite(number), split=split))
            except ValueError:
                return None
        elif word := found["word"] or found["word2"]:
            fields.append(_of_word(key, word, split))
    return None


def fields_of(values: dict[str, object], split: str = "") -> list[Field]:
    """Return the numbers and words of a decoded object; what else it holds is left out.

    >>> [field.key for field in fields_of({"a": 1.0, "b": "2.5", "c": None, "d": {"e": 1.0}})]
    ['a', 'b']
    >>> fields_of({"val": {"loss": 1.0}})
    [Field(key='loss', value=1.0, unit='', of=None, split='eval')]
    """
    fields: list[Field] = []
    for key, value in values.items():
        if isinstance(value, list) and value and _is_lr(key):
            value = value[0]
        if isinstance(value, float):
            fields.append(Field(key, value, split=split))
        elif isinstance(value, str):
            fields.append(_of_word(key, value, split))
        elif isinstance(value, bool):
            fields.append(Field(key, str(value), split=split))
        elif (
            isinstance(value, dict)
            and not split
            and (key.lower() in SPLITS or key.lower() in _OPENED)
        ):
            fields += fields_of(value, SPLITS.get(key.lower(), ""))
    return fields


def _of_word(key: str, word: str, split: str) -> Field:
    """Return the field that a string makes: a number, a counter ("5/123"), or a word."""
    if counted := _COUNTED.fullmatch(word):
        return Field(key.partition("/")[0], float(counted[1]), of=float(counted[2]), split=split)
    return Field(key, number_or_word(word), split=split)


def _is_lr(key: str) -> bool:
    """Whether a key is a learning rate: these are listed, one for each group of parameters."""
    known = metric_of(key)
    return known is not None and known.name == LR


_COUNTED = pattern_of(r"(\d{1,15})/(\d{1,15})", re.ASCII)
_WHOLE_NUMBER = pattern_of(NUMBER)


def number_or_word(text: str) -> float | str:
    """Return the number that a string spells, or the string.

    >>> number_or_word("1.5e3"), number_or_word("mse"), number_or_word("1_0")
    (1500.0, 'mse', '1_0')
    """
    if len(text) < 48 and _WHOLE_NUMBER.fullmatch(text):
        try:
            return finite(text)
        except ValueError:
            return text
    return text
