"""JobSpec: what the user asks for, in the user's words.

Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]

# Text that Slurm's time grammar allows: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s (sbatch.1, --time).
Time = Annotated[
    str,
    Meta(
        pattern=r"^(\d+|\d+:\d{1,2}|\d+:\d{1,2}:\d{1,2}|\d+-\d+(:\d{1,2}){0,2}|UNLIMITED|INFINITE)$",
        description="Slurm time: minutes, h:m:s or days-hours, as in 90, 24:00:00, 2-12",
    ),
]
Memory = Annotated[
    str, Meta(pattern=r"^\d+[KMGT]?B?$", description="memory as in 200G; a bare number is MB")
]


class Resources(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to ask of the cluster. The number of GPUs is said here and nowhere else."""

    nodes: Positive = 1
    gpus_per_node: NotNegative = 1
    gpu_type: str | None = None
    time: Time | None = None
    partition: str | None = None
    account: str | None = None
    cpus_per_gpu: Positive | None = None
    memory_per_node: Memory | None = None


class Batch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Effective batch = micro_batch_per_gpu x gradient_accumulation_steps x world size."""

    micro_batch_per_gpu: Positive = 1
    gradient_accumulation_steps: Positive = 1


class Offload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ZeRO keeps in host memory."""

    optimizer: Literal["none", "cpu"] = "none"
    param: Literal["none", "cpu"] = "none"


class DeepSpeed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How DeepSpeed shards; ``config`` merges last into the JSON and wins."""

    zero_stage: Annotated[int, Meta(ge=0, le=3)] = 2
    offload: Offload = field(default_factory=Offload)
    config: dict[str, Any] = field(default_factory=dict)


class Nccl(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network between the nodes; ``env`` wins over what hpcrun sets."""

    fabric: Literal["auto", "ethernet"] = "auto"
    env: dict[str, str] = field(default_factory=dict)


class Setup(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens on the node before training starts, and which Python trains."""

    modules: list[str] = field(default_factory=list)
    venv: str | None = None
    python: str | None = None
    commands: list[str] = field(default_factory=list)


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training job. Exactly one of script, module and command; none: the reference trainer."""

    description: str = ""
    name: str | None = None
    script: str | None = None
    module: str | None = None
    command: list[str] | None = None
    args: list[str] = field(default_factory=list)
    launcher: Literal["torchrun", "srun"] | None = None
    framework: Literal["torch", "deepspeed"] | None = None
    resources: Resources = field(default_factory=Resources)
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    batch: Batch = field(default_factory=Batch)
    deepspeed: DeepSpeed | None = None
    nccl: Nccl = field(default_factory=Nccl)
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    setup: Setup = field(default_factory=Setup)
    slurm: dict[str, str | bool] = field(default_factory=dict)
    snapshot: bool = True
