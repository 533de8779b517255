"""The recorded use of a run's nodes as data of the page's charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, structs

from hpcrun.runs import NodeSeries
from hpcrun.text import GIB

# With more GPUs than this a line is the mean of a node's GPUs; more nodes than this are not drawn.
_MAX_LINES = 24
_MAX_POINTS = 4000


class _Panel(Struct, frozen=True):
    """A chart: its title and unit, and the metric of its lines."""

    title: str
    unit: str
    metric: str


_PANELS = (
    _Panel("GPU utilization", "%", "gpu"),
    _Panel("GPU memory", "GiB", "gpu_memory"),
    _Panel("GPU power", "W", "power"),
    _Panel("CPU cores in use by the {}", "", "cpu"),
    _Panel("Memory of the {}", "GiB", "memory"),
)

_Values = Sequence[float | int | None]


def build_use_data(nodes: Sequence[NodeSeries]) -> dict[str, Any]:
    """Return the data of the charts in the form of ``page_data()`` in curves/report/html.py.

    Each GPU and each node is a line; times are seconds since the first sample of any node.

    >>> build_use_data([])["panels"]
    []
    """
    begun = min((node.times[0] for node in nodes if node.times), default=0.0)
    shown = nodes[:_MAX_LINES]
    each_gpu = sum(len(node.gpus) for node in shown) <= _MAX_LINES
    runs = [
        _build_line(name, node.times, begun, metrics)
        for node in shown
        for name, metrics in _lines_of(node, each_gpu=each_gpu)
    ]
    known = {name for run in runs for name in run["metrics"]}
    scopes = {
        "cpu": _name_scopes({node.cpu_of for node in shown}),
        "memory": _name_scopes({node.memory_of for node in shown if node.memory_of}),
    }
    named = [
        structs.replace(each, title=each.title.format(scopes.get(each.metric))) for each in _PANELS
    ]
    panels = [
        {
            "title": panel.title,
            "unit": panel.unit,
            "metrics": [panel.metric],
            "labels": [panel.title],
            "log": False,
            "range": [0, 105] if panel.metric == "gpu" else None,
            "beyond": 0,
            "smooth": True,
            "shown": True,
        }
        for panel in named
        if panel.metric in known
    ]
    note = f"the first {_MAX_LINES} of {len(nodes)} nodes" if len(nodes) > _MAX_LINES else ""
    return {"runs": runs, "panels": panels, "axes": ["time"], "smoothing": 0.0, "note": note}


def _name_scopes(scopes: Iterable[str]) -> str:
    """Name what a value is measured for, which depends on Slurm's configuration of each node.

    >>> _name_scopes({"job"}), _name_scopes({"node"}), _name_scopes({"node", "job"})
    ('job', 'whole node', 'job or the whole node')
    """
    return " or the ".join({"node": "whole node"}.get(each, each) for each in sorted(scopes))


def _lines_of(node: NodeSeries, *, each_gpu: bool) -> Iterator[tuple[str, dict[str, _Values]]]:
    """Yield the name and the series of each line of a node."""
    gpus: list[tuple[_Values, _Values, _Values]] = [
        (gpu.utilizations, gpu.memories, gpu.powers) for gpu in node.gpus
    ]
    names = [f"{node.node} GPU {index}" for index in range(len(gpus))]
    if gpus and not each_gpu:
        use, used, power = (_mean_of(column) for column in zip(*gpus, strict=True))
        gpus = [(use, used, power)]
        names = [f"{node.node} GPUs, mean"]
    for name, (utilizations, memories, powers) in zip(names, gpus, strict=True):
        yield name, {"gpu": utilizations, "gpu_memory": _in_gib(memories), "power": powers}
    yield node.node, {"cpu": node.cpus_busy_series, "memory": _in_gib(node.memories)}


def _mean_of(series: Sequence[_Values]) -> list[float | None]:
    """Return the mean of several series at each time, without unknown values.

    >>> _mean_of([[1.0, None, None], [3.0, 5.0, None]])
    [2.0, 5.0, None]
    """
    means: list[float | None] = []
    for values in zip(*series, strict=True):
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def _in_gib(values: _Values) -> list[float | None]:
    return [None if value is None else round(value / GIB, 2) for value in values]


def _build_line(
    name: str, times: Sequence[float], begun: float, metrics: dict[str, _Values]
) -> dict[str, Any]:
    """Return a line for each metric; times at which a metric is unknown are left out."""
    axes: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for metric, values in metrics.items():
        known = [
            (round(moment - begun, 1), value)
            for moment, value in zip(times, values, strict=True)
            if value is not None
        ]
        known = known[:: 1 + len(known) // _MAX_POINTS]
        if known:
            found[metric] = {"axis": len(axes), "values": [value for _, value in known]}
            axis = {"step": None, "tokens": None, "time": [moment for moment, _ in known]}
            axes.append(axis | {"count": len(known)})
    return {"name": name, "axes": axes, "metrics": found, "restarts": []}
