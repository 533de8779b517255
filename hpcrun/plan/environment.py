"""The environment of a job, in sections, through which decisions reach the user's script."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from hpcrun.plan.deepspeed import FILLS_OPEN_VALUES
from hpcrun.plan.gpus import gpu_section
from hpcrun.plan.job import ARCHITECTURE, LOCAL_DIR, NODE_REFERENCE, Job
from hpcrun.plan.launchers import decide_binding, framework_section, sees_one_gpu
from hpcrun.plan.setup import choose_setup
from hpcrun.plan.types import Block, Section
from hpcrun.plan.variables import check_variables, inherited_notes, replaced_notes
from hpcrun.spec import Cluster, Env, JobSpec, set_variables

# An archive of the run, with what compares training and job (hpcrun.jobside.rank_hook).
HOOK = "hook.pyz"
AFTER_VARIABLE = "HPCRUN_AFTER_CHECKPOINT_DIR"


def build_environment(job: Job) -> list[Section]:
    """Return all variables in sections; later sections win, and the user's come last."""
    spec, cluster, place = job.spec, job.cluster, job.place

    def user_section(block: Block, title: str, env: Env, path: str) -> Section | None:
        given = set_variables(env)
        filled = {name: job.fill(value, f"{path}.{name}") for name, value in given.items()}
        if not filled:
            return None
        return Section(block=block, title=title, variables=filled, is_user=True)

    sections = [
        run_section(job.values),
        _process_section(job),
        _accelerator_section(job),
        _rocm_section(job),
        framework_section(job),
        gpu_section(spec, cluster, job.precision) if _passes_precision(job) else None,
        _hub_section(cluster),
        *_nccl_sections(job),
        _recorder_section(job),
        user_section("environment", f"Cluster {cluster.name}", cluster.env, "cluster env"),
        user_section("nccl", "The job's NCCL settings", spec.nccl.env, "nccl.env"),
        user_section("job_environment", "The job", spec.env, "env"),
        debug_section(place.run_dir, cluster.accelerator) if place.debug else None,
    ]
    kept = _remove_overridden([section for section in sections if section is not None])
    return list(_remove_unset(kept, unset_variables(job)))


def unset_variables(job: Job) -> list[str]:
    """Return the variables that the user unsets; a value in a layer above sets one again."""
    layers = (job.cluster.env, job.spec.nccl.env, job.spec.env)
    merged = {name: value for layer in layers for name, value in layer.items()}
    return sorted(name for name, value in merged.items() if value is None)


def _remove_unset(sections: Iterable[Section], unset: Collection[str]) -> Iterator[Section]:
    for section in sections:
        variables = {k: value for k, value in section.variables.items() if k not in unset}
        prepend = {k: value for k, value in section.prepend.items() if k not in unset}
        if variables or prepend:
            yield structs.replace(section, variables=variables, prepend=prepend)


def check_environment(job: Job, sections: Sequence[Section]) -> None:
    """Check the user's variables, and note where the output of --debug is."""
    spec, cluster, place = job.spec, job.cluster, job.place
    # JSC's course sets this to all GPUs of the node, which hides none.
    whole = job.topology.gpus_per_node if job.topology.whole_node else 0
    for env, path in (
        (cluster.env, f"cluster {cluster.name}: env"),
        (spec.nccl.env, "nccl.env"),
        (spec.env, "env"),
    ):
        # A profile describes its nodes, whatever the job requests.
        gpus = min(whole, 1) if env is cluster.env else whole
        check_variables(set_variables(env), path, job.fabric, job.found, gpus=gpus)
    if (spec.environment or cluster.environment) == "inherit":
        if cluster.accelerator == "cuda":
            job.found.notes += inherited_notes(place.inherited, job.fabric)
        replaced = {
            name: value
            for section in sections
            for name, value in section.variables.items()
            if name in list_defaults([section]) and not name.startswith("PYTHON")
        }
        # Many sites set it to 1 for all users, as torchrun does.
        if place.inherited.get("OMP_NUM_THREADS") == "1":
            replaced.pop("OMP_NUM_THREADS", None)
        job.found.notes += replaced_notes(place.inherited, replaced)
    if place.debug:
        nccl = "; NCCL's messages are in the run's logs/nccl-HOST-PID.log"
        on_gpus = cluster.accelerator == "cuda"
        job.found.notes.append(f"--debug: torch logs more{nccl if on_gpus else ''}")


