"""Measure the peak memory of commands under the strict limits of a login node."""

from __future__ import annotations

import os
import subprocess

from bench.rows import Row
from bench.site import Site

VERBS = {
    "submit": ("submit", "--", "bash", "-c", "true"),
    "status": ("status",),
    "parse": ("parse", "limits.log"),
}


def measure_limits(site: Site) -> list[Row]:
    """Run commands under `ulimit -v 1000000` (kB of address space); return their peak memory."""
    lines = [f"step {step} loss {3 - step / 50000:.4f}\n" for step in range(100_000)]
    (site.project / "limits.log").write_text("".join(lines))
    held = {}
    for name, words in VERBS.items():
        process = subprocess.Popen(
            ["bash", "-c", 'ulimit -v 1000000; exec "$@"', "-", site.hpcrun, *words],
            env=site.env | {"OPENBLAS_NUM_THREADS": "1"},
            cwd=site.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        stderr = process.stderr.read()
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            raise RuntimeError(f"{name} under ulimit -v 1000000: {stderr[-300:]!r}")
        held[name] = usage.ru_maxrss / 1024
    site.clear_queue()
    return [
        Row(
            "memory",
            "most memory held, under ulimit -v 1000000 (kB)",
            "MiB",
            max(held.values()),
            notes=[", ".join(f"{name} {size:.0f} MiB" for name, size in held.items())],
        )
    ]
