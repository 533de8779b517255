"""Memory of model states: parameters, gradients, optimizer states and communication buffers."""

from __future__ import annotations

from msgspec import Struct

from hpcrun.fit.settings import OPTIMIZER_BYTES, Training
from hpcrun.fit.shape import ModelShape

# Elements of a bucket in which the engine reduces gradients (deepspeed/runtime/engine.py,
# MEMORY_OPT_ALLREDUCE_SIZE).
_ENGINE_BUCKET = 500_000_000


class States(Struct, kw_only=True):
    """Bytes of the model states of one rank, on its GPU and in host memory.

    Attributes:
        gradients: Gradients at the end of the backward pass, as the optimizer will read them.
        staging: Further gradients during the backward pass.
        step_gradients: Gradients in the format of the master weights, during the step only.
        buckets: Communication buffers during the backward pass.
        live: Parameters that are gathered at one time.
        transfer: A buffer for copies between host and GPU.
        host: Bytes in host memory, by part.
        pinned: Bytes of each page-locked tensor among them.
    """

    parameters: float = 0
    master: float = 0
    optimizer: float = 0
    gradients: float = 0
    staging: float = 0
    step_gradients: float = 0
    buckets: float = 0
    step_buckets: float = 0
    live: float = 0
    transfer: float = 0
    host: dict[str, float] = {}
    pinned: list[float] = []

    @property
    def in_backward(self) -> float:
        """Return the bytes on the GPU at the end of the backward pass."""
        persistent = self.parameters + self.master + self.optimizer + self.transfer
        return persistent + self.gradients + self.staging + self.buckets + self.live

    @property
    def in_step(self) -> float:
        """Return the bytes on the GPU during the optimizer's step."""
        persistent = self.parameters + self.master + self.optimizer + self.transfer
        return persistent + self.step_gradients + self.step_buckets


def compute_states(shape: ModelShape, training: Training) -> States:
    """Compute the model states of one rank.

    The sums of 16 bytes per parameter and their division by the ranks are those of ZeRO
    (Rajbhandari et al., arXiv 1910.02054, section 5). The functions of the strategies name the code
    that allocates and frees each tensor.

    >>> model = ModelShape(given_parameters=7_500_000_000)
    >>> zero = {"strategy": "zero", "weights": "master", "gpus": 64, "reduce_bucket": 0}
    >>> for stage in (1, 2, 3):
    ...     states = compute_states(model, Training(zero_stage=stage, prefetch_bucket=0, **zero))
    ...     gradients = states.gradients + states.staging
    ...     kept = states.parameters + gradients + states.master + states.optimizer
    ...     print(f"{kept / 1e9:.1f} GB")
    31.4 GB
    16.6 GB
    1.9 GB
    """
    if training.strategy == "zero":
        return _STAGES[training.zero_stage](shape, training)
    return _fsdp(shape, training) if training.strategy == "fsdp" else _ddp(shape, training)


def _counts(shape: ModelShape, training: Training) -> tuple[float, float]:
    """Return the numbers of trained and of frozen parameters."""
    trained = shape.parameters if training.trainable is None else training.trainable
    return trained, shape.parameters - trained


def _frozen(shape: ModelShape, training: Training) -> float:
    """Return the bytes of all frozen parameters."""
    each = training.frozen_bytes
    return _counts(shape, training)[1] * (training.weight_bytes if each is None else each)


def _state_bytes(training: Training) -> float:
    """Return the bytes of optimizer states per parameter; they have the format of their weights.

    States of 8 bits are the same for weights of each format (bitsandbytes/optim/optimizer.py,
    get_state_buffer).
    """
    if training.state_bytes is not None:
        return training.state_bytes
    is_half = training.weights == "pure" and training.width == 2
    follows_weights = training.optimizer != "adamw_8bit"
    return OPTIMIZER_BYTES[training.optimizer] / (2 if is_half and follows_weights else 1)


