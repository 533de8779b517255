"""The HTML report as text: its content, and escaping of everything that comes from a log."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.curves.curve import Curve, build_series
from hpcrun.curves.report.html import html_text, page_data, script_json, write_html
from hpcrun.errors import InputError
from tests.curves.report import runs
from tests.curves.report.hostile_names import HOSTILE, hostile, made


class Page(HTMLParser):
    """Parses the elements of a page with their attributes, its texts, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._open.append(tag)
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.scripts[-1] += data
        elif data.strip():
            self.texts.append(data.strip())

    @property
    def run(self) -> list[str]:
        """Return the scripts that run: uPlot, the curves, and the page's own."""
        return self.scripts[2:]

    @property
    def data(self) -> Any:
        (found,) = (text for text in self.scripts if text.startswith('{"runs":'))
        return json.loads(found)


def test_page_contains_every_value() -> None:
    data = Page(html_text(runs.several())).data
    for reported, run in zip(data["runs"], runs.several(), strict=True):
        assert reported["name"] == run.source and list(reported["metrics"]) == list(
            run.curve.metrics
        )
        for name, metric in reported["metrics"].items():
            divisor = 2.0**30 if name == "memory_bytes" else 1.0
            values = [float(value) for value in metric["values"]]
            wanted = [value / divisor for value in run.curve.values(name)]
            assert values == pytest.approx(wanted, rel=0, abs=0, nan_ok=True)
            assert reported["axes"][metric["axis"]]["step"] == run.curve.steps(name)


@pytest.mark.slow
def test_page_shows_restarts_warnings_and_notes() -> None:
    curve = runs.restarted().curve
    (restart,) = curve.restarts
    restart = structs.replace(restart, cause="preemption")
    restarted = structs.replace(
        runs.restarted(),
        curve=structs.replace(curve, notes=("read in two ways",), restarts=(restart,)),
        warnings=("loss spikes at step 7",),
    )
    page = Page(html_text([restarted]))
    assert page.data["runs"][0]["restarts"] == [
        {"at": 101, "text": "attempt 1 after preemption from step 101, 20 steps done again"}
    ]
    message = " | ".join(page.texts)
    assert (
        "attempt 1 after preemption: from step 101, after step 120, 20 steps done again" in message
    )
    assert "read in two ways" in message and "Warnings | loss spikes at step 7" in message
    assert "Warnings" not in Page(html_text(runs.one())).texts


@pytest.mark.slow
def test_page_shows_settings_with_differences_first() -> None:
    shown = [
        made("a", facts={"precision": "bf16", "nodes": "1", "z": "<>"}),
        made("b", facts={"precision": "fp16", "nodes": "1"}),
    ]
    texts = Page(html_text(shown)).texts
    places = [texts.index(text) for text in ("Where the runs differ", "precision", "z")]
    assert places == sorted(places) and texts[places[1] + 1 : places[1] + 3] == ["bf16", "fp16"]
    assert texts.index("The same in all runs (1)") > places[2]
    assert texts[texts.index("nodes") + 1] == "1" and "<>" in texts
    assert "Configuration" not in Page(html_text(runs.one())).texts


def test_non_finite_values_are_shown() -> None:
    series = build_series([1, 2, 3], [math.nan, math.inf, -math.inf])
    page = Page(html_text([made(curve=Curve({"loss": series}, ()))]))
    assert page.data["runs"][0]["metrics"]["loss"]["values"] == ["NaN", "Infinity", "-Infinity"]


def test_most_informative_metrics_have_open_panels() -> None:
    names = ("consumed samples", "never changed", "time left", "reward", "kl_loss", "loss", "epoch")
    steps: list[int | None] = [*range(6)]
    falling = [9.0, 3.0, 2.5, 2.0, 1.9, 1.8]
    values = {"consumed samples": [float(n) for n in range(6)], "never changed": [1.0] * 6}
    metrics = {name: build_series(steps, values.get(name, falling)) for name in names}
    panels = page_data([made(curve=Curve(metrics, ()))])["panels"]
    assert [panel["metrics"][0] for panel in panels][:3] == ["loss", "kl_loss", "reward"]
    assert panels[-1]["metrics"] == ["epoch"] and len(panels) == len(names)


def test_schedules_have_a_linear_axis() -> None:
    falling = build_series([1, 2, 3], [1.0, 1e-3, 1e-6])
    panels = page_data([made(curve=Curve({"loss": falling, "lr": falling}, ()))])["panels"]
    assert [(panel["title"], panel["log"]) for panel in panels] == [
        ("Training loss", True),
        ("Learning rate", False),
    ]


@pytest.mark.slow
def test_metric_logged_once_is_a_fact() -> None:
    once = {
        "train_runtime": build_series([6], [61.234]),
        "total_flos": build_series([None], [1.5e15]),
        "lr": build_series([6], [1e-4]),
    }
    loss = build_series([1, 2, 3], [3.0, 2.0, 1.0])
    shown = [made("a", curve=Curve({"loss": loss, **once}, ()))]
    page = Page(html_text(shown))
    assert [panel["metrics"] for panel in page.data["panels"]] == [["loss"]]
    at = page.texts.index("train_runtime")
    assert page.texts[at + 1 : at + 3] == ["61.23", "at step 6"]
    at = page.texts.index("total_flos")
    assert page.texts[at + 1] == "1.5e+15"
    # For several runs they are columns of the table; a metric with more values has a curve.
    longer = build_series([3, 6], [30.0, 60.0])
    both = [*shown, made("b", curve=Curve({"loss": loss, "train_runtime": longer}, ()))]
    page = Page(html_text(both))
    assert [panel["metrics"] for panel in page.data["panels"]] == [["loss"], ["train_runtime"]]
    assert page.texts.count("total_flos") == 2  # a heading, and the row of the table


def test_page_without_curves_has_no_script() -> None:
    text = html_text([made(curve=Curve({"eval_loss": build_series([3], [2.5])}, ()))])
    assert "<script" not in text and len(text) < 20_000 and "No metric" not in text
    assert "2.500" in Page(text).texts


def test_page_of_a_log_without_metrics_says_so() -> None:
    text = html_text(runs.nothing())
    assert "No metric was found" in text and len(text) < 20_000 and "<script" not in text


@pytest.mark.slow
def test_names_are_escaped() -> None:
    quiet = [
        made(f"run {n}", facts={"a": str(n), "b": "1"}, warnings=("w",))
        for n in range(len(HOSTILE))
    ]
    quiet = [
        structs.replace(run, curve=Curve({"x": build_series([1, 2], [2.0, 1.0])}, (), notes=("n",)))
        for run in quiet
    ]
    calm, attacked = Page(html_text(quiet)), Page(html_text(hostile()))
    kinds = {tag for tag, _ in calm.elements}
    assert {tag for tag, _ in attacked.elements} - kinds <= {"details", "summary"}
    allowed = {name for _, attributes in calm.elements for name in attributes}
    assert {name for _, attributes in attacked.elements for name in attributes} <= allowed | {
        "open"
    }
    assert (
        len(attacked.scripts) == len(calm.scripts) == 5
    )  # style, data, uPlot, the curves, the page's own script
    assert [run["name"] for run in attacked.data["runs"]][:10] == list(HOSTILE[:10])
    assert all(name in attacked.texts for name in HOSTILE[:10])


def test_json_cannot_close_its_script_element() -> None:
    for name in HOSTILE:
        text = script_json({name: [name]})
        assert not re.search("[<>&]", text) and json.loads(text) == {name: [name]}


@pytest.mark.slow
def test_content_security_policy_allows_only_its_own_scripts() -> None:
    page = Page(html_text(runs.one()))
    metas = [attributes for tag, attributes in page.elements if tag == "meta"]
    (policy,) = (m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy
    assert "unsafe-eval" not in policy and "http" not in policy.replace("http-equiv", "")
    hashes = re.findall(r"'sha256-([^']+)'", policy)
    assert hashes == [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.run
    ]


@pytest.mark.slow
def test_page_contains_no_external_addresses() -> None:
    """The comment at the top of uPlot has one; the policy forbids requests anyway."""
    page = Page(html_text(runs.several()))
    for text in page.scripts:
        text = re.sub(r"^\s*// .*|/\*!.*?\*/", "", text, flags=re.M)
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w|url\(|@import", text)
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "action"} & set(attributes)


@pytest.mark.slow
def test_page_is_reproducible(tmp_path: Path) -> None:
    write_html(runs.several(), tmp_path / "a.html")
    write_html(runs.several(), tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_page_size_is_bounded(tmp_path: Path) -> None:
    write_html(runs.one(), tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 200_000


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mkdir -p"):
        write_html(runs.one(), tmp_path / "none" / "a.html")
