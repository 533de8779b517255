"""The HTML report in a real headless Chromium without network: drawing, hovering, zooming."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.curves.curve import Curve, Restart, build_series
from hpcrun.curves.report.html import write_html
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.report import runs
from tests.curves.report.browser import Browser, Page
from tests.curves.report.ewma import ewma
from tests.curves.report.hostile_names import HOSTILE, hostile, made

pytestmark = pytest.mark.slow

PLOT = "document.querySelector('.panel .plot')"


class Opened:
    """Opens reports, and checks that they cause no errors."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self.pages: list[Page] = []

    def __call__(self, shown: list[ParsedRun], *, dark: bool = False) -> Page:
        file = self._folder / f"{len(self.pages)}.html"
        write_html(shown, file)
        page = Page(self._browser, file, dark=dark)
        self.pages.append(page)
        page.value("document.querySelector('#panels').scrollIntoView()")
        page.wait_for(f"!!{PLOT}?.uplot")
        return page


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    opening = Opened(browser, tmp_path)
    yield opening
    for page in opening.pages:
        # Chromium's advice about getImageData, which only colours() calls.
        assert [each for each in page.problems() if not each.startswith("Canvas2D:")] == []
        assert [url.partition("://")[0] for url in page.requested()] == ["file"]
        page.close()


def noisy() -> list[float]:
    return [2 + 2 * math.exp(-n / 50) + 0.3 * (-1) ** n for n in range(300)]


def one(values: list[float], **more: Any) -> list[ParsedRun]:
    steps: list[int | None] = list(range(10, 10 + 10 * len(values), 10))
    series = build_series(steps, values)
    return [made("train.log", curve=Curve({"loss": series} | more, ()))]


def box(page: Page, place: str = f"{PLOT}.querySelector('.u-over')") -> list[float]:
    """Return left, top, width and height of an element."""
    found: list[float] = page.value(
        f"(r => [r.left, r.top, r.width, r.height])({place}.getBoundingClientRect())"
    )
    return found


def at_step(page: Page, step: float) -> float:
    """Return the horizontal position of a step in the window, according to uPlot's axis."""
    return box(page)[0] + float(page.value(f"{PLOT}.uplot.valToPos({step}, 'x')"))


def ranges(page: Page) -> list[list[float]]:
    """Return the ranges of steps that the panels show."""
    found: list[list[float]] = page.value(
        "[...document.querySelectorAll('.plot')].filter(plot => plot.uplot)"
        ".map(plot => [plot.uplot.scales.x.min, plot.uplot.scales.x.max])"
    )
    return found


def lines(page: Page) -> list[dict[str, Any]]:
    """Return the lines of the first panel: x, y, trend, broken and label."""
    found: list[dict[str, Any]] = page.value(
        f"{PLOT}.lines.map(d => ({{...d, y: d.y.map(String), trend: d.trend?.map(String)}}))"
    )
    return found


def colours(page: Page, step: float, value: float) -> set[tuple[int, ...]]:
    """Return the colours of the canvas around a point, without transparent pixels."""
    data = page.value(
        f"(u => [...u.ctx.getImageData(u.valToPos({step}, 'x', true) - 2,"
        f" u.valToPos({value}, 'y', true) - 2, 5, 5).data])({PLOT}.uplot)"
    )
    pixels = [tuple(data[at : at + 4]) for at in range(0, len(data), 4)]
    return {pixel[:3] for pixel in pixels if pixel[3] == 255}


BLUE, ALARM = (0x33, 0x66, 0xCC), (0xC9, 0x2A, 0x2A)


def test_page_draws_the_values_of_the_run(opened: Opened) -> None:
    page = opened(one([4.0, 3.0, math.nan, 2.0, math.inf, 1.0]))
    (line,) = lines(page)
    assert line["x"] == [10, 20, 30, 40, 50, 60] and list(map(float, line["y"]))[:2] == [4.0, 3.0]
    assert line["broken"] == [[30, 3], [50, 2]]
    for step, value in ((10, 4), (15, 3.5), (20, 3), (40, 2), (60, 1)):
        assert BLUE in colours(page, step, value), step
    assert ALARM in colours(page, 30, 3) and ALARM in colours(page, 50, 2)
    for step, value in ((30, 2.5), (35, 2.25), (45, 1.75), (55, 1.25)):
        assert not {BLUE, ALARM} & colours(page, step, value), step


