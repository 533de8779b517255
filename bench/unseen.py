"""Measure how many logs of other projects in a folder `hpcrun parse` reads correctly.

    python -m bench.unseen FOLDER               both halves, open and aside; takes a minute
    python -m bench.unseen FOLDER --part open   only one of them, or --part development
    python -m bench.unseen FOLDER --json        print JSON

unseen.jsonl lists the logs and their expected values; truth.md explains its fields. The logs are
not part of the project, and nothing is downloaded: put those that you have into FOLDER as ID or
ID.log. A log counts as read correctly if number, first and last of its training losses are right,
and of its evaluation losses if these are listed. The last learning rate is compared too, but does
not count."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrun.curves.names import fold

TRUTH = Path(__file__).with_suffix(".jsonl")
CLOSE, COUNTED = 1e-3, 0.01
RATES = {"step_seconds", "samples_per_second", "tokens_per_second"}  # from progress bars


def read_truth(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a file of expected results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def find_log(folder: Path, entry: dict[str, Any]) -> tuple[Path | None, str]:
    """Find the log of an entry; return it, or None with the reason."""
    for path in (folder / f"{entry['id']}.log", folder / entry["id"]):
        if path.is_file():
            same = hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
            return (path, "") if same else (None, "another log")
    return None, "not there"


def parse(log: Path) -> dict[str, Any]:
    """Return the result of `hpcrun parse --json`, without metrics if it fails."""
    command = [sys.executable, "-m", "hpcrun", "parse", "--json", str(log)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(answer.stdout) if answer.stdout.strip() else {}
    if not found.get("runs"):
        return {"points": 0, "metrics": {}}
    run: dict[str, Any] = found["runs"][0]
    return run


def options(truth: Any) -> list[Any]:
    """Return the accepted values: the elements of a list, or a single value."""
    return truth if isinstance(truth, list) else [truth]


def is_close(found: float, truth: float, part: float) -> bool:
    """Return whether a number equals the expected one within a tolerance; NaN equals NaN."""
    if math.isnan(found) or math.isnan(truth):
        return math.isnan(found) and math.isnan(truth)
    return abs(found - truth) <= part * abs(truth)


def differences(name: str, found: dict[str, Any] | None, truth: dict[str, Any]) -> Iterator[str]:
    """Yield the differences of a metric from one accepted reading."""
    count = found["count"] if found else 0
    if not any(is_close(count, each, COUNTED) for each in options(truth["points"])):
        yield f"{name}: {truth['points']} points expected, {count} found"
    if found is None:
        return
    for place in ("first", "last"):
        expected = truth.get(place)
        if expected is None:
            continue
        value, step = float(found[place]["value"]), found[place]["step"]
        if not any(is_close(value, float(each), CLOSE) for each in options(expected["value"])):
            yield f"{name}: {place} {expected['value']} expected, {value} found"
        if "step" in expected and step not in options(expected["step"]):
            yield f"{name}: {place} step {expected['step']} expected, {step} found"


def compare(entry: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    """Yield the differences from the expected values, or from the closest accepted reading."""
    metrics = {fold(name): metric for name, metric in run["metrics"].items()}
    if entry.get("nothing"):
        for name in metrics.keys() - RATES:
            yield f"{name}: {metrics[name]['count']} points invented"
        return
    for name, other in (("loss", "loss"), ("eval_loss", fold(entry.get("eval_name", "")))):
        if name in entry:
            found = metrics.get(name, metrics.get(other))
            yield from min((list(differences(name, found, each)) for each in entry[name]), key=len)


def other_lr(entry: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    """Yield the difference of the last learning rate, if one is expected."""
    found = run["metrics"].get("lr")
    last = float(found["last"]["value"]) if found else math.nan
    if "lr" in entry and not is_close(last, entry["lr"], 0.01):
        yield f"lr: last {entry['lr']} expected, {last} found"


def main() -> int:
    """Read the command line, compare, print a line for each misread log, and the share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=("open", "aside", "development"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    entries = read_truth(TRUTH)
    result: dict[str, Any] = {"wrong": {}, "lr": {}, "unused": {}}
    right = {"with metrics": [0, 0], "without": [0, 0]}
    for entry in entries:
        parts = (given.part,) if given.part else ("open", "aside")
        if "ambiguous" in entry or entry["part"] not in parts:
            continue
        log, why = find_log(given.folder, entry)
        if log is None:
            result["unused"][entry["id"]] = why
            continue
        run = parse(log)
        wrong = list(compare(entry, run))
        if wrong:
            result["wrong"][entry["id"]] = wrong
        if lr := list(other_lr(entry, run)):
            result["lr"][entry["id"]] = lr
        counted = right["without" if entry.get("nothing") else "with metrics"]
        counted[0] += not wrong
        counted[1] += 1
    result["right"] = {name: {"logs": of, "right": n} for name, (n, of) in right.items()}
    if given.json:
        print(json.dumps(result, indent=2))
        return 0
    for title in ("unused", "lr", "wrong"):
        for name, lines in result[title].items():
            print(f"{title}: {name}: {lines if isinstance(lines, str) else '; '.join(lines)}")
    for name, (n, of) in right.items():
        print(f"{n} of {of} logs {name} read as a person does" + (f", {n / of:.0%}" if of else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
