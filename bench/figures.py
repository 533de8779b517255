"""Run benchmarks one after the other on a site; a failing one becomes a row with the reason."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bench.rows import Row, failed
from bench.site import Site, failure

# Name of each benchmark, and the function that runs it for a site and a number of rounds. The queue
# is empty before and after each.
Figures = Mapping[str, Callable[[Site, int], Row | Sequence[Row]]]


def measure_all(figures: Figures, site: Site, rounds: int) -> list[Row]:
    """Run all benchmarks; print the duration of each to stderr."""
    rows: list[Row] = []
    for name, measure in figures.items():
        began = time.monotonic()
        try:
            found = measure(site, rounds)
        except subprocess.CalledProcessError as error:
            found = failed(name, name, failure(error))
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            found = failed(name, name, f"{type(error).__name__}: {error}")
        rows += [found] if isinstance(found, Row) else found
        print(f"{name}: measured in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows
