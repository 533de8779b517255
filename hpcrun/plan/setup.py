"""Preparation of nodes before training: environment, commands, staged files, container."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.plan.findings import Findings
from hpcrun.plan.job import LOCAL_DIR, Job
from hpcrun.plan.types import ContainerPlan, SetupPlan
from hpcrun.spec import Cluster, Container, ContainerRuntime, JobSpec, Setup

MAX_PART = 255  # bytes of one name in a path; NAME_MAX of Linux, limits.h

# Expansions in a path on the nodes: $NAME, ${NAME}, and $$ for a dollar sign.
_EXPANDED = re.compile(r"\$(?:\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")
_IMAGE_FILE = re.compile(r"[/~$]|\.\.?/|.*\.(sif|simg|img|sqsh|squashfs|toml)\Z")
_SCHEME = re.compile("(?:docker|library|oras|instance)://|docker-(?:daemon|archive):")


def choose_setup(spec: JobSpec, cluster: Cluster, source: str) -> tuple[str, Setup]:
    """Choose the setup that provides the Python: the job's if it names one, else the profile's.

    The first one to name any of venv, conda, uv, container and python decides all five; a profile's
    ``python`` counts last, as if it were in its setup.

    Args:
        source: The file of the profile.

    Returns:
        The prefix of keys in messages, and the setup.

    >>> job, site = JobSpec(setup=Setup(conda="ml")), Cluster(setup=Setup(venv="/opt/v"))
    >>> choose_setup(job, site, "hpcrun.yaml")[1].venv
    >>> choose_setup(JobSpec(), site, "hpcrun.yaml")[0]
    'hpcrun.yaml: setup.'
    """
    for where, setup in (("setup.", spec.setup), (f"{source}: setup.", cluster.setup)):
        if setup.venv or setup.conda or setup.uv or setup.container or setup.python:
            return where, setup
    return f"{source}: ", Setup(python=cluster.python)


def check_setup(where: str, setup: Setup) -> list[Problem]:
    """Refuse two Python environments at once, because only one can train.

    >>> print(check_setup("setup.", Setup(venv="v", conda="c"))[0])
    setup: venv and conda: take one of the two
    """
    named = [name for name in ("venv", "conda", "uv", "container") if getattr(setup, name)]
    if len(named) < 2:
        return []
    count = {2: "two", 3: "three"}.get(len(named), "four")
    message = f"{' and '.join(named)}: take one of the {count}"
    if "container" in named:
        message += "; setup.python names the interpreter inside the container"
    return [Problem(where.rstrip("."), message)]


def build_setup(job: Job) -> SetupPlan:
    """Build the preparation of nodes; the profile's modules and commands run before the job's."""
    spec, cluster = job.spec, job.cluster
    where, setup = choose_setup(spec, cluster, f"cluster {cluster.name}")
    for index, folder in enumerate(spec.setup.module_paths):
        _check_expanded(folder, f"setup.module_paths[{index}]", job.found)
    if job.place.node_venv and not [*cluster.setup.node_commands, *spec.setup.node_commands]:
        message = (
            f"{job.place.node_venv}: the path is known only on the nodes, and nothing creates "
        )
        job.found.refuse(f"{where}venv", message + "it there: set setup.node_commands")
    _check_expanded(cluster.local_dir, f"cluster {cluster.name}: local_dir", job.found)
    container, workdir = None, _build_workdir(job)
    if setup.container is not None:
        container = _build_container(setup.container, f"{where}container", job, workdir)
    return SetupPlan(
        modules=[*cluster.setup.modules, *job.topology.modules, *spec.setup.modules],
        venv=job.place.venv,
        conda=job.place.conda,
        uv=setup.uv,
        offline=not cluster.internet,
        commands=[*cluster.setup.commands, *spec.setup.commands],
        node_commands=[*cluster.setup.node_commands, *spec.setup.node_commands],
        stage=_build_stage(job),
        local_dir=cluster.local_dir,
        own_files=[
            value.rpartition("/")[2]
            for name, value in job.values.items()
            if name.endswith("_config") and value.startswith(LOCAL_DIR)
        ],
        container=container,
        module_paths=[*cluster.setup.module_paths, *spec.setup.module_paths],
        node_venv=job.place.node_venv,
        workdir=workdir,
    )


def uses_modules(commands: Sequence[str]) -> bool:
    """Return True if bash commands call ``module`` or its short form ``ml``.

    >>> uses_modules(["set -x; module purge"]), uses_modules(["pip install ml"])
    (True, False)
    """
    word = r"(?:^|[;&|({]|\b(?:then|do|else))[ \t]*(?:module|ml)\b"
    return any(re.search(word, line, re.MULTILINE) for line in commands)


# ---- Staging -----------------------------------------------------------------------------------


def _build_stage(job: Job) -> list[tuple[str, str]]:
    """Return (source, target) pairs; a target is in the run's local directory on each node."""
    pairs: list[tuple[str, str]] = []
    for source, target in job.spec.stage.items():
        where = f"stage.{source}"
        filled = job.fill(source, where)
        _check_expanded(filled, where, job.found)
        inside = posixpath.normpath(job.fill(target, where).removeprefix(LOCAL_DIR).lstrip("/"))
        if target.startswith("/") or inside.split("/")[0] in ("..", ".", ".hpcrun"):
            message = f"{target}: must be a relative path, below {{local_dir}}"
            job.found.refuse(where, message)
        elif any(len(part.encode()) > MAX_PART for part in f"{inside}.part".split("/")):
            message = f"{inside[:40]}...: a name may have {MAX_PART} bytes, .part included"
            job.found.refuse(where, message)
        elif any(_is_within(inside, other) or _is_within(other, inside) for _, other in pairs):
            job.found.refuse(where, f"{target}: another copy has the same target")
        pairs.append((_absolute(filled, job.place.project_dir), inside))
    return pairs


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _absolute(path: str, project: str) -> str:
    if path.startswith(("/", "~/", "$")):
        return path
    return literal(f"{project}/") + posixpath.normpath(path)


