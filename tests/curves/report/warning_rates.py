"""Error rates of warnings: ``python -m tests.curves.report.warning_rates [COUNT] [LOG ...]``.

Prints the tables of docs/warnings.md: how many of COUNT (1000) generated curves of each healthy
family have a warning, and how many of each fault and size are detected. For the given logs it
prints the warnings, and the number of logs that have one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from hpcrun.curves.report.health import find_warnings
from tests.curves.parsing import parse_chunks
from tests.curves.report.faulty import FAULTS, Fault
from tests.curves.report.healthy import LOSSES, Family
from tests.curves.report.healthy_clocks import CLOCKS

HEALTHY = (*LOSSES, *CLOCKS)


def alarms(family: Family, count: int) -> list[tuple[int, str]]:
    """Return the false warnings about ``count`` curves of a family, each with its seed."""
    return [
        (seed, warning) for seed in range(count) for warning in find_warnings(family(Random(seed)))
    ]


def found(fault: Fault, word: str, size: float, count: int) -> float:
    """Return the share of ``count`` curves with a fault whose warning contains its word."""
    shown = (find_warnings(fault(Random(seed), size)) for seed in range(count))
    return sum(any(word in warning for warning in warnings) for warnings in shown) / count


def main(count: int, logs: list[Path]) -> None:
    """Print the tables."""
    print(f"| healthy | false alarms in {count} |\n|---|---|")
    for family in HEALTHY:
        print(f"| {family.__name__} | {len({seed for seed, _ in alarms(family, count)})} |")
    print("\n| fault | size: share found |\n|---|---|")
    for fault, word, sizes in FAULTS:
        shares = (f"{size:g}: {found(fault, word, size, count):.0%}" for size in sizes)
        print(f"| {fault.__name__} | {', '.join(shares)} |")
    worried = 0
    for log in logs:
        run = parse_chunks(log.name, [(0, [log.read_bytes()])])
        worried += bool(run.warnings)
        for warning in run.warnings:
            print(f"{log}: {warning}")
    if logs:
        print(f"{worried} of {len(logs)} logs have a warning")


if __name__ == "__main__":
    words = sys.argv[1:]
    number = int(words.pop(0)) if words and words[0].isdigit() else 1000
    main(number, [path for word in words if (path := Path(word)).is_file()])
