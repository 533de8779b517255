"""The answer of squeue when there are no jobs."""

from __future__ import annotations

# A working squeue prints column names even without jobs.
HEADED = ("--me --format=%i", "JOBID\n")