def _ddp(shape: ModelShape, training: Training) -> States:
    """Compute the states without sharding.

    The reducer's buckets are a second copy of the gradients unless gradient_as_bucket_view is set
    (torch/nn/parallel/distributed.py, docstring of DistributedDataParallel).
    """
    trained, _ = _counts(shape, training)
    gradients = trained * training.weight_bytes
    return States(
        parameters=gradients + _frozen(shape, training),
        gradients=gradients,
        step_gradients=gradients,
        optimizer=trained * _state_bytes(training),
        buckets=gradients if training.gpus > 1 else 0,
        step_buckets=gradients if training.gpus > 1 else 0,
    )


def _fsdp(shape: ModelShape, training: Training) -> States:
    """Compute the states of FSDP2, which shards all of them.

    Two groups (blocks) of parameters are gathered at a time, the current and the prefetched one,
    and the gradients of one group are not yet reduced
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: unshard, post_backward). With
    autocast, that is MixedPrecisionPolicy(param_dtype), the gathered copies have 16 bits.
    """
    trained, _ = _counts(shape, training)
    shard = trained * training.weight_bytes / training.gpus
    block = shape.largest_layer * training.width
    return States(
        parameters=shard + _frozen(shape, training) / training.gpus,
        gradients=shard,
        step_gradients=shard,
        optimizer=trained * _state_bytes(training) / training.gpus,
        live=2 * block if training.gpus > 1 else 0,
        buckets=2 * block if training.gpus > 1 else 0,
    )


def _stage_0(shape: ModelShape, training: Training) -> States:
    """Compute the states of DeepSpeed without ZeRO.

    In 16 bits the optimizer has flat fp32 copies, and the step converts all gradients to fp32
    (deepspeed/runtime/fp16/fused_optimizer.py: __init__ and step; in bf16 unfused_optimizer.py does
    the same). The engine reduces gradients in flattened buckets of 5e8 elements
    (deepspeed/runtime/engine.py, buffered_allreduce_fallback).
    """
    trained, _ = _counts(shape, training)
    gradients = trained * training.weight_bytes
    is_half = training.width == 2
    return States(
        parameters=gradients + _frozen(shape, training),
        master=trained * 4 if is_half else 0,
        optimizer=trained * OPTIMIZER_BYTES[training.optimizer],
        gradients=gradients,
        step_gradients=gradients + (trained * 4 if is_half else 0),
        buckets=min(trained, _ENGINE_BUCKET) * training.weight_bytes if training.gpus > 1 else 0,
    )


def _stages_1_and_2(shape: ModelShape, training: Training) -> States:
    """Compute the states of ZeRO 1 and 2.

    Parameters are replicated and flat; each rank has an fp32 copy of its partition and the
    optimizer's states for it (deepspeed/runtime/zero/stage_1_and_2.py, __init__). Gradients pass
    through one bucket, or two with overlap_comm (setup_buckets). Stage 1 keeps all gradients until
    the last of the accumulated passes; stage 2 keeps those of its partition, twice while it adds
    those of another pass (get_flat_partition, independent_gradient_partition_epilogue). The step
    converts those of the partition to fp32 (step). With offload, the partition's fp32 copy, states
    and gradients and a 16-bit copy are in host memory, and both have a buffer for one gradient
    (temp_grad_buffer_for_cpu_offload, temp_grad_buffer_for_gpu_offload).
    """
    trained, _ = _counts(shape, training)
    ranks, width = training.gpus, training.weight_bytes
    part = trained / ranks
    accumulated = training.gradient_bytes or width
    if training.zero_stage == 1 and accumulated > width and training.offload_optimizer == "none":
        return _bf16_optimizer(shape, training)
    buckets = training.reduce_bucket * width * (2 if training.overlap_comm else 1)
    states = States(
        parameters=trained * width + _frozen(shape, training),
        master=part * 4,
        optimizer=part * OPTIMIZER_BYTES[training.optimizer],
        gradients=part * accumulated,
        step_gradients=part * 4,
        buckets=buckets,
    )
    if training.zero_stage == 1:
        states.staging = (trained - part) * accumulated
    elif training.accumulation > 1 and accumulated == width:
        states.staging = part * width
    if training.offload_optimizer != "none":
        host = {
            "master weights": states.master,
            "optimizer": states.optimizer,
            "gradients": part * 4,
            "parameters": part * width,
            "transfer buffer": shape.largest_parameter * width,
        }
        states.transfer = shape.largest_parameter * width
        if training.accumulation > 1 and training.zero_stage == 2:
            host["accumulated gradients"] = part * width
        states.host = host
        if training.pins_memory:
            pinned = ("master weights", "gradients", "parameters", "transfer buffer")
            states.pinned = [host[name] for name in pinned]
        states.master = states.optimizer = states.step_gradients = 0
        # Gradients stay on the GPU until the last pass only in stage 1.
        states.gradients = trained * accumulated if training.zero_stage == 1 else 0
        states.staging = 0
    return states


