"""Rules for programs in containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcrun.lint.launch import CONTAINERS, find_programs
from hpcrun.lint.request import list_training, requests_gpus, uses_several_ranks
from hpcrun.lint.rule import Found, rule
from hpcrun.lint.script import OPEN, Command, Script, show

SECTION = "Containers"


def _list_containers(script: Script) -> Iterator[tuple[Command, list[str], list[str]]]:
    """Yield each ``singularity exec`` or ``run``: its command, its options, and what follows.

    The options end at the image: the first word that is no option and no value of one.
    """
    for command in script.commands:
        if command.substituted:
            continue
        words = [word.text for word in command.words]
        for index, word in enumerate(words[:-2]):
            if word.rsplit("/", 1)[-1] in CONTAINERS and words[index + 1] in ("exec", "run"):
                rest = words[index + 2 :]
                image = next(
                    (at for at, one in enumerate(rest) if re.search(r"\.(sif|simg|img)$", one)),
                    None,
                )
                if image is None:
                    image = next((at for at, one in enumerate(rest) if one[:1] != "-"), len(rest))
                yield command, rest[:image], rest[image + 1 :]
                break


def _has_flag(script: Script, options: list[str], flags: str) -> bool:
    """Return True if one of the options is given, or may be in a variable."""
    return any(re.fullmatch(flags, one) or OPEN in one for one in options)


@rule(
    "container-without-gpus",
    "warning",
    "a container without the GPUs of the job",
    section=SECTION,
    source="Apptainer, GPU Support: without --nv or --rocm the container has no driver libraries",
    fix="singularity exec --nv, or export SINGULARITY_NV=1",
    bad="#SBATCH --gres=gpu:1\nsingularity exec image.sif python train.py\n",
    good="#SBATCH --gres=gpu:1\nsingularity exec --nv image.sif python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not requests_gpus(script):
        return
    if any(
        re.fullmatch(r"(SINGULARITY|APPTAINER)_(NV|ROCM|NVCCLI)", one.name)
        for one in script.assignments
    ):
        return
    for command, options, rest in _list_containers(script):
        text = " ".join(rest)
        if not re.search(r"python|torchrun|deepspeed|accelerate|\.sh\b|\.py\b", text):
            continue
        if not _has_flag(script, options, "--(nv|rocm|nvccli)") and OPEN not in " ".join(options):
            yield Found(command.start, "without --nv the program in the container sees no GPU")
            return


@rule(
    "container-drops-variables",
    "warning",
    "a container of several ranks that does not get the environment",
    section=SECTION,
    source="Apptainer, Environment: --cleanenv passes on APPTAINERENV_... and --env only",
    fix="remove --cleanenv, or pass the variables with --env",
    bad="#SBATCH -N 2\n#SBATCH --gres=gpu:1\n"
    "srun singularity exec --nv --cleanenv image.sif python t.py\n",
    good="#SBATCH -N 2\n#SBATCH --gres=gpu:1\nsrun singularity exec --nv image.sif python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not uses_several_ranks(script):
        return
    if re.search(r"(SINGULARITY|APPTAINER)ENV_|--env(-file)?\b", script.text):
        return
    for command, options, rest in _list_containers(script):
        text = " ".join(rest)
        if _has_flag(script, options, "--cleanenv|-e|--containall|-C") and "python" in text:
            if any(OPEN in one for one in options) or "torchrun" in text:
                continue
            yield Found(command.start, "the ranks see no SLURM_... and MASTER_... variables")
            return


@rule(
    "docker-in-job",
    "warning",
    "docker in a batch script",
    section=SECTION,
    source="the Docker daemon starts the container outside the job, without Slurm's limits",
    fix="apptainer, enroot (pyxis) or podman",
    bad="#SBATCH --gres=gpu:1\ndocker run --gpus all image python train.py\n",
    good="#SBATCH --gres=gpu:1\napptainer exec --nv image.sif python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    for program in find_programs(script):
        words = [program.kind, *program.args]
        words = words[1:] if words[0] == "sudo" else words
        if words[:2] in (["docker", "run"], ["docker", "exec"]):
            all_gpus = "--gpus all" in " ".join(words).replace("=", " ")
            gpus = ", and uses all GPUs of the node" * all_gpus
            yield Found(program.command.start, f"the container runs outside the job{gpus}")
            return


@rule(
    "container-without-mounts",
    "note",
    "a pyxis container without mounts",
    section=SECTION,
    source="pyxis, README: without --container-mounts it has only the files of the image, and "
    "the home directory where the site mounts it",
    fix="srun --container-mounts=$PWD --container-workdir=$PWD",
    bad="#SBATCH -N 1\nsrun --container-image=pytorch.sqsh python train.py\n",
    good="#SBATCH -N 1\nsrun --container-image=pytorch.sqsh --container-mounts=$PWD \\\n"
    "  --container-workdir=$PWD python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if re.search(r"container-mounts|container-mount-home|ENROOT_MOUNT", script.text):
        return
    for program in list_training(script):
        step = program.step
        image = step.get("container-image") if step is not None else None
        if image and not (step and step.get("?")) and program.args:
            name = next((one for one in program.args if one.endswith(".py")), program.args[0])
            text = f"the container may not see {show(name)}: nothing is mounted"
            yield Found(program.command.start, text)
            return
