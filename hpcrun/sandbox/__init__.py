"""A real Slurm on this machine, without root, to try jobs on."""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
