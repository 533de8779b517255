"""Measure the speed of `hpcrun parse`, compared with a simple loop, and its memory.

    python -m bench.parse                 the values in the README; takes some minutes
 python -m bench.parse --share 0.1     the same with logs a tenth as long, for everyday use
 python -m bench.parse --one-core      restricted to one core
 python -m bench.parse --gigabytes 10  also measure memory for a log of that size

There are two logs, to avoid tuning to a single one: one of noise with one metric line in eight, and
one with metrics in every line. Each value is the median of whole processes that alternate with
those compared, with the log in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench.make_log import A_STEP, write_dense_log, write_log
from bench.measure import measure

PLAIN_LOOP = str(Path(__file__).parent / "plain_loop.py")
LINES, METRIC_LINES, BYTES_A_LINE = 2_400_000, 300_000, 150


def speed(log: Path, rounds: int, points: int) -> dict[str, float]:
    """Measure the whole command and the plain loop alternately, in seconds."""
    ours = [sys.executable, "-m", "hpcrun", "parse", str(log)]
    answer = json.loads(measure([*ours, "--json"]).output)
    assert answer["runs"][0]["points"] == points, answer["runs"][0]["points"]
    seconds: dict[str, list[float]] = {"hpcrun parse": [], "hpcrun parse --json": [], "loop": []}
    for _ in range(rounds):
        seconds["loop"].append(measure([sys.executable, PLAIN_LOOP, str(log)]).seconds)
        seconds["hpcrun parse"].append(measure(ours).seconds)
        seconds["hpcrun parse --json"].append(measure([*ours, "--json"]).seconds)
    return {name: statistics.median(each) for name, each in seconds.items()}


def memory(gigabytes: float, folder: Path) -> tuple[float, float]:
    """Parse a log of a size; return GB read and the peak memory of all processes in MB."""
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
    parser.add_argument("--share", type=float, default=1.0, help="of the length of the logs")
    parser.add_argument("--one-core", action="store_true")
    given = parser.parse_args()
    if given.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lines, metric_lines = int(LINES * given.share), int(METRIC_LINES * given.share)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        log, dense = Path(name) / "train.log", Path(name) / "dense.log"
        write_log(log, lines, metric_lines)
        write_dense_log(dense, lines)
        for path, measured, points in (
            (log, metric_lines, metric_lines),
            (dense, lines, lines // A_STEP),
        ):
            size = path.stat().st_size / 1e6
            print(f"{size:.0f} MB, {lines} lines, {measured} of them metric lines")
            seconds = speed(path, given.rounds, points)
            for what, each in seconds.items():
                print(f"{what:22} {each:6.2f} s   {each / seconds['loop']:.2f} x the plain loop")
        if given.gigabytes:
            read, held = memory(given.gigabytes, Path(name))
            print(f"hpcrun parse --json    {read:.1f} GB read, {held:.0f} MB held at most")


if __name__ == "__main__":
    main()
