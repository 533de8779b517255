"""Takes one figure after the other on a site; one that fails is a row that says why."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bench.rows import Row, failed
from bench.site import Site, failure

# name -> what measures it, given a site and a number of rounds; the queue is empty before and
# after each.
Figures = Mapping[str, Callable[[Site, int], Row | Sequence[Row]]]


def measure_all(figures: Figures, site: Site, rounds: int) -> list[Row]:
    """Take all figures; say on stderr how long each took."""
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
