"""Fixtures of the cluster tests: rigs for the session, and checks for leftovers of each test."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import Rig, why_not
from tests.cluster.site import Site
from tests.needs import require
from tests.waiting import PATIENCE

_RIGS = ("rig", "bare_rig", "unresolved_rig", "bound_rig", "wide_rig")
FORBIDS = """
function slurm_job_submit(job, partitions, user)
    if job.name == "forbidden" then job.requeue = 0 end
    return slurm.SUCCESS
end
function slurm_job_modify(change, job, partitions, user)
    if job.name == "forbidden" and change.requeue == 1 then return slurm.ERROR end
    return slurm.SUCCESS
end
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as a cluster test."""
    for item in items:
        if item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """Two nodes with four GPUs each, with accounting."""
    yield from _running(accounting=True)


@pytest.fixture(scope="session")
def bare_rig() -> Iterator[Rig]:
    """Two nodes with four GPUs each, without accounting: sacct exits with code 1."""
    yield from _running(accounting=False)


@pytest.fixture(scope="session")
def unresolved_rig() -> Iterator[Rig]:
    """Two nodes whose names cannot be resolved, with accounting."""
    yield from _running(accounting=True, resolve_names=False)


@pytest.fixture(scope="session")
def bound_rig() -> Iterator[Rig]:
    """One node with two GPUs and the real CPUs of this machine, to which Slurm binds each task."""
    cpus = min(4, len(os.sched_getaffinity(0)))
    bound = {"TaskPlugin": "task/affinity"}
    yield from _running(accounting=False, nodes=1, gpus_per_node=2, cpus=cpus, settings=bound)


@pytest.fixture(scope="session")
def wide_rig() -> Iterator[Rig]:
    """Twelve nodes with accounting, where a requeued job waits only for seconds.

    The site forbids requeueing for jobs with "forbidden" in their names.
    """
    yield from _running(accounting=True, nodes=12, pause=10, job_submit=FORBIDS)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a job, a folder or a busy node on the rig it used."""
    used = [request.getfixturevalue(name) for name in _RIGS if name in request.fixturenames]
    yield
    for one in used:
        left = _wait_until_clean(one)
        if left:
            one.clear()
            listed = "\n".join(f"  {line}" for line in left)
            pytest.fail(f"left behind {PATIENCE / 4:g} s after the test:\n{listed}")


@pytest.fixture
def fresh_root() -> Iterator[Path]:
    """A path for a separate rig, which does not exist yet and is outside of /tmp."""
    _require_rig(accounting=False)
    with tempfile.TemporaryDirectory(prefix="hpcrun-rig-", dir="/var/tmp") as folder:
        yield Path(folder) / "rig"


def _running(*, accounting: bool, **options: Any) -> Iterator[Rig]:
    _require_rig(accounting)
    # Not below /tmp, which is private to each node.
    with tempfile.TemporaryDirectory(prefix="hpcrun-rig-", dir="/var/tmp") as folder:
        one = Rig(Path(folder) / "rig", accounting=accounting, **options)
        one.start()
        try:
            yield one
        finally:
            one.stop()


def _require_rig(accounting: bool) -> None:
    reason = why_not(accounting)
    require(not reason, f"a Slurm rig: {reason}")


def _wait_until_clean(rig: Rig) -> list[str]:
    deadline = time.monotonic() + PATIENCE / 4
    # As long as there are jobs, the nodes need not be searched.
    while (left := rig.list_jobs() or rig.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


@pytest.fixture
def site(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A new project on the rig, whose runs are removed after the test."""
    yield from _site(rig, request.node.name)


@pytest.fixture
def bare_site(bare_rig: Rig, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A new project on the rig without accounting."""
    yield from _site(bare_rig, request.node.name)


@pytest.fixture
def unresolved_site(unresolved_rig: Rig, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A new project on the rig whose node names do not resolve."""
    yield from _site(unresolved_rig, request.node.name)


@pytest.fixture
def bound_site(bound_rig: Rig, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A new project on the rig whose tasks are bound to CPUs."""
    yield from _site(bound_rig, request.node.name)


@pytest.fixture
def wide_site(wide_rig: Rig, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A new project on the rig of twelve nodes."""
    own = {"cache_dir": str(wide_rig.shared / "cache")}  # no bad nodes from another test
    yield from _site(wide_rig, request.node.name, own)


def _site(rig: Rig, name: str, profile: dict[str, Any] | None = None) -> Iterator[Site]:
    folder = rig.shared / "".join(char if char.isalnum() else "-" for char in name)
    yield Site(rig, folder, profile or {}).prepare()
    _wait_until_clean(rig)  # an ending job reads from its run folder what to remove from its nodes
    deadline = time.monotonic() + PATIENCE / 4
    # A process may still write there.
    while not _is_removed(folder, rig.shared / "runs") and time.monotonic() < deadline:
        time.sleep(0.2)


def _is_removed(*folders: Path) -> bool:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return not any(folder.exists() for folder in folders)
