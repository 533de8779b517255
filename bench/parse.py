"""How fast `hpcrun parse` is, beside the loop that people write; and what memory it takes.

    python -m bench.parse                 the figures of the README; a minute
    python -m bench.parse --gigabytes 10  the same, and memory on a log of that size

Each figure is the median of runs that alternate with what it is compared with, whole processes,
the log in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench.make_log import write_log
from bench.measure import measure

PLAIN_LOOP = str(Path(__file__).parent / "plain_loop.py")
LINES, METRIC_LINES, BYTES_A_LINE = 2_400_000, 300_000, 150


def speed(log: Path, rounds: int) -> dict[str, float]:
    """Measure the whole command and the plain loop in turns, seconds."""
    ours = [sys.executable, "-m", "hpcrun", "parse", str(log)]
    answer = json.loads(measure([*ours, "--json"]).output)
    assert answer["runs"][0]["points"] == METRIC_LINES, answer["runs"][0]["points"]
    seconds: dict[str, list[float]] = {"hpcrun parse": [], "hpcrun parse --json": [], "loop": []}
    for _ in range(rounds):
        seconds["loop"].append(measure([sys.executable, PLAIN_LOOP, str(log)]).seconds)
        seconds["hpcrun parse"].append(measure(ours).seconds)
        seconds["hpcrun parse --json"].append(measure([*ours, "--json"]).seconds)
    return {name: statistics.median(each) for name, each in seconds.items()}


def memory(gigabytes: float, folder: Path) -> tuple[float, float]:
    """Parse a log of a size; return GB read and MB held at most by all processes."""
    large = folder / "large.log"
    lines = int(gigabytes * 1e9 / BYTES_A_LINE)
    write_log(large, lines, lines * METRIC_LINES // LINES)
    held = measure([sys.executable, "-m", "hpcrun", "parse", str(large), "--json"], memory=True)
    size = large.stat().st_size
    large.unlink()
    return size / 1e9, held.memory / 1e6


def main() -> None:
    """Read the command line, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=0.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        log = Path(name) / "train.log"
        write_log(log, LINES, METRIC_LINES)
        size = log.stat().st_size / 1e6
        print(f"{size:.0f} MB, {LINES} lines, {METRIC_LINES} of them metric lines")
        seconds = speed(log, given.rounds)
        for what, each in seconds.items():
            print(f"{what:22} {each:6.2f} s   {each / seconds['loop']:.2f} x the plain loop")
        if given.gigabytes:
            read, held = memory(given.gigabytes, Path(name))
            print(f"hpcrun parse --json    {read:.1f} GB read, {held:.0f} MB held at most")


if __name__ == "__main__":
    main()
