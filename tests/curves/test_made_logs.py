"""The project's own logs are read as logged by the programs that created them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hpcrun.curves.curve import Summary
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.made import printed_language, printed_other, printed_plain
from tests.curves.made.__main__ import INDEX, LOGS
from tests.curves.made.printed import FORMATS, Format, make_printed
from tests.curves.made.truth import agree
from tests.curves.parsing import parse_chunks

assert printed_language and printed_other and printed_plain  # they fill FORMATS
ENTRIES: list[dict[str, Any]] = yaml.load(INDEX.read_text(encoding="utf-8"), yaml.CSafeLoader)
# The kinds of warnings in the index, and patterns of their text.
WORDS = {
    "nan": r"\bnan\b|finite",
    "spike": r"spike|jump",
    "divergence": r"diverg|ris(es|ing)",
    "loss-scale": r"loss.scale",
    "stall": r"stall|no progress|gap",
    "throughput": r"throughput|slow|_second drops",
}


def read(entry: dict[str, Any]) -> ParsedRun:
    """Parse the files of a log in chunks that end anywhere."""

    def pieces(name: str) -> Iterator[bytes]:
        text = (LOGS / name).read_bytes()
        yield from (text[start : start + 1000] for start in range(0, len(text), 1000))

    return parse_chunks(entry["name"], [(0, pieces(name)) for name in entry["files"]])


def disagreements(entry: dict[str, Any], run: ParsedRun) -> Iterator[str]:
    """Yield the differences between read and logged values, except ambiguous ones."""
    ambiguous = set(entry.get("ambiguous", ()))
    if not ambiguous & {"points", "count", "loss"} and run.points != entry["points"]:
        yield f"points: {run.points}, not {entry['points']}"
    if len(run.curve.restarts) != entry["restarts"]:
        yield f"restarts: {run.curve.restarts}, not {entry['restarts']}"
    for name, true in entry["metrics"].items():
        found = run.curve.summary(name)
        if name in ambiguous:
            continue
        if found is None:
            yield f"{name}: not found"
            continue
        if name == "eval_loss" and "eval_step" in ambiguous:
            yield from _of_metric(name, true, found, ambiguous | {"step"})
        else:
            yield from _of_metric(name, true, found, ambiguous)
    worries = " ".join(run.warnings).lower()
    if not entry["warnings"] and run.warnings:
        yield f"a healthy run, but {run.warnings}"
    for kind in entry["warnings"]:
        if not re.search(WORDS[kind], worries):
            yield f"no word of {kind} in {run.warnings}"


def _of_metric(
    name: str, true: dict[str, Any], found: Summary, ambiguous: set[str]
) -> Iterator[str]:
    if "count" not in ambiguous and found.count != true["count"]:
        yield f"{name}: {found.count} values, not {true['count']}"
    for place, point in (("first", found.first), ("last", found.last)):
        if place in ambiguous:
            continue
        if "step" not in ambiguous and point.step != true[place]["step"]:
            yield f"{name}: {place} step {point.step}, not {true[place]['step']}"
        if "value" not in ambiguous and not agree(point.value, true[place]["value"]):
            yield f"{name}: {place} value {point.value}, not {true[place]['value']}"


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_read_values_match_the_logged_values(entry: dict[str, Any]) -> None:
    assert list(disagreements(entry, read(entry))) == []


@pytest.mark.parametrize("made", FORMATS, ids=[made.name for made in FORMATS])
def test_printed_log_is_reproducible(made: Format) -> None:
    files, entry = make_printed(made)
    assert {name: (LOGS / name).read_bytes() for name in files} == files
    assert [known for known in ENTRIES if known["name"] == made.name] == [entry]


def test_index_names_every_log() -> None:
    named = [name for entry in ENTRIES for name in entry["files"]]
    assert sorted(named) == sorted(path.name for path in LOGS.glob("[!.]*") if path != INDEX)


def test_logs_are_small_and_contain_no_machine_details() -> None:
    texts = {path.name: path.read_bytes() for path in LOGS.iterdir()}
    assert sum(map(len, texts.values())) < 600_000
    traces = re.compile(rb"/root\b|/work/|/tmp/|/var/tmp")
    assert [name for name, text in texts.items() if traces.search(text)] == []
