"""Files that are JSON documents, or a Python dict."""

from __future__ import annotations

import json
import math

import pytest

from hpcrun.curves.curve import Curve
from tests.curves.parsing import parse_chunks
from tests.curves.rows import both


def curve_of(text: str) -> Curve:
    return parse_chunks("a.log", [(0, [text.encode()])]).curve


_DOCUMENTS: dict[str, list[object]] = {
    "sides": [{"train": {"loss": [2.5, 2.0]}, "val": {"loss": [3.5, 3.0]}}],
    "epochs": [{"1": {"loss": 2.5, "val_loss": 3.5}, "2": {"loss": 2.0, "val_loss": 3.0}}],
    "pairs": [{"loss": [[1, 2.5], [2, 2.0]], "val_loss": [[1, 3.5], [2, 3.0]]}],
    "one after the other": [
        {"epoch": 1, "train_loss": 2.5, "val_loss": 3.5},
        {"epoch": 2, "train_loss": 2.0, "val_loss": 3.0},
    ],
    "one after the other with a log": [
        {"epoch": 1, "train_loss": 2.5, "val_loss": 3.5, "log": "run.txt"},
        {"epoch": 2, "train_loss": 2.0, "val_loss": 3.0, "log": "run.txt"},
    ],
    "lists one after the other": [
        [
            {"name": "train", "loss": loss, "epoch": epoch},
            {"name": "val", "loss": loss + 1, "epoch": epoch},
        ]
        for epoch, loss in ((1, 2.5), (2, 2.0))
    ],
}


@pytest.mark.parametrize("between", ["\n", ""])
@pytest.mark.parametrize("kind", _DOCUMENTS)
def test_json_documents_are_read(kind: str, between: str) -> None:
    curve = curve_of(between.join(json.dumps(each, indent=1) for each in _DOCUMENTS[kind]))
    assert both(curve, "loss") == ([1, 2], [2.5, 2.0])
    assert both(curve, "eval_loss") == ([1, 2], [3.5, 3.0])


def test_printed_python_dict_of_lists_is_read() -> None:
    history = {"loss": [2.5, math.nan], "lr": [0.1, 0.1], "val_loss": [3.5, 3.0], "best": None}
    curve = curve_of(str(history))
    assert curve.steps("loss") == [1, 2] and math.isnan(curve.values("loss")[1])
    assert both(curve, "eval_loss") == ([1, 2], [3.5, 3.0])
