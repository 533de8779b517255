"""Write the report of runs as one self-contained HTML file that works offline and on phones.

The curves are drawn with uPlot, by the same script as in hpcrun ui. The Content-Security-Policy
blocks all requests and permits only the page's own scripts by their hashes, so that no other script
could run even if a name were inserted as markup. Names and values are inserted as escaped text or
JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcrun.curves.curve import Curve, Point, Restart, Summary
from hpcrun.curves.names import (
    EPOCH,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    MEMORY_BYTES,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from hpcrun.curves.report import facts
from hpcrun.curves.report.axes import By, is_visibly_noisy, panel_scale, x_axis
from hpcrun.curves.report.parsed import ATTEMPT_COLUMNS, ParsedRun
from hpcrun.files import write_atomically
from hpcrun.text import (
    GIB,
    format_bytes,
    format_count,
    format_value,
    json_number,
    replace_unprintable,
)

_PARTS = Path(__file__).parent / "page"
_TITLES = {
    LOSS: ("Training loss", ""),
    EVAL_LOSS: ("Evaluation loss", ""),
    LR: ("Learning rate", ""),
    GRAD_NORM: ("Gradient norm", ""),
    TOKENS_PER_SECOND: ("Throughput", "tokens/s"),
    SAMPLES_PER_SECOND: ("Throughput", "samples/s"),
    STEP_SECONDS: ("Step time", "s"),
    MEMORY_BYTES: ("Memory", "GiB"),
    EPOCH: ("Epoch", ""),
}
# Panels that are open initially: the first six of those for which the runs have data.
_FIRST = (EVAL_LOSS, LR, GRAD_NORM, TOKENS_PER_SECOND, SAMPLES_PER_SECOND, STEP_SECONDS)
_LAST = (MEMORY_BYTES, EPOCH)
_OPEN = 6
# Schedules are free of noise, and smoothing would only distort them.
_SCHEDULES = (LR, EPOCH)
_AXES: tuple[By, ...] = ("step", "tokens", "time")


class PageSection(Struct, frozen=True, kw_only=True):
    """A section of a page: a table, or a list without ``headings``.

    Attributes:
        rows: The texts of each row; of a list one text per row.
    """

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def write_html(runs: Sequence[ParsedRun], path: Path, sections: Sequence[PageSection] = ()) -> None:
    """Write the report, with further sections before the curves.

    Raises:
        InputError: The file cannot be written.
    """
    with write_atomically(path) as file:
        file.write(html_text(runs, sections).encode("utf-8"))


def render_page(template: str, **values: Any) -> str:
    """Fill a template of a page; all values are escaped, unless they are markup already."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            value if hasattr(value, "__html__") else replace_unprintable(str(value))
        ),
    )
    return environment.from_string((_PARTS / template).read_text("utf-8")).render(**values)


def html_text(runs: Sequence[ParsedRun], sections: Sequence[PageSection] = ()) -> str:
    """Return the report as HTML."""
    scripts = [page_part(name) for name in ("uplot.js", "curves.js", "page.js")]
    data = page_data(runs)
    return render_page(
        "page.html.j2",
        title=runs[0].source if len(runs) == 1 else f"{len(runs)} runs",
        policy=_policy(scripts),
        scripts=scripts,
        style=page_part("uplot.css") + page_part("page.css"),
        has_curves=bool(data["panels"]),
        data=script_json(data),
        runs=runs,
        count_of=format_count,
        point_text=_point_text,
        restart_text=_restart_text,
        failures=[(run.source, run.failure) for run in runs if run.failure],
        warnings=[(run.source, text) for run in runs for text in run.warnings],
        runs_table=_table(runs),
        tiles=_build_tiles(runs),
        settings=_settings(runs),
        attempt_headings=ATTEMPT_COLUMNS,
        sections=[section for section in sections if section.rows],
    )


