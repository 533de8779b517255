"""The settings of a training that determine its memory."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Strategy = Literal["ddp", "zero", "fsdp"]
Precision = Literal["bf16", "fp16", "fp32"]
Weights = Literal["master", "autocast", "pure"]
Attention = Literal["eager", "sdpa", "flash"]
Place = Literal["none", "cpu", "nvme"]

# Bytes of optimizer states for each trained parameter, if the states are in fp32.
#   adamw: exp_avg and exp_avg_sq (torch/optim/adamw.py, _init_group); sgd has none, momentum one.
#   adamw_8bit: two states of 8 bits, with one fp32 absmax in each block of 256 values
#     (bitsandbytes/optim/optimizer.py, Optimizer2State.init_state).
#   adafactor: one row and one column of factors per matrix (transformers/optimization.py).
#   lion, muon: one momentum (deepspeed/ops/lion, deepspeed/runtime/zero/muon).
OPTIMIZER_BYTES = {
    "adamw": 8.0,
    "adamw_8bit": 2.0 + 2 * 4 / 256,
    "sgd": 0.0,
    "momentum": 4.0,
    "adafactor": 0.0,
    "lion": 4.0,
    "muon": 4.0,
}


class Training(Struct, frozen=True, kw_only=True):
    """How a model is trained.

    Attributes:
        strategy: What shards the states. ``zero`` is DeepSpeed, with ``zero_stage``.
        weights: ``master``: weights in 16 bits with an fp32 copy for the optimizer (DeepSpeed);
            ``autocast``: weights in fp32, cast for each operation (torch.amp); ``pure``: weights,
            gradients and optimizer states in the format of ``precision``.
        gpus: Ranks that share the states.
        sequence: Tokens per sample.
        trainable: Number of trained parameters; None: all.
        state_bytes: Bytes of optimizer states per trained parameter; None: those of ``optimizer``.
        frozen_bytes: Bytes of a frozen parameter; 0.5 for 4 bits.
        keeps_gradients: Gradients of the previous step exist during the forward pass, because
            zero_grad fills them with zeros or is called after the forward pass. set_to_none=True,
            which frees them, is the default since torch 2.0 (torch/optim/optimizer.py and
            torch/nn/modules/module.py, zero_grad; release notes of 2.0.0, pytorch PR 92731).
            DeepSpeed's engine frees them itself.
        gradient_bytes: Bytes of an accumulated gradient; None: those of the weights.
        reduce_bucket: Elements in a bucket of gradients (DeepSpeed's reduce_bucket_size).
        prefetch_bucket: Elements that ZeRO-3 gathers ahead (stage3_prefetch_bucket_size).
        sub_group: Elements that ZeRO-3 updates at a time (sub_group_size).
        pins_memory: Offloaded states are in page-locked memory (pin_memory).
        optimizer_buffers: Buffers of a sub-group in host memory with the optimizer on NVMe
            (buffer_count; deepspeed/runtime/zero/offload_config.py has the defaults of this and
            the following).
        parameter_buffers: Buffers in host memory with the parameters on NVMe (buffer_count).
        parameter_buffer_size: Elements in each of these (buffer_size).
        max_in_cpu: Elements of parameters on NVMe that the host keeps (max_in_cpu).
        loader_workers: Processes of the data loader for each rank.
        loader_prefetch: Batches that each of them prepares ahead.
        unknown: Settings of the job that are not modelled, as notes; the estimate then says
            nothing about whether the job fits.
    """

    strategy: Strategy = "ddp"
    zero_stage: int = 0
    precision: Precision = "bf16"
    weights: Weights = "autocast"
    optimizer: str = "adamw"
    offload_optimizer: Place = "none"
    offload_param: Place = "none"
    gpus: int = 1
    gpus_per_node: int = 1
    micro_batch: int = 1
    accumulation: int = 1
    sequence: int | None = None
    checkpointing: bool = False
    attention: Attention = "sdpa"
    trainable: int | None = None
    state_bytes: float | None = None
    frozen_bytes: float | None = None
    keeps_gradients: bool = False
    gradient_bytes: int | None = None
    reduce_bucket: int = 500_000_000
    overlap_comm: bool = False
    prefetch_bucket: int = 50_000_000
    sub_group: int = 1_000_000_000
    pins_memory: bool = True
    optimizer_buffers: int = 4
    parameter_buffers: int = 5
    parameter_buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000
    loader_workers: int = 0
    loader_prefetch: int = 2
    unknown: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Return the bytes of a number in the format of the computation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of a trained weight, without its master copy."""
        return 4 if self.weights == "autocast" else self.width
