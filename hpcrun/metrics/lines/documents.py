"""Documents: files that are one JSON document, with what was logged as a list inside.

``trainer_state.json`` of the HF Trainer has it under ``log_history``; others are a list of
objects, or columns of equal length (the ``history`` of Keras). Each object is read as a line of its
own would be.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.metrics.lines.dicts import fields_of, read_json, read_json_list
from hpcrun.metrics.lines.fields import Field, Shape, build_row
from hpcrun.metrics.names import EPOCH_RANK, STEP_RANK, fold, like_a_loss
from hpcrun.metrics.row import Row

# Where the list stands.
_LISTS = ("log_history", "history", "logs", "metrics", "results", "train", "data")


def read_document(text: str) -> list[Row] | None:
    """Read a whole file that is one JSON document; None if it is none that logs anything.

    >>> text = '{"best": null, "log_history": [{"step": 5, "loss": 2.5}, {"step": 9, "loss": 2.0}]}'
    >>> [(row.step, row.values) for row in read_document(text)]
    [(5, (('loss', 2.5),)), (9, (('loss', 2.0),))]
    >>> read_document('{"loss": [2.5, 2.25], "val_loss": [2.0, 1.5]}')[1].values
    (('loss', 2.25), ('eval_loss', 1.5))
    >>> read_document('{"learning_rate": 0.1}') is None
    True
    """
    text = text.strip().removeprefix("\ufeff")
    if text.startswith("["):
        rows = _rows_of(read_json_list(text))
    elif text.startswith("{") and (read := read_json(text)) and read[1] == len(text):
        rows = _rows_in(read[0])
    else:
        rows = []
    return rows or None


def _rows_in(document: dict[str, object], depth: int = 0) -> list[Row]:
    """Find the list of what was logged."""
    if rows := _rows_of_columns(document):
        return rows
    for name in _LISTS:
        inside = document.get(name)
        if isinstance(inside, list) and (rows := _rows_of(inside)):
            return rows
        if isinstance(inside, dict) and not depth and (rows := _rows_in(inside, 1)):
            return rows
    return []


def _rows_of(objects: Sequence[object] | None) -> list[Row]:
    rows: list[Row] = []
    for each in objects or ():
        if not isinstance(each, dict):
            return []
        fields = fields_of(each)
        # What the HF Trainer sums up at the end of a run is no point of its curve. Where it counts
        # tokens it tells how long it has run at each step, too.
        summary = "train_runtime" in each and "loss" not in each
        row = build_row(fields, Shape(dict=True), sure=summary, verbatim=summary)
        if row is not None:
            rows.append(row)
    return rows


def _rows_of_columns(document: dict[str, object]) -> list[Row]:
    """Read lists side by side; without a step or an epoch among them, they are one by epoch."""
    columns = {
        key: value
        for key, value in document.items()
        if isinstance(value, list) and value and all(isinstance(each, float) for each in value)
    }
    losses = [key for key in columns if like_a_loss(key)]
    if not losses:
        return []
    length = len(columns[losses[0]])
    columns = {key: value for key, value in columns.items() if len(value) == length}
    placed = any(fold(key) in STEP_RANK or fold(key) in EPOCH_RANK for key in columns)
    rows = []
    for index in range(length):
        fields = [Field(key, value[index]) for key, value in columns.items()]
        if not placed:
            fields.append(Field("epoch", float(index + 1)))
        if row := build_row(fields, Shape(dict=True), sure=True):
            rows.append(row)
    return rows


# A document is read whole, so it must fit into memory; JSON lines of any length begin like one.
LARGEST_DOCUMENT = 1 << 26


def may_be_document(head: bytes) -> bool:
    """Tell by its first bytes whether a file may be one JSON document, not JSON lines.

    >>> [may_be_document(head) for head in (b'{\\n "a', b'[{"a"', b'{"a": 1}\\n{', b"[2026-11")]
    [True, True, False, False]
    """
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    first, _, rest = head.partition(b"\n")
    if head.startswith(b"{") and first.rstrip().endswith(b"}") and rest:
        return False
    inside = head[1:].lstrip()[:1]
    return head[:1] in (b"{", b"[") and inside in (b"", b"{" if head[:1] == b"[" else b'"')
