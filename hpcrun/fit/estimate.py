"""The memory of a training: per GPU and per node, by part."""

from __future__ import annotations

import math

from msgspec import Struct, structs

from hpcrun.fit.activations import compute_activations, scale_activations
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import ModelShape
from hpcrun.fit.states import compute_states
from hpcrun.text import GIB

# Outside of torch's allocator: the CUDA context with the kernels of torch, cuBLAS and cuDNN, 0.5 to
# 1.5 GB depending on GPU and driver, and NCCL's channel buffers with more than one GPU
# (NVIDIA/nccl issue 864 reports 1.6 GB for one communicator on a large node).
CONTEXT_BYTES = 0.8 * GIB
NCCL_BYTES = 0.6 * GIB
# Host memory of a rank with CUDA's libraries: 0.4 to 2.0 GB (pytorch/pytorch issue 113326, measured
# with /usr/bin/time -v). torch, transformers and DeepSpeed without CUDA are 0.5 GB of it.
PROCESS_BYTES = 2 * GIB
# Memory that a forked process of the data loader does not share with its rank, without batches and
# copies of Python objects of the dataset: 10 MB in torch 2.13 after 20 batches.
WORKER_BYTES = 0.05 * GIB
# Numbers of 8 bytes for each token: input_ids, attention_mask and labels
# (transformers/data/data_collator.py).
_TOKEN_BYTES = 3 * 8
# Memory that torch's allocator reserves but cannot use, relative to what it allocated.
FRAGMENTATION = 0.05


class Part(Struct, frozen=True):
    """One part of the memory, in bytes: at the moment of the peak, and the most at any moment."""

    name: str
    bytes: float
    most: float = 0


class Calibration(Struct, frozen=True, kw_only=True):
    """What a measured training says about estimates of the same model on the same cluster.

    Attributes:
        run_id: The run that was measured.
        activations: Measured activations relative to computed ones; None if unknown.
        fragmentation: Memory that was reserved but not allocated, relative to what was allocated.
        outside: Bytes of a GPU outside of torch's allocator.
        has_peers: The run had several GPUs, so NCCL's buffers are among them.
    """

    run_id: str
    activations: float | None
    fragmentation: float
    outside: float
    has_peers: bool


class MemoryEstimate(Struct, frozen=True, kw_only=True):
    """The estimated memory of a training.

    Attributes:
        parts: Parts of the memory of one GPU at the moment of its peak, and those that exist only
            at other moments, with no bytes.
        moment: The moment of the peak: ``backward`` or ``step``.
        allocated: Bytes that torch allocates: all parts but context, NCCL and fragmentation.
        total: Bytes of one GPU.
        states: Bytes of model states alone, at their own peak.
        has_activations: False if the dimensions or the sequence length are unknown.
        host: Parts of the host memory of one node.
        host_states: Bytes of the model states among them, without rounding.
        host_loading: Host memory of one node while each rank loads the whole model.
        notes: Assumptions.
        is_comparable: False if the job has settings that are not modelled, or the number of
            parameters is uncertain.
    """

    parameters: int
    trainable: int
    parts: list[Part]
    moment: str
    allocated: float
    total: float
    states: float
    has_activations: bool
    host: list[Part]
    host_states: float
    host_loading: float
    notes: list[str]
    is_comparable: bool = True

    @property
    def host_total(self) -> float:
        """Return the bytes of host memory of one node."""
        return sum(part.bytes for part in self.host)


def _describe_calibration(calibration: Calibration) -> str:
    """Describe which numbers a measured run replaced."""
    text = f"calibrated with {calibration.run_id}: "
    if calibration.activations is not None:
        text += f"activations x {calibration.activations:.2f}, "
    text += f"fragmentation {calibration.fragmentation:.0%}, "
    return f"{text}{calibration.outside / GIB:.1f} GiB outside of torch"


def _compute_other_host_memory(
    shape: ModelShape, training: Training, pinned: list[float]
) -> dict[str, float]:
    """Compute the host memory of one rank besides model states, by part.

    torch rounds page-locked memory up to a power of two (ATen/core/CachingHostAllocator.h,
    allocate). Each process of the data loader has prefetch_factor batches
    (torch/utils/data/dataloader.py, _MultiProcessingDataLoaderIter._reset).
    """
    found = {}
    if rounding := sum(2 ** math.ceil(math.log2(size)) - size for size in pinned if size):
        found["rounding of pinned memory"] = rounding
    if training.loader_workers:
        sample = 4.0 * shape.sample_numbers or float(_TOKEN_BYTES * (training.sequence or 0))
        batches = training.loader_prefetch * training.micro_batch * sample
        found["data loader"] = training.loader_workers * (WORKER_BYTES + batches)
    return {**found, "processes": PROCESS_BYTES}


