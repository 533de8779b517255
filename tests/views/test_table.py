"""Layout of tables: dropped columns, truncated cells, and remarks below a row."""

from __future__ import annotations

import pytest

from hpcrun.text.table import (
    Column,
    Display,
    Table,
    cut_text,
    format_pairs,
    strip_colours,
    text_width,
    truncate,
    wrap,
)

LISTING = [
    Column("ID"),
    Column("JOB", least=6, most=24),
    Column("STATE"),
    Column("LIMIT", right=True, optional=True, goes=1),
    Column("STEP", right=True, optional=True, goes=2),
    Column(below=True),
]
ROWS = [
    ["12", "pretrain-the-large-one-again", "\x1b[32mRUNNING\x1b[0m", "", "40000", ""],
    ["13", "損失", "PENDING", "", "", "waits for 4 GPUs of partition a100"],
]


def lines(width: int, *, colour: bool = False, ascii_only: bool = False) -> list[str]:
    return Table(LISTING, ROWS, Display(width, 24, colour, ascii_only)).lines()


def test_wide_window_shows_all_columns() -> None:
    assert lines(120) == [
        "ID  JOB                       STATE     STEP",
        "12  pretrain-the-large-one-…  RUNNING  40000",
        "13  損失                      PENDING         waits for 4 GPUs of partition a100",
    ]


def test_narrow_window_moves_remarks_drops_columns_and_truncates_names() -> None:
    assert lines(50)[2:] == [
        "13  損失                      PENDING",
        "    waits for 4 GPUs of partition a100",
    ]
    assert lines(40)[:2] == [
        "ID  JOB                       STATE",
        "12  pretrain-the-large-one-…  RUNNING",
    ]
    assert lines(24)[1] == "12  pretrain-t…  RUNNING"
    assert lines(24, ascii_only=True)[1] == "12  pretrain-..  RUNNING"
    assert lines(14)[1] == "12  pretr…  R…"


@pytest.mark.parametrize("width", [1, 5, 14, 24, 40, 50, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_colours_do_not_affect_widths(width: int, colour: bool) -> None:
    coloured = lines(width, colour=colour)
    assert [strip_colours(line) for line in coloured] == lines(width)
    assert max(map(text_width, coloured)) <= max(width, 34)
    assert all(line.count("\x1b[0m") * 2 == line.count("\x1b[") for line in coloured)


def test_remark_is_truncated_if_it_fits_beside() -> None:
    columns = [Column("RUN"), Column("remarks", least=8, below=True)]
    table = [["12", "its folder is kept"]]
    assert Table(columns, table, Display(15)).lines() == ["RUN  remarks", "12   its folde…"]
    assert Table(columns, table, Display(12)).lines() == [
        "RUN",
        "    remarks",
        "12",
        "    its folder is kept",
    ]


def test_filling_column_uses_the_remaining_width() -> None:
    columns = [Column("NAME", least=4), Column("CURVE", fills=True, least=6, most=8)]
    table = [["abcdefghij", ""]]
    assert [Table(columns, table, Display(width)).widths for width in (40, 19, 14, 10)] == [
        {0: 10, 1: 8},
        {0: 10, 1: 7},
        {0: 6, 1: 6},
        {0: 4, 1: 4},
    ]


def test_values_of_pairs_are_aligned() -> None:
    rows = [("state", "FAILED"), ("folder", "/a/path/that/is/longer/than/the/line x y")]
    assert list(format_pairs(rows, Display(width=42))) == [
        "  state     FAILED",
        "  folder    /a/path/that/is/longer/than/the/line",
        "            x y",
    ]


def test_truncated_text_ends_its_colours() -> None:
    assert cut_text("\x1b[1;31mFAILED\x1b[0m by a signal", 4) == "\x1b[1;31mFAIL\x1b[0m"
    assert (
        truncate("\x1b[1;31mFAILED\x1b[0m by a signal", 9, Display())
        == "\x1b[1;31mFAILED\x1b[0m b…"
    )
    assert wrap("", 10) == [""]
