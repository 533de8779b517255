"""Measure how long starting the sandbox with two nodes takes."""

from __future__ import annotations

import statistics
import time

from bench.rows import Row
from bench.site import Site


def measure_up(site: Site, rounds: int) -> Row:
    """Start a second sandbox until it can start jobs, then stop it; repeat."""
    env = site.env | {"HPCRUN_SANDBOX_DIR": str(site.folder / "up")}
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        site.call(site.hpcrun, "sandbox", "up", "--nodes", "2", env=env)
        seconds.append(time.perf_counter() - began)
        site.call(site.hpcrun, "sandbox", "down", env=env)
    return Row(
        "sandbox",
        "hpcrun sandbox up, two nodes",
        "s",
        statistics.median(seconds),
        bar=8,
        goal=4,
        notes=[f"from {min(seconds):.2f} to {max(seconds):.2f} s, {rounds} times"],
    )
