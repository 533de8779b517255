"""Metric names that would be HTML or scripts in a report."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from hpcrun.curves.curve import Curve, build_series
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.report import runs

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1); //",
    "{{ 7*7 }}{% raw %}",
    "${alert(1)}`",
    "<b>bold</b><a href='https://example.org/'>link</a><br>",
    "%{x}%{customdata}<extra></extra>",
    "javascript:alert(1)",
    "a\udc80\x00\x1b[31m\u2028\u2029",
    "__proto__",
    "constructor",
)


def made(source: str = "a.log", **changes: Any) -> ParsedRun:
    return structs.replace(runs.one()[0], source=source, **changes)


def hostile() -> list[ParsedRun]:
    """Return runs in which every name is an injection attempt."""
    points = build_series([1, 2], [2.0, 1.0])
    return [
        made(
            name,
            curve=Curve({"loss": points, name: points}, (), notes=(name,)),
            facts={name: other, "same": name if number else other},
            warnings=(name,),
            formats=(name,),
        )
        for number, (name, other) in enumerate(zip(HOSTILE, reversed(HOSTILE), strict=True))
    ]