def script_json(data: object) -> str:
    r"""Return JSON that is safe inside a script element, because it cannot close the element.

    >>> script_json({"</script><!--": 1})
    '{"\\u003c/script\\u003e\\u003c!--":1}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _policy(scripts: Sequence[str]) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _point_text(name: str, point: Point | None) -> str:
    return facts.point_text(point, format_bytes if name == MEMORY_BYTES else format_value)


def _restart_text(run: ParsedRun, restart: Restart, *, short: bool = False) -> str:
    text = f"attempt {restart.attempt}"
    text += f" after {restart.cause}" if restart.cause else ""
    text += " " if short else ": "
    if restart.resumed_at is not None:
        text += f"from step {restart.resumed_at}"
    elif run.curve.steps(LOSS)[:1] == [None]:
        text += "resumed"
    else:
        text += "no training loss"
    if restart.lost_at is not None and not short:
        text += f", after step {restart.lost_at}"
    return text + (
        f", {format_count(restart.replayed, 'step')} done again" if restart.replayed else ""
    )


def _build_tiles(runs: Sequence[ParsedRun]) -> list[tuple[str, str, str]]:
    """Return the facts of a single run as (name, value, details)."""
    main = facts.main_metric(runs)
    if len(runs) != 1 or main is None:
        return []
    (run,) = runs
    shown = chain(
        facts.learning_facts(run, main), facts.running_facts(run), facts.single_values(run, main)
    )
    return [(name, *split_fact(text)) for name, text in shown]


def split_fact(text: str) -> tuple[str, str]:
    """Split the text of a fact into its value and its details.

    >>> split_fact("2.5 at step 3"), split_fact("21,499 (median)"), split_fact("1, 80 steps lost")
    (('2.5', 'at step 3'), ('21,499', '(median)'), ('1', '80 steps lost'))
    """
    first, *rest = re.split(r", (?=\D|\d+ )| (?=at step|\()", text, maxsplit=1)
    return first, "".join(rest)


def _table(runs: Sequence[ParsedRun]) -> dict[str, Any]:
    main = facts.main_metric(runs)
    rows = [
        facts.columns_of(run, main) | dict(facts.single_values(run, main))
        if main and run.curve.metrics
        else {}
        for run in runs
    ]
    if main is not None:
        rows = _add_differences(rows, [run.curve.summary(main) for run in runs])
    fullest_first = sorted(rows, key=len, reverse=True)
    headings = list(dict.fromkeys(heading for row in fullest_first for heading in row))
    return {
        "headings": headings,
        "rows": [[row.get(heading, "") for heading in headings] for row in rows],
    }


def _add_differences(
    rows: Sequence[dict[str, str]], summaries: Sequence[Summary | None]
) -> list[dict[str, str]]:
    """Add the difference from the best run behind the best loss of each of several runs."""
    lows = [each.min.value if each is not None and each.min else math.nan for each in summaries]
    best = min(filter(math.isfinite, lows), default=math.nan)
    shown = []
    for row, low in zip(rows, lows, strict=True):
        own: dict[str, str] = {}
        for heading, text in row.items():
            own[heading] = text
            if heading == "best" and len(rows) > 1 and math.isfinite(low):
                own["difference"] = f"+{low - best:.3g}" if low > best else "0"
        shown.append(own)
    return shown


def _settings(runs: Sequence[ParsedRun]) -> dict[str, list[list[str]]]:
    names = sorted({name for run in runs for name in run.facts})
    rows = [[name, *(run.facts.get(name, "") for run in runs)] for name in names]
    differ = [row for row in rows if len(set(row[1:])) > 1]
    return {"differ": differ, "same": [row[:2] for row in rows if row not in differ]}


def page_data(runs: Sequence[ParsedRun]) -> dict[str, Any]:
    """Return the data of the page's script.

        {"runs": [{"name": ..., "restarts": [{"at": 101, "text": ...}],
                   "axes": [{"step": [...] | null, "tokens": ..., "time": ..., "count": 200}],
                   "metrics": {"loss": {"axis": 0, "values": [...]}}}],
         "panels": [{"title": ..., "unit": ..., "metrics": ["loss", "eval_loss"], "labels": [...],
                     "log": false, "range": [low, high] | null, "beyond": 0, "smooth": true,
                     "shown": true}],
         "axes": ["step", "time"], "smoothing": 0.9}

    Metrics that were logged on the same lines share an axis. Non-finite values are the strings
    "NaN", "Infinity" and "-Infinity". Memory is in GiB.
    """
    panels = _build_panels(runs)
    curves = [run.curve for run in runs]
    axes = [
        by
        for by in _AXES
        if any(x_axis(curve, name, by) for curve in curves for name in curve.metrics)
    ]
    return {
        "runs": [_run(run) for run in runs],
        "panels": panels,
        "axes": axes,
        "smoothing": _choose_smoothing(runs, panels[0]["metrics"][0]) if panels else 0.0,
    }


def report_data(runs: Sequence[ParsedRun]) -> dict[str, Any]:
    """Return everything that the report shows of runs, for a page that inserts it as text.

    Besides the keys of page_data(): ``table`` (the facts of each run), ``tiles`` (those of a single
    run), ``settings``, ``attempts``, ``costs``, ``failures`` and ``warnings``.
    """
    return page_data(runs) | {
        "table": _table(runs),
        "tiles": _build_tiles(runs),
        "settings": _settings(runs),
        "attempt_headings": ATTEMPT_COLUMNS,
        "attempts": [run.attempts for run in runs],
        "costs": [run.cost for run in runs],
        "failures": [(run.source, run.failure) for run in runs if run.failure],
        "warnings": [(run.source, text) for run in runs for text in run.warnings],
        "notes": [(run.source, text) for run in runs for text in run.curve.notes],
    }


def page_part(name: str) -> str:
    """Return a script or style sheet that reports and hpcrun ui share.

    >>> page_part("uplot.css")[:7]
    '.uplot,'
    """
    return (_PARTS / name).read_text("utf-8")


def _run(run: ParsedRun) -> dict[str, Any]:
    axes: list[dict[str, Any]] = []
    places: list[tuple[Sequence[int | None], Sequence[float] | None]] = []
    metrics: dict[str, Any] = {}
    for name, series in run.curve.metrics.items():
        place = (series.steps, series.times)
        if place not in places:
            places.append(place)
            axes.append(_axis(run.curve, name))
        values = [json_number(value / _factor(name)) for value in series.values]
        metrics[name] = {"axis": places.index(place), "values": values}
    restarts = [
        {"at": restart.resumed_at, "text": _restart_text(run, restart, short=True)}
        for restart in run.curve.restarts
        if restart.resumed_at is not None
    ]
    name = replace_unprintable(run.source)
    return {"name": name, "axes": axes, "metrics": metrics, "restarts": restarts}


def _axis(curve: Curve, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"count": curve.metrics[name].summary.count}
    for by in _AXES:
        x = x_axis(curve, name, by)
        # Omit digits below the resolution of the plot.
        digits = 2 if by == "time" else None
        found[by] = None if x is None else [round(value, digits) for value in x]
    return found


def _build_panels(runs: Sequence[ParsedRun]) -> list[dict[str, Any]]:
    """List the panels, most important first; only the first ones are open initially."""
    metrics = dict.fromkeys(name for run in runs for name in run.curve.metrics)
    there = [name for name in metrics if facts.has_curve(runs, name)]
    main = facts.main_metric(runs)
    further = [name for run in runs for name, _ in facts.further_metrics(run, main)]
    rest = (name for name in (*further, *there) if name not in _LAST)
    order = [main, *_FIRST, *rest, *_LAST]
    shown = [[name] for name in dict.fromkeys(order) if name is not None and name in there]
    # Evaluation losses share a panel with training losses if both have steps.
    losses = [LOSS, EVAL_LOSS]
    if len(runs) == 1 and LOSS in there and all(x_axis(runs[0].curve, name) for name in losses):
        shown = [losses if names == [LOSS] else names for names in shown if names != [EVAL_LOSS]]
    return [_panel(runs, names, shown=place < _OPEN) for place, names in enumerate(shown)]


def _panel(runs: Sequence[ParsedRun], names: list[str], *, shown: bool) -> dict[str, Any]:
    title, unit = _TITLES.get(names[0], (replace_unprintable(names[0]), ""))
    scale, beyond = panel_scale(runs, names)
    ends = (scale.low, scale.high)
    # A constant is drawn in the middle of an axis that suits it.
    is_level = len({v for run in runs for name in names for v in run.curve.values(name)}) == 1
    return {
        "title": title if len(names) == 1 else "Loss",
        "unit": unit,
        "metrics": names,
        "labels": [_TITLES.get(name, (replace_unprintable(name), ""))[0] for name in names],
        "log": scale.is_log,
        "range": [end / _factor(names[0]) for end in ends] if beyond or is_level else None,
        "beyond": beyond,
        "smooth": names[0] not in _SCHEDULES,
        "shown": shown,
    }


def _factor(name: str) -> float:
    return GIB if name == MEMORY_BYTES else 1.0


def _choose_smoothing(runs: Sequence[ParsedRun], name: str) -> float:
    """Return the initial smoothing weight; 0 unless the metric is noisy in at least one run."""
    scale, _ = panel_scale(runs, [name])
    noisy = [
        len(x)
        for run in runs
        if (x := x_axis(run.curve, name, "order"))
        and is_visibly_noisy(x, run.curve.values(name), scale)
    ]
    return (0.9 if max(noisy) >= 500 else 0.6) if noisy else 0.0
