"""Compare what hpcrun reads in logs of other projects with what a person reads in them.

    python -m bench.reading FOLDER                the table; takes a second or two for each log
    python -m bench.reading FOLDER --part held    one half, open or held
    python -m bench.reading FOLDER --details      also list the errors in the held half
    python -m bench.reading FOLDER --json         print JSON

reading.jsonl has one line for each log: where the log is from, its digest, and what a person reads
in it; truth.md explains the fields. The logs are not part of the project, and nothing is
downloaded: put those that you have into FOLDER as ID.log. `--truth FILE` compares with another file
of the same form. All entries were written before hpcrun read any of the logs, and the projects were
divided by lot: rules were mended by the open half, and the held half was scored once. Entries s on
2026-11-28: training loss 29 of 32, evaluation metrics 16 of 27, time 9 of 13, class and line 17 of
18. Entries t on 2026-11-29: training loss 9 of 9, evaluation metrics 7 of 13, time 3 of 4, class
and line 2 of 2, host 0 of 1. The best values of t-008 and t-014 were corrected afterwards.

The table counts the training loss (first, last, best), up to three evaluation metrics of each log
(first, last, best), the elapsed time within 5 percent, the horizontal axis, how the run ended, and
for failed or interrupted runs the class of the cause, its line, rank and host. Rank and host count
only where the class is right. Metrics found in logs without any, and causes found in logs of runs
that did not fail, are listed as invented metrics and false alarms.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.unseen import CLOSE, RATES, find_log, is_close, options, parse, read_truth
from bench.why import diagnose, judge
from hpcrun.curves.names import fold

TRUTH = Path(__file__).with_suffix(".jsonl")
TIME_TOLERANCE = 0.05
ROWS = (
    *("training loss", "evaluation metrics", "time", "axis", "end"),
    *("class", "line", "rank", "host", "no invented metric", "no false alarm"),
)
INTERRUPTIONS = {"cancelled", "time_limit", "preempted"}
SAME_WORD = {"accuracy": "acc", "perplexity": "ppl", "r2": "squared"}
SCOPES = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "average", "avg"}


def find_words(name: str) -> set[str]:
    """Return the words of a metric's name except its scope; no other word means the loss.

    >>> sorted(find_words("val/loss_simple")), find_words("Val Acc"), find_words("Val")
    (['loss', 'simple'], {'acc'}, {'loss'})
    """
    words = {SAME_WORD.get(word, word) for word in re.findall("[a-z]+", name.lower())}
    return words - SCOPES or {"loss"}


def read_axis(log: Path) -> str:
    """Return the horizontal axis that the title of the drawn curve names, or an empty string."""
    command = [sys.executable, "-m", "hpcrun", "parse", str(log)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    title = re.search(r": \S+ by (\w+)", answer.stdout.partition("\n")[0])
    return title[1] if title else ""


def find_differences(metric: dict[str, Any] | None, truth: dict[str, Any]) -> list[str]:
    """Return the places, of first, last and best, where a metric has an unexpected value."""
    if metric is None:
        return ["missing"]
    wrong = []
    for place in ("first", "last"):
        value = float(metric[place]["value"])
        if not any(is_close(value, float(each), CLOSE) for each in options(truth[place])):
            wrong.append(f"{place} {truth[place]} expected, {value:.6g} found")
    bests = [float(metric[end]["value"]) for end in ("min", "max") if metric[end]]
    if "best" in truth and not any(
        is_close(value, float(each), CLOSE) for value in bests for each in options(truth["best"])
    ):
        wrong.append(f"best {truth['best']} expected, {bests} found")
    return wrong


def score_loss(entry: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Describe how the training loss differs from the closest accepted reading."""
    if entry["loss"] is None:
        found = metrics.get("loss", {"count": 0})["count"]
        return f"no training loss expected, {found} points found" if found > 1 else ""
    found_by_name = {fold(name): metric for name, metric in metrics.items()}
    readings = [
        find_differences(metrics.get("loss", found_by_name.get(fold(each["name"]))), each)
        for each in options(entry["loss"])
    ]
    closest: list[str] = min(readings, key=len)
    return "; ".join(closest)


