"""What starts the ranks, and what the framework in them needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.plan.types import Section
from hpcrun.spec.job import FrameworkName, JobSpec
from hpcrun.spec.rules import settle_framework


class Launcher(Struct, frozen=True, kw_only=True):
    """What starts the ranks of a job; its command is in ``templates/node.sh.j2``.

    ``task`` is what each task of the job is: a rank, a launcher that starts the ranks of its node,
    or the job's own command. ``is_torchelastic``: it starts ranks as torchrun does, and sets
    TORCHELASTIC_RUN_ID. ``frameworks`` are those that get it unless the job names another.
    Without Slurm, on the hosts of a hostfile, ``remote`` starts the tasks, and ``on_hosts`` is the
    launcher that takes its place there; ``needs_slurm``: it cannot run there.
    """

    name: str
    task: Literal["rank", "launcher", "command"] = "launcher"
    is_torchelastic: bool = False
    frameworks: Sequence[FrameworkName] = ()
    remote: Literal["ssh", "pdsh"] = "ssh"
    on_hosts: str | None = None
    needs_slurm: bool = False


LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        Launcher(name="torchrun", is_torchelastic=True),
        Launcher(name="deepspeed", on_hosts="pdsh"),
        Launcher(name="accelerate", is_torchelastic=True, frameworks=("accelerate",)),
        Launcher(name="srun", task="rank", needs_slurm=True),
        # Not for jobs to name: DeepSpeed's launcher on the hosts of a hostfile, and no launcher.
        Launcher(name="pdsh", task="rank", remote="pdsh"),
        Launcher(name="none", task="command"),
    )
}
DEFAULT = "torchrun"

# Frameworks whose ranks hold an Accelerator, which reads ACCELERATE_* variables.
ON_ACCELERATE: Sequence[FrameworkName] = ("accelerate", "transformers")


def decide_launcher(spec: JobSpec, hosts: Sequence[str] = ()) -> Launcher:
    """Decide what starts the ranks: the framework's own launcher, else torchrun.

    A bare command is started once per node, unless the job names a launcher. ``hosts`` are those
    of a hostfile, where there is no Slurm.

    >>> decide_launcher(JobSpec()).name, decide_launcher(JobSpec(framework="accelerate")).name
    ('torchrun', 'accelerate')
    >>> decide_launcher(JobSpec(command=["make"])).name
    'none'
    >>> decide_launcher(JobSpec(launcher="deepspeed"), ["lab1", "lab2"]).name
    'pdsh'
    """
    own = (name for name, one in LAUNCHERS.items() if spec.framework in one.frameworks)
    usual = "none" if spec.command is not None else next(own, DEFAULT)
    launcher = LAUNCHERS[spec.launcher or usual]
    return LAUNCHERS[launcher.on_hosts] if hosts and launcher.on_hosts else launcher


def check_launcher(spec: JobSpec) -> list[Problem]:
    """Refuse combinations of launcher and framework that cannot work."""
    problems = []
    launcher = decide_launcher(spec).name
    if spec.accelerate is not None and launcher != "accelerate":
        message = f"launcher {launcher} does not read it; say launcher: accelerate, or leave it out"
        problems.append(Problem("", None, "accelerate", message))
    if launcher == "none" and spec.framework == "accelerate":
        message = "accelerate, but the command is started as it is; say launcher: accelerate too"
        problems.append(Problem("", None, "framework", message))
    return problems


# ---- frameworks --------------------------------------------------------------------------------


def decide_framework(spec: JobSpec) -> FrameworkName:
    """Return what the script trains with, as the job's reader has settled it; else torch.

    >>> decide_framework(JobSpec(launcher="accelerate")), decide_framework(JobSpec())
    ('accelerate', 'torch')
    """
    return settle_framework(spec).framework or "torch"


def framework_section(
    spec: JobSpec, run_id: str, *, precision: str, deepspeed_config: str | None
) -> Section | None:
    """Set what the framework reads, alike under every launcher.

    Accelerate's variables are those that ``accelerate launch`` sets (utils/launch.py). Lightning
    takes RANK and WORLD_SIZE only where it finds torchrun's variable; else it counts Slurm's
    tasks, one a node (accelerator_connector.py, _choose_and_init_cluster_environment).
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
    if framework == "lightning" and launcher.task != "command" and not launcher.is_torchelastic:
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
    """Warn where the Trainer takes each rank for the only one.

    Without GPUs Accelerate 1.15 chooses no backend (state.py, _prepare_backend) and assumes one
    process while DeepSpeed has joined them all: the Trainer stops at the batch size. For scripts
    that use Accelerate itself see script_notes.backend_notes().
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
    """Return whether the arguments name the Trainer's backend, and no DeepSpeed JSON.

    >>> _passes_backend(["--ddp_backend={backend}"]), _passes_backend(["--lr", "1"])
    (True, False)
    """
    names = {arg.partition("=")[0].replace("-", "_") for arg in args}
    return "__ddp_backend" in names and "__deepspeed" not in names


def switch_notes(spec: JobSpec, words: Sequence[str]) -> list[str]:
    """Warn when nothing passes activation_checkpointing on: alone it saves no memory.

    ``words`` are the command line's.

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
