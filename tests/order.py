"""Order the tests for several workers: long tests come first.

pytest-xdist's worksteal gives each worker an equal, contiguous part of the list; a worker that is
done takes the second half of what another has left. In the order of the folders, one worker would
get all clusters, and the last long test would start late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import pytest

# Tests that train in forks of a process that has imported a framework: all run on one worker.
FORKED = (
    "tests/workloads/",
    "tests/jobside/test_checkpoints.py",
    "tests/cli/test_settings.py",
    "tests/plan/test_deepspeed_frameworks.py",
    "tests/plan/test_own_values.py",
    "tests/cluster/test_launchers.py",
)

# Approximate seconds per test of a file or folder on two cores, where they differ from
# DEFAULT_SECONDS. Only their relative sizes matter.
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
DEFAULT_SECONDS = 0.3  # a slow test that needs neither a cluster nor torch


def estimate_seconds(file: str) -> float:
    """Return the approximate duration of a slow test of a file.

    >>> estimate_seconds("tests/cluster/test_watch.py")
    35
    >>> estimate_seconds("tests/cluster/test_api.py")
    3
    """
    return next((LONG[place] for place in LONG if file.startswith(place)), DEFAULT_SECONDS)


def get_file(item: pytest.Item) -> str:
    """Return the path of the file of a test."""
    return item.nodeid.partition("::")[0]


def get_group(item: pytest.Item) -> str:
    """Return the group of tests that run on one worker: those of a file, or all of FORKED."""
    return FORKED[0] if item.nodeid.startswith(FORKED) else get_file(item)


def is_slow(item: pytest.Item) -> bool:
    """Return True if a test has a marker of slow tests."""
    return bool(item.get_closest_marker("cluster") or item.get_closest_marker("slow"))


def distribute(groups: Sequence[tuple[float, int]], workers: int) -> list[list[int]]:
    """Assign groups of (seconds, index), the longest first, to the worker with the least work.

    >>> distribute([(1, 0), (5, 1), (2, 2), (2, 3)], 2)
    [[1], [2, 3, 0]]
    """
    assigned: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for seconds, index in sorted(groups, key=lambda group: -group[0]):
        least = loads.index(min(loads))
        assigned[least].append(index)
        loads[least] += seconds
    return assigned


def order_slow_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that each worker begins with its share of the slow ones, group by group."""
    slow = [item for item in items if is_slow(item)]
    fast = [item for item in items if not is_slow(item)]
    groups = [list(same) for _, same in groupby(sorted(slow, key=get_group), get_group)]
    totals = [sum(estimate_seconds(get_file(item)) for item in group) for group in groups]
    shares = distribute([(total, index) for index, total in enumerate(totals)], workers)
    ordered: list[pytest.Item] = []
    for number, share in enumerate(shares, 1):
        ordered += [item for index in share for item in groups[index]]
        # Fill up to the end of this worker's part of the list.
        room = max(0, len(items) * number // workers - len(ordered))
        ordered += fast[:room]
        fast = fast[room:]
    return [*ordered, *fast]
