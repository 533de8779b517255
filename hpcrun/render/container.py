"""The words that put a rank into its container, quoted for bash.

Apptainer's are those of ``apptainer exec`` (singularity's too), pyxis's those that its plugin adds
to srun; they are no options of sbatch, where many sites lack them.
"""

from __future__ import annotations

from hpcrun.plan.types import Plan
from hpcrun.render.quoting import quote_bash, quote_expanded


def apptainer_words(plan: Plan) -> list[str]:
    """Build the options of ``apptainer exec`` and the image, a line for each."""
    container = plan.setup.container
    if container is None or container.runtime != "apptainer":
        return []
    gpus = ["--nv"] if plan.accelerator == "cuda" and "--rocm" not in container.options else []
    binds = [f"--bind {quote_expanded(mount)}" for mount in container.mounts]
    options = [quote_bash(option) for option in container.options]
    return [
        *gpus,
        f"--pwd {quote_bash(plan.project_dir)}",
        *binds,
        *options,
        quote_expanded(container.image),
    ]


def pyxis_words(plan: Plan) -> list[str]:
    """Build srun's further options, where pyxis starts the ranks' container."""
    container = plan.setup.container
    if container is None or container.runtime != "pyxis":
        return []
    mounts = ",".join(quote_expanded(mount) for mount in container.mounts)
    return [
        f"--container-image={quote_expanded(container.image)}",
        f"--container-mounts={mounts}",
        f"--container-workdir={quote_bash(plan.project_dir)}",
        *(quote_bash(option) for option in container.options),
    ]


def kept_variables(plan: Plan) -> list[str]:
    """Name the variables of the job whose values must win over the image's own."""
    if plan.setup.container is None:
        return []
    names = {
        name
        for section in plan.environment
        if section.block != "node"
        for name in section.variables
        if name not in section.keeps and not name.startswith("HPCRUN_")
    }
    return sorted({*names, *plan.secrets})
