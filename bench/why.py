"""Measure how often `hpcrun why` finds the right cause, for a folder of logs.

    python -m bench.why FOLDER              both halves; takes a minute or two
    python -m bench.why FOLDER --part held  only one of them, open or held
    python -m bench.why FOLDER --json       print JSON
    python -m bench.why FOLDER --details    also list errors in the held half, which is then opened
    python -m bench.why --speed             time reading a log of 360 MB; takes some minutes

why.jsonl lists the logs and their expected causes; truth.md explains its fields. The logs are not
part of the project, and nothing is downloaded: put those that you have into FOLDER as ID.log. For
failed jobs, the benchmark prints the share with the right class, and that with the right class and
line; for other jobs, the share that got a cause nevertheless (false alarms). Rank and host are
compared if the class is right, and counted separately. Wrong results in the open half are listed.

The speed is that of whole processes that alternate with a simple loop, with the log in the page
cache: for a log of noise that ends in a traceback, and for one with metrics in every line. The
limits are twice the loop and 100 MB; the exit code is 1 if one is exceeded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.make_log import A_STEP, write_dense_log, write_log
from bench.measure import measure
from bench.unseen import find_log, options, read_truth

PLAIN_LOOP = str(Path(__file__).parent / "plain_loop.py")
LINES, METRIC_LINES, TIMES, MEGABYTES = 2_400_000, 300_000, 2.0, 100.0
END = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    main()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full.
"""
TRUTH = Path(__file__).with_suffix(".jsonl")


def diagnose(log: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the cause that `hpcrun why --json` finds, or None, and an error message, if any."""
    command = [sys.executable, "-m", "hpcrun", "why", "--json", str(log)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        cause: dict[str, Any] | None = json.loads(answer.stdout)["runs"][0]["cause"]
    except (ValueError, LookupError):
        return None, f"no answer, exit code {answer.returncode}: {answer.stderr.strip()[-200:]}"
    return cause, ""


def judge(entry: dict[str, Any], cause: dict[str, Any] | None, error: str) -> dict[str, Any]:
    """Compare a cause with the expected one; return what is right, and descriptions of errors."""
    found = cause or {"class": None, "line": None, "text": ""}
    said = error or f"{found['class']} at line {found['line']}: {str(found['text'])[:120]}"
    if entry.get("nothing"):
        right = cause is None and not error
        return {
            "class": right,
            "line": right,
            "wrong": "" if right else f"nothing expected, {said}",
        }
    right = found["class"] in options(entry["class"])
    result = {"class": right, "line": right and found["line"] in options(entry["line"])}
    for name in ("rank", "host"):
        if right and name in entry:
            result[name] = found.get(name) in options(entry[name])
    expected = f"{'/'.join(options(entry['class']))} at line {entry['line']} expected"
    return result | {"wrong": "" if result["line"] else f"{expected}, {said}"}


def count(results: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return the shares of a half, in total and for each class."""
    failed = [pair for pair in results if not pair[0].get("nothing")]
    others = [pair for pair in results if pair[0].get("nothing")]
    classes: dict[str, dict[str, int]] = {}
    for entry, result in failed:
        row = classes.setdefault(options(entry["class"])[0], {"logs": 0, "class": 0, "line": 0})
        row["logs"] += 1
        row["class"] += result["class"]
        row["line"] += result["line"]
    return {
        "failed": len(failed),
        "class": sum(result["class"] for _, result in failed),
        "line": sum(result["line"] for _, result in failed),
        "others": len(others),
        "false_alarms": sum(not result["class"] for _, result in others),
        **{
            name: [result[name] for _, result in failed if name in result].count(True)
            for name in ("rank", "host")
        },
        "of_rank": sum("rank" in result for _, result in failed),
        "of_host": sum("host" in result for _, result in failed),
        "classes": dict(sorted(classes.items())),
    }


def show(part: str, shares: dict[str, Any]) -> None:
    """Print the shares of a half."""
    for name, row in shares["classes"].items():
        print(f"{part}: {name:14}{row['class']:3} of {row['logs']:2} right, line {row['line']:3}")
    for name in ("class", "line"):
        share = shares[name] / shares["failed"] if shares["failed"] else 0
        print(f"{part}: {name} right in {shares[name]} of {shares['failed']} logs, {share:.0%}")
    print(f"{part}: {shares['false_alarms']} false alarms in {shares['others']} logs")
    for name in ("rank", "host"):
        print(f"{part}: {name} right in {shares[name]} of {shares[f'of_{name}']} logs")


def speed(rounds: int) -> int:
    """Measure `hpcrun why` for two logs of 360 MB; return 1 if a limit is exceeded."""
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        noise, dense = Path(folder) / "noise.log", Path(folder) / "dense.log"
        write_log(noise, LINES, METRIC_LINES)
        write_dense_log(dense, LINES // A_STEP * A_STEP)
        for log in (noise, dense):
            with log.open("a") as file:
                file.write(END)
            ours = [sys.executable, "-m", "hpcrun", "why", "--json", str(log)]
            first = measure(ours, memory=True)
            cause = json.loads(first.output)["runs"][0]["cause"]
            assert cause["id"] == "cuda_oom", cause
            times = []
            for _ in range(rounds):
                loop = measure([sys.executable, PLAIN_LOOP, str(log)]).seconds
                times.append(measure(ours).seconds / loop)
            ratio, megabytes = statistics.median(times), first.memory / 1e6
            size = log.stat().st_size / 1e6
            print(
                f"{log.stem}: {size:.0f} MB in {ratio:.2f} times the loop, {megabytes:.0f} MB held"
            )
            missed |= ratio > TIMES or megabytes > MEGABYTES
    return int(missed)


def main() -> int:
    """Read the command line, diagnose each log, print wrong results and the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--speed", action="store_true", help="alone, without a folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=("open", "held"))
    parser.add_argument("--details", action="store_true", help="of the held half, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.speed:
        return speed(given.rounds)
    result: dict[str, Any] = {"parts": {}, "wrong": {}, "unused": {}}
    entries = read_truth(TRUTH)
    for part in (given.part,) if given.part else ("open", "held"):
        results = []
        for entry in entries:
            if "ambiguous" in entry or entry["part"] != part:
                continue
            log, why = find_log(given.folder, entry)
            if log is None:
                result["unused"][entry["id"]] = why
                continue
            judged = judge(entry, *diagnose(log))
            results.append((entry, judged))
            if judged["wrong"] and (part == "open" or given.details):
                result["wrong"][entry["id"]] = judged["wrong"]
        if results:
            result["parts"][part] = count(results)
    if given.json:
        print(json.dumps(result, indent=2))
        return 0
    if result["unused"]:
        print(f"{len(result['unused'])} logs are not in {given.folder}, or other ones are")
    for name, wrong in result["wrong"].items():
        print(f"{name}: {wrong}")
    for part, shares in result["parts"].items():
        show(part, shares)
    return 0


if __name__ == "__main__":
    sys.exit(main())
