"""The environment of a job, in sections: how hpcrun's decisions reach the user's script."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from hpcrun.plan.deepspeed import FILLS_OPEN_VALUES
from hpcrun.plan.gpus import gpu_section
from hpcrun.plan.job import ARCHITECTURE, LOCAL_DIR, NODE_REFERENCE, RESUME, Job
from hpcrun.plan.launchers import decide_binding, framework_section, sees_one_gpu
from hpcrun.plan.setup import choose_setup
from hpcrun.plan.types import Block, Section
from hpcrun.plan.variables import check_variables, inherited_notes
from hpcrun.spec import Cluster, Env, JobSpec, set_variables

AFTER_VARIABLE = "HPCRUN_AFTER_CHECKPOINT_DIR"


def build_environment(job: Job) -> list[Section]:
    """List all variables, in sections; a later section wins, and the user's are the last."""
    spec, cluster, place = job.spec, job.cluster, job.place

    def user_section(block: Block, title: str, env: Env, path: str) -> Section | None:
        given = set_variables(env)
        filled = {name: job.fill(value, f"{path}.{name}") for name, value in given.items()}
        return Section(block=block, title=title, variables=filled) if filled else None

    sections = [
        run_section(job.values),
        _process_section(job),
        _accelerator_section(job),
        _rocm_section(job),
        framework_section(job),
        gpu_section(spec, cluster, job.precision) if _reads_precision(job) else None,
        _hub_section(cluster),
        *_nccl_sections(job),
        _recorder_section(job),
        user_section("environment", f"Cluster {cluster.name}", cluster.env, "cluster env"),
        user_section("nccl", "The job's NCCL settings", spec.nccl.env, "nccl.env"),
        user_section("job_environment", "The job", spec.env, "env"),
        debug_section(place.run_dir, cluster.accelerator) if place.debug else None,
    ]
    kept = _without_overridden([section for section in sections if section is not None])
    return list(_without_unset(kept, unset_variables(job)))


def unset_variables(job: Job) -> list[str]:
    """List the variables that the user unsets; a value in a layer above sets one again."""
    layers = (job.cluster.env, job.spec.nccl.env, job.spec.env)
    merged = {name: value for layer in layers for name, value in layer.items()}
    return sorted(name for name, value in merged.items() if value is None)


def _without_unset(sections: Iterable[Section], unset: Collection[str]) -> Iterator[Section]:
    for section in sections:
        variables = {k: value for k, value in section.variables.items() if k not in unset}
        prepend = {k: value for k, value in section.prepend.items() if k not in unset}
        if variables or prepend:
            yield structs.replace(section, variables=variables, prepend=prepend)


def check_environment(job: Job) -> None:
    """Check variables of the user's own, and note where the output of --debug is."""
    spec, cluster, place = job.spec, job.cluster, job.place
    # JSC's course has its jobs say that they see all GPUs of their nodes: that takes nobody's.
    whole = job.topology.gpus_per_node if job.topology.whole_node else 0
    for env, path in (
        (cluster.env, f"cluster {cluster.name}: env"),
        (spec.nccl.env, "nccl.env"),
        (spec.env, "env"),
    ):
        # A profile's list is of its nodes, whatever the job wants of them.
        gpus = min(whole, 1) if env is cluster.env else whole
        check_variables(set_variables(env), path, job.fabric, job.found, gpus=gpus)
    if (spec.environment or cluster.environment) == "inherit" and cluster.accelerator == "cuda":
        job.found.notes += inherited_notes(place.inherited, job.fabric)
    if place.debug:
        nccl = "; NCCL's messages are in the run's logs/nccl-HOST-PID.log"
        on_gpus = cluster.accelerator == "cuda"
        job.found.notes.append(f"--debug: torch logs more{nccl if on_gpus else ''}")


def _reads_precision(job: Job) -> bool:
    """Return whether anything of the run trains in the plan's precision, as far as can be seen."""
    spec = job.spec
    texts = [*spec.args, *set_variables(spec.env).values(), *(spec.command or [])]
    return (
        spec.precision is not None
        or job.program == "reference"
        or ("deepspeed_config" in job.values and job.framework not in FILLS_OPEN_VALUES)
        or any("{precision}" in text for text in texts)
    )


def _without_overridden(sections: Sequence[Section]) -> list[Section]:
    """Leave out what a later section sets again: every line does something."""
    kept: list[Section] = []
    later: set[str] = set()
    for section in reversed(sections):
        variables = {k: value for k, value in section.variables.items() if k not in later}
        if not section.fabrics:  # these are alternatives: none takes from another
            later |= section.variables.keys()
        if variables or section.prepend:
            kept.append(structs.replace(section, variables=variables))
    return kept[::-1]