def _passes_precision(job: Job) -> bool:
    """Return True if the plan's precision reaches the program, as far as can be seen."""
    spec = job.spec
    texts = [*spec.args, *set_variables(spec.env).values(), *(spec.command or [])]
    return (
        spec.precision is not None
        or job.program == "reference"
        or ("deepspeed_config" in job.values and job.framework not in FILLS_OPEN_VALUES)
        or any("{precision}" in text for text in texts)
    )


def list_defaults(sections: Iterable[Section]) -> list[str]:
    """List the variables with values of hpcrun that those of the setup commands override.

    >>> ours = Section(block="environment", title="Processes", variables={"OMP_NUM_THREADS": "4"})
    >>> list_defaults([ours, structs.replace(ours, is_user=True, variables={"LANG": "C"})])
    ['OMP_NUM_THREADS']
    """
    return sorted(
        name
        for section in sections
        if section.block in ("environment", "nccl") and not section.is_user
        for name in section.variables
        if name not in section.keeps and not name.startswith("HPCRUN_")
    )


def _remove_overridden(sections: Sequence[Section]) -> list[Section]:
    """Remove variables that a later section sets again, so that every line has an effect."""
    kept: list[Section] = []
    later: set[str] = set()
    for section in reversed(sections):
        variables = {k: value for k, value in section.variables.items() if k not in later}
        if not section.fabrics:  # these sections are alternatives: none overrides another
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
            # Set earlier, by the harness.
            if name != "run_dir" and not NODE_REFERENCE.fullmatch(value)
        },
    )


def placeholder_names(sections: Iterable[Section]) -> set[str]:
    """List the placeholders that a plan's arguments may have contained.

    >>> sorted(placeholder_names([run_section({"run_dir": "/r", "nodes": "2"})]))
    ['local_dir', 'nodes', 'resume', 'run_dir']
    """
    names = {name for section in sections for name in section.variables}
    exported = {name for name in names if name.startswith("HPCRUN_")}
    return {"run_dir", "local_dir", "resume"} | {
        name.removeprefix("HPCRUN_").lower() for name in exported
    }


def after_checkpoint_dir(sections: Iterable[Section]) -> str | None:
    """Return the checkpoint directory of the run that a plan's run depended on; None without one.

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
        # Output appears when it is printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
        # By default every rank would start one thread per core of the node.
        "OMP_NUM_THREADS": str(job.topology.cpus_per_rank),
        # DeepSpeed compiles operators on first use; cached per interpreter, because a build
        # for one torch does not load in another, and per CPU and GPU architecture.
        "TORCH_EXTENSIONS_DIR": f"{job.place.cache_dir}/torch_extensions/"
        + f"{zlib.crc32(f'{image}{python}'.encode(errors='surrogateescape')):08x}"
        + f"/{ARCHITECTURE}",
        # The default, the home directory, is small, slow and shared by all GPU types.
        "TRITON_CACHE_DIR": f"{job.place.cache_dir}/triton/{ARCHITECTURE}",
    }
    if sees_one_gpu(job):
        variables["HPCRUN_GPUS_PER_TASK"] = "1"
    if bound := decide_binding(job):
        variables["HPCRUN_BINDING"] = bound  # each rank to the cores next to its GPU
    # Tools next to the interpreter: its ninja builds torch's extensions.
    folder = python.rpartition("/")[0]
    prepend = {"PATH": folder} if folder else {}
    if job.program != "command":
        prepend["PYTHONPATH"] = job.code_dir
        # (Ray's driver is not a rank of the job.)
        if job.spec.preflight is not False and job.launcher.name != "ray":
            # After the project's folder, so that the project's sitecustomize.py has precedence.
            prepend["PYTHONPATH"] += f":{job.place.run_dir}/{HOOK}"
    return Section(
        block="environment",
        title="Processes",
        variables=variables,
        prepend=prepend,
        keeps=["TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"],
    )


def _accelerator_section(job: Job) -> Section | None:
    """Set the variables with which the same script trains on CPUs, on a cluster without GPUs.

    ACCELERATE_USE_CPU makes an Accelerator and the Trainer silently disable DeepSpeed
    (accelerate/state.py, AcceleratorState), so it is not set with DeepSpeed. Without DeepSpeed it
    is required: an Accelerator would otherwise treat each rank as the only one.
    """
    if job.cluster.accelerator == "cuda":
        return None
    variables = {
        "DS_ACCELERATOR": "cpu",
        # DeepSpeed's CPU accelerator reads its device count from it.
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
    """Keep MIOpen's SQLite databases out of the home directory (docs.olcf.ornl.gov, LUMI)."""
    if not job.rocm:
        return None
    place = f"{LOCAL_DIR}/miopen"
    variables = {"MIOPEN_USER_DB_PATH": place, "MIOPEN_CUSTOM_CACHE_DIR": f"{place}/cache"}
    return Section(block="environment", title="ROCm", variables=variables, keeps=[*variables])


