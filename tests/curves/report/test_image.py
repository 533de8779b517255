"""Export of runs as images, tested with SVG; PNG and PDF show the same figure."""

from __future__ import annotations

import builtins
import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.curves.curve import Curve, Restart, Series, build_series
from hpcrun.curves.report.image import write_image
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.errors import InputError
from tests.curves.report import runs

pytestmark = pytest.mark.slow
SVG = "{http://www.w3.org/2000/svg}"


def made(source: str = "a.log", restarts: int = 0, **metrics: Any) -> ParsedRun:
    marks = tuple(Restart(n + 1, 60 + 10 * n, 50 + 10 * n, 10) for n in range(restarts))
    return structs.replace(runs.one()[0], source=source, curve=Curve(metrics, marks))


def counted(values: list[float]) -> Series:
    return build_series(list(range(1, len(values) + 1)), values)


def drawn(shown: list[ParsedRun], folder: Path) -> ElementTree.Element:
    write_image(shown, folder / "a.svg")
    return ElementTree.parse(folder / "a.svg").getroot()


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def lines(root: ElementTree.Element, colour: str) -> list[list[tuple[float, float]]]:
    """Return the curves of a colour, as points in the picture; lines of a legend are horizontal."""
    found = []
    for path in root.iter(f"{SVG}path"):
        if f"stroke: {colour}" in path.get("style", ""):
            numbers = re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))
            if len({y for _, y in numbers}) > 1:
                found.append([(float(x), float(y)) for x, y in numbers])
    return found


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-"), (".PNG", b"\x89PNG")],
)
def test_suffix_selects_the_image_format(tmp_path: Path, suffix: str, begin: bytes) -> None:
    write_image(runs.one(), tmp_path / f"a{suffix}")
    data = (tmp_path / f"a{suffix}").read_bytes()
    assert data.startswith(begin) and len(data) > 5000
    write_image(runs.one(), tmp_path / f"b{suffix}")
    assert (tmp_path / f"b{suffix}").read_bytes() == data


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.", "png"])
def test_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        write_image(runs.one(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_curve_is_drawn_at_its_values(tmp_path: Path) -> None:
    values = [4.0, 2.0, 3.0, 1.0, 2.0]
    (line,) = lines(drawn([made(loss=counted(values))], tmp_path), "#4477aa")
    assert [x - line[0][0] for x, _ in line] == pytest.approx(
        [n * (line[1][0] - line[0][0]) for n in range(5)], rel=1e-4
    )
    # In SVG, y grows downwards; the height of a unit follows from the values 4 and 2.
    unit = (line[1][1] - line[0][1]) / 2
    assert [4 - (y - line[0][1]) / unit for _, y in line] == pytest.approx(values, rel=1e-4)


def test_loss_over_decades_has_a_log_axis(tmp_path: Path) -> None:
    (line,) = lines(drawn([made(loss=counted([1.0, 0.1, 0.01, 0.001]))], tmp_path), "#4477aa")
    falls = [b[1] - a[1] for a, b in pairwise(line)]
    assert falls == pytest.approx([falls[0]] * 3, rel=1e-3)


def test_ticks_are_plain_numbers_and_schedules_are_linear(tmp_path: Path) -> None:
    values = counted([1.0, 0.5, 0.0001])
    root = drawn([made(loss=values, lr=values)], tmp_path)
    assert not [text for text in texts(root) if "$" in text or "math" in text]
    logarithmic, linear = (
        (line[2][1] - line[1][1]) / (line[1][1] - line[0][1]) for line in lines(root, "#4477aa")
    )
    assert linear == pytest.approx(1.0, rel=1e-3) and logarithmic > 10


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([20.0, 0.5, 0.05], ["0.1", "0.3", "1", "3", "10"]),
        ([3e-6, 0.5, 40.0], ["1e-05", "1e-04", "0.001", "0.01", "0.1", "1", "10"]),
        ([3.2e4, 2e4, 1e4], ["10,000", "15,000", "20,000", "25,000", "30,000"]),
        ([0.0, 3e-5, 6e-5], ["0", "1e-05", "2e-05", "3e-05", "4e-05", "5e-05", "6e-05"]),
    ],
)
def test_y_axis_labels_are_plain_numbers(
    tmp_path: Path, values: list[float], labels: list[str]
) -> None:
    root = drawn([made(loss=counted(values))], tmp_path)
    message = [text for text in texts(root) if re.fullmatch(r"[\d.,e+-]+", text)]
    assert message == ["1", "2", "3", *labels]


def test_few_points_are_not_smoothed(tmp_path: Path) -> None:
    jump = [2.0 + 0.2 * (-1) ** n for n in range(50)]
    assert "raw values" not in texts(drawn([made(loss=counted(jump))], tmp_path))