def _constant(name: str, size: float) -> Part:
    return Part(name, size, size)


def estimate_memory(
    shape: ModelShape, training: Training, calibration: Calibration | None = None
) -> MemoryEstimate:
    """Estimate the memory of one GPU and of one node.

    The peak is the larger of two moments: the start of the backward pass, when all activations and
    the logits exist, and with accumulation the gradients of earlier passes; and the end of the
    backward pass or the step of the optimizer, without activations. Gradients that the training
    keeps from one step to the next exist at each moment.
    """
    states = compute_states(shape, training)
    found = compute_activations(shape, training)
    if found is not None and calibration is not None and calibration.activations is not None:
        found = scale_activations(found, calibration.activations)
    activations = logits = transient = at_end = in_step = 0.0
    if found is not None:
        activations, logits = found.kept + found.weight_copies, found.logits
        transient, at_end = found.transient, found.at_end
    if shape.traced is not None and training.strategy != "zero":
        in_step = float(shape.traced.in_step)
        if training.strategy == "fsdp":
            in_step /= training.gpus
    persistent = [
        Part("parameters", states.parameters + states.live),
        Part("master weights", states.master),
        Part("optimizer", states.optimizer),
    ]
    # Gradients of earlier passes or of the previous step, or buffers that exist all the time.
    early = 0.0
    if training.accumulation > 1:
        early = states.gradients + states.staging
    elif training.zero_stage == 3 if training.strategy == "zero" else training.keeps_gradients:
        early = states.gradients
    moments = {
        "backward": [
            *persistent,
            Part("gradients", early),
            Part("buckets", states.buckets + states.transfer),
            Part("activations", activations + (0 if logits > transient else transient)),
            Part("logits and loss", logits if logits > transient else 0),
        ],
        "end of backward": [
            *persistent,
            Part("gradients", states.gradients + states.staging),
            Part("buckets", states.buckets + states.transfer),
            Part("activations", at_end),
            Part("logits and loss", 0),
        ],
        "step": [
            Part("parameters", states.parameters),
            *persistent[1:],
            Part("gradients", states.step_gradients),
            Part("buckets", states.step_buckets + states.transfer),
            Part("activations", shape.traced.at_end if shape.traced is not None else 0),
            Part("logits and loss", 0),
            Part("temporary", in_step),
        ],
    }
    moment = max(moments, key=lambda name: sum(part.bytes for part in moments[name]))
    most = {
        name: max(part.bytes for parts in moments.values() for part in parts if part.name == name)
        for name in {part.name for parts in moments.values() for part in parts}
    }
    parts = [structs.replace(part, most=most.pop(part.name)) for part in moments[moment]]
    parts += [Part(name, 0, size) for name, size in sorted(most.items()) if size]
    allocated = sum(part.bytes for part in parts)
    fragmentation, outside = FRAGMENTATION, CONTEXT_BYTES
    outside += NCCL_BYTES if training.gpus > 1 else 0
    if calibration is not None:
        fragmentation = calibration.fragmentation
        if calibration.has_peers == (training.gpus > 1):
            outside = calibration.outside
    parts = [
        *parts,
        _constant("fragmentation", allocated * fragmentation),
        _constant("CUDA and NCCL", outside),
    ]
    per_node = min(training.gpus, training.gpus_per_node)
    host = {**states.host, **_compute_other_host_memory(shape, training, states.pinned)}
    notes = [*shape.notes, *training.unknown]
    if shape.positions and (training.sequence or 0) > shape.positions:
        notes.append(
            f"a sequence of {training.sequence} is longer than the {shape.positions} positions "
            "that the model has"
        )
    if calibration is not None:
        notes.append(_describe_calibration(calibration))
    if found is None:
        what = "layers and width of the model are unknown"
        if shape.stacks:
            what = "the sequence length or the batch per GPU is unknown"
        notes.append(f"activations are not included: {what}")
    return MemoryEstimate(
        parameters=shape.parameters,
        trainable=shape.parameters if training.trainable is None else training.trainable,
        parts=parts,
        moment=moment,
        allocated=allocated,
        total=sum(part.bytes for part in parts),
        states=max(states.in_backward, states.in_step),
        has_activations=found is not None,
        host=[Part(name, size * per_node) for name, size in host.items()],
        host_states=sum(states.host.values()) * per_node,
        host_loading=shape.parameters * training.weight_bytes * per_node,
        notes=notes,
        is_comparable=not training.unknown and shape.is_counted,
    )
