"""A real Slurm on this machine, without root, for testing jobs."""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
