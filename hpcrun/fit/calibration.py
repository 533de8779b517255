"""Calibrate estimates by the measured memory of a training of the same model."""

from __future__ import annotations

from msgspec import Struct

from hpcrun.fit.estimate import Calibration, estimate_memory
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import ModelShape

# With a factor beyond these, the script does not train what the estimate assumes.
_LEAST_FACTOR, _MOST_FACTOR = 0.2, 5.0
# A measured value within this share of the computed one confirms it.
_TOLERANCE = 0.01


class MeasuredMemory(Struct, frozen=True, kw_only=True):
    """The peak of one GPU, in bytes: in tensors, reserved by torch, and outside of torch."""

    allocated: float
    reserved: float
    outside: float


def compute_calibration(
    shape: ModelShape, training: Training, measured: MeasuredMemory, run_id: str
) -> Calibration | None:
    """Compute how a measurement corrects estimates; None if it contradicts the settings.

    Model states are exact (tests/fit/test_states.py), so the difference to what torch allocated is
    attributed to the activations, which are scaled until the computed peak is the measured one.

    >>> shape = ModelShape(given_parameters=1000)
    >>> memory = MeasuredMemory(allocated=16000, reserved=17600, outside=500)
    >>> found = compute_calibration(shape, Training(precision="fp32", weights="pure"), memory, "r")
    >>> found.activations, round(found.fragmentation, 3), found.outside
    (None, 0.1, 500)
    """

    def build(factor: float | None) -> Calibration:
        return Calibration(
            run_id=run_id,
            activations=factor,
            fragmentation=max(measured.reserved / measured.allocated - 1, 0.0),
            outside=measured.outside,
            has_peers=training.gpus > 1,
        )

    def compute(factor: float) -> float:
        return estimate_memory(shape, training, build(factor)).allocated

    if measured.allocated <= 0:
        return None
    estimate = estimate_memory(shape, training)
    if not estimate.has_activations:
        return build(None)
    if abs(estimate.allocated / measured.allocated - 1) <= _TOLERANCE:
        return build(1.0)
    low, high = _LEAST_FACTOR, _MOST_FACTOR
    if not compute(low) < measured.allocated < compute(high):
        return None
    while high - low > 0.001:
        middle = (low + high) / 2
        low, high = (middle, high) if compute(middle) < measured.allocated else (low, middle)
    return build(round(high, 3))
