"""The resources that a finished job used."""

from __future__ import annotations

from msgspec import structs

from hpcrun.monitor.ended import measure_resources
from hpcrun.runs.usage import parse_node_usage
from tests.runs.test_efficiency import attempt, status

LINES = [
    "hpcrun-usage 1 n1 15 job 4 job 1000 nvidia:GPU-1:80",
    "10 5 0 100 100 1 50 7 7 300",
    "25 20 30000000000 200 300 2 150 8 9 700",
]


def test_use_of_the_host_is_unknown_if_a_node_has_no_samples() -> None:
    node = parse_node_usage(LINES, rank=0, attempt=0)
    assert node is not None
    two = structs.replace(status(attempt(nodes="n[1-2]")), run=None)
    used = measure_resources(two, [node])
    assert (used.memory_used, used.cpus, used.cpu_share) == (None, None, None)
    assert (used.gpu_share, used.sampled_gpus, used.gpus) == (0.75, 1, 8)
    both = measure_resources(two, [node, structs.replace(node, node="n2", rank=1)])
    assert (both.memory_used, both.cpus, both.cpu_share) == (600, 8, 0.5)