def test_line_with_many_points_is_drawn_without_gaps(opened: Opened) -> None:
    values = [2 + math.exp(-n / 500) + 0.05 * math.sin(n * n) for n in range(4000)]
    page = opened(one(values))
    page.value(
        "(s => { s.value = '0'; s.dispatchEvent(new Event('input')); })"
        "(document.getElementById('smoothing'))"
    )
    page.wait_for(f"{PLOT}.lines[0].trend === null")
    empty = (
        "(u => { const x = [20, 39900].map(step => Math.ceil(u.valToPos(step, 'x', true)));"
        " const image = u.ctx.getImageData(x[0], u.bbox.top, x[1] - x[0], u.bbox.height);"
        " const found = new Set();"
        " for (let at = 0; at < image.data.length; at += 4) {"
        "   const [r, g, b, a] = image.data.slice(at, at + 4);"
        "   if (a === 255 && r === 0x33 && g === 0x66 && b === 0xcc)"
        "     found.add((at / 4) % image.width); }"
        " return image.width - found.size; })"
    )
    assert page.wait_for(f"{empty}({PLOT}.uplot) === 0")


def test_hovering_shows_the_step_and_exact_value(opened: Opened) -> None:
    values = noisy()
    page = opened(one(values))
    _, top, _, height = box(page)
    for step in (10, 70, 1500, 3000):
        page.mouse("mouseMoved", at_step(page, step) + 0.5, top + height / 2)
        message = page.wait_for(
            f"(text => text?.includes('step {step:,}') && text)"
            "(document.querySelector('.tip:not([hidden])')?.textContent)"
        )
        assert repr(values[step // 10 - 1]) in message and "smoothed" in message


def test_hovering_names_the_step_of_a_sparse_metric(opened: Opened) -> None:
    evaluated = build_series([40, 80], [2.25, 1.75])
    page = opened(one([3.0 - n / 10 for n in range(9)], eval_loss=evaluated))
    _, top, _, height = box(page)
    page.mouse("mouseMoved", at_step(page, 50), top + height / 2)
    message = page.wait_for("document.querySelector('.tip:not([hidden])')?.textContent")
    assert message == "step 50Training loss2.6Evaluation loss2.25 at step 40"


def test_dragging_zooms_all_panels_and_double_click_resets(opened: Opened) -> None:
    lr = build_series(list(range(10, 3010, 10)), [1e-4] * 300)
    page = opened(one(noisy(), lr=lr))
    page.wait_for("document.querySelectorAll('.plot canvas').length >= 2")
    whole = ranges(page)
    assert len(whole) == 2 and whole[0] == whole[1] and whole[0][0] < 10 and whole[0][1] > 3000
    left, top, width, height = box(page)
    page.drag((left + width * 0.25, top + height * 0.2), (left + width * 0.5, top + height * 0.8))
    page.wait_for(f"{PLOT}.uplot.scales.x.max < 2000")
    page.wait_for("document.querySelectorAll('.plot')[1].uplot.scales.x.max < 2000")
    zoomed = ranges(page)[0]
    low, high = whole[0]
    wanted = [low + (high - low) * share for share in (0.25, 0.5)]
    assert zoomed == pytest.approx(wanted, abs=(high - low) / width * 2)
    assert ranges(page)[1] == pytest.approx(zoomed)
    page.double_click(left + width / 2, top + height / 2, f"{PLOT}.uplot.scales.x.max > 3000")
    page.wait_for("document.querySelectorAll('.plot')[1].uplot.scales.x.max > 3000")
    assert ranges(page) == whole


def test_keys_zoom_and_move(opened: Opened) -> None:
    page = opened(one(noisy()))
    ((low, high),) = ranges(page)
    page.value(f"{PLOT}.focus()")
    page.press("+")
    middle, width = (low + high) / 2, high - low
    page.wait_for(f"Math.abs({PLOT}.uplot.scales.x.min - {middle - width / 4}) < 1")
    page.press("ArrowRight")
    page.wait_for(f"Math.abs({PLOT}.uplot.scales.x.min - {middle - width / 8}) < 1")
    page.press("0")
    page.wait_for(f"Math.abs({PLOT}.uplot.scales.x.min - {low}) < 1")


def test_log_button_changes_the_axis(opened: Opened) -> None:
    page = opened(one([4.0, 2.0, 1.0]))
    places = f"[4, 2, 1].map(value => {PLOT}.uplot.valToPos(value, 'y'))"
    first, second, third = page.value(places)
    assert second - first == pytest.approx(2 * (third - second), abs=1.5)
    x, y, width, height = box(page, "document.querySelector('.panel button')")
    page.click(x + width / 2, y + height / 2)
    page.wait_for(f"{PLOT}.uplot.scales.y.distr === 3")
    first, second, third = page.value(places)
    assert second - first == pytest.approx(third - second, abs=1.5)
    assert BLUE in colours(page, 20, 2)
    assert (
        page.value("document.querySelector('.panel button').getAttribute('aria-pressed')") == "true"
    )


def test_slider_smooths_with_an_exponential_average(opened: Opened) -> None:
    values = [*noisy(), math.nan, 2.0, 2.5]
    page = opened(one(values))
    page.value(
        "(s => { s.value = '0.8'; s.dispatchEvent(new Event('input')); })"
        "(document.getElementById('smoothing'))"
    )
    page.wait_for("document.getElementById('weight').textContent === '0.80'")
    second = (0.8 * values[0] + values[1]) / 1.8
    page.wait_for(f"Math.abs({PLOT}.lines[0].trend[1] - {second}) < 1e-9")
    trend = [float(value) for value in lines(page)[0]["trend"]]
    known: list[float] = []
    for value, smoothed in zip(values, trend, strict=True):
        if math.isnan(value):
            assert math.isnan(smoothed)
            continue
        known.append(value)
        weights = [0.8 ** (len(known) - 1 - at) for at in range(len(known))]
        average = sum(w * v for w, v in zip(weights, known, strict=True)) / sum(weights)
        assert smoothed == pytest.approx(average, rel=1e-9)
    assert trend == pytest.approx(ewma(values, 9), rel=1e-9, nan_ok=True)  # 0.8 is a span of 9
    page.value(
        "(s => { s.value = '0'; s.dispatchEvent(new Event('input')); })"
        "(document.getElementById('smoothing'))"
    )
    page.wait_for(f"{PLOT}.lines[0].trend === null")


def test_sparse_lines_are_smoothed_over_the_same_steps(opened: Opened) -> None:
    """Smoothing covers the same steps: 0.8 ** (300 / 100) per point for every third point."""
    values = [2 + 0.3 * (-1) ** n for n in range(100)]
    sparse = build_series(list(range(30, 3030, 30)), values)
    page = opened(one(noisy(), eval_loss=sparse))
    page.value(
        "(s => { s.value = '0.8'; s.dispatchEvent(new Event('input')); })"
        "(document.getElementById('smoothing'))"
    )
    page.wait_for("document.getElementById('weight').textContent === '0.80'")
    weight = 0.8**3
    second = (weight * values[0] + values[1]) / (1 + weight)
    page.wait_for(f"Math.abs({PLOT}.lines[1].trend[1] - {second}) < 1e-9")
    wanted = ewma(values, 2 / (1 - weight) - 1)
    assert [float(value) for value in lines(page)[1]["trend"]] == pytest.approx(wanted, rel=1e-9)


def test_constant_metric_is_drawn_at_its_value(opened: Opened) -> None:
    page = opened(one([3e-5] * 5))
    low, high = page.value(f"(y => [y.min, y.max])({PLOT}.uplot.scales.y)")
    assert 2e-5 < low < 3e-5 < high < 4e-5


def test_chips_toggle_panels(opened: Opened) -> None:
    more = {f"metric {n}": build_series([1, 2], [1.0, 2.0]) for n in range(3)}
    page = opened([made(curve=Curve(more | runs.one()[0].curve.metrics, ()))])
    shown = "[...document.querySelectorAll('.panel')].map(panel => panel.dataset.metric)"
    before = page.value(shown)
    assert before[0] == "loss" and len(before) == 6 and "memory_bytes" not in before
    labels = page.value("[...document.querySelectorAll('#chips span')].map(s => s.textContent)")
    page.value("document.querySelector('#chips').scrollIntoView()")
    for label in ("Loss", "Memory, GiB"):
        chip = f"document.querySelectorAll('#chips span')[{labels.index(label)}]"
        x, y, width, height = box(page, chip)
        page.click(x + width / 2, y + height / 2)
    after = page.wait_for(f"{shown}.includes('memory_bytes') && {shown}")
    assert [*after] == [*before[1:], "memory_bytes"]
    page.value("document.querySelector('[data-metric=memory_bytes]').scrollIntoView()")
    page.wait_for("document.querySelector('[data-metric=memory_bytes] canvas')")


def test_runs_can_be_hidden_and_shown(opened: Opened) -> None:
    page = opened(runs.several())
    names = [line["label"] for line in lines(page)]
    assert {"train.log", "20261120-081455-zero2-4gpu-7k3q"} <= set(names)
    page.value("document.querySelector('#runs-table').scrollIntoView()")
    x, y, width, height = box(page, "document.querySelector('input.run')")
    page.click(x + width / 2, y + height / 2)
    page.wait_for(f"!{PLOT}.lines.some(line => line.label === 'train.log')")
    page.value("document.getElementById('all-runs').click()")
    page.wait_for(f"{PLOT}.lines.some(line => line.label === 'train.log')")


def test_restart_is_marked_at_its_step(opened: Opened) -> None:
    page = opened([runs.restarted()])
    column = (
        "(u => [...u.ctx.getImageData(Math.round(u.valToPos({step}, 'x', true)) - 1, u.bbox.top, 3,"
        " u.bbox.height).data].filter((v, at) => at % 4 === 3 && v > 99).length)({plot}.uplot)"
    )
    marked = page.value(column.format(step=101, plot=PLOT))
    beside = page.value(column.format(step=99, plot=PLOT))
    height = page.value(f"{PLOT}.uplot.bbox.height")
    assert marked > beside + height * 0.4  # half of a dashed line is drawn
    _, top, _, height = box(page)
    page.mouse("mouseMoved", at_step(page, 101), top + height / 2)
    page.wait_for("document.querySelector('.tip').textContent.includes('attempt 1')")


def test_curves_can_be_drawn_over_time_and_tokens(opened: Opened) -> None:
    steps: list[int | None] = [1, 2, 3]
    times = [1e9, 1e9 + 7200, 1e9 + 36000]
    loss = build_series(steps, [3.0, 2.0, 1.0], times)
    tokens = build_series(steps, [100.0, 200.0, 300.0], times)
    page = opened([made(curve=Curve({"loss": loss, "num_tokens": tokens}, ()))])
    for label, x, title in (
        ("tokens", [100, 200, 300], "tokens"),
        ("wall time", [0, 2, 10], "wall time (hours)"),
    ):
        page.value(
            "[...document.querySelectorAll('#axes label')]"
            f".find(each => each.textContent === {label!r}).click()"
        )
        page.wait_for(f"{PLOT}.uplot.axes[0].label === {title!r}")
        assert lines(page)[0]["x"] == x


def test_log_without_steps_is_drawn_by_index(opened: Opened) -> None:
    page = opened(runs.without_steps())
    assert lines(page)[0]["x"] == [1, 2, 3]
    assert page.value(f"{PLOT}.uplot.axes[0].label") == "point, in the order of the log"


def test_outliers_are_counted_and_shown_on_demand(opened: Opened) -> None:
    page = opened(one([1.5 + 0.001 * (n % 7) for n in range(200)] + [-40.0, 1.5]))
    assert page.value(f"{PLOT}.uplot.scales.y.min") > 1
    button = "document.querySelector('.panel .quiet button')"
    assert page.value(f"{button}.textContent") == "1 beyond this axis: show"
    page.value(f"{button}.click()")
    page.wait_for(f"{PLOT}.uplot.scales.y.min < -40")


def test_names_are_displayed_as_text(opened: Opened) -> None:
    page = opened(hostile())
    page.value("window.alert = () => { window.harmed = true; }")
    _, top, _, height = box(page)
    for step in (1, 2):
        page.mouse("mouseMoved", at_step(page, step), top + height / 2)
        page.wait_for(f"document.querySelector('.tip')?.textContent.includes('step {step}')")
    assert page.value("window.harmed") is None
    assert page.value("document.querySelectorAll('a, img, b:not(.warnings b, .tip b)').length") == 0
    message = page.value("document.querySelector('.tip').textContent")
    assert all(name in message for name in HOSTILE if name.isprintable())


def test_twenty_runs_of_4000_points_remain_responsive(opened: Opened) -> None:
    steps: list[int | None] = list(range(4000))
    many = []
    for number in range(20):
        values = [
            2 + number / 10 + math.exp(-n / 500) + 0.05 * math.sin(n * n) for n in range(4000)
        ]
        metrics = {
            name: build_series(steps, values) for name in ("loss", "lr", "grad_norm", "x", "y")
        }
        many.append(made(f"run {number}", curve=Curve(metrics, (Restart(1, 20, 10, 11),))))
    page = opened(many)
    begun = page.cpu_seconds()
    page.value(
        "new Promise(done => {"
        "const slider = document.getElementById('smoothing'); slider.value = '0.5';"
        "slider.dispatchEvent(new Event('input'));"
        "requestAnimationFrame(() => requestAnimationFrame(done)); })"
    )
    assert 0.01 < page.cpu_seconds() - begun < 6  # about 1
    # A long path that crosses itself takes most of the time without a graphics card.
    page.value(
        "(canvas => { let count = 0; window.longest = 0; const { lineTo, stroke } = canvas;"
        "canvas.lineTo = function (...at) { count += 1; lineTo.apply(this, at); };"
        "canvas.stroke = function (...path) { window.longest = Math.max(window.longest, count);"
        "count = 0; stroke.apply(this, path); }; })(CanvasRenderingContext2D.prototype)"
    )
    page.value("document.querySelector('.panel .plot').focus()")
    for _ in range(6):
        before = page.value(f"{PLOT}.uplot.scales.x.max")
        page.press("+")
        page.wait_for(f"{PLOT}.uplot.scales.x.max < {before}")
    assert 0 < page.value("window.longest") < 100


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_theme_have_contrast(opened: Opened, dark: bool) -> None:
    page = opened([structs.replace(run, warnings=("w",)) for run in runs.several()], dark=dark)
    pairs = page.value(
        "[...document.querySelectorAll('h1, h2, h3, td, th, .hint, .quiet, .mark, .warnings li,"
        " button, .chips span')].map(e => { let b = e; let c;"
        "do { c = getComputedStyle(b).backgroundColor; b = b.parentElement; }"
        " while (b && c === 'rgba(0, 0, 0, 0)');"
        "return [getComputedStyle(e).color, c]; })"
    )
    assert len(pairs) > 30
    for text, ground in pairs:
        assert contrast(text, ground) >= 4.5, (text, ground)
    assert (luminance(page.value("getComputedStyle(document.body).backgroundColor")) < 0.2) is dark


def luminance(colour: str) -> float:
    """https://www.w3.org/TR/WCAG21/#dfn-relative-luminance"""
    shares = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one_colour: str, other: str) -> float:
    dark, light = sorted((luminance(one_colour), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_page_fits_its_window(opened: Opened) -> None:
    wide = [structs.replace(run, facts={"a" * 60: "b" * 200}) for run in runs.several()]
    page = opened(wide)
    assert page.value("document.documentElement.scrollWidth") <= 1200
    page.resize(360, 740)
    page.wait_for("innerWidth === 360 && document.documentElement.scrollWidth <= 360")


def test_page_is_accessible_to_screen_readers(opened: Opened) -> None:
    page = opened(runs.several())
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored")
    ]
    assert ("heading", "4 runs") in named and ("columnheader", "run") in named
    assert any(role == "slider" and name.startswith("smoothing") for role, name in named)
    for role in ("button", "checkbox", "radio", "slider", "region"):
        assert all(name for found, name in named if found == role), role
    assert page.value("document.title") == "4 runs · hpcrun"
    assert page.value("document.documentElement.lang") == "en"