# ---- sections ----------------------------------------------------------------------------------


def run_section(values: Mapping[str, str]) -> Section:
    """Export what hpcrun decided, for scripts that read variables instead of arguments."""
    return Section(
        block="run",
        title="The run",
        variables={
            f"HPCRUN_{name.upper()}": value
            for name, value in values.items()
            # Set earlier, and by the harness.
            if name != "run_dir" and value not in (LOCAL_DIR, RESUME)
        },
    )


def placeholder_names(sections: Iterable[Section]) -> set[str]:
    """List the placeholders that a plan's arguments could have held.

    >>> sorted(placeholder_names([run_section({"run_dir": "/r", "nodes": "2"})]))
    ['local_dir', 'nodes', 'resume', 'run_dir']
    """
    names = {name for section in sections for name in section.variables}
    exported = {name for name in names if name.startswith("HPCRUN_")}
    return {"run_dir", "local_dir", "resume"} | {
        name.removeprefix("HPCRUN_").lower() for name in exported
    }


def after_checkpoint_dir(sections: Iterable[Section]) -> str | None:
    """Return the checkpoint folder of the run that a plan's run came after; None without one.

    >>> after_checkpoint_dir([run_section({"after_checkpoint_dir": "/r/checkpoints"})])
    '/r/checkpoints'
    """
    values = (one.variables.get(AFTER_VARIABLE) for one in sections)
    return next((value for value in values if value is not None), None)


def _process_section(job: Job) -> Section:
    python = job.place.python
    _, setup = choose_setup(job.spec, job.cluster, "")
    image = setup.container.image if setup.container else ""
    variables = {
        # Lines appear when they are printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
        # Unset, every rank would start a thread for each core of the node.
        "OMP_NUM_THREADS": str(job.topology.cpus_per_rank),
        # DeepSpeed compiles operators at the first run; kept by interpreter, since what is built
        # for one torch does not load in another, and by the node's CPU and GPU.
        "TORCH_EXTENSIONS_DIR": f"{job.place.cache_dir}/torch_extensions/"
        + f"{zlib.crc32(f'{image}{python}'.encode(errors='surrogateescape')):08x}"
        + f"/{ARCHITECTURE}",
        # In the home otherwise, which is small, slow and the same for all kinds of GPUs.
        "TRITON_CACHE_DIR": f"{job.place.cache_dir}/triton/{ARCHITECTURE}",
    }
    if sees_one_gpu(job):
        variables["HPCRUN_GPUS_PER_TASK"] = "1"
    if bound := decide_binding(job):
        variables["HPCRUN_BINDING"] = bound  # each rank to the cores next to its GPU
    # Tools that lie beside the interpreter: torch's extensions are built by its ninja.
    folder = python.rpartition("/")[0]
    prepend = {"PATH": folder} if folder else {}
    if job.program != "command":
        prepend["PYTHONPATH"] = job.code_dir
    return Section(
        block="environment",
        title="Processes",
        variables=variables,
        prepend=prepend,
        keeps=["TRITON_CACHE_DIR"],
    )


def _accelerator_section(job: Job) -> Section | None:
    """Set what a cluster without GPUs needs so that the same script trains on CPUs.

    With ACCELERATE_USE_CPU an Accelerator silently leaves DeepSpeed out (accelerate/state.py,
    AcceleratorState), and so does the Trainer: it must not. Without, an Accelerator that has no
    DeepSpeed would take each rank for the only one.
    """
    if job.cluster.accelerator == "cuda":
        return None
    variables = {
        "DS_ACCELERATOR": "cpu",
        # DeepSpeed's CPU accelerator takes its device count from it.
        "LOCAL_SIZE": str(job.topology.ranks_per_node),
    }
    if not job.asks_for_deepspeed:
        variables["ACCELERATE_USE_CPU"] = "true"
    return Section(
        block="environment",
        title="CPUs instead of GPUs",
        variables=variables,
        comment="The job has none that torch could use.",
    )


def _rocm_section(job: Job) -> Section | None:
    """Keep MIOpen's SQLite databases out of the home, as sites do (docs.olcf.ornl.gov, LUMI)."""
    if not job.rocm:
        return None
    place = f"{LOCAL_DIR}/miopen"
    variables = {"MIOPEN_USER_DB_PATH": place, "MIOPEN_CUSTOM_CACHE_DIR": f"{place}/cache"}
    return Section(block="environment", title="ROCm", variables=variables)