def test_noisy_curve_is_drawn_with_its_trend(tmp_path: Path) -> None:
    noisy = [2 + 0.5 * (-1) ** n for n in range(200)]
    root = drawn([made(loss=counted(noisy))], tmp_path)
    raw, trend = lines(root, "#4477aa")
    middles = [[y for _, y in line[len(line) // 2 :]] for line in (raw, trend)]
    heights = [max(middle) - min(middle) for middle in middles]
    assert heights[1] < heights[0] / 4
    assert "raw values" in texts(root)
    quiet = [2 - n / 200 for n in range(200)]
    root = drawn([made(loss=counted(quiet))], tmp_path)
    assert "raw values" not in texts(root)


def test_small_panels_show_logged_metrics(tmp_path: Path) -> None:
    message = texts(drawn(runs.one(), tmp_path))
    assert {"learning rate", "gradient norm", "tokens per second"} <= set(message)
    assert "train.log" in message and "evaluation loss" in message and message.count("step") == 4
    message = texts(drawn([made(loss=counted([2.0, 1.0]))], tmp_path))
    assert "learning rate" not in message and message.count("step") == 1


def test_evaluations_without_steps_have_a_separate_panel(tmp_path: Path) -> None:
    bare = build_series([None, None], [2.5, 1.5])
    root = drawn([made(loss=counted([3.0, 2.0, 1.0]), eval_loss=bare)], tmp_path)
    assert texts(root).count("evaluation loss") == 1  # its title; it is not in the legend
    assert "point, in the order of the log" in texts(root)


def test_restart_is_a_dashed_line(tmp_path: Path) -> None:
    noisy = counted([100.0 - n for n in range(100)])
    root = drawn([made(restarts=2, loss=noisy)], tmp_path)
    dashed = [
        p for p in root.iter(f"{SVG}path") if "stroke-dasharray: 3.2,3.2" in p.get("style", "")
    ]
    places = {path.get("d", "").split()[1] for path in dashed}
    assert len(places) == 3  # two in the curve, one in the legend
    assert "restart" in texts(root)


def test_non_finite_values_are_gaps_and_crosses(tmp_path: Path) -> None:
    root = drawn([made(loss=counted([3.0, 2.5, 2.4, math.nan, 1.8, 1.7, math.inf]))], tmp_path)
    assert "not finite" in texts(root)
    crosses = [use for use in root.iter(f"{SVG}use") if "#cc3311" in use.get("style", "")]
    assert len(crosses) == 3  # two, and one in the legend
    assert [len(line) for line in lines(root, "#4477aa")] == [5]
    (path,) = [
        p
        for p in root.iter(f"{SVG}path")
        if "#4477aa" in p.get("style", "") and p.get("d", "").count("L") == 3
    ]
    assert path.get("d", "").count("M") == 2


def test_several_runs_have_distinct_styles(tmp_path: Path) -> None:
    shown = [made(f"run {n}", loss=counted([4.0 + n, 3.0 + n, 2.0 + n])) for n in range(12)]
    root = drawn(shown, tmp_path)
    assert {f"run {n}" for n in range(12)} <= set(texts(root))
    styles = {
        re.sub(r"stroke-dashoffset: 0; |; stroke-linecap: \w+", "", path.get("style", ""))
        for path in root.iter(f"{SVG}path")
        if path.get("d", "").count("L") == 2 and "stroke-width: 1.5" in path.get("style", "")
    }
    assert len(styles) == 12


@pytest.mark.parametrize(
    "name",
    ["$\\frac{", "_hidden", "<script>&amp;", "a\nb\x1b[31m", "損失", "a\udc80", "x" * 500, "", "%"],
)
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    metrics: dict[str, Any] = {name or "loss": counted([2.0, 1.0])}
    shown = [
        made(name, **metrics),
        made("other", loss=counted([1.0])),
    ]
    for suffix in ("svg", "png", "pdf"):
        write_image(shown, tmp_path / f"a.{suffix}")
    message = texts(ElementTree.parse(tmp_path / "a.svg").getroot())
    if name in ("$\\frac{", "_hidden", "<script>&amp;", "%"):
        assert name in message


@pytest.mark.parametrize(
    "values",
    [
        [math.nan],
        [math.inf, -math.inf],
        [0.0, 0.0],
        [1e308, -1e308],
        [5e-324, 1.0],
        [1e300] * 3,
        [2.0],
    ],
)
def test_any_values_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    write_image([made(loss=counted(values))], tmp_path / "a.png")
    write_image([made(reward=build_series([None] * len(values), values))], tmp_path / "b.png")


def test_image_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no metric to draw"):
        write_image(runs.nothing(), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
    write_image([*runs.nothing(), *runs.one()], tmp_path / "a.png")


def test_matplotlib_settings_of_the_user_do_not_affect_images(tmp_path: Path) -> None:
    import matplotlib

    write_image(runs.one(), tmp_path / "a.svg")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30.0}):
        write_image(runs.one(), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 30.0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_missing_matplotlib_has_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install matplotlib"):
        write_image(runs.one(), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mkdir -p"):
        write_image(runs.one(), tmp_path / "none" / "a.png")
