"""The terminal report, as text that was looked at.

After a change that is meant: ``python -m tests.report.test_terminal`` writes the golden files
anew; look at each before it is committed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.metrics.parse import ParsedRun, parse_chunks
from hpcrun.report.plot import Line, plot_lines, thin, ticks
from hpcrun.report.terminal import loss_plot, nothing_found, report
from hpcrun.report.text import shorten
from tests.report import runs

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, tuple[Callable[[], list[ParsedRun]], int, int, bool, bool]] = {
    f"{name}-{width}{'-colour' if colour else ''}{'-ascii' if ascii_only else ''}": (
        make,
        width,
        height,
        colour,
        ascii_only,
    )
    for name, make in (
        ("one", runs.one),
        ("several", runs.several),
        ("without-steps", runs.without_steps),
        ("nothing", runs.nothing),
    )
    for width, height in ((80, 24), (120, 50))
    for colour, ascii_only in ((False, False), (True, False), (False, True))
}


def build(case: str) -> str:
    make, width, height, colour, ascii_only = CASES[case]
    return report(make(), width=width, height=height, colour=colour, ascii_only=ascii_only)


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    assert build(case) == (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_what_a_window_cannot_show_is_not_sent(case: str) -> None:
    _, width, _, colour, ascii_only = CASES[case]
    text = build(case)
    assert colour == ("\x1b" in text) or case.startswith("nothing")
    assert not ascii_only or text.isascii()
    if not colour:
        for line in text.splitlines():
            assert len(line) <= width or "no metrics in" in line
            assert line == line.rstrip()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for case in CASES:
        build(case)
    assert capfd.readouterr() == ("", "")


def test_locale_and_environment_change_nothing() -> None:
    """A C locale, a dumb terminal of 20 columns, NO_COLOR: the arguments decide alone."""
    code = (
        "import sys; from tests.report.test_terminal import build;"
        "sys.stdout.buffer.write(build('several-80-colour').encode())"
    )
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "TERM": "dumb",
        "COLUMNS": "20",
        "LINES": "3",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode() == (GOLDEN / "several-80-colour.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [0, 1, 5, 20, 23, 24, 25, 30, 1000])
@pytest.mark.parametrize("height", [0, 1, 3, 5, 6, 7, 300])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_any_window_is_survived(width: int, height: int, ascii_only: bool) -> None:
    plot = loss_plot(
        runs.several(), width=width, height=height, colour=False, ascii_only=ascii_only
    )
    rows = plot.splitlines()
    assert len(rows) <= height
    assert all(len(row) <= width for row in rows)
    assert not plot or plot.endswith("\n")
    if width < 24 or height < 6:
        assert not rows
    if width == 1000 and height >= 7:
        assert rows
    text = report(runs.several(), width=width, height=height, colour=True, ascii_only=ascii_only)
    assert "loss last" in text


@given(
    st.lists(st.lists(st.floats(), max_size=30), min_size=1, max_size=4),
    st.integers(20, 60),
    st.integers(4, 14),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_values_are_drawn(
    curves: list[list[float]], width: int, height: int, colour: bool, ascii_only: bool
) -> None:
    """plotext's kernel aborts the process at values far outside its limits: none reaches it."""
    lines = [Line(f"run {i}", [float(x) for x in range(len(y))], y) for i, y in enumerate(curves)]
    text = plot_lines(
        lines,
        title="loss",
        x_label="step",
        width=width,
        height=height,
        colour=colour,
        ascii_only=ascii_only,
    )
    assert text == "" or len(text.splitlines()) <= height
    assert not ascii_only or text.isascii()


def test_the_plot_shows_the_fall() -> None:
    """A curve from the top left to the bottom right: first and last row hold its ends."""
    text = plot_lines(
        [Line("a", [0.0, 1.0, 2.0], [3.0, 2.0, 1.0])],
        title="loss",
        x_label="step",
        width=40,
        height=10,
        colour=False,
        ascii_only=True,
    )
    rows = [row.split("|")[1] for row in text.splitlines() if row.count("|") == 2 or "+*" in row]
    stars = [row.find("*") for row in rows]
    assert stars == sorted(stars)
    assert stars[0] < 6 < 30 < rows[-1].rfind("*")


def test_nan_leaves_a_gap() -> None:
    nan = float("nan")
    gap = [Line("a", [0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 1.0, nan, 1.0, 1.0])]
    text = plot_lines(
        gap, title="loss", x_label="step", width=44, height=8, colour=False, ascii_only=True
    )
    (row,) = [row for row in text.splitlines() if "*" in row]
    assert row.count("*") < 0.7 * len(row)
    assert "*" + " " * 5 in row


@given(st.lists(st.tuples(st.floats(0, 1), st.floats()), min_size=1), st.integers(1, 50))
def test_thinning_keeps_the_extremes(points: list[tuple[float, float]], columns: int) -> None:
    points.sort(key=lambda point: point[0])
    x, y = [p[0] for p in points], [p[1] for p in points]
    kept = thin(x, y, columns)
    finite = [value for value in y if abs(value) < float("inf")]
    kept_finite = [value for _, value in kept if value == value]
    assert len(kept) <= 5 * columns
    assert [p[0] for p in kept] == sorted(p[0] for p in kept)
    assert set(kept_finite) <= set(finite)
    if finite:
        assert (min(finite), max(finite)) == (min(kept_finite), max(kept_finite))


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e9), st.integers(2, 12))
def test_ticks_are_within_and_few(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most)
    assert len(found) <= most
    assert all(low - span * 1e-3 <= tick <= low + span * 1.001 for tick in found)


def test_a_name_cannot_command_the_terminal() -> None:
    run = parse_chunks("a\x1b[2J\r\n.log", [(0, [b"step=1 loss=2\n"])])
    text = report([run, run], width=80, height=24, colour=False)
    assert "\x1b" not in text
    assert shorten("\x1b[31m", 20) == "?[31m"


def test_nothing_found_says_what_was_read() -> None:
    text = nothing_found(runs.nothing()[0])
    assert text.startswith("empty.log: no metrics in 1 file, 2 lines, 21 bytes; understood are")
    assert "step=3 loss=2.1" in text
    assert "\n" not in text


def test_evaluation_alone_is_drawn() -> None:
    run = parse_chunks("e.log", [(0, [b"step=1 eval_loss=2\nstep=9 eval_loss=1\n"])])
    text = report([run], width=60, height=24, colour=False)
    assert text.startswith("eval_loss by step\n")
    assert "none in the log" in text


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in CASES:
        (GOLDEN / f"{name}.txt").write_text(build(name), encoding="utf-8")