def _hub_section(cluster: Cluster) -> Section | None:
    """Set the hubs' offline switches where compute nodes reach no internet: fail at once."""
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


def names_node(config: object) -> bool:
    """Return whether a configuration names a node's own folder, so that each node needs its own.

    >>> names_node({"offload": [{"path": "${HPCRUN_LOCAL_DIR}/swap"}]})
    True
    """
    return LOCAL_DIR in str(config)


def node_sections(sections: Sequence[Section], *, inside: bool) -> list[Section]:
    """Move what only each node knows to a section of its own; ``inside``: search paths, too."""
    kept: list[Section] = []
    variables: dict[str, str] = {}
    prepend: dict[str, str] = {}
    keeps: list[str] = []
    for section in sections:
        own = {k: v for k, v in section.variables.items() if NODE_REFERENCE.search(v)}
        variables |= own
        keeps += [name for name in section.keeps if name in own]
        rest = {k: v for k, v in section.variables.items() if k not in own}
        if inside:
            prepend |= section.prepend
            section = structs.replace(section, prepend={})
        if rest or section.prepend:
            kept.append(structs.replace(section, variables=rest))
    if variables or prepend:
        kept.append(
            Section(
                block="node",
                title="This node's own",
                variables=variables,
                prepend=prepend,
                keeps=keeps,
            )
        )
    return kept


# ---- NCCL --------------------------------------------------------------------------------------

# Only what something reads, each with the reason. NCCL's user guide wants its debugging variables
# in no script: of them there is only NCCL_NET_GDR_LEVEL, which all sites with Slingshot set. The
# RoCE address index (NCCL_IB_GID_INDEX) is not set because NCCL >= 2.21 finds it itself, the
# time-out and the traffic class are left to the site (``nccl: {env: ...}``), and a single node
# needs nothing, with NVLink or without. Names of interfaces and cards are set on each node, by
# ``hardware.sh``.

Rows = Sequence[tuple[str, str, str]]
SINGLE_NODE = "single-node"

# NCCL_NET: aws-ofi-nccl answers to this name in all its versions, though it has another since 1.12
# (its src/nccl_ofi_interface_nvidia.cpp).
_OFI = ("NCCL_NET", "AWS Libfabric", "the libfabric plugin, or an error: not TCP unasked")
_DEBUG = ("NCCL_DEBUG", "WARN", "unset, not even errors are printed")
_IB = ("NCCL_NET", "IB", "verbs, or an error: not TCP unasked")

# What a site sets for all its jobs, and what must not be so in one that trains.
_NOT_KEPT = ("MPICH_GPU_SUPPORT_ENABLED",)

# By fabric: name, value, why. What a site's module or image has set already stays.
FABRICS: dict[str, Rows] = {
    "infiniband": [_IB],
    "roce": [_IB],
    "ethernet": [("NCCL_NET", "Socket", "TCP; no half-configured RDMA card is tried")],
    # Google's plugins, by the names that they answer to (cluster-toolkit,
    # examples/machine-learning/a3-*/nccl-tests); their own scripts set the rest.
    "fastrak": [("NCCL_NET", "FasTrak", "Google's plugin, or an error: not TCP unasked")],
    "gib": [("NCCL_NET", "gIB", "Google's plugin, or an error: not plain RoCE unasked")],
    # The plugin sets the rest itself since 1.7 (its doc/efa-env-var.md).
    "efa": [_OFI],
    # libfabric's cxi provider, fi_cxi(7); the values are those of the sites' own documentation
    # (CSCS, Isambard, OLCF, NERSC: docs/sites.md). Of the length of the queue there are two, of
    # CSCS and a shorter one of Isambard; of the matching too, and hybrid is the one that most have.
    "slingshot": [
        _OFI,
        ("NCCL_CROSS_NIC", "1", "one network: rings may cross cards"),
        ("NCCL_NET_GDR_LEVEL", "PHB", "GPUs send directly by the cards of their NUMA node"),
        ("FI_CXI_DEFAULT_TX_SIZE", "16384", "room for what many ranks send"),
        ("FI_MR_CACHE_MONITOR", "userfaultfd", "the default one can deadlock with CUDA"),
        ("FI_CXI_DISABLE_HOST_REGISTER", "1", "it can deadlock with NCCL"),
        ("FI_CXI_DEFAULT_CQ_SIZE", "131072", "room for the completions of many ranks"),
        ("FI_CXI_RX_MATCH_MODE", "hybrid", "a full match list is not fatal"),
        ("MPICH_GPU_SUPPORT_ENABLED", "0", "GPU-aware MPI beside NCCL can deadlock"),
    ],
}