def _hub_section(cluster: Cluster) -> Section | None:
    """Switch hub clients to offline mode if compute nodes have no internet, to fail at once."""
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


def uses_node_folder(config: object) -> bool:
    """Return True if a configuration names a node's local folder, so that each node needs a copy.

    >>> uses_node_folder({"offload": [{"path": "${HPCRUN_LOCAL_DIR}/swap"}]})
    True
    """
    return LOCAL_DIR in str(config)


def node_sections(sections: Sequence[Section], *, inside: bool) -> list[Section]:
    """Move values that only a node knows to their own section; ``inside``: search paths too."""
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

# Only variables that have an effect, each with the reason. NCCL's user guide advises against its
# debugging variables in scripts: only NCCL_NET_GDR_LEVEL is used, which all Slingshot sites set.
# The RoCE address index (NCCL_IB_GID_INDEX) is not set because NCCL >= 2.21 finds it itself; the
# timeout and the traffic class are left to the site (``nccl: {env: ...}``); a single node needs
# nothing, with or without NVLink. ``hardware.sh`` sets names of interfaces and adapters per node.

Rows = Sequence[tuple[str, str, str]]
SINGLE_NODE = "single-node"

# NCCL_NET: aws-ofi-nccl accepts this name in all versions, although its own differs since 1.12
# (its src/nccl_ofi_interface_nvidia.cpp).
_OFI = ("NCCL_NET", "AWS Libfabric", "the libfabric plugin; fail instead of using TCP")
_DEBUG = ("NCCL_DEBUG", "WARN", "unset, not even errors are printed")
_IB = ("NCCL_NET", "IB", "verbs; fail instead of using TCP")

# Values that sites set for all jobs and that break training.
_NOT_KEPT = ("MPICH_GPU_SUPPORT_ENABLED",)

# By fabric: name, value, reason. Values set by a site's module or image are kept.
FABRICS: dict[str, Rows] = {
    "infiniband": [_IB],
    "roce": [_IB],
    "ethernet": [("NCCL_NET", "Socket", "TCP; do not try a half-configured RDMA card")],
    # Google's plugins, by the names that they register (cluster-toolkit,
    # examples/machine-learning/a3-*/nccl-tests); their own scripts set the rest.
    "fastrak": [("NCCL_NET", "FasTrak", "Google's plugin; fail instead of using TCP")],
    "gib": [("NCCL_NET", "gIB", "Google's plugin; fail instead of using plain RoCE")],
    # The plugin sets the rest itself since 1.7 (its doc/efa-env-var.md).
    "efa": [_OFI],
    # libfabric's cxi provider, fi_cxi(7); the values are those of the sites' own documentation
    # (CSCS, Isambard, OLCF, NERSC: docs/sites.md). Of the length of the queue there are two, of
    # CSCS and a shorter one of Isambard; of the matching too, and hybrid is the one that most have.
    "slingshot": [
        _OFI,
        ("NCCL_CROSS_NIC", "1", "one network: rings may cross cards"),
        ("NCCL_NET_GDR_LEVEL", "PHB", "GPUs send directly by the cards of their NUMA node"),
        ("FI_CXI_DEFAULT_TX_SIZE", "16384", "buffers for messages from many ranks"),
        ("FI_MR_CACHE_MONITOR", "userfaultfd", "the default one can deadlock with CUDA"),
        ("FI_CXI_DISABLE_HOST_REGISTER", "1", "it can deadlock with NCCL"),
        ("FI_CXI_DEFAULT_CQ_SIZE", "131072", "room for the completions of many ranks"),
        ("FI_CXI_RX_MATCH_MODE", "hybrid", "a full match list is not fatal"),
        ("MPICH_GPU_SUPPORT_ENABLED", "0", "GPU-aware MPI beside NCCL can deadlock"),
    ],
}


