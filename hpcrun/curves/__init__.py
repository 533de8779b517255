"""From the bytes of any training log to a curve, and from curves to reports.

Knows neither Slurm nor runs. Everything but `read_log` and the writers in `report` is pure.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