def decide_fabric(spec: JobSpec, cluster: Cluster) -> str:
    """Decide the network: the job's, else the profile's; auto is seen on the first node."""
    if spec.resources.most_nodes == 1:
        return SINGLE_NODE
    return spec.nccl.fabric if spec.nccl.fabric != "auto" else cluster.fabric


def _nccl_sections(job: Job) -> list[Section]:
    """Set NCCL's variables for a fabric; for ``auto`` a section for each that it may be."""
    if job.cluster.accelerator != "cuda":
        return []
    # With a hostfile the script runs where hpcrun was called, which shows nothing of the hosts.
    fabric, is_seen = job.fabric, not job.place.hosts
    comment = {
        SINGLE_NODE: "One node: NVLink, PCIe and shared memory need nothing set.",
        "auto": "In addition to the network's settings, detected on the job's first node."
        if is_seen
        else "NCCL finds the network itself.",
    }.get(fabric, "")
    title = "NCCL" if fabric == "auto" else f"NCCL ({fabric})"
    sections = [_of_rows("nccl", title, [_DEBUG, *FABRICS.get(fabric, [])], comment)]
    if fabric == "auto" and is_seen:
        alike: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
        for name, rows in FABRICS.items():
            alike.setdefault(tuple(rows), []).append(name)
        sections += [_of_rows("nccl", "NCCL", rows, fabrics=names) for rows, names in alike.items()]
    return sections


def _of_rows(
    block: Block, title: str, rows: Rows, comment: str = "", fabrics: Sequence[str] = ()
) -> Section:
    return Section(
        block=block,
        title=title,
        variables={name: value for name, value, _ in rows},
        reasons={name: why for name, _, why in rows},
        keeps=[name for name, _, _ in rows if block == "nccl" and name not in _NOT_KEPT],
        comment=comment,
        fabrics=list(fabrics),
    )


def _recorder_section(job: Job) -> Section | None:
    """Have PyTorch remember its collectives, and write them when one hangs: runs/flight.py.

    The names are those of torch 2.8 and later; setup.sh adds the older ones where the job's torch
    is older. 2.13 records 2000 collectives anyway. What waits for a word to the pipe is a thread
    that watches NCCL already. The pipe lies on the node's own disk: not every shared one has pipes,
    and torch ends a process that cannot make its own.
    """
    if job.cluster.accelerator != "cuda":
        return None
    rows = [
        ("TORCH_FR_BUFFER_SIZE", "2000", "collectives that are remembered"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "they are written when one hangs, to"),
        ("TORCH_FR_DUMP_TEMP_FILE", f"{job.place.run_dir}/logs/flight-", "a file for each rank"),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{LOCAL_DIR}/flight-", "and when hpcrun asks"),
    ]
    return _of_rows("environment", "What PyTorch remembers of its collectives", rows)


# ---- --debug -----------------------------------------------------------------------------------


def debug_section(run_dir: str, accelerator: str) -> Section:
    """Set the diagnosis switches of one run. They cost time, and never become part of the job.

    The older names of the flight recorder: it is _recorder_section's to torch 2.8 and later.
    """
    rows = [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "reports collectives that do not match"),
        (
            "TORCH_CPP_LOG_LEVEL",
            "INFO",
            "without it DETAIL prints nothing; and the store's messages",
        ),
        ("TORCH_SHOW_CPP_STACKTRACES", "1", "where in torch an error was raised"),
        ("PYTHONFAULTHANDLER", "1", "Python's own stack when a signal ends it"),
        ("LOGLEVEL", "INFO", "torchrun's own messages"),
    ]
    if accelerator == "cuda":
        # %h and %p are NCCL's; a % of the folder's own is doubled (its src/debug.cc).
        logs = f"{run_dir}/logs"
        nccl_log = f"{logs.replace('%', '%%')}/nccl-%h-%p.log"
        rows += [
            ("NCCL_DEBUG", "INFO", "what NCCL finds and chooses"),
            ("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET", "its network, and what it reads"),
            ("NCCL_DEBUG_FILE", nccl_log, "one for each process"),
            ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "before torch 2.8: what it remembers"),
            ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{logs}/flight-", "and where it writes that"),
            ("TORCH_NCCL_DESYNC_DEBUG", "1", "and which rank lags behind"),
        ]
    title = "Diagnosis, for this run alone (--debug)"
    comment = "It costs time: not for the runs that count."
    return _of_rows("job_environment", title, rows, comment)
