"""Variables that do not do what people set them for: myths, old names, switches that harm."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.plan.variable_names import KNOWN_NAMES

On = r"(?i)(1|true|yes|on|y)"


class Rule(Struct, frozen=True, kw_only=True):
    """What to say of a variable whose name and value match; ``source`` is how we know.

    NAME in what is said is the variable's.

    Verdict ``error``: the job would surely fail, or take what is not its own. ``fabrics``: only on
    these networks; ``several_nodes``: only where there are several.
    """

    name: str
    value: str = r"(?s).*"
    say: str
    source: str
    verdict: Literal["note", "error"] = "note"
    fabrics: tuple[str, ...] = ()
    several_nodes: bool = False


NOTHING = "nothing reads it"
_TUNED = f"{NOTHING} any more: NCCL chooses by itself"
_DIAGNOSIS = "a switch for diagnosis; take it out when the trouble is found"

# The first rule that matches speaks.
RULES = [
    # ---- Nothing reads them
    Rule(
        name="NCCL_TIMEOUT",
        say=f"{NOTHING}: a collective's time-out is timeout= of init_process_group, "
        "DEEPSPEED_TIMEOUT (minutes) for DeepSpeed, ddp_timeout for the Trainer",
        source="in no commit of NCCL's history, nor in torch or DeepSpeed; pytorch#135352",
    ),
    Rule(
        name="DEEPSPEED_LOG_LEVEL",
        say=f"{NOTHING}: hpcrun writes log_level: info into DeepSpeed's JSON; "
        "deepspeed: {config: {log_level: ...}} says another",
        source="not in DeepSpeed 0.19.8",
    ),
    Rule(
        name="DEEPSPEED_HOSTFILE",
        say=f"{NOTHING}: the job's hostfile is $HPCRUN_HOSTFILE",
        source="not in DeepSpeed 0.19.8, nor in Accelerate 1.15",
    ),
    Rule(
        name="NCCL_IB_CUDA_SUPPORT",
        say=f"{NOTHING} any more: GPUDirect is used where it can be",
        source="NCCL user guide: removed in 2.4.0",
    ),
    Rule(
        name="NCCL_IB_GDR_LEVEL",
        say=f"{NOTHING} any more: it is NCCL_NET_GDR_LEVEL now",
        source="NCCL user guide: renamed in 2.4.0",
    ),
    Rule(
        name="NCCL_(LL|TREE|SINGLE_RING)_THRESHOLD|NCCL_RINGS",
        say=_TUNED,
        source="NCCL user guide: removed in 2.3 and 2.5; NCCL_RINGS is not in 2.30's sources",
    ),
    Rule(
        name="NCCL_CHECKS_DISABLE",
        say=f"{NOTHING} any more: leave it out",
        source="NCCL user guide: deprecated in 2.2.12; not in 2.30's sources",
    ),
    # ---- Old names
    Rule(
        name="NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT|DESYNC_DEBUG|ENABLE_TIMING"
        "|USE_TENSOR_REGISTER_ALLOCATOR_HOOK)",
        say="torch's old name for it: TORCH_NAME since torch 2.2",
        source="torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
    ),
    # ---- They fail, or take what is not the job's
    Rule(
        name="(CUDA|ROCR|HIP)_VISIBLE_DEVICES",
        value=r"(?s).*\S.*",
        verdict="error",
        say="Slurm gives the job its GPUs; this takes others, perhaps another job's: leave it out",
        source="gres.conf(5): without ConstrainDevices nothing but this variable keeps jobs apart",
    ),
    Rule(
        name="NCCL_IB_DISABLE",
        value=On,
        verdict="error",
        fabrics=("infiniband", "roce", "auto"),
        say="on InfiniBand or RoCE NCCL would find no network; nccl: {fabric: ethernet} trains "
        "over TCP",
        source="NCCL user guide, Debugging; NCCL_NET=IB without a device is an error",
    ),
    Rule(
        name="(NCCL|GLOO)_SOCKET_IFNAME",
        value=r"=?lo",
        verdict="error",
        several_nodes=True,
        say="the loopback interface leads to no other node; leave it out: it is found on each node",
        source="NCCL user guide, NCCL_SOCKET_IFNAME",
    ),
    # ---- They harm where they are left
    Rule(
        name="NCCL_IB_DISABLE",
        value=On,
        fabrics=("ethernet",),
        say="not needed: NCCL_NET=Socket, which hpcrun sets, is TCP already",
        source="NCCL user guide, NCCL_NET",
    ),
    Rule(
        name="NCCL_IB_DISABLE",
        value=On,
        say="a switch for diagnosis: over TCP an InfiniBand machine is many times slower; "
        "nccl: {fabric: ethernet} says it on purpose",
        source="NCCL user guide, Debugging",
    ),
    Rule(
        name="NCCL_(P2P|P2P_DIRECT|SHM)_DISABLE",
        value=On,
        say=f"it turns off NVLink, or shared memory: {_DIAGNOSIS}",
        source="NCCL user guide, Debugging",
    ),
    Rule(
        name="NCCL_(ALGO|PROTO|NTHREADS|BUFFSIZE)",
        say=f"NCCL chooses it by the topology: {_DIAGNOSIS}",
        source="NCCL user guide, Debugging: not to be retained in scripts",
    ),
    Rule(
        name="NCCL_IB_GID_INDEX",
        say="NCCL 2.21 and later finds the index on each node; a fixed one is wrong on the next",
        source="NCCL user guide: -1 (dynamic) since 2.21",
    ),
    Rule(
        name="NCCL_DEBUG_FILE",
        value=r"(?s)(?!/dev/)(?!.*%p).*",
        say="processes overwrite each other's file: it needs %h and %p, as --debug sets it",
        source="NCCL user guide, NCCL_DEBUG_FILE",
    ),
    Rule(
        name="RDMAV_FORK_SAFE|FI_EFA_FORK_SAFE|FI_EFA_USE_DEVICE_RDMA",
        say="not needed with aws-ofi-nccl 1.7 and later, which sets what EFA wants",
        source="aws-ofi-nccl, doc/efa-env-var.md",
    ),
    Rule(
        name="TORCH_DISTRIBUTED_DEBUG",
        value="(?i)detail",
        say="it checks every collective, slowly; hpcrun submit --debug sets it for one run",
        source="torch.distributed, Debugging torch.distributed applications",
    ),
    Rule(
        name="CUDA_LAUNCH_BLOCKING",
        value=On,
        say=f"each kernel waits for the one before: {_DIAGNOSIS}",
        source="CUDA C++ Programming Guide, CUDA environment variables",
    ),
    Rule(
        name="DEEPSPEED_TIMEOUT",
        value="[0-9]{4,}",
        say="it is in minutes",
        source="DeepSpeed 0.19.8, constants.py",
    ),
]
_SPELLED = re.compile(r"(NCCL|TORCH_NCCL|TORCH_FR|FI_(CXI|EFA|MR|HMEM|PROVIDER))_?[A-Z0-9_]*")


def check_variables(
    env: Mapping[str, str],
    path: str,
    *,
    fabric: str,
    problems: list[Problem],
    notes: list[str],
) -> None:
    """Say what is wrong with variables of the user's own: ``path`` is where they stand.

    >>> notes = []
    >>> check_variables({"NCCL_SOCKET_IFNAMES": "eth0"}, "env", fabric="auto", problems=[],
    ...                 notes=notes)
    >>> notes
    ['env.NCCL_SOCKET_IFNAMES: nothing reads it; did you mean NCCL_SOCKET_IFNAME?']
    """
    for name, value in env.items():
        rule = find_rule(name, value, fabric)
        if rule is None:
            meant = misspelt(name)
            if meant:
                notes.append(f"{path}.{name}: {NOTHING}; did you mean {meant}?")
            continue
        message = rule.say.replace("NAME", name)
        if rule.verdict == "error":
            problems.append(Problem("", None, f"{path}.{name}", message))
        else:
            notes.append(f"{path}.{name}: {message}")


def inherited_notes(environ: Mapping[str, str], fabric: str) -> list[str]:
    """Say what in the submitting shell will reach the job and harm it there.

    ``CUDA_VISIBLE_DEVICES`` is not told: Slurm sets it anew in the job.
    """
    notes: list[str] = []
    for name, value in environ.items():
        rule = find_rule(name, value, fabric)
        if rule is not None and not name.endswith("_VISIBLE_DEVICES"):
            message = rule.say.replace("NAME", name)
            notes.append(f"{name} of your shell reaches the job: {message}")
        elif name == "NCCL_NET":
            notes.append(f"{name}={value} of your shell reaches the job, and wins there")
    return notes


def find_rule(name: str, value: str, fabric: str) -> Rule | None:
    """Find the first rule that has something to say of a variable on this network."""
    for rule in RULES:
        if (
            re.fullmatch(rule.name, name)
            and re.fullmatch(rule.value, value)
            and (not rule.fabrics or fabric in rule.fabrics)
            and not (rule.several_nodes and fabric == "single-node")
        ):
            return rule
    return None


def misspelt(name: str) -> str | None:
    """Give the name that was meant, if this is one that nothing reads but nearly another.

    >>> misspelt("NCCL_MIN_CHANNELS"), misspelt("NCCL_DEBUG"), misspelt("NCCL_OF_A_PLUGIN")
    ('NCCL_MIN_NCHANNELS', None, None)
    """
    if name in KNOWN_NAMES or not _SPELLED.fullmatch(name):
        return None
    close = difflib.get_close_matches(name, KNOWN_NAMES, 1, cutoff=0.9)
    return close[0] if close else None
