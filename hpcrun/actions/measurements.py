"""Measurements of `hpcrun fit JOB --measure` in a cluster's cache, and what they calibrate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.context import Context
from hpcrun.fit import Calibration, ModelShape, Training
from hpcrun.runs import read_record, write_record

_FOLDER = "measurements"
# The newest ones that are read.
_MAX_RECORDS = 100


class RankMeasurement(Struct, frozen=True, kw_only=True):
    """The record of hpcrun/workloads/measure_step.py; sizes are in bytes, None without a GPU.

    Attributes:
        error: Why the script ended before the last step; "" if it did not.
        seconds: The time until the end of the first step, and that of each later one.
        host_peak: The peak of the process's resident memory.
        parts: Tensors by role.
        outside: Memory of the GPU outside of torch's allocator.
    """

    rank: int
    host: str = ""
    error: str = ""
    seconds: list[float] = []
    host_peak: int | None = None
    parts: dict[str, int] = {}
    torch: str = ""
    gpu: str = ""
    gpu_memory: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    outside: int | None = None

    @property
    def total(self) -> int | None:
        """Return the peak of the GPU's memory."""
        return None if self.peak_reserved is None else self.peak_reserved + (self.outside or 0)


class NodePeak(Struct, frozen=True, kw_only=True):
    """The peaks of a node: host memory of the job's control group, samples of nvidia-smi."""

    node: str
    host_peak: int | None
    gpu_peaks: list[int]


class Measurement(Struct, frozen=True, kw_only=True):
    """Some steps of a job that were measured on its cluster.

    Attributes:
        at: The time of the measurement, in seconds since the epoch.
        spec: The job that was measured.
        size: The number of its GPUs, or of its nodes without GPUs.
        unit: "GPU" or "node".
        steps: The steps that all measured ranks made.
        seconds_per_step: Those of the slowest rank, without the first step; None if unknown.
        total_steps: The steps of the whole training by the log; None if unknown.
        refused: Files that the script was not allowed to change.
        shape: The model; None if unknown.
        calibration: What it says about other estimates; None without a GPU.
    """

    run_id: str
    at: float
    spec: str
    size: int
    unit: str
    world_size: int
    effective_batch: int | None
    partition: str | None
    steps: int
    seconds_per_step: float | None
    total_steps: int | None
    ranks: list[RankMeasurement]
    nodes: list[NodePeak]
    refused: list[str] = []
    shape: ModelShape | None = None
    training: Training | None = None
    calibration: Calibration | None = None


def record_measurement(context: Context, measurement: Measurement) -> None:
    """Keep a measurement in the cluster's cache."""
    folder = context.cache_dir / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder / f"{measurement.run_id}.json", measurement)


def list_measurements(cache_dir: Path) -> Iterator[Measurement]:
    """Yield the measurements of a cluster, the newest first."""
    names: list[Path] = []
    with contextlib.suppress(OSError):  # there are none
        # Run ids begin with the time.
        names = sorted((cache_dir / _FOLDER).iterdir(), reverse=True)
    for path in [each for each in names if each.suffix == ".json"][:_MAX_RECORDS]:
        measurement = read_record(path, Measurement)
        if measurement is not None:
            yield measurement


def find_calibration(
    cache_dir: Path | None, shape: ModelShape, training: Training
) -> Calibration | None:
    """Find the newest measurement of the same model with the same kind of training.

    Sharding, offload, the numbers of GPUs and samples and the length may differ: what they change
    is computed.
    """
    for each in list_measurements(cache_dir) if cache_dir is not None else ():
        if each.calibration is None or each.shape is None or each.training is None:
            continue
        is_same_model = structs.replace(each.shape, notes=[]) == structs.replace(shape, notes=[])
        if is_same_model and _training_kind(each.training) == _training_kind(training):
            return each.calibration
    return None


def _training_kind(training: Training) -> tuple[object, ...]:
    """Return the settings on which activations depend beyond what is computed."""
    return (
        *(training.precision, training.weights, training.attention),
        *(training.checkpointing, training.trainable, training.keeps_gradients),
    )
