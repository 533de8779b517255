"""Measure the speed of the everyday commands, compared with alternatives; print one table.

    python -m bench                    all benchmarks; takes about five minutes
 python -m bench --only submit up   only these
 python -m bench --json             print JSON

`make bench` installs hpcrun and the alternatives in .venv-bench. Compared commands run alternately,
as whole processes; a ratio is the median of the ratios of all rounds.
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench.figures import Figures, measure_all
from bench.following import measure_following
from bench.limits import measure_limits
from bench.overhead import measure_overhead
from bench.rows import report
from bench.site import PEERS, make_site
from bench.start import measure_help
from bench.status import measure_status
from bench.submit import measure_submit
from bench.up import measure_up

FIGURES: Figures = {
    "help": lambda site, rounds: measure_help(site, 2 * rounds),
    "up": lambda site, rounds: measure_up(site, max(rounds // 3, 3)),
    "submit": lambda site, rounds: measure_submit(site, rounds),
    "overhead": lambda site, rounds: measure_overhead(site, rounds + rounds // 3),
    "follow": lambda site, rounds: measure_following(site, 60.0 if rounds >= 5 else 15.0),
    "status": lambda site, rounds: measure_status(site, rounds),
    "limits": lambda site, _: measure_limits(site),
}


def main() -> int:
    """Read the command line, measure, print the table; return 1 if a value exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="FIGURE", default=[])
    parser.add_argument("--rounds", type=int, default=15, help="of the ratios; 15")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (PEERS / "bin" / "hpcrun").exists():
        print(f"{PEERS}: not there; make bench installs it", file=sys.stderr)
        return 2
    # Stop what was started, and the sandbox, on each of these signals; nohup and ``&`` ignore some.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with make_site() as site:
        asked = {name: FIGURES[name] for name in FIGURES if name in (given.only or FIGURES)}
        rows = measure_all(asked, site, given.rounds)
    return report(rows, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
