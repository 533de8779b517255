"""The state of jobs: which jobs a word names, what Slurm and their records say of them, polling."""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
