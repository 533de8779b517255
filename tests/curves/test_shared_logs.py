"""Logs of other projects, where a folder of them lies beside this one, as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.curves.parsing import parse_chunks
from tests.source import ROOT

SHARED = ROOT.parent / "shared" / "logs"
AT_LEAST = 0.95
# Reasons why hpcrun reads them differently from their index.
EXPLAINED = {
    ("025_hf-trl-sft-sge-stdout.log", "step"): "the step stands in the bar, on the other stream",
    ("071_hf-trainer-v5-string-values.log", "step"): "no step stands beside the dicts",
}


def fields(name: str, truth: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each field of a log that is not ambiguous, and whether hpcrun agrees."""
    run = parse_chunks(name, [(0, [(SHARED / "files" / name).read_bytes()])])
    points = truth["points"]
    yield "points", abs(run.points - points) <= points * 0.01
    summary = run.curve.summary("loss")
    for place in ("first", "last"):
        shown = truth.get(place, {})
        found = getattr(summary, place) if summary is not None else None
        if "step" in shown:
            yield "step", found is not None and found.step == shown["step"]
        if "loss" in shown:
            loss = shown["loss"]
            yield "loss", found is not None and abs(found.value - loss) <= abs(loss) * 1e-3


if SHARED.is_dir():

    def test_logs_of_other_projects_match_their_human_reading() -> None:
        entries = yaml.safe_load((SHARED / "index.yaml").read_text(encoding="utf-8"))["logs"]
        agreed = total = 0
        unexplained = []
        for entry in entries:
            if "ambiguous" in entry:
                continue
            for field, agrees in fields(entry["file"], entry["train_loss"]):
                total += 1
                agreed += agrees
                if not agrees and (entry["file"], field) not in EXPLAINED:
                    unexplained.append((entry["file"], field))
        assert unexplained == []
        assert agreed >= AT_LEAST * total, f"{agreed} of {total}"
        assert total > 80
