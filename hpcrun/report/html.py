"""The report of runs as one HTML file: it opens offline, in any browser, on a phone too.

The file holds all that it shows: about 5 MB for plotly.js, and some 10 bytes a value. It asks no
server for anything, and its Content-Security-Policy keeps it from trying; the same policy names the
two scripts by their hashes, so that nothing else could run even if a name got into the page as
markup. Names and values reach the page as escaped text or as JSON, never as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import InputError
from hpcrun.metrics.curve import Point
from hpcrun.metrics.names import LOSS, MEMORY_BYTES
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.facts import columns_of, learning_facts, main_metric, point_text, running_facts
from hpcrun.report.page_data import page_data
from hpcrun.report.writing import whole_file
from hpcrun.views.numbers import count_of, format_bytes
from hpcrun.views.table import printable

_PARTS = Path(__file__).parent / "page"


def write_html(runs: Sequence[ParsedRun], path: Path) -> None:
    """Write the report. Raises InputError where it cannot, or plotly is missing."""
    with whole_file(path) as file:
        file.write(html_text(runs).encode("utf-8"))


def html_text(runs: Sequence[ParsedRun]) -> str:
    """Return the report as text. Raises InputError without plotly."""
    import jinja2

    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError(
            f"the HTML report needs plotly ({error})", fix="pip install 'hpcrun[plot]'"
        ) from error
    scripts = [get_plotlyjs(), (_PARTS / "page.js").read_text("utf-8")]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string((_PARTS / "page.html.j2").read_text("utf-8"))
    return page.render(
        title=_title(runs),
        policy=_policy(scripts),
        scripts=scripts,
        style=(_PARTS / "page.css").read_text("utf-8"),
        data=script_json(page_data(runs)),
        runs=[_shown(run) for run in runs],
        table=_table(runs),
        tiles=_tiles(runs),
        settings=_settings(runs),
    )


def script_json(data: object) -> str:
    r"""Return JSON that may stand in a script element: nothing in it can end the element.

    >>> script_json({"</script><!--": 1})
    '{"\\u003c/script\\u003e\\u003c!--":1}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _policy(scripts: Sequence[str]) -> str:
    """Return the policy that allows these scripts and no request."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _title(runs: Sequence[ParsedRun]) -> str:
    return printable(runs[0].source) if len(runs) == 1 else f"{len(runs)} runs"


def _shown(run: ParsedRun) -> dict[str, Any]:
    """Gather what the page says of a run in words."""
    read = f"{count_of(run.files, 'file')}, {count_of(run.lines, 'line')}, {run.bytes:,} bytes"
    return {
        "name": printable(run.source),
        "warnings": [printable(warning) for warning in run.warnings],
        "notes": [printable(note) for note in run.curve.notes],
        "read": read,
        "formats": printable(", ".join(run.formats)) or "no metric found",
        "counted": count_of(len(run.curve.metrics), "metric"),
        "restarts": [
            f"attempt {restart.attempt}: "
            + (
                ("no training loss" if run.curve.steps(LOSS)[:1] != [None] else "resumed")
                if restart.resumed_at is None
                else f"from step {restart.resumed_at}"
            )
            + ("" if restart.lost_at is None else f", after step {restart.lost_at}")
            + (f", {count_of(restart.replayed, 'step')} done again" if restart.replayed else "")
            for restart in run.curve.restarts
        ],
        "metrics": [
            {
                "name": printable(name),
                "count": f"{series.summary.count:,}",
                "points": [
                    _point_text(name, point)
                    for point in (
                        *(series.summary.first, series.summary.last),
                        *(series.summary.min, series.summary.max),
                    )
                ],
                "thinned": len(series.values) if series.thinned else 0,
            }
            for name, series in run.curve.metrics.items()
        ],
    }


def _point_text(name: str, point: Point | None) -> str:
    if point is None or name != MEMORY_BYTES:
        return point_text(point)
    where = "" if point.step is None else f" at step {point.step}"
    return format_bytes(point.value) + where


def _tiles(runs: Sequence[ParsedRun]) -> list[tuple[str, str, str]]:
    """Return what matters of a run alone, as (name, text, small print)."""
    main = main_metric(runs)
    if len(runs) != 1 or main is None:
        return []
    facts = [*learning_facts(runs[0], main), *running_facts(runs[0])]
    return [(printable(name), *split_fact(printable(text))) for name, text in facts]


def split_fact(text: str) -> tuple[str, str]:
    """Split a fact into what it says first and the rest.

    >>> split_fact("2.5 at step 3"), split_fact("21,499 (median)"), split_fact("1, 80 steps lost")
    (('2.5', 'at step 3'), ('21,499', '(median)'), ('1', '80 steps lost'))
    """
    first, *rest = re.split(r", (?=\D|\d+ )| (?=at step|\()", text, maxsplit=1)
    return first, "".join(rest)


def _table(runs: Sequence[ParsedRun]) -> dict[str, Any]:
    """Return the table of several runs: headings, and a row of texts for each run."""
    main = main_metric(runs)
    rows = [columns_of(run, main) if main and run.curve.metrics else {} for run in runs]
    fullest_first = sorted(rows, key=len, reverse=True)
    headings = list(dict.fromkeys(heading for row in fullest_first for heading in row))
    return {
        "headings": headings,
        "rows": [[row.get(heading, "") for heading in headings] for row in rows],
    }


def _settings(runs: Sequence[ParsedRun]) -> dict[str, list[tuple[str, list[str]]]]:
    """Sort the runs' settings by whether the runs differ in them."""
    names = sorted({name for run in runs for name in run.facts})
    rows = [
        (printable(name), [printable(_fact(run.facts, name)) for run in runs]) for name in names
    ]
    differ = [row for row in rows if len(set(row[1])) > 1]
    return {"differ": differ, "same": [row for row in rows if len(set(row[1])) == 1]}


def _fact(facts: Mapping[str, str], name: str) -> str:
    return str(facts.get(name, ""))
