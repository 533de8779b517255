"""The table of formats: each entry with its example and its look-alike.

look_alikes.txt has a line for each entry, in the order of the table: near it, and no measurement.
A tab is drawn as ␉, a blank at the end of a line as ␠.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.curves.lines.formats import LineFormat, own_format
from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.lines.line import NEEDLES, read_line
from hpcrun.curves.row import Row

LOOK_ALIKES = [
    line.replace("␉", "\t").replace("␠", " ")
    for line in (Path(__file__).parent / "look_alikes.txt").read_text("utf-8").splitlines()
]
PAIRS = [*zip(FORMATS, LOOK_ALIKES, strict=True)]
IDS = [f"{form.name} {place}" for place, form in enumerate(FORMATS)]
# Prefixes that a line may get on its way to a log.
PREFIXES = (
    "",
    "[rank0]: ",
    "[default1]:",
    "0: ",
    "node7: ",
    "[1,3]<stdout>:",
    "\x1b[36m(TaskRunner pid=62)\x1b[0m ",
    "2026-11-20 08:04:09,098 - root - INFO - ",
    "[2026-11-20 08:04:09,098] [INFO] [engine.py:12:step] ",
    "INFO:root:",
    "2026-11-20 08:04:09 | INFO | root | ",
    "I1120 08:04:09.123456 4242 train.py:12] ",
)


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_example_is_read(form: LineFormat) -> None:
    for prefix in PREFIXES:
        name, row = read_line(prefix + form.example) or ("", None)
        assert name == form.name, prefix
        assert isinstance(row, Row) and (row.values or row.step is not None), prefix


@pytest.mark.parametrize("look_alike", LOOK_ALIKES, ids=IDS)
def test_look_alike_yields_nothing(look_alike: str) -> None:
    for prefix in PREFIXES:
        shown = read_line(prefix + look_alike)
        assert shown is None or not (isinstance(shown[1], Row) and shown[1].is_sure), prefix


@pytest.mark.parametrize(("form", "look_alike"), PAIRS, ids=IDS)
def test_look_alike_is_near(form: LineFormat, look_alike: str) -> None:
    """A look-alike that lacks the needle shows nothing."""
    assert form.needle in form.example and form.needle in look_alike


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_example_holds_what_logs_are_searched_for(form: LineFormat) -> None:
    folded = form.example.lower().encode()
    assert any(needle in folded for needle in NEEDLES)


def test_own_pattern_is_found_anywhere() -> None:
    mine = own_format("mine", r"it (?P<step>\d+) took .* L(?P<loss>[\d.]+)")
    shown = read_line("[rank2]: xx it 12 took 3 s, L2.5 yy", formats=(mine, *FORMATS))
    assert shown is not None and shown[0] == "mine"
    assert isinstance(shown[1], Row)
    assert (shown[1].step, shown[1].rank, shown[1].values) == (12, 2, (("loss", 2.5),))


def test_own_pattern_without_a_named_group_is_refused() -> None:
    with pytest.raises(ValueError, match="named group"):
        own_format("mine", r"it (\d+)")