def _bf16_optimizer(shape: ModelShape, training: Training) -> States:
    """Compute the states of ZeRO 1 in bf16 with gradients accumulated in fp32.

    All gradients exist in fp32 all the time, besides those in bf16
    (deepspeed/runtime/bf16_optimizer.py, _setup_for_real_optimizer).
    """
    trained, _ = _counts(shape, training)
    part = trained / training.gpus
    return States(
        parameters=trained * 2 + _frozen(shape, training),
        master=part * 4,
        optimizer=part * OPTIMIZER_BYTES[training.optimizer],
        gradients=trained * 4,
        staging=trained * 2,
        step_gradients=trained * 6,
    )


def _stage_3(shape: ModelShape, training: Training) -> States:
    """Compute the states of ZeRO 3.

    All states are sharded. A flat buffer has the partition's gradients all the time, and the step
    converts them to fp32 for one sub-group at a time (deepspeed/runtime/zero/stage3.py: __init__,
    _prepare_sub_group, _prepare_fp32_grad_for_sub_group). A rank gathers the current module and
    prefetches up to stage3_prefetch_bucket_size elements
    (partitioned_param_coordinator.py, fetch_sub_module).

    On NVMe, the fp32 gradients are there too (stage3.py, _swap_out_offload_fp32_gradients), and the
    host has the flat gradients and buffer_count buffers of a sub-group in fp32
    (swap_tensor/optimizer_utils.py, SwapBufferManager). Of parameters on NVMe, the host keeps up to
    max_in_cpu (_create_param_groups_fp16_flat_cpu_memory) and a pool of buffers
    (swap_tensor/partitioned_param_swapper.py, _configure_aio), whatever the size of the model.
    """
    trained, _ = _counts(shape, training)
    ranks, width = training.gpus, training.weight_bytes
    part = trained / ranks
    group = min(part, training.sub_group)
    states = States(
        parameters=part * width + _frozen(shape, training) / ranks,
        master=part * 4,
        optimizer=part * OPTIMIZER_BYTES[training.optimizer],
        gradients=part * (training.gradient_bytes or width),
        buckets=training.reduce_bucket * width,
        step_buckets=training.reduce_bucket * width,
        live=(shape.largest_layer + min(training.prefetch_bucket, shape.parameters)) * width,
    )
    states.step_gradients = states.gradients + group * 4
    if training.offload_optimizer != "none":
        flat = part * (training.gradient_bytes or width)
        states.host = {
            "master weights": states.master,
            "optimizer": states.optimizer,
            "gradients": part * 4 + flat,
        }
        if training.offload_optimizer == "nvme":
            buffers = training.optimizer_buffers * group * 4
            states.host = {"NVMe buffers": buffers, "gradients": flat}
        if training.pins_memory:
            states.pinned = [flat]
            if training.offload_optimizer == "cpu":  # of each sub-group (_prepare_sub_group)
                states.pinned += [group * 4] * int(part // group)
                states.pinned.append(part % group * 4)
        states.master = states.optimizer = states.gradients = states.step_gradients = 0
    if training.offload_param != "none":
        host = {"parameters": states.parameters}
        if training.offload_param == "nvme":
            host["parameters"] = min(states.parameters, training.max_in_cpu * width)
            buffers = training.parameter_buffers * training.parameter_buffer_size
            host["parameter buffers"] = buffers * width
        states.host = {**states.host, **host}
        if training.pins_memory:
            states.pinned = [*states.pinned, host["parameters"]]
        states.parameters = 0
    return states


_STAGES = (_stage_0, _stages_1_and_2, _stages_1_and_2, _stage_3)
