"""The environment of every rank, in sections, each with its reason."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from hpcrun.plan.setup import ARCHITECTURE, LOCAL_DIR
from hpcrun.plan.topology import Topology
from hpcrun.plan.types import Place, Section
from hpcrun.spec.cluster import Cluster

AFTER_VARIABLE = "HPCRUN_AFTER_CHECKPOINT_DIR"


def run_section(values: dict[str, str]) -> Section:
    """What hpcrun decided, for scripts that would rather read variables than take arguments."""
    return Section(
        block="run",
        title="The run",
        variables={
            f"HPCRUN_{name.upper()}": value
            for name, value in values.items()
            if name != "run_dir" and value != LOCAL_DIR  # set earlier, and later on each node
        },
    )


def placeholder_names(sections: Iterable[Section]) -> set[str]:
    """List the placeholders that a plan's words could have held.

    >>> sorted(placeholder_names([run_section({"run_dir": "/r", "nodes": "2"})]))
    ['local_dir', 'nodes', 'run_dir']
    """
    names = {name for section in sections for name in section.variables}
    told = {name for name in names if name.startswith("HPCRUN_")}
    return {"run_dir", "local_dir"} | {name.removeprefix("HPCRUN_").lower() for name in told}


def after_checkpoint_dir(sections: Iterable[Section]) -> str | None:
    """Give the checkpoint folder of the run that a plan's run came after; None without one.

    >>> after_checkpoint_dir([run_section({"after_checkpoint_dir": "/r/checkpoints"})])
    '/r/checkpoints'
    """
    values = (one.variables.get(AFTER_VARIABLE) for one in sections)
    return next((value for value in values if value is not None), None)


def process_section(
    topology: Topology, place: Place, *, code_dir: str | None, image: str
) -> Section:
    """What every rank's process needs. ``image`` is what has the interpreter, if not the node."""
    variables = {
        # Lines appear when they are printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
        # Unset, every rank would start a thread for each core of the node.
        "OMP_NUM_THREADS": str(topology.cpus_per_rank),
        # DeepSpeed compiles operators at the first run; kept by interpreter, since what is built
        # for one torch does not load in another, and by the node's CPU and GPU.
        "TORCH_EXTENSIONS_DIR": f"{place.cache_dir}/torch_extensions/"
        + f"{zlib.crc32(f'{image}{place.python}'.encode()):08x}"
        + f"/{ARCHITECTURE}",
    }
    # Tools that lie beside the interpreter: torch's extensions are built by its ninja.
    folder = place.python.rpartition("/")[0]
    prepend = {"PATH": folder} if folder else {}
    if code_dir is not None:
        prepend["PYTHONPATH"] = code_dir
    return Section(block="environment", title="Processes", variables=variables, prepend=prepend)


def accelerator_section(
    cluster: Cluster, topology: Topology, *, accelerate_deepspeed: bool
) -> Section | None:
    """What a cluster without GPUs needs so that the same script trains on CPUs.

    With ACCELERATE_USE_CPU an Accelerator would leave DeepSpeed out, without a word
    (accelerate/state.py, AcceleratorState): ``accelerate_deepspeed`` says that it must not.
    """
    if cluster.accelerator == "cuda":
        return None
    variables = {
        "DS_ACCELERATOR": "cpu",
        # DeepSpeed's CPU accelerator takes its device count from it.
        "LOCAL_SIZE": str(topology.ranks_per_node),
    }
    if not accelerate_deepspeed:
        variables["ACCELERATE_USE_CPU"] = "true"
    return Section(
        block="environment",
        title="CPUs instead of GPUs",
        variables=variables,
        comment="The job has none that torch could use.",
    )


def hub_section(cluster: Cluster) -> Section | None:
    """Offline switches of the hubs, where compute nodes reach no internet: fail at once."""
    if cluster.internet:
        return None
    return Section(
        block="environment",
        title="No internet on the nodes",
        variables={
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "WANDB_MODE": "offline",
        },
        comment="Hub downloads would hang until they time out.",
    )
