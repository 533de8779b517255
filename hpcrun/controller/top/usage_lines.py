"""What the script of a usage step (templates/usage.sh) says of the nodes of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

_MARK = "hpcrun-top"
_MIB = 1 << 20
_PARTS = re.compile(r"([0-9]+)")
# What a step may say without a line's end, bytes; more is nothing of ours.
_LONGEST = 1 << 16
_MOST_NODES = 10_000
_MOST_GPUS = 64
# /proc/stat counts in ticks of 1/100 s (USER_HZ on every Linux that Slurm runs on).
_TICKS = 100

Scope = Literal["job", "node"]


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU as its driver sees it; None: the driver does not tell.

    ``utilization``: percent of the last moment in which a kernel ran; memory in bytes.
    """

    index: int
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


class NodeUse(Struct, frozen=True, kw_only=True):
    """How busy a node is; None: not known (yet).

    ``cpus_busy`` of ``cpus`` were at work since the last look. ``cpu_of``, ``memory_of``: whether
    this is the job's own use or that of all that runs on the node. Memory in bytes, without what
    is only kept of files.
    """

    node: str
    cpus: int | None = None
    cpus_busy: float | None = None
    cpu_of: Scope | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_of: Scope | None = None
    gpus: tuple[GpuUse, ...] = ()


class UsageLines:
    """Reads what a usage step prints, in whatever pieces it comes.

    >>> lines = UsageLines()
    >>> for clock, busy in ((10, 1000), (12, 1800)):
    ...     lines.feed(f"hpcrun-top n1 begin {clock}\\nhpcrun-top n1 stat 4 {busy} 0 0 50 0\\n")
    ...     lines.feed("hpcrun-top n1 end\\n")
    >>> [(use.node, use.cpus_busy, use.cpus) for use in lines.uses()]
    [('n1', 4.0, 4)]
    """

    def __init__(self) -> None:
        self._rest = ""
        self._uses: dict[str, NodeUse] = {}
        self._begun: dict[str, dict[str, list[str]]] = {}
        # What a node said of its clock and its CPUs last: (seconds, busy seconds).
        self._before: dict[str, tuple[float, float]] = {}

    def uses(self) -> list[NodeUse]:
        """What is known now, node by node in Slurm's order: node2 before node10."""
        return [self._uses[node] for node in sorted(self._uses, key=_place)]

    def feed(self, text: str) -> None:
        """Take what came next."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST:
            self._rest = ""
        for line in lines:
            mark, _, rest = line.partition(" ")
            node, _, rest = rest.partition(" ")
            word, _, value = rest.partition(" ")
            if mark == _MARK and word:
                self._take(node, word, value)

    def _take(self, node: str, word: str, value: str) -> None:
        if word == "begin" and len(self._begun) < _MOST_NODES:
            self._begun[node] = {}
        told = self._begun.get(node)
        if told is None:
            return
        if word == "end":
            self._uses[node] = self._use(node, told)
            del self._begun[node]
        elif len(values := told.setdefault(word, [])) < _MOST_GPUS:
            values.append(value)

    def _use(self, node: str, told: dict[str, list[str]]) -> NodeUse:
        cpus, busy, cpu_of = _cpu(told)
        clock = _number(_first(told, "begin"))
        before, now = self._before.get(node), None
        if clock is not None and busy is not None:
            now = self._before[node] = (clock, busy)
        share = None
        if before is not None and now is not None and now[0] > before[0]:
            share = max(0.0, (now[1] - before[1]) / (now[0] - before[0]))
        memory = _first(told, "memory").split(" ")
        is_told = len(memory) == 3 and memory[0] in ("job", "node")
        memory_of: Scope = "job" if memory[0] == "job" else "node"
        return NodeUse(
            node=node,
            cpus=cpus,
            cpus_busy=None if share is None else round(share, 2),
            cpu_of=cpu_of,
            memory_used=_whole(memory[1]) if is_told else None,
            memory_total=_whole(memory[2]) if is_told else None,
            memory_of=memory_of if is_told else None,
            gpus=_gpus(told),
        )


def _place(node: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _PARTS.split(node)]


def _cpu(told: dict[str, list[str]]) -> tuple[int | None, float | None, Scope | None]:
    """How many CPUs there are, for how many seconds they have worked, and for whom."""
    own = _first(told, "cpu").split(" ")
    if len(own) == 3 and (busy := _number(own[1])) is not None:
        return _whole(own[2]) or None, busy / 1e9, "job"
    count, *words = _first(told, "stat").split() or [""]
    ticks = [_number(word) for word in words]
    if len(ticks) < 4 or None in ticks:
        return None, None, None
    # user nice system idle iowait irq softirq steal; guest times are in user already (proc(5)).
    known = [tick or 0.0 for tick in ticks[:8]]
    return _whole(count), (sum(known) - sum(known[3:5])) / _TICKS, "node"


def _gpus(told: dict[str, list[str]]) -> tuple[GpuUse, ...]:
    """The job's GPUs, by the numbers that Slurm gave it where more are to be seen."""
    found = []
    for line in told.get("gpu", ()):
        fields = [field.strip() for field in line.split(",")]
        index = _whole(fields[0])
        if len(fields) == 7 and index is not None:
            found.append((fields[1], _nvidia(index, fields)))
    for line in told.get("amd", ()):
        words = line.split(" ")
        index = _whole(words[0])
        if len(words) == 4 and index is not None:
            used, total = _whole(words[2]), _whole(words[3])
            gpu = GpuUse(
                index=index, utilization=_number(words[1]), memory_used=used, memory_total=total
            )
            found.append(("", gpu))
    visible = [word for word in _first(told, "visible").split(",") if word]
    own = [gpu for name, gpu in found if str(gpu.index) in visible or _is_named(name, visible)]
    return tuple(own or [gpu for _, gpu in found])


def _is_named(uuid: str, visible: Sequence[str]) -> bool:
    """CUDA takes the begin of a UUID for it (CUDA_VISIBLE_DEVICES=GPU-8932f937)."""
    return any(word.startswith("GPU-") and uuid.startswith(word) for word in visible)


def _nvidia(index: int, fields: Sequence[str]) -> GpuUse:
    """Read a line of nvidia-smi; what a GPU does not tell is in brackets, as [N/A]."""
    used, total = (_number(field) for field in fields[3:5])
    return GpuUse(
        index=index,
        utilization=_number(fields[2]),
        memory_used=None if used is None else int(used * _MIB),
        memory_total=None if total is None else int(total * _MIB),
        power_watts=_number(fields[5]),
        temperature_celsius=_number(fields[6]),
    )


def _first(told: dict[str, list[str]], word: str) -> str:
    return told.get(word, [""])[0]


def _number(text: str) -> float | None:
    """Read a count or a measure; None for anything else."""
    digits = text.replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdigit() and len(text) < 25 else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
