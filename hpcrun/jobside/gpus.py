"""Whether a node's NVIDIA GPUs are fit for the job, by what preflight.sh has measured on it.

preflight.sh recognizes healthy GPUs itself; the facts of all other nodes are judged here.
"""

import re
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

# Errors of nvidia-smi that are the node's fault, by message, since exit codes differ between
# versions.
_BROKEN = (
    *("GPU is lost", "GPU requires reset", "fallen off the bus"),
    "Unable to determine the device handle",
)
# In a container these may be the fault of the image, which has its own copy of the library.
_BROKEN_DRIVER = ("communicate with the NVIDIA driver", "Driver/library version mismatch")
_NO_DEVICES = "No devices were found"
# The errors that NVIDIA's Xid catalogue attributes to the GPU, its memory or its links, and not to
# a program: 48 double-bit ECC; 62 microcontroller; 63, 64 row remapping; 74 NVLink; 79 off the bus;
# 94, 95 ECC; 119, 120 GSP; 140 ECC; 154 recovery action.
_XIDS = frozenset((48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140, 154))
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:]+)[^)]*\): ([0-9]+),? *(.*)")
_DRIVER_LOADED = "NVRM: loading NVIDIA"
# nvidia-smi's 00000000:3B:00.0 is 0000:3b:00 in the kernel's log.
_BUS = re.compile(r"([0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{2}){2})\.[0-9a-fA-F]$")
_LONGEST_MESSAGE = 160
# The driver's own memory use grows with the GPU: half a GB on the largest.
_OWN_MEMORY_MB, _OWN_SHARE = 1024, 0.05


class Facts(NamedTuple):
    """What preflight.sh has measured.

    Attributes:
        wanted: The number of GPUs of the job's task.
        code: The exit code of nvidia-smi.
        fields: The fields that it was queried for.
        answer: Its output, in lines.
        listed: The lines of ``nvidia-smi --list-gpus``; None if that did not end in time.
        kernel: The driver's lines in the kernel's log.
        visible: CUDA_VISIBLE_DEVICES.
        in_image: True if nvidia-smi ran in a container.
    """

    wanted: int
    code: int
    fields: Sequence[str]
    answer: Sequence[str]
    listed: Optional[Sequence[str]] = ()
    kernel: Sequence[str] = ()
    visible: str = ""
    in_image: bool = False


class Findings(NamedTuple):
    """What the facts mean.

    Attributes:
        bad: Why the node is excluded; "" if it is not.
        gpus: The compute capability and name of each GPU.
    """

    bad: str
    warnings: List[str]
    gpus: List[str]


def judge_gpus(facts: Facts) -> Findings:
    """Judge the GPUs of a node: a certain defect is bad, everything else a warning.

    >>> fields = ["compute_cap", "name", "index", "remapped_rows.failure"]
    >>> judge_gpus(Facts(1, 0, fields, ["9.0, NVIDIA H100, 0, No"]))
    Findings(bad='', warnings=[], gpus=['9.0, NVIDIA H100'])
    >>> judge_gpus(Facts(1, 0, fields, ["9.0, NVIDIA H100, 0, Yes"])).bad
    'GPU 0: its memory cannot be repaired: row remapping has failed'
    """
    warnings: List[str] = []
    if any(_NO_DEVICES in line for line in facts.answer):
        bad = _judge_count(facts, 0, warnings.append)
        return Findings(bad, warnings, [])
    messages = _BROKEN if facts.in_image else _BROKEN + _BROKEN_DRIVER
    for line in facts.answer:
        if any(message in line for message in messages):
            return Findings("nvidia-smi: " + line, warnings, [])
    if facts.code != 0:
        last = facts.answer[-1] if facts.answer else ""
        return Findings("", ["nvidia-smi failed: " + last], [])
    gpus: List[Dict[str, str]] = []
    for line in facts.answer:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(facts.fields):  # "WARNING: infoROM is corrupted at gpu ..."
            warnings.append("nvidia-smi: " + line)
            continue
        gpu = dict(zip(facts.fields, cells))
        bad = _judge_gpu(gpu, warnings.append)
        if bad:
            return Findings(bad, warnings, [])
        gpus.append(gpu)
    # The number of GPU slices differs from that of GPUs.
    is_sliced = any(gpu.get("mig.mode.current") == "Enabled" for gpu in gpus)
    if len(gpus) < facts.wanted and not is_sliced and "MIG" not in facts.visible:
        bad = _judge_count(facts, len(gpus), warnings.append)
        if bad:
            return Findings(bad, warnings, [])
    buses = [_bus_of(gpu.get("pci.bus_id", "")) for gpu in gpus]
    warnings += _find_kernel_errors(facts.kernel, [bus for bus in buses if bus])
    names = ["{}, {}".format(gpu.get("compute_cap", ""), gpu.get("name", "")) for gpu in gpus]
    return Findings("", warnings, names)


