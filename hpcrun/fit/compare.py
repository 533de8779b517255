"""Other configurations of the same training: what each needs, in order of their cost in speed."""

from __future__ import annotations

from msgspec import Struct, structs

from hpcrun.fit.estimate import Calibration, MemoryEstimate, estimate_memory
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import ModelShape

# Changes of a configuration, the cheapest in speed first, as in docs/memory.md: ZeRO 1 and 2 need
# no more communication than DDP, checkpointing repeats the forward pass, ZeRO 3 gathers parameters
# of each block, and offload moves states over PCIe in each step.
_CHOICES: list[tuple[str, dict[str, object]]] = [
    ("ZeRO-1", {"zero_stage": 1}),
    ("ZeRO-2", {"zero_stage": 2}),
    ("ZeRO-2, checkpointing", {"zero_stage": 2, "checkpointing": True}),
    ("ZeRO-3", {"zero_stage": 3}),
    ("ZeRO-3, checkpointing", {"zero_stage": 3, "checkpointing": True}),
    ("ZeRO-2, optimizer on CPU", {"zero_stage": 2, "offload_optimizer": "cpu"}),
    ("ZeRO-3, optimizer on CPU", {"zero_stage": 3, "offload_optimizer": "cpu"}),
    (
        "ZeRO-2, optimizer on CPU, checkpointing",
        {"zero_stage": 2, "offload_optimizer": "cpu", "checkpointing": True},
    ),
    (
        "ZeRO-3, optimizer on CPU, checkpointing",
        {"zero_stage": 3, "offload_optimizer": "cpu", "checkpointing": True},
    ),
    (
        "ZeRO-3, optimizer and parameters on CPU, checkpointing",
        {
            "zero_stage": 3,
            "offload_optimizer": "cpu",
            "offload_param": "cpu",
            "checkpointing": True,
        },
    ),
]


class Candidate(Struct, frozen=True):
    """A configuration and its memory."""

    name: str
    training: Training
    estimate: MemoryEstimate


def list_candidates(
    shape: ModelShape, training: Training, calibration: Calibration | None = None
) -> list[Candidate]:
    """Estimate other configurations of a training, the fastest first.

    A calibration applies to those with the same checkpointing of activations.

    >>> model = ModelShape(given_parameters=7_000_000_000)
    >>> names = [each.name for each in list_candidates(model, Training(gpus=4))]
    >>> names[:2], len(names)
    (['DDP', 'ZeRO-1'], 11)
    """
    fixed = {"offload_optimizer": "none", "offload_param": "none", "checkpointing": False}
    weights = "master" if training.width == 2 else "pure"
    rows: list[tuple[str, dict[str, object]]] = [("DDP", {"strategy": "ddp", "zero_stage": 0})]
    if training.strategy == "zero":
        rows = [("ZeRO-0", {"zero_stage": 0})]
    for name, changes in _CHOICES:
        rows.append((name, {"strategy": "zero", "weights": weights, **changes}))
    if shape.traced is not None:  # its activations are those of the traced setting only
        fixed["checkpointing"] = training.checkpointing
        plain = [(name.removesuffix(", checkpointing"), changes) for name, changes in rows]
        rows = [
            (name, {key: value for key, value in changes.items() if key != "checkpointing"})
            for name, changes in dict(plain).items()
        ]
    found = []
    for name, changes in rows:
        changed = structs.replace(training, **{**fixed, **changes})
        is_same = changed.checkpointing == training.checkpointing
        estimate = estimate_memory(shape, changed, calibration if is_same else None)
        found.append(Candidate(name, changed, estimate))
    return found


def list_sizes(training: Training) -> list[Training]:
    """Return the same training on other numbers of GPUs, from a quarter to four times its own.

    The micro batch of each GPU remains the same. One GPU is compared with up to eight in one node.

    >>> [(each.gpus, each.gpus_per_node) for each in list_sizes(Training(gpus=8, gpus_per_node=4))]
    [(2, 2), (4, 4), (8, 4), (16, 4), (32, 4)]
    >>> [each.gpus for each in list_sizes(Training())]
    [1, 2, 4, 8]
    """
    gpus = training.gpus
    per_node = 8 if gpus == 1 else training.gpus_per_node
    fewer = [gpus // part for part in (4, 2) if gpus % part == 0]
    counts = [*fewer, gpus, 2 * gpus, 4 * gpus] if gpus > 1 else [1, 2, 4, 8]
    return [
        structs.replace(training, gpus=count, gpus_per_node=min(count, per_node))
        for count in counts
        if count <= per_node or count % per_node == 0
    ]


def describe_training(training: Training) -> list[tuple[str, str]]:
    """Describe the settings of a training in a few lines.

    >>> dict(describe_training(Training(strategy="zero", zero_stage=2, weights="master", gpus=4)))
    {'sharding': 'ZeRO-2 on 4 GPUs', 'precision': 'bf16, fp32 master weights', 'batch': '1 per GPU'}
    """
    name = f"ZeRO-{training.zero_stage}" if training.strategy == "zero" else training.strategy
    name = {"ddp": "none (DDP)", "fsdp": "FSDP2"}.get(name, name)
    if training.gpus == 1:
        name += " on 1 GPU"
    else:
        name += f" on {training.gpus} GPUs"
    moved = [
        f"{what} on {place}"
        for what, place in (
            ("optimizer", training.offload_optimizer),
            ("parameters", training.offload_param),
        )
        if place != "none"
    ]
    weights = {"master": "fp32 master weights", "autocast": "fp32 weights, autocast", "pure": ""}
    precision = training.precision
    if precision != "fp32" and weights[training.weights]:
        precision += f", {weights[training.weights]}"  # type: ignore[assignment]
    batch = f"{training.micro_batch} per GPU"
    if training.sequence:
        batch += f" x {training.sequence} tokens"
    if training.accumulation > 1:
        batch += f", {training.accumulation} accumulated"
    if training.checkpointing:
        batch += ", activation checkpointing"
    if training.keeps_gradients and training.strategy != "zero":
        batch += ", gradients kept between steps"
    if training.attention == "eager":
        batch += ", eager attention"
    return [("sharding", ", ".join([name, *moved])), ("precision", precision), ("batch", batch)]
