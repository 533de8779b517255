"""Choose the tracker that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcrun.errors import InputError
from hpcrun.trackers.tracker import Tracker


def make_tracker(
    kind: str, environ: Mapping[str, str], folder: Path | None, cwd: Path, project: str
) -> Tracker:
    """Create a tracker for one run.

    Args:
        kind: "tensorboard", "mlflow", "wandb" or "trackio".
        folder: The folder for local files; None for the tracker's default.

    Raises:
        InputError: The tracker's package is missing, or its destination is unknown.
    """
    if kind == "tensorboard":
        from hpcrun.trackers.tensorboard import TensorboardTracker

        return TensorboardTracker(folder or cwd / "tensorboard")
    if folder is not None and kind == "mlflow":
        raise InputError(
            "--dir is a folder for local files, which MLflow has none of",
            fix="export MLFLOW_TRACKING_URI=..., such as sqlite:////home/ada/mlflow.db",
        )
    if kind == "mlflow":
        from hpcrun.trackers.mlflow import MlflowTracker

        return MlflowTracker(environ, project)
    if kind == "trackio":
        from hpcrun.trackers.trackio import TrackioTracker

        return TrackioTracker(environ, folder, project)
    from hpcrun.trackers.wandb import WandbTracker

    return WandbTracker(environ, folder or cwd, project)