def _judge_gpu(gpu: Mapping[str, str], warn: Callable[[str], None]) -> str:
    """Return why a GPU is broken, or ""."""
    name = "GPU {}".format(gpu.get("index") or "?")
    # The driver's own verdict. "Drain" allows work to continue on the rest of the GPU.
    # (NVIDIA's GPU Memory Error Management, Error Recovery and Response Flags)
    action = gpu.get("gpu_recovery_action", "")
    if "Drain" in action or "IMEX" in action:
        warn("{}: the driver asks for: {}".format(name, action))
    elif "Reset" in action or "Reboot" in action:
        return "{}: the driver asks for: {}".format(name, action)
    # No spare row is left to replace a broken one: NVIDIA replaces the GPU (RMA Policy Thresholds
    # for Row-Remapping). A pending remapping does not affect new work (ibid.).
    if gpu.get("remapped_rows.failure") == "Yes":
        return "{}: its memory cannot be repaired: row remapping has failed".format(name)
    if gpu.get("remapped_rows.pending") == "Yes":
        warn("{}: a repair of its memory waits for a reset".format(name))
    if gpu.get("retired_pages.pending") == "Yes":
        warn("{}: a bad page of its memory is retired at the next reboot only".format(name))
    errors = _count_of(gpu.get("ecc.errors.uncorrected.volatile.total", ""))
    if errors:
        warn("{}: {} uncorrected ECC errors since the driver was loaded".format(name, errors))
    used, total = _count_of(gpu.get("memory.used", "")), _count_of(gpu.get("memory.total", ""))
    if used and total and used > _OWN_MEMORY_MB and used > _OWN_SHARE * total:
        text = "{}: {} of its {} MB are in use by something else"
        warn(text.format(name, used, total))
    return ""


def _judge_count(facts: Facts, shown: int, warn: Callable[[str], None]) -> str:
    """Return why too few GPUs are the node's fault, or "".

    It is if the node has no more; otherwise CUDA_VISIBLE_DEVICES may use another numbering, as in
    some images.
    """
    listed = facts.listed or ()
    if "MIG-" in facts.visible or any("MIG " in line for line in listed):
        return ""  # slices are counted differently
    there = sum(line.startswith("GPU ") for line in listed)
    if there < facts.wanted and facts.listed is not None and not facts.in_image:
        return "nvidia-smi shows {} of the {} GPUs".format(there, facts.wanted)
    text = "nvidia-smi shows {} of the {} GPUs (CUDA_VISIBLE_DEVICES={})"
    warn(text.format(shown, facts.wanted, facts.visible))
    return ""


def _find_kernel_errors(lines: Sequence[str], buses: Sequence[str]) -> List[str]:
    """Return a warning for each of these GPUs with an error since the driver was loaded.

    The GPU may have been reset since, which the log does not show; the driver reports remaining
    errors itself.
    """
    last: Dict[str, str] = {}
    for line in lines:
        found = _XID.search(line)
        if _DRIVER_LOADED in line:
            last = {}
        elif found and found.group(1).lower() in buses and int(found.group(2)) in _XIDS:
            last[found.group(1).lower()] = "Xid {}, {}".format(found.group(2), found.group(3))
    text = "the GPU at {}: the kernel's log has {}"
    return [text.format(bus, last[bus][:_LONGEST_MESSAGE]) for bus in last]


def _bus_of(address: str) -> str:
    found = _BUS.search(address)
    return found.group(1).lower() if found else ""


def _count_of(text: str) -> int:
    return int(text) if re.match("[0-9]{1,15}$", text) else 0


def parse_facts(text: str) -> Facts:
    """Parse the lines ``KEY=VALUE`` of preflight.sh; ``answer``, ``listed`` and ``kernel`` repeat.

    >>> parse_facts("wanted=2\\ncode=0\\nfields=name index\\nanswer=A, 0\\nanswer=A, 1\\n").answer
    ['A, 0', 'A, 1']
    """
    values: Dict[str, List[str]] = {}
    for line in text.split("\n"):
        key, sign, value = line.partition("=")
        if sign:
            values.setdefault(key, []).append(value)

    def last(key: str) -> str:
        return values.get(key, [""])[-1]

    return Facts(
        wanted=int(last("wanted")),
        code=int(last("code")),
        fields=last("fields").split(),
        answer=[line for line in values.get("answer", []) if line],
        listed=None if last("list_timed_out") else values.get("listed", []),
        kernel=values.get("kernel", []),
        visible=last("visible"),
        in_image=bool(last("in_image")),
    )
