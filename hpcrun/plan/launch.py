"""Who starts the ranks, and what the framework in them must be told."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.errors import Problem
from hpcrun.plan.topology import Topology
from hpcrun.plan.types import Framework, Launcher, Section
from hpcrun.spec.job import JobSpec
from hpcrun.spec.rules import settle_framework

# Frameworks whose ranks hold an Accelerator, which reads ACCELERATE_* variables.
ON_ACCELERATE: Sequence[Framework] = ("accelerate", "transformers")


def decide_framework(spec: JobSpec) -> Framework:
    """Give what the script trains with, as the job's reader has settled it; else torch.

    >>> decide_framework(JobSpec(launcher="accelerate")), decide_framework(JobSpec())
    ('accelerate', 'torch')
    """
    return settle_framework(spec).framework or "torch"


def decide_launcher(spec: JobSpec) -> Launcher:
    """Decide what starts the ranks: accelerate for its own scripts, else torchrun.

    A bare command is started once per node, unless the job names a launcher.

    >>> decide_launcher(JobSpec()), decide_launcher(JobSpec(framework="accelerate"))
    ('torchrun', 'accelerate')
    >>> decide_launcher(JobSpec(command=["make"]))
    'none'
    """
    if spec.launcher is not None:
        return spec.launcher
    if spec.command is not None:
        return "none"
    return "accelerate" if spec.framework == "accelerate" else "torchrun"


def decide_starter(spec: JobSpec, hosts: Sequence[str]) -> Launcher:
    """Decide what starts the ranks; on the hosts of a hostfile DeepSpeed's launcher takes pdsh.

    >>> decide_starter(JobSpec(launcher="deepspeed"), ["lab1", "lab2"])
    'pdsh'
    """
    launcher = decide_launcher(spec)
    return "pdsh" if hosts and launcher == "deepspeed" else launcher


def tasks_per_node(starter: Launcher, topology: Topology) -> int:
    """One task a node where a launcher makes the ranks there, one task a rank where none does."""
    return topology.ranks_per_node if starter in ("srun", "pdsh") else 1


def check_launcher(spec: JobSpec) -> list[Problem]:
    """Find what no combination of launcher and framework can do."""
    problems = []
    launcher = decide_launcher(spec)
    if spec.accelerate is not None and launcher != "accelerate":
        message = f"launcher {launcher} does not read it; say launcher: accelerate, or leave it out"
        problems.append(Problem("", None, "accelerate", message))
    if launcher == "none" and spec.framework == "accelerate":
        message = "accelerate, but the command is started as it is; say launcher: accelerate too"
        problems.append(Problem("", None, "framework", message))
    return problems


def framework_section(
    spec: JobSpec, run_id: str, *, precision: str, deepspeed_config: str | None
) -> Section | None:
    """Tell the framework what the job says, whichever launcher starts it.

    Accelerate's variables are those that ``accelerate launch`` would set (utils/launch.py), so
    that a script trains alike under any launcher. Lightning asks whether torchrun has started it
    before it believes RANK and WORLD_SIZE; else it counts Slurm's tasks, of which there is one a
    node (accelerator_connector.py, _choose_and_init_cluster_environment).
    """
    framework, launcher = decide_framework(spec), decide_launcher(spec)
    variables: dict[str, str] = {}
    if framework in ON_ACCELERATE:
        variables["ACCELERATE_MIXED_PRECISION"] = "no" if precision == "fp32" else precision
        if deepspeed_config is not None:
            variables["ACCELERATE_USE_DEEPSPEED"] = "true"
            variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = deepspeed_config
        if framework == "accelerate":
            steps = str(spec.batch.gradient_accumulation_steps)
            variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = steps
    if framework == "lightning" and launcher in ("deepspeed", "srun"):
        variables["TORCHELASTIC_RUN_ID"] = run_id
    if not variables:
        return None
    title = {"accelerate": "Accelerate", "transformers": "The Trainer's Accelerate"}
    comments = {
        "accelerate": "What Accelerator() takes where the script says nothing.",
        "transformers": "Precision, and DeepSpeed's configuration, for any launcher.",
        "lightning": "Lightning then takes the ranks as they are, and not Slurm's tasks for ranks.",
    }
    return Section(
        block="environment",
        title=title.get(framework, "Lightning"),
        variables=variables,
        comment=comments[framework],
    )


def framework_notes(
    spec: JobSpec, *, accelerator: str, world_size: int, deepspeed: bool
) -> list[str]:
    """Say where the Trainer would take each rank for one alone.

    Without GPUs Accelerate 1.15 chooses no backend of its own (state.py, _prepare_backend), and
    thinks that there is one process while DeepSpeed has joined them all: the Trainer stops at the
    batch size. Scripts on Accelerate itself are looked into: script_notes.backend_notes().
    """
    alone = accelerator == "cpu" and world_size > 1 and deepspeed
    own = (spec.script, spec.module, spec.command) != (None, None, None)
    if not (alone and own and decide_framework(spec) == "transformers"):
        return []
    if spec.precision == "fp32" and _passes_backend(spec.args):
        return []
    return [
        "without GPUs the Trainer stops at DeepSpeed's batch size, unless the script says "
        'TrainingArguments(ddp_backend="gloo") without deepspeed=, which the environment '
        "says, and the job precision: fp32"
    ]


def _passes_backend(args: Sequence[str]) -> bool:
    """Whether the Trainer's own argument for the backend is there, and DeepSpeed's is not.

    >>> _passes_backend(["--ddp_backend={backend}"]), _passes_backend(["--lr", "1"])
    (True, False)
    """
    names = {arg.partition("=")[0].replace("-", "_") for arg in args}
    return "__ddp_backend" in names and "__deepspeed" not in names


def switch_notes(spec: JobSpec, words: Sequence[str]) -> list[str]:
    """Say when nothing passes activation_checkpointing on: alone it saves no memory.

    ``words`` are those of the command line.

    >>> switch_notes(JobSpec(script="a.py", activation_checkpointing=True), ["--recompute"])[0][:41]
    'activation_checkpointing: no argument and'
    """
    texts = [*spec.args, *(spec.command or []), *spec.env.values(), *words]
    if not spec.activation_checkpointing or any("{activation_checkpointing}" in t for t in texts):
        return []
    return [
        "activation_checkpointing: no argument and no variable passes {activation_checkpointing} "
        "on; your script must read HPCRUN_ACTIVATION_CHECKPOINTING itself"
    ]
