"""The use of a run's nodes over time, which each node records while it trains (usage.sh)."""

# Annotations are not postponed: msgspec would evaluate each as text at every start of hpcrun.
import os
from collections.abc import Iterator, Sequence
from typing import IO

from msgspec import Struct

from hpcrun import files
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import attempt_indices
from hpcrun.runs.status import Scope

_FORMAT = "hpcrun-usage 1 "
_MIB = 1 << 20
# A file grows by 400 kB a day with eight GPUs; a larger one is read up to here.
_MAX_BYTES = 64 << 20
_MAX_NODES = 10_000
# The header and the last lines of a file, from which its totals are computed.
_HEAD_BYTES, _TAIL_BYTES = 1 << 14, 1 << 13
_HOST_FIELDS, _GPU_FIELDS = 6, 4


class GpuSeries(Struct, frozen=True, kw_only=True):
    """A GPU over time; None means unknown.

    The series have a value for each of ``NodeSeries.times``.

    Attributes:
        name: The UUID of NVIDIA's driver, or the number of AMD's.
        utilization: The mean percentage of the time in which a kernel ran.
        memory_peak: The highest sample, in bytes like all memory.
        utilizations: The mean since the previous time.
        powers: The mean since the previous time, in W.
    """

    name: str
    utilization: float | None
    power_watts: float | None
    memory_peak: int | None
    memory_total: int | None
    utilizations: list[float | None]
    memories: list[int | None]
    powers: list[float | None]


class NodeSeries(Struct, frozen=True, kw_only=True):
    """The use of a node over the time of an attempt; None means unknown.

    Memory is in bytes, without the page cache.

    Attributes:
        rank: The node's rank.
        seconds: The time from the first sample to the last one.
        cpus_busy: The mean number of ``cpus`` that were busy.
        cpu_of: Whether the CPU use is that of the job or of the whole node.
        memory_of: Whether the memory use is that of the job or of the whole node.
        times: Times of the series, in seconds since the epoch by the node's clock.
        cpus_busy_series: The mean since the previous time.
    """

    node: str
    rank: int
    attempt: int
    seconds: float
    cpus: int | None
    cpus_busy: float | None
    cpu_of: Scope
    memory_of: Scope | None
    memory_peak: int | None
    memory_total: int | None
    times: list[float]
    cpus_busy_series: list[float | None]
    memories: list[int | None]
    gpus: list[GpuSeries]


def read_node_usage(
    folder: RunFolder, attempt: int | None = None, *, with_series: bool = True
) -> list[NodeSeries]:
    """Read the recorded use of a run's nodes, in the order of their ranks.

    Args:
        attempt: The number of the attempt; None for the last one with a record.
        with_series: False for totals only, which needs a few kB of each file; the series then
            have the first and the last time.
    """
    indices = attempt_indices(folder)[::-1] if attempt is None else [attempt]
    for index in indices:
        try:
            names = os.listdir(folder.usage / str(index))  # noqa: PTH208 - most have few
        except OSError:
            continue
        ranks = (name.removeprefix("node-") for name in names if name.startswith("node-"))
        found = []
        for rank in sorted(int(rank) for rank in ranks if rank.isdecimal())[:_MAX_NODES]:
            path = folder.usage / str(index) / f"node-{rank}"
            try:
                with files.open_plain(path) as file:
                    lines = _read_lines(file, with_series=with_series)
            except OSError as error:
                files.add_notice(f"{path}: {error.strerror}: ignored")
                continue
            series = parse_node_usage(lines, rank=rank, attempt=index)
            if series is not None:
                found.append(series)
        if found:
            return found
    return []


def _read_lines(file: IO[bytes], *, with_series: bool) -> list[str]:
    """Read complete lines: an incomplete last line is being written, or its node has died."""
    size = os.fstat(file.fileno()).st_size
    if with_series or size <= _HEAD_BYTES + _TAIL_BYTES:
        data = file.read(min(size + 1, _MAX_BYTES))
    else:
        # The first two lines have the totals at the start, the last one those at the end.
        head = b"\n".join(file.read(_HEAD_BYTES).split(b"\n")[:2]) + b"\n"
        file.seek(size - _TAIL_BYTES)
        data = head + file.read(_TAIL_BYTES).partition(b"\n")[2]
        lines = data.rpartition(b"\n")[0].split(b"\n")
        return [line.decode("utf-8", "replace") for line in [*lines[:2], *lines[2:][-1:]]]
    return data.rpartition(b"\n")[0].decode("utf-8", "replace").split("\n")


class _Line(Struct):
    """The numbers of a line; None for unknown ones."""

    at: float
    uptime: float
    cpu_time: float | None
    memory: int | None
    memory_peak: int | None
    samples: int
    gpus: list[list[int | None]]


