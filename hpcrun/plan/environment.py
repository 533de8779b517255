"""Placeholders and environment variables: how hpcrun's decisions reach the user's script."""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from hpcrun.errors import Problem
from hpcrun.plan.directives import Topology
from hpcrun.plan.types import Place, Section
from hpcrun.spec.cluster import Cluster

# What only the node knows, in the text and variables of a job: bash fills these two there.
LOCAL_DIR = "${HPCRUN_LOCAL_DIR}"
ARCHITECTURE = "${HPCRUN_ARCHITECTURE}"
_NODE_REFERENCE = re.compile(r"\$\{HPCRUN_(?:LOCAL_DIR|ARCHITECTURE)\}")
AFTER_VARIABLE = "HPCRUN_AFTER_CHECKPOINT_DIR"

# Placeholders that not every run has, and what they come with.
_ONLY_WITH = {
    "accelerate_config": "launcher: accelerate",
    "after_checkpoint_dir": "--after RUN, one run of hpcrun's",
    "deepspeed_config": "a deepspeed: block",
    "zero_stage": "a deepspeed: block",
}
# ${HPCRUN_LOCAL_DIR} is no placeholder: bash fills it, on each node.
_TOKEN = re.compile(r"\$\{HPCRUN_LOCAL_DIR\}|\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]")
_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


# ---- placeholders ------------------------------------------------------------------------------


def fill(text: str, values: Mapping[str, str], path: str, problems: list[Problem]) -> str:
    """Fill ``{name}`` in a job file's text; ``{{`` and ``}}`` are braces.

    Anything else with a brace is added to ``problems``: a typo must not reach the script.

    >>> fill("--out={run_dir}/{{x}}", {"run_dir": "/r"}, "args[0]", [])
    '--out=/r/{x}'
    >>> found = []
    >>> _ = fill("{precison}", {"precision": "bf16"}, "args[1]", found)
    >>> print(found[0])
    args[1]: {precison}: no such placeholder; did you mean {precision}?
    """

    def one(match: re.Match[str]) -> str:
        token, name = match[0], match[1]
        if token in ("{{", "}}"):
            return token[0]
        if token.startswith("$"):
            return token
        if name in values:
            return values[name]
        if name is None:
            message = f"a lone {token} in {text!r}; write {token * 2} for a brace"
        elif name in _ONLY_WITH:
            message = f"{{{name}}}: there is one only with {_ONLY_WITH[name]}"
        else:
            close = difflib.get_close_matches(name, values, 1)
            hint = "there are " + " ".join(f"{{{known}}}" for known in sorted(values))
            hint = f"did you mean {{{close[0]}}}?" if close else hint
            message = f"{{{name}}}: no such placeholder; {hint}"
        problems.append(Problem(path, message))
        return token

    return _TOKEN.sub(one, text)


def fill_known(text: str, values: Mapping[str, str]) -> str:
    """Fill the known ``{name}`` in a word from the command line and leave all else as typed.

    >>> fill_known('{"batch": {micro_batch_per_gpu}}', {"micro_batch_per_gpu": "4"})
    '{"batch": 4}'
    """
    return _NAME.sub(lambda match: values.get(match[1], match[0]), text)


def double_braces(text: str, keep: Collection[str]) -> str:
    """Write a word of the command line as a job file has it: fill() gives what fill_known() gives.

    >>> double_braces('{"nodes": {nodes}}', {"nodes"})
    '{{"nodes": {nodes}}}'
    """

    def one(match: re.Match[str]) -> str:
        return match[0] if match[1] in keep else re.sub("[{}]", r"\g<0>\g<0>", match[0])

    return re.sub(rf"{_NAME.pattern}|[{{}}]", one, text)


# ---- sections of the environment ---------------------------------------------------------------


def run_section(values: dict[str, str]) -> Section:
    """Export what hpcrun decided, for scripts that read variables instead of arguments."""
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
    """List the placeholders that a plan's arguments could have held.

    >>> sorted(placeholder_names([run_section({"run_dir": "/r", "nodes": "2"})]))
    ['local_dir', 'nodes', 'run_dir']
    """
    names = {name for section in sections for name in section.variables}
    exported = {name for name in names if name.startswith("HPCRUN_")}
    return {"run_dir", "local_dir"} | {name.removeprefix("HPCRUN_").lower() for name in exported}


def after_checkpoint_dir(sections: Iterable[Section]) -> str | None:
    """Return the checkpoint folder of the run that a plan's run came after; None without one.

    >>> after_checkpoint_dir([run_section({"after_checkpoint_dir": "/r/checkpoints"})])
    '/r/checkpoints'
    """
    values = (one.variables.get(AFTER_VARIABLE) for one in sections)
    return next((value for value in values if value is not None), None)


def process_section(
    topology: Topology, place: Place, *, code_dir: str | None, image: str
) -> Section:
    """Set what every rank's process needs; ``image`` has the interpreter, "": the node has it."""
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
    """Set what a cluster without GPUs needs so that the same script trains on CPUs.

    With ACCELERATE_USE_CPU an Accelerator silently leaves DeepSpeed out (accelerate/state.py,
    AcceleratorState): with ``accelerate_deepspeed`` it must not.
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
    """Move what only each node knows to a section of its own: its folder, its CPU and GPU.

    With ``inside`` search paths too: they go before those of the image.
    """
    kept: list[Section] = []
    variables: dict[str, str] = {}
    prepend: dict[str, str] = {}
    for section in sections:
        own = {k: v for k, v in section.variables.items() if _NODE_REFERENCE.search(v)}
        variables |= own
        rest = {k: v for k, v in section.variables.items() if k not in own}
        if inside:
            prepend |= section.prepend
            section = structs.replace(section, prepend={})
        if rest or section.prepend:
            kept.append(structs.replace(section, variables=rest))
    if variables or prepend:
        kept.append(
            Section(block="node", title="This node's own", variables=variables, prepend=prepend)
        )
    return kept


# ---- --debug -----------------------------------------------------------------------------------


def debug_section(run_dir: str, accelerator: str) -> Section:
    """Set the diagnosis switches of one run. They cost time, and never become part of the job.

    The names of the flight recorder are torch's old ones, which 2.13 reads as well.
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
            ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "collectives that are remembered"),
            ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "they are written when one hangs, to"),
            ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{logs}/nccl-trace-", "a file for each rank"),
            ("TORCH_NCCL_DESYNC_DEBUG", "1", "and which rank lags behind"),
        ]
    return Section(
        block="job_environment",
        title="Diagnosis, for this run alone (--debug)",
        variables={name: value for name, value, _ in rows},
        reasons={name: why for name, _, why in rows},
        comment="It costs time: not for the runs that count.",
    )


def debug_notes(accelerator: str) -> list[str]:
    """Say where the output of --debug is."""
    nccl = "; NCCL's messages are in the run's logs/nccl-HOST-PID.log"
    return [f"--debug: torch logs more{nccl if accelerator == 'cuda' else ''}"]
