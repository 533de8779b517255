"""The order of the tests among several workers: what takes long comes first.

pytest-xdist's worksteal gives each worker a run of the list, as many tests as the others; a worker
that is done takes half of what another has left, from the end. A list as it stands in the folders
gives one worker all clusters, and the last long test to a worker that ends alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import pytest

# What trains in forks of a process that has imported a framework: one worker has all these.
FORKED = (
    "tests/workloads/",
    "tests/jobside/test_checkpoints.py",
    "tests/cli/test_settings.py",
    "tests/plan/test_deepspeed_frameworks.py",
)

# About how long a test of a file or folder takes beside another's, where it is not the usual:
# seconds on two cores. They only have to have the right order.
LONG: Mapping[str, float] = {
    "tests/cluster/examples/test_drivable_vit.py": 25,
    "tests/cluster/examples/": 4,
    "tests/cluster/test_compare.py": 15,
    "tests/cluster/test_faults.py": 8,
    "tests/cluster/test_environment.py": 8,
    "tests/cluster/test_hostile.py": 4,
    "tests/cluster/test_hosts_without_slurm.py": 8,
    "tests/cluster/test_launchers.py": 30,
    "tests/cluster/test_preflight.py": 10,
    "tests/cluster/test_probe.py": 8,
    "tests/cluster/test_survive.py": 11,
    "tests/cluster/test_survive_faults.py": 15,
    "tests/cluster/test_survive_twice.py": 15,
    "tests/cluster/test_sweep.py": 20,
    "tests/cluster/test_training.py": 40,
    "tests/cluster/test_truth.py": 12,
    "tests/cluster/test_tutorial.py": 120,
    "tests/cluster/test_watch.py": 35,
    "tests/cluster/test_why.py": 9,
    "tests/cluster/test_worlds.py": 8,
    "tests/plan/test_deepspeed_frameworks.py": 2,
    "tests/plan/test_launchers.py": 10,
    "tests/curves/report/test_page.py": 3,
    "tests/jobside/test_checkpoints.py": 2,
    "tests/sandbox/test_demo.py": 35,
    "tests/slurm/test_hostfile.py": 6,
    "tests/traps/test_mutations.py": 5,
    "tests/workloads/": 5,
    "tests/cli/test_settings.py": 4,
    "tests/cluster/": 3,
    "tests/sandbox/": 4,
}
USUAL = 0.3  # a slow test that needs neither a cluster nor torch


def seconds(file: str) -> float:
    """Estimate how long one of a file's long tests takes.

    >>> seconds("tests/cluster/test_watch.py"), seconds("tests/cluster/test_api.py")
    (35, 3)
    """
    return next((LONG[place] for place in LONG if file.startswith(place)), USUAL)


def module(item: pytest.Item) -> str:
    """Name the file of a test."""
    return item.nodeid.partition("::")[0]


def pile(item: pytest.Item) -> str:
    """Name what a test stays together with: its file, or what shares its file's processes."""
    return FORKED[0] if item.nodeid.startswith(FORKED) else module(item)


def takes_long(item: pytest.Item) -> bool:
    """Tell whether a test is marked as one that takes more than a moment."""
    return bool(item.get_closest_marker("cluster") or item.get_closest_marker("slow"))


def deal(piles: Sequence[tuple[float, int]], hands: int) -> list[list[int]]:
    """Share piles of (weight, index) out, the heaviest first, each to who has least yet.

    >>> deal([(1, 0), (5, 1), (2, 2), (2, 3)], 2)
    [[1], [2, 3, 0]]
    """
    dealt: list[list[int]] = [[] for _ in range(hands)]
    weights = [0.0] * hands
    for weight, index in sorted(piles, key=lambda pile: -pile[0]):
        least = weights.index(min(weights))
        dealt[least].append(index)
        weights[least] += weight
    return dealt


def long_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that each worker begins with its share of the long ones, pile by pile."""
    long = [item for item in items if takes_long(item)]
    short = [item for item in items if not takes_long(item)]
    piles = [list(same) for _, same in groupby(sorted(long, key=pile), pile)]
    weights = [sum(seconds(module(item)) for item in same) for same in piles]
    hands = deal([(weight, index) for index, weight in enumerate(weights)], workers)
    ordered: list[pytest.Item] = []
    for number, hand in enumerate(hands, 1):
        ordered += [item for index in hand for item in piles[index]]
        # Up to this worker's end of the list.
        room = max(0, len(items) * number // workers - len(ordered))
        ordered += short[:room]
        short = short[room:]
    return [*ordered, *short]