def literal(text: str) -> str:
    """Escape a path for a place where nodes expand $NAME.

    >>> literal("/odd/$x")
    '/odd/$$x'
    """
    return text.replace("$", "$$")


def _check_expanded(text: str, where: str, found: Findings) -> None:
    if "$" in _EXPANDED.sub("", text):
        message = (
            f"{text}: $NAME and ${{NAME}} are expanded on the node; write $$ for a dollar sign"
        )
        found.refuse(where, message)


# ---- Containers --------------------------------------------------------------------------------


class Runtime(Struct, frozen=True, kw_only=True):
    """The command-line syntax of a container runtime.

    Attributes:
        programs: Program names; the first one that a node has runs node.sh inside the container.
            Empty for a runtime that is a plugin of srun.
        cuda: Options that make NVIDIA GPUs visible.
        rocm: Options that make AMD GPUs visible.
        workdir: The option before the working directory.
        mount: The option before a mount.
        image: The option before the image; "" if the image is a positional argument.
        joins: True if one option takes all mounts.
        has_folders: True if the site's configuration mounts shared directories.
        file: A file of the run that contains all options, and that srun is given.
    """

    programs: str = ""
    start: Sequence[str] = ()
    cuda: str = ""
    rocm: str = ""
    workdir: str = ""
    mount: str = ""
    image: str = ""
    joins: bool = False
    has_folders: bool = False
    file: str = ""


# podman starts with the image's variables only. setup.sh passes the job's variables whose names
# begin with HPCRUN; these are the others that the ranks read.
_PASSED = ("HPCRUN", "SLURM", "MASTER", "CUDA", "NVIDIA", "NCCL", "FI_", "TORCH", "GLOO", "HF_")

RUNTIMES: dict[ContainerRuntime, Runtime] = {
    # apptainer.org, exec; singularity is its old name.
    "apptainer": Runtime(
        programs="apptainer singularity",
        start=["exec"],
        cuda="--nv",
        rocm="--rocm",
        workdir="--pwd ",
        mount="--bind ",
    ),
    # Many sites lack these as options of sbatch (github.com/NVIDIA/pyxis).
    "pyxis": Runtime(
        workdir="--container-workdir=",
        mount="--container-mounts=",
        image="--container-image=",
        joins=True,
    ),
    # github.com/NERSC/podman-hpc; at NERSC and in Bristol.
    "podman-hpc": Runtime(
        programs="podman-hpc",
        start=["run --rm", "--net=host", "--ipc=host", *(f"--env='{one}*'" for one in _PASSED)],
        cuda="--gpu",
        workdir="--workdir=",
        mount="--volume=",
    ),
    # github.com/NERSC/shifter; home and parallel file systems are mounted by default.
    "shifter": Runtime(
        programs="shifter",
        cuda="--module=gpu",
        workdir="--workdir=",
        mount="--volume=",
        image="--image=",
        has_folders=True,
    ),
    # The container engine of CSCS, docs.cscs.ch/software/container-engine, configured by a file.
    "ce": Runtime(image="--environment=", file="container.toml"),
}