def score_evaluation(truth: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Describe how the closest metric with a word in common differs from an evaluation metric."""
    words = find_words(truth["name"])
    similar = [m for name, m in metrics.items() if name != "loss" and words & find_words(name)]
    readings = [find_differences(metric, truth) for metric in similar or [None]]
    closest: list[str] = min(readings, key=len)
    return "; ".join(closest)


def name_ends(cause: dict[str, Any] | None) -> set[str]:
    """Return the ends of a run that agree with a cause, or with none."""
    if cause is None:
        return {"completed", "running"}
    return {"interrupted" if cause["class"] in INTERRUPTIONS else "failed"}


def score(
    entry: dict[str, Any], run: dict[str, Any], axis: str, cause: dict[str, Any] | None, error: str
) -> Iterator[tuple[str, str]]:
    """Yield each row that an entry counts in, with a description of the error, empty if right."""
    metrics = run["metrics"]
    if entry.get("nothing"):
        yield "no invented metric", ", ".join(sorted(metrics.keys() - RATES))
    if "loss" in entry:
        yield "training loss", score_loss(entry, metrics)
    for each in entry.get("evals", ()):
        wrong = score_evaluation(each, metrics)
        yield "evaluation metrics", f"{each['name']}: {wrong}" if wrong else ""
    if "seconds" in entry:
        found = (run.get("time") or {}).get("seconds")
        right = found and any(
            is_close(found, each, TIME_TOLERANCE) for each in options(entry["seconds"])
        )
        yield "time", "" if right else f"{entry['seconds']} s expected, {found} found"
    if "axis" in entry and entry.get("loss"):
        right = axis in options(entry["axis"])
        yield "axis", "" if right else f"{entry['axis']} expected, {axis or 'none'} found"
    if "end" in entry:
        ends = name_ends(cause)
        right = not error and ends & set(options(entry["end"]))
        yield "end", "" if right else f"{entry['end']} expected, {' or '.join(sorted(ends))} found"
    if "class" in entry:
        judged = judge(entry, cause, error)
        for row in ("class", "line"):
            yield row, "" if judged[row] else judged["wrong"]
        for row in ("rank", "host"):
            if row in judged:
                found = (cause or {}).get(row)
                yield row, "" if judged[row] else f"{entry[row]} expected, {found} found"
    else:
        judged = judge({"nothing": True}, cause, error)
        yield "no false alarm", judged["wrong"]


def count(results: dict[str, list[tuple[str, str]]]) -> dict[str, dict[str, int]]:
    """Return for each row how many results count, and how many of these are right."""
    table = {row: {"right": 0, "of": 0} for row in ROWS}
    for scored in results.values():
        for row, wrong in scored:
            table[row]["of"] += 1
            table[row]["right"] += not wrong
    return table


def main() -> int:
    """Read the command line, compare each log that is there, and print errors and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truth", type=Path, default=TRUTH)
    parser.add_argument("--part", choices=("open", "held"))
    parser.add_argument("--details", action="store_true", help="of the held half, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    def score_entry(entry: dict[str, Any]) -> list[tuple[str, str]] | None:
        log, _ = find_log(given.folder, entry)
        if log is None:
            return None
        return list(score(entry, parse(log), read_axis(log), *diagnose(log)))

    output: dict[str, Any] = {}
    for part in (given.part,) if given.part else ("open", "held"):
        entries = [
            entry
            for entry in read_truth(given.truth)
            if entry["part"] == part and "ambiguous" not in entry
        ]
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(score_entry, entries))
        results = {e["id"]: answer for e, answer in zip(entries, answers, strict=True)}
        scored = {name: result for name, result in results.items() if result is not None}
        shown = scored if part == "open" or given.details else {}
        output[part] = {
            "logs": len(scored),
            "unused": sorted(results.keys() - scored.keys()),
            "wrong": {
                name: wrong
                for name, result in shown.items()
                if (wrong := [f"{row}: {text}" for row, text in result if text])
            },
            "table": count(scored),
        }
    if given.json:
        print(json.dumps(output, indent=2, ensure_ascii=False))
        return 0
    for part, found in output.items():
        for name, wrong in found["wrong"].items():
            print(f"{name}:", *wrong, sep="\n    ")
        print(f"{part}: {found['logs']} logs, {len(found['unused'])} not in {given.folder}")
        for row, each in found["table"].items():
            share = f"{each['right'] / each['of']:.0%}" if each["of"] else "-"
            print(f"{part}: {row:20}{each['right']:3} of {each['of']:3}  {share:>4}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