def parse_node_usage(lines: Sequence[str], *, rank: int, attempt: int) -> NodeSeries | None:
    """Parse the lines of a node's file; return None without any valid line.

    Lines that are malformed, or that do not continue the previous one, are ignored.

    >>> lines = ["hpcrun-usage 1 n1 15 job 4 job 1000 nvidia:GPU-1:80"]
    >>> lines += ["10 5 0 100 100 1 50 7 7 300", "25 20 30000000000 200 300 2 150 8 9 700"]
    >>> node = parse_node_usage(lines, rank=0, attempt=0)
    >>> node.cpus_busy, node.memory_peak, node.gpus[0].utilization, node.gpus[0].utilizations
    (2.0, 300, 75.0, [50.0, 100.0])
    """
    if not lines or not lines[0].startswith(_FORMAT):
        return None
    header = lines[0].split(" ")[2:]
    if len(header) < 6:
        return None
    node, _, cpu_of, cpus, memory_of, memory_total, *names = header
    found = list(_continuous(_parse_line(line, len(names)) for line in lines[1:]))
    if not found:
        return None
    first, last = found[0], found[-1]
    busy = [_busy(before, line) for before, line in zip([first, *found], found, strict=False)]
    return NodeSeries(
        node=node,
        rank=rank,
        attempt=attempt,
        seconds=last.uptime - first.uptime,
        cpus=_parse_int(cpus) or None,
        cpus_busy=_busy(first, last),
        cpu_of="job" if cpu_of == "job" else "node",
        memory_of="job" if memory_of == "job" else "node" if memory_of == "node" else None,
        memory_peak=last.memory_peak,
        memory_total=_parse_int(memory_total),
        times=[line.at for line in found],
        cpus_busy_series=busy,
        memories=[line.memory for line in found],
        gpus=[_gpu_series(name, index, found) for index, name in enumerate(names)],
    )


def _parse_line(line: str, gpus: int) -> _Line | None:
    words = line.split(" ")
    if len(words) != _HOST_FIELDS + gpus * _GPU_FIELDS:
        return None
    at, uptime = _parse_float(words[0]), _parse_float(words[1])
    cpu_time, memory, peak, samples, *rest = [_parse_int(word) for word in words[2:]]
    if at is None or uptime is None or samples is None:
        return None
    return _Line(
        at=at,
        uptime=uptime,
        cpu_time=None if cpu_time is None else cpu_time / 1e9,
        memory=memory,
        memory_peak=peak,
        samples=samples,
        gpus=[rest[start : start + _GPU_FIELDS] for start in range(0, len(rest), _GPU_FIELDS)],
    )


def _continuous(lines: "Iterator[_Line | None]") -> Iterator[_Line]:
    """Yield the lines whose counters have not decreased."""
    last = None
    for line in lines:
        if line is None:
            continue
        if last is None or (line.uptime >= last.uptime and line.samples >= last.samples):
            last = line
            yield line


def _busy(before: _Line, now: _Line) -> float | None:
    """Return the mean number of busy CPUs between two lines."""
    seconds = now.uptime - before.uptime
    if before.cpu_time is None or now.cpu_time is None or seconds <= 0:
        return None
    return round(max(0.0, now.cpu_time - before.cpu_time) / seconds, 2)


def _gpu_series(name: str, index: int, lines: Sequence[_Line]) -> GpuSeries:
    _, _, name = name.partition(":")
    name, _, total = name.rpartition(":")
    last = lines[-1].gpus[index]
    pairs = list(zip([None, *lines], lines, strict=False))
    size = _parse_int(total)
    return GpuSeries(
        name=name,
        utilization=_mean(None, lines[-1], index, 0),
        power_watts=_mean(None, lines[-1], index, 3),
        memory_peak=None if last[2] is None else last[2] * _MIB,
        memory_total=None if size is None else size * _MIB,
        utilizations=[_mean(before, now, index, 0) for before, now in pairs],
        memories=[None if (used := line.gpus[index][1]) is None else used * _MIB for line in lines],
        powers=[_mean(before, now, index, 3) for before, now in pairs],
    )


def _mean(before: _Line | None, now: _Line, gpu: int, field: int) -> float | None:
    """Return the mean of a GPU's values since an earlier line, or since the start.

    Each line has the sum of the values.
    """
    count = now.samples - (before.samples if before else 0)
    old, new = before and before.gpus[gpu][field], now.gpus[gpu][field]
    if new is None or count <= 0:
        return None
    return round((new - (old or 0)) / count, 1)


def _parse_int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _parse_float(text: str) -> float | None:
    digits = text.replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdecimal() and len(text) < 20 else None