def is_image_file(image: str) -> bool:
    """Distinguish a file from a registry's reference.

    >>> is_image_file("images/torch.sif"), is_image_file("docker://python:3.11")
    (True, False)
    >>> is_image_file("nvcr.io#nvidia/pytorch:24.05-py3"), is_image_file("./sandbox")
    (False, True)
    """
    return not _SCHEME.match(image) and _IMAGE_FILE.match(image) is not None


def decide_runtime(container: Container, cluster: Cluster) -> ContainerRuntime | None:
    """Decide the container runtime: the job's, the profile's, else one that fits the image.

    >>> decide_runtime(Container(image="a.sif"), Cluster())
    'apptainer'
    """
    image, runtime = container.image, container.runtime or cluster.container_runtime
    if runtime is None and image.endswith((".sqsh", ".toml")):
        return "ce" if image.endswith(".toml") else "pyxis"
    is_apptainers = image.endswith((".sif", ".simg")) or _SCHEME.match(image)
    return runtime or ("apptainer" if is_apptainers else None)


def _build_workdir(job: Job) -> str:
    """Return the absolute path of the folder in which the program starts; "" for the project's."""
    given, project = job.spec.workdir, job.place.project_dir
    if given is None:
        return ""
    filled = job.fill(given, "workdir")
    if "$" in filled or filled.startswith("~"):
        job.found.refuse("workdir", f"{given}: a folder of the project, or an absolute path")
    path = posixpath.normpath(posixpath.join(project, filled))
    if not filled.startswith("/") and not f"{path}/".startswith(f"{project}/"):
        job.found.refuse("workdir", f"{given}: it is outside of the project; use an absolute path")
    return "" if path == project else path


def _build_container(container: Container, where: str, job: Job, workdir: str) -> ContainerPlan:
    cluster, place, found = job.cluster, job.place, job.found
    name = decide_runtime(container, cluster)
    if name is None:
        message = f"one of {', '.join(RUNTIMES)}? Set it here, or as container_runtime in the"
        found.refuse(f"{where}.runtime", f"{message} profile")
    runtime = RUNTIMES[name or "apptainer"]
    image = container.image
    if is_image_file(image):
        _check_expanded(image, f"{where}.image", found)
        image = _absolute(image, place.project_dir)
    else:
        image = literal(image)
    saves = job.values["checkpoint_dir"]
    own = [place.run_dir, place.project_dir, place.cache_dir, place.code_dir, saves]
    own += [workdir] if workdir and place.mounts_workdir else []
    outermost = [
        folder
        for folder in dict.fromkeys(own)
        if not any(_is_within(folder, other) for other in own if other != folder)
    ]
    mounts = [f"{literal(folder)}:{literal(folder)}" for folder in outermost]
    local = LOCAL_DIR if runtime.programs else cluster.local_dir
    mounts = [] if runtime.has_folders else [*mounts, f"{local}:{local}"]
    for index, mount in enumerate(container.mounts):
        path = f"{where}.mounts[{index}]"
        _check_expanded(mount, path, found)
        source, _, rest = mount.partition(":")
        source = _absolute(source, place.project_dir)
        mounts.append(f"{source}:{rest or source}")
    for option in container.options:
        if name == "apptainer" and option in ("-e", "--cleanenv", "-C", "--containall"):
            message = f"{option} removes what the ranks need; environment: clean keeps your"
            found.refuse(f"{where}.options", f"{message} shell's variables out")
    for folder in [*own, *container.mounts]:
        # No runtime accepts these characters in a mount.
        bad = re.findall("[,:]" if folder in own else ",", folder)
        bad += re.findall(r"\s", folder) if runtime.joins else []
        if bad:
            message = f"{folder}: a container cannot mount a folder with {bad[0]!r} in its name"
            found.refuse(where, message)
    gpus = runtime.rocm if job.rocm else runtime.cuda if cluster.accelerator == "cuda" else ""
    given = {option.partition("=")[0] for option in container.options}
    own_options = [gpus] if gpus and gpus.partition("=")[0] not in given else []
    return ContainerPlan(
        runtime=name or "apptainer",
        image=image,
        mounts=mounts,
        options=[*own_options, *container.options],
    )