def decide_fabric(spec: JobSpec, cluster: Cluster) -> str:
    """Decide the fabric: the job's, else the profile's; auto is detected on the first node."""
    if spec.resources.most_nodes == 1:
        return SINGLE_NODE
    return spec.nccl.fabric if spec.nccl.fabric != "auto" else cluster.fabric


def _nccl_sections(job: Job) -> list[Section]:
    """Set NCCL's variables for a fabric; for ``auto``, one section per possible fabric."""
    if job.cluster.accelerator != "cuda":
        return []
    # With a hostfile the script runs where hpcrun was called, which is not one of the hosts.
    fabric, is_seen = job.fabric, not job.place.hosts
    comment = {
        SINGLE_NODE: "One node: NVLink, PCIe and shared memory need nothing set.",
        "auto": "In addition to the network's settings, detected on the job's first node."
        if is_seen
        else "NCCL detects the network itself.",
    }.get(fabric, "")
    title = "NCCL" if fabric == "auto" else f"NCCL ({fabric})"
    sections = [_build_nccl_section("nccl", title, [_DEBUG, *FABRICS.get(fabric, [])], comment)]
    if fabric == "auto" and is_seen:
        alike: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
        for name, rows in FABRICS.items():
            alike.setdefault(tuple(rows), []).append(name)
        sections += [
            _build_nccl_section("nccl", "NCCL", rows, fabrics=names)
            for rows, names in alike.items()
        ]
    return sections


def _build_nccl_section(
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
    """Enable the PyTorch flight recorder, which writes its record when a collective hangs.

    runs/flight.py reads the record. The names are those of torch 2.8 and later; setup.sh adds the
    older ones for an older torch. torch 2.13 records 2000 collectives by default. An existing
    thread that watches NCCL also waits for requests on the pipe. The pipe is on the node's local
    disk: some shared file systems have no pipes, and torch ends a process that cannot create its
    own.
    """
    if job.cluster.accelerator != "cuda":
        return None
    rows = [
        ("TORCH_FR_BUFFER_SIZE", "2000", "number of collectives recorded"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "dump them on timeout, to"),
        ("TORCH_FR_DUMP_TEMP_FILE", f"{job.place.run_dir}/logs/flight-", "one file per rank"),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{LOCAL_DIR}/flight-", "and when hpcrun requests it"),
    ]
    return _build_nccl_section("environment", "PyTorch flight recorder", rows)


# ---- --debug -----------------------------------------------------------------------------------


def debug_section(run_dir: str, accelerator: str) -> Section:
    """Set the diagnostic switches of one run. They cost time and never become part of the job.

    These are the older names of the flight recorder; _recorder_section sets those of torch 2.8 on.
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
        # %h and %p belong to NCCL; a % of the directory is doubled (its src/debug.cc).
        logs = f"{run_dir}/logs"
        nccl_log = f"{logs.replace('%', '%%')}/nccl-%h-%p.log"
        rows += [
            ("NCCL_DEBUG", "INFO", "what NCCL finds and chooses"),
            ("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET", "its network, and what it reads"),
            ("NCCL_DEBUG_FILE", nccl_log, "one for each process"),
            ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "before torch 2.8: the flight recorder"),
            ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{logs}/flight-", "and its output files"),
            ("TORCH_NCCL_DESYNC_DEBUG", "1", "and which rank lags behind"),
        ]
    title = "Diagnosis, for this run alone (--debug)"
    comment = "It slows training down: do not use it for final runs."
    return _build_nccl_section("job_environment", title, rows, comment)
