"""Experiment trackers that receive the metrics of runs: TensorBoard, MLflow and W&B.

Each module imports its tracker's own client where it is used. Knows neither Slurm nor run folders.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
