"""The terminal report, compared with reviewed golden files.

After an intended change, run ``python -m tests.curves.report.test_terminal`` to update the golden
files, and review each before you commit it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hpcrun.curves.curve import Restart, build_series
from hpcrun.curves.report.facts import main_metric, trend_text
from hpcrun.curves.report.html import html_text
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.terminal import format_report, metric_plot
from hpcrun.text.table import Display, text_width, truncate_start
from tests.curves.report import runs

GOLDEN = Path(__file__).parent / "golden"
MAKERS: dict[str, Callable[[], list[ParsedRun]]] = {
    "one": runs.one,
    "several": runs.several,
    "without-steps": runs.without_steps,
    "nothing": runs.nothing,
    "running": runs.running,
    "rewards": runs.rewards,
    "decades": runs.decades,
    "sweep": runs.sweep,
}
LOOKS = {"": (False, False), "-colour": (True, False), "-ascii": (False, True)}
CASES = {
    f"{name}-{width}{look}": (make, width, height, *LOOKS[look])
    for name, make in MAKERS.items()
    for width, height, look in (
        (80, 24, ""),
        (80, 24, "-colour"),
        (80, 24, "-ascii"),
        (200, 50, ""),
    )
}
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def build(case: str) -> str:
    make, width, height, colour, ascii_only = CASES[case]
    return format_report(make(), Display(width, height, colour, ascii_only))


@pytest.mark.parametrize("case", CASES)
def test_report_matches_the_golden_file(case: str) -> None:
    assert build(case) == (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")


def test_no_golden_file_is_unused() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_output_contains_no_unsupported_characters(case: str) -> None:
    _, width, _, colour, ascii_only = CASES[case]
    text = build(case)
    assert colour == ("\x1b" in text) or case.startswith("nothing")
    assert not ascii_only or text.isascii()
    for line in ESCAPE.sub("", text).splitlines():
        assert text_width(line) <= width, line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", ["one", "running", "rewards", "decades", "without-steps"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 30), (200, 50)])
def test_report_of_one_run_fits_its_window(name: str, width: int, height: int) -> None:
    """Including the prompt below it, nothing scrolls out of the window."""
    text = format_report(MAKERS[name](), Display(width, height))
    assert len(text.splitlines()) < height
    assert "loss" in text or "reward" in text


@pytest.mark.parametrize("width", [60, 72, 80])
@pytest.mark.parametrize("further", [0, 1, 30])
def test_full_table_fits_an_80_by_24_window(width: int, further: int) -> None:
    steps: list[int | None] = [*range(5, 65, 5)]
    falling = [3.0 - 0.1 * index for index in range(12)]
    names = ("loss", "eval_loss", "epoch", "lr", "grad_norm", "step_seconds")
    metrics = {name: build_series(steps, falling) for name in names}
    metrics |= {f"metric number {n}": build_series(steps, falling) for n in range(further)}
    shown = runs.built("a.log", metrics, curve={"total_steps": 60})
    text = format_report([shown], Display(width, 24))
    assert len(text.splitlines()) < 24
    assert "5 to 60 of 60, 12 points," in text
    assert ("also logged" in text) == bool(further)
    assert not further or "metric number 0" in text or f"also logged: {further} metric" in text


def test_uninformative_metrics_are_not_shown() -> None:
    metrics = {"loss": build_series([1, 2], [3.0, 2.0], [10.0, 10.4])}
    text = reported([runs.built("a.log", {**metrics, "memory_bytes": build_series([1], [0.0])})])
    assert "peak memory" not in text and "time" not in text
    assert "read as" in text and "read as" not in reported([runs.built("a.log", {})])


def test_trend_of_a_thinned_log_ignores_its_extremes() -> None:
    drawn = [2.0, 9.0] * 2000
    series = structs.replace(
        build_series([*range(0, 40_000, 10)], drawn), sample=[2.5 - n / 1000 for n in range(1000)]
    )
    assert trend_text(series) == "1.501, -0.1990 in 7,990 steps"


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("width", "height"), [(80, 23), (39, 11), (24, 4), (20, 1), (200, 49)])
def test_cropped_report_fits_and_shows_warnings(name: str, width: int, height: int) -> None:
    """As in the live view: not too many rows, and visible warnings."""
    text = format_report(MAKERS[name](), Display(width, height), crop=True)
    assert (height > 1) <= len(text.splitlines()) <= height
    assert height < 11 or name != "running" or "loss spike at step 803" in " ".join(text.split())
    whole = format_report(MAKERS[name](), Display(width, height))
    assert len(whole.splitlines()) > height or text == whole


def test_colour_mode_only_adds_colours() -> None:
    """A braille curve needs colours to distinguish it from its noise; the rest is the same."""
    with_colour = ESCAPE.sub("", build("running-80-colour")).splitlines()
    without = build("running-80").splitlines()
    assert len(with_colour) == len(without)
    assert with_colour[-9:] == without[-9:]


@pytest.mark.slow
def test_report_does_not_print(capfd: pytest.CaptureFixture[str]) -> None:
    for case in CASES:
        build(case)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_report_does_not_depend_on_locale_and_environment() -> None:
    """A C locale, a dumb terminal of 20 columns and NO_COLOR: only the arguments count."""
    code = (
        "import sys; from tests.curves.report.test_terminal import build;"
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


@cache
def shown() -> tuple[list[ParsedRun], ...]:
    everything = list(chain.from_iterable(make() for make in MAKERS.values()))
    return everything, runs.running(), runs.rewards()


WINDOWS = [
    # Drawing is slow; below 24 columns or 6 rows there is no curve.
    pytest.param(
        width,
        height,
        marks=[pytest.mark.slow]
        if width > 24 and height > 5 and (width, height) != (71, 7)
        else [],
    )
    for width in (0, 1, 5, 20, 23, 24, 25, 30, 71, 1000)
    for height in (0, 1, 3, 5, 6, 7, 300)
]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), WINDOWS)
def test_report_fits_any_window(width: int, height: int) -> None:
    # Each width and each height is tested with both.
    ascii_only = (width + height) % 2 == 1
    for parsed in shown():
        plot = metric_plot(parsed, "loss", Display(width, height, ascii_only=ascii_only))
        rows = plot.splitlines()
        assert len(rows) <= max(0, height)
        assert all(text_width(row) <= width for row in rows)
        assert not plot or plot.endswith("\n")
        assert not rows or (width >= 24 and height >= 6)
        text = format_report(parsed, Display(width, height, False, ascii_only))
        assert all(text_width(row) <= max(width, 20) for row in text.splitlines())
        assert text


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["loss", "eval_loss", "損失/" * 9, "a\x1b[2Jb", "x" * 300, "lr", "kl"]),
        st.lists(st.tuples(st.integers(0, 2**40), st.floats()), min_size=1, max_size=40),
        max_size=5,
    ),
    st.booleans(),
    st.integers(20, 200),
    st.integers(5, 60),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=50, deadline=None)
def test_rows_fit_the_window(
    logged: dict[str, list[tuple[int, float]]],
    with_steps: bool,
    width: int,
    height: int,
    colour: bool,
    ascii_only: bool,
    times: int,
) -> None:
    metrics = {
        name: build_series([s if with_steps else None for s, _ in points], [v for _, v in points])
        for name, points in logged.items()
    }
    curve = {"total_steps": 2**41, "notes": ("a note \x1b[2J of many words " * 4,)}
    run = runs.built("/a/long/path/" * 20 + "\x1b[31m損失.log", metrics, curve=curve, gpus=7)
    run = structs.replace(run, warnings=("w" * 250, "loss is nan at step 7"))
    text = format_report([run] * times, Display(width, height, colour, ascii_only))
    plain = ESCAPE.sub("", text)
    assert "\x1b" not in plain
    assert not ascii_only or plain.isascii()
    assert all(text_width(row) <= width for row in plain.splitlines())


def test_pipe_gets_complete_lines() -> None:
    (run,) = runs.running()
    long = structs.replace(run, warnings=("word " * 100 + "end",))
    text = format_report([long], Display(80))
    assert f"warning: {'word ' * 100}end" in text.splitlines()
    (rewarded,) = runs.rewards()
    text = format_report([rewarded], Display(80))
    assert "judge_13" in text and "more metric" not in text


def test_names_contain_no_control_sequences() -> None:
    run = structs.replace(runs.without_steps()[0], source="a\x1b[2J\r\n.log")
    for parsed in ([run], [run, run]):
        assert "\x1b" not in format_report(parsed, Display(80, 24))
    assert truncate_start("\x1b[31m", 20) == "?[31m"


# ---- content


def reported(parsed: list[ParsedRun], **options: Any) -> str:
    return format_report(parsed, Display(100, 40), **options)


def test_table_shows_the_main_values() -> None:
    text = reported(runs.running())
    for name, value in (
        ("steps", "1 to 1200 of 4000, epoch 1.2"),
        ("loss first", "10.00 at step 1"),
        ("loss best", "at step"),
        ("eval best", "2.100 at step 800"),
        ("lr", "2.101e-04 (last)"),
        ("step time", "p50, "),
        ("peak memory", "48.4 GiB"),
        ("to go", "2,800 steps, 1 h 56 min"),
        ("GPU hours", "7.333 (4 GPUs)"),
        ("restarts", "1, 40 steps lost"),
    ):
        assert re.search(rf"\b{name} +.*{re.escape(value)}", text), (name, text)
    rows = text.splitlines()
    assert "warning: loss spike at step 803: 9.1 where 2.0 is usual" in rows
    assert rows.index("warning: stall at step 1100") < rows.index(
        "note: ranks 0 to 3 print the same steps: rank 0 speaks for all"
    )


@pytest.mark.slow
def test_lost_steps_are_shown_only_if_known() -> None:
    bare = {"loss": build_series([None, None], [3.0, 2.0])}
    restarts = (Restart(0, None, None, 0),)
    run = runs.built("a.log", bare, curve={"restarts": restarts})
    assert re.search(r"restarts +1$", reported([run]), re.MULTILINE)
    both = reported([run, run])
    assert "restarts" in both and "steps lost" not in both
    assert "attempt 0: resumed" in html_text([run])


def test_narrow_window_truncates_names_but_not_numbers() -> None:
    series = {"loss": build_series([*range(100)], [2.345] * 99 + [1.072])}
    several = [runs.built(f"a-long-name-{name}.log", series) for name in ("one", "two")]
    text = format_report(several, Display(20, 10))
    assert max(map(text_width, text.splitlines())) <= 20
    assert text.count("1.072 @99") == 2 and "2.345" in text


def test_time_to_go_is_shown_only_if_known() -> None:
    (run,) = runs.running()
    assert "to go" not in reported(
        [structs.replace(run, curve=structs.replace(run.curve, total_steps=None))]
    )
    ended = structs.replace(run.curve, total_steps=1200)
    assert "to go" not in reported([structs.replace(run, curve=ended)])
    bare = {"loss": build_series([1, 2], [3.0, 2.0])}
    text = reported([runs.built("a.log", bare, curve={"total_steps": 10})])
    assert re.search(r"to go +8 steps$", text, re.MULTILINE)


def test_evaluation_is_drawn_if_there_is_no_training_loss() -> None:
    run = runs.built("e.log", {"eval_loss": build_series([1, 9], [2.0, 1.0])})
    text = reported([run])
    assert text.startswith("e.log: eval_loss by step\n")
    assert "none in the log" in text


@pytest.mark.parametrize(
    ("names", "drawn"),
    [
        (["lr", "loss", "eval_loss"], "loss"),
        (["lr", "eval_loss", "reward"], "eval_loss"),
        (["lr", "loss_scale", "entropy", "reward/mean"], "reward/mean"),
        (["grad_norm", "reward", "actor_loss"], "actor_loss"),
        (["memory_bytes", "coco/bbox_mAP", "data_time"], "coco/bbox_mAP"),
        (["lr", "tokens_per_second"], "lr"),
    ],
)
def test_most_informative_metric_is_drawn_without_a_loss(names: list[str], drawn: str) -> None:
    metrics = {name: build_series([1, 2], [3.0, 2.0]) for name in names}
    run = runs.built("a.log", metrics)
    assert main_metric([run]) == drawn
    assert reported([run]).startswith(f"a.log: {drawn} by step")


def test_metric_can_be_requested() -> None:
    text = reported(runs.running(), metric="grad_norm")
    assert text.startswith("20261120-081455-zero2-4gpu-7k3q: grad_norm by step")
    assert "\nlowest " in text and "\nhighest " in text and "\nbest " not in text


def test_other_metrics_are_shown_if_they_fit() -> None:
    metrics = runs.rewards()[0].curve.metrics
    for height in (24, 30, 40, 50):
        text = format_report(runs.rewards(), Display(80, height))
        rows = text.partition("also logged")[2]
        shown = len(re.findall(r"[▁-█]{8}", rows))
        found = re.search(r"and (\d+) more metrics \(--metric NAME draws one\)", rows)
        assert shown >= 1
        assert shown + (int(found[1]) if found else 0) == len(metrics) - 2  # drawn, in the table
    assert found is None


def test_single_values_are_listed() -> None:
    once = {name: build_series([3], [61.2]) for name in ("eval_accuracy", "train_runtime")}
    text = format_report([runs.built("a.log", once)], Display(80, 24))
    assert "┤" not in text and "eval_accuracy  61.20 at step 3" in text
    text = format_report([runs.built("a.log", once)], Display(80, 24, ascii_only=True))
    assert re.search(r"train_runtime +61\.20$", text, re.M)


def test_evaluation_is_drawn_with_the_loss_if_it_fits_the_axis() -> None:
    loss = build_series([1, 50, 100], [3.0, 2.0, 1.0])
    for values, beside in (([2.5, 1.5], True), ([90.0, 80.0], False)):
        metrics = {"loss": loss, "eval_loss": build_series([50, 100], values)}
        heading = reported([runs.built("a.log", metrics)]).splitlines()[0]
        assert ("eval_loss" in heading) == beside


def test_equal_names_are_distinguished() -> None:
    text = build("sweep-80")
    assert [f"lr-{index:02}" in text for index in range(14)] == [True] * 14


# ---- no metrics found


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-lfs pointer"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(40)), "compressed by zstd; unpack it first (zstd -d)"),
        (b"PK\x03\x04rest", "a zip archive"),
        (bytes(range(256)) * 4, "it is not text"),
        (b"<!DOCTYPE html>\n<html>", "a web page"),
        (
            b"  3%|x  | 3/100 [00:01<00:30, 3.1it/s]\r  4%|x  | 4/100 [00:01<00:30, 3.1it/s]\r",
            "bars",
        ),
    ],
)
def test_report_explains_why_no_metric_was_found(head: bytes, why: str) -> None:
    run = runs.built("a.log", {}, formats=(), bytes=len(head), lines=2)
    text = reported([run], heads=[head])
    assert text.startswith("a.log: no metrics in 1 file, 2 lines, ")
    assert why in text


def test_report_without_metrics_shows_what_was_read() -> None:
    text = format_report(runs.nothing(), Display(200, 24))
    assert text.startswith("empty.log: no metrics in 1 file, 2 lines, 21 bytes")
    assert "step=3 loss=2.1" in text
    assert "no log yet" in reported([runs.built("20261120-081455-a-7k3q", {}, files=0)])


if __name__ == "__main__":
    for left in GOLDEN.iterdir():
        left.unlink()
    for name in CASES:
        (GOLDEN / f"{name}.txt").write_text(build(name), encoding="utf-8")
