"""Count the rules that recognise failures, and the logs of other projects that carry each of them.

    python -m bench.rules                  the number of rules and patterns, by section
    python -m bench.rules FOLDER...        and for each rule the logs that it explains

A log carries a rule if `hpcrun why` names the rule as the cause of the failure, or under "also".
Rules that no log in the folders carries are listed last: they come from documentation and source
code of the programs, and each has an example. The logs are files that end in .log.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcrun.why.rules import BY_ID, SECTIONS

SHOWN_LOGS = 3


def find_rules(log: Path) -> tuple[str, set[str]]:
    """Return the rule that explains a log, or an empty string, and those under "also"."""
    command = [sys.executable, "-m", "hpcrun", "why", "--json", str(log)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        run = json.loads(answer.stdout)["runs"][0]
    except (ValueError, LookupError):
        return "", set()
    return (run["cause"] or {"id": ""})["id"], {other["id"] for other in run["also"]}


def main() -> int:
    """Read the command line, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*")
    given = parser.parse_args()
    for section, rules in SECTIONS.items():
        patterns = sum(len(rule.patterns) for rule in rules)
        print(f"{len(rules):4} rules, {patterns:4} patterns  {section}")
    patterns = sum(len(rule.patterns) for rule in BY_ID.values())
    print(f"{len(BY_ID):4} rules, {patterns:4} patterns  in all")
    logs = sorted(log for folder in given.folders for log in folder.glob("*.log"))
    if not logs:
        return 0
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(find_rules, logs))
    causes, others = defaultdict[str, list[str]](list), defaultdict[str, int](int)
    for log, (cause, also) in zip(logs, found, strict=True):
        causes[cause].append(log.stem)
        for rule in also:
            others[rule] += 1
    print(f"\n{len(logs)} logs, {len(logs) - len(causes.pop('', []))} with a cause")
    for rule in sorted(causes, key=lambda rule: -len(causes[rule])):
        shown = ", ".join(causes[rule][:SHOWN_LOGS])
        more = len(causes[rule]) - SHOWN_LOGS
        shown += f" and {more} more" if more > 0 else ""
        print(f"{len(causes[rule]):4} {rule:22} {shown}")
    only_others = sorted(rule for rule in others if rule not in causes)
    print('\nonly under "also":', ", ".join(f"{rule} ({others[rule]})" for rule in only_others))
    absent = sorted(rule for rule in BY_ID if rule not in causes and rule not in others)
    print(f"in none of these logs ({len(absent)} rules):", ", ".join(absent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
