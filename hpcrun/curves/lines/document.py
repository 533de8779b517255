"""Read a file that is a single JSON document, or a printed Python dict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from hpcrun.curves.lines.fields import build_row, fields_of, read_json
from hpcrun.curves.names import EPOCH_RANK, SPLITS, fold, is_loss_name, is_position_key
from hpcrun.curves.row import LineFields, Row
from hpcrun.patterns import pattern_of

# A document must fit into memory. A file of JSON lines, which may be longer, begins like one.
LARGEST_DOCUMENT_BYTES = 1 << 26
_MAX_DEPTH = 2
_AS_JSON = {"'": '"', "nan": "NaN", "inf": "Infinity", "None": "null"}
_DOCUMENT_END = pattern_of(r"(?<=^[}\]])\s*(?=[{\[])", re.MULTILINE)
_PYTHON_WORD = pattern_of(r"'|\b(?:nan|inf|None|True|False)\b")


def read_document(text: str) -> list[Row] | None:
    """Read a file of JSON documents, or a dict of Python; return None if it logs nothing.

    A document contains lists of objects (``log_history`` of the HF Trainer), or lists of numbers of
    the same length (Keras).

    >>> text = '{"best": null, "log_history": [{"step": 5, "loss": 2.5}, {"step": 9, "loss": 2.0}]}'
    >>> [(row.step, row.values) for row in read_document(text)]
    [(5, (('loss', 2.5),)), (9, (('loss', 2.0),))]
    >>> read_document('{"loss": [2.5, 2.25], "val_loss": [2.0, 1.5]}')[1].values
    (('loss', 2.25), ('eval_loss', 1.5))
    >>> read_document('{"learning_rate": 0.1}') is None
    True
    """
    text = text.strip().removeprefix("\ufeff")
    if text.startswith("{'"):
        text = _PYTHON_WORD.sub(lambda word: _AS_JSON.get(word[0], word[0].lower()), text)
    whole = f'{{"log": [{_DOCUMENT_END.sub(",", text)}]}}'
    read = read_json(whole)
    if read is None or read[1] != len(whole) or not isinstance(log := read[0]["log"], list):
        return None
    found = [each if isinstance(each, dict) else {"log": each} for each in log]
    if len(found) > 1:  # one document for each record
        found = [{**each, "": [each]} for each in found]
    objects = chain.from_iterable(map(_find_objects, found))
    rows = [_read_object(each, split) for each, split in objects]
    return [row for row in rows if row is not None] or None


def _read_object(values: Mapping[str, object], split: str) -> Row | None:
    """Read an object as if it were a line."""
    # The summary at the end of an HF Trainer's run is not a point of the curve. If tokens are
    # counted, the Trainer also logs the runtime at each step.
    summary = "train_runtime" in values and "loss" not in values
    split = split or SPLITS.get(str(values.get("name", "")).lower(), "")
    found = LineFields(fields_of(values), whole_split=split, has_dict=True)
    return build_row(found, sure=summary, verbatim=values if summary else ())


def _find_objects(
    document: dict[str, object], name: str = "", depth: int = 0
) -> Iterator[tuple[Mapping[str, object], str]]:
    """Yield the logged objects with their splits: parallel lists, and lists of objects."""
    for row in _split_columns(document, name):
        yield row, SPLITS.get(name, "")
    for key, inside in document.items():
        if isinstance(inside, list):
            split = SPLITS.get(key, "")
            yield from ((each, split) for each in inside if isinstance(each, dict))
            tag = "/".join(key.split("/")[-2:])
            yield from (({"step": at, tag: value}, "") for at, value in _steps_and_values(inside))
        elif isinstance(inside, dict) and (epoch := key.lower().removeprefix("epoch_")).isdecimal():
            yield {"epoch": float(epoch), **inside}, ""
        elif isinstance(inside, dict) and depth < _MAX_DEPTH:
            yield from _find_objects(inside, key, depth + 1)


def _split_columns(document: dict[str, object], name: str) -> Iterator[dict[str, float]]:
    """Split parallel lists into one object for each row.

    Without a list of steps or epochs, there is one row for each epoch. A list ``x`` contains what
    the key of the document says.
    """
    columns = {key: numbers for key, value in document.items() if (numbers := _numbers_of(value))}
    lost = next(filter(is_loss_name, columns), None)
    if lost is None:
        return
    length = len(columns[lost])
    if "x" in columns:
        columns["epoch" if fold(name) in EPOCH_RANK else "step"] = columns.pop("x")
    columns = {key: column for key, column in columns.items() if len(column) == length}
    if not any(map(is_position_key, columns)):
        columns["epoch"] = [*map(float, range(1, length + 1))]
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _numbers_of(value: object) -> list[float]:
    """Return a list of numbers, or an empty list if the value is anything else."""
    numbers = value if isinstance(value, list) else []
    return numbers if all(isinstance(number, float) for number in numbers) else []


def _steps_and_values(value: list[Any]) -> list[list[float]]:
    """Return pairs of step and value, [[100, 2.5], [200, 2.0]], or an empty list if there are none.

    Exports of TensorBoard have a time before each step.
    """
    value = [each[1:] if isinstance(each, list) and len(each) == 3 else each for each in value]
    is_pair = (isinstance(each, list) and [*map(type, each)] == [float, float] for each in value)
    if len(value) < 2 or not all(is_pair):
        return []
    steps = [step for step, _ in value]
    return value if steps == sorted({*steps}) and not any(step % 1 for step in steps) else []


def may_be_document(head: bytes) -> bool:
    """Return True if a file may be a JSON document rather than JSON lines, by its first bytes.

    >>> [may_be_document(head) for head in (b'{\\n "a', b"{'a': [1", b'[{"a"', b"[2026-11")]
    [True, True, True, False]
    >>> may_be_document(b'{"a": 1}\\n{')
    False
    """
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    first, _, rest = head.partition(b"\n")
    if head.startswith(b"{") and first.rstrip().endswith(b"}") and rest:
        return False
    inside = head[1:].lstrip()[:1]
    is_object = head[:1] == b"{" and (inside in b'"' or b"': [" in first)
    return is_object or (head[:1] == b"[" and inside in (b"", b"{"))
