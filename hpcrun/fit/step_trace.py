"""What the trace of a script's training step measured, and its shape and settings."""

from __future__ import annotations

from msgspec import Struct, structs

from hpcrun.fit.settings import OPTIMIZER_BYTES, Precision, Training, Weights
from hpcrun.fit.shape import ModelShape, TracedActivations


class StepTrace(Struct, frozen=True, kw_only=True):
    """The report of ``hpcrun/workloads/trace_step.py``, in bytes and numbers of elements.

    Attributes:
        steps: Traced steps of the optimizer; one if the script ended before the second.
        error: Why the script ended after its first step; "" if both were traced.
        strategy: The wrapper of the model: ``deepspeed``, ``ddp``, ``fsdp`` or ``none``.
        autocast: The format of torch.autocast; "" without.
        activations: What is live when the backward pass starts, without states of the model.
        peak: The maximum of that before the optimizer's step.
        at_end: The same when all gradients exist.
        keeps_gradients: Gradients of the first step existed when the second one started.
        step_temporary: The maximum that the optimizer's step adds.
    """

    steps: int
    trained: int
    frozen: int
    frozen_bytes: int
    gradient_bytes: int
    optimizer: str
    optimizer_bytes: int
    activations: int
    peak: int
    at_end: int
    step_temporary: int
    largest_parameter: int
    largest_layer: int
    trained_formats: dict[str, int] = {}
    strategy: str = "none"
    autocast: str = ""
    checkpointing: bool = False
    keeps_gradients: bool = False
    error: str = ""
    notes: list[str] = []


# Optimizers by the names of hpcrun; with ZeRO, others are computed like the one of the job.
_OPTIMIZERS = {"SGD": "sgd", "Lion": "lion", "Adafactor": "adafactor", "Muon": "muon"}


def build_traced_shape(trace: StepTrace, name: str) -> ModelShape:
    """Build the shape of a traced model.

    >>> trace = StepTrace(steps=2, trained=10, frozen=5, frozen_bytes=10, gradient_bytes=40,
    ...     optimizer="AdamW", optimizer_bytes=80, activations=100, peak=120, at_end=20,
    ...     step_temporary=40, largest_parameter=4, largest_layer=8)
    >>> shape = build_traced_shape(trace, "train.py")
    >>> shape.parameters, shape.largest_layer, shape.traced.peak
    (15, 8, 120)
    """
    notes = list(trace.notes)
    if trace.error:
        notes.append(f"only the first step was traced; the second failed: {trace.error}")
    elif trace.steps == 1:
        notes.append("only one step was traced: the script ended after it")
    return ModelShape(
        name=name,
        given_parameters=trace.trained + trace.frozen,
        given_layer=trace.largest_layer,
        given_tensor=trace.largest_parameter,
        traced=TracedActivations(
            kept=trace.activations,
            peak=max(trace.peak, trace.activations),
            at_end=trace.at_end,
            in_step=trace.step_temporary,
        ),
        notes=notes,
    )


def apply_trace(training: Training, trace: StepTrace) -> Training:
    """Replace the settings of a job by those that the trace found.

    With DeepSpeed, formats and the optimizer remain those of its configuration.
    """
    half: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}
    main = max(trace.trained_formats, key=trace.trained_formats.__getitem__, default="float32")
    precision: Precision = half.get(main) or half.get(trace.autocast) or "fp32"
    weights: Weights = "pure"
    if main == "float32" and precision != "fp32":
        weights = "autocast"
    changes: dict[str, object] = {"precision": precision, "weights": weights}
    if training.strategy == "zero":
        changes = {} if training.weights == "master" else changes
    else:
        changes["state_bytes"] = trace.optimizer_bytes / max(trace.trained, 1)
        changes["strategy"] = "fsdp" if trace.strategy == "fsdp" else "ddp"
    optimizer = _OPTIMIZERS.get(trace.optimizer, training.optimizer)
    if trace.optimizer == "SGD" and trace.optimizer_bytes:
        optimizer = "momentum"
    assert optimizer in OPTIMIZER_BYTES
    return structs.replace(
        training,
        **changes,
        optimizer=optimizer,
        trainable=trace.trained,
        frozen_bytes=trace.frozen_bytes / trace.frozen if trace.frozen else None,
        checkpointing=trace.checkpointing,
        keeps_gradients=trace.keeps_gradients,
    )
