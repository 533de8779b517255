"""A sandbox of two nodes for the examples, and copies of their projects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.examples.project import EXAMPLES, Project, copy_of, environment
from tests.needs import require
from tests.sandbox.using import taken_down
from tests.torch_extensions import CACHE


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Path]:
    """The folder of a running sandbox: two nodes with four simulated GPUs each."""
    place = Path(f"/tmp/hpe{os.getpid()}")
    with _up(place):
        # DeepSpeed's compiled operators are kept for the next test run.
        with (place / "cluster.yaml").open("a", encoding="utf-8") as profile:
            profile.write(f"cache_dir: {CACHE}\n")
        yield place


@pytest.fixture(scope="module")
def cluster_like_it(request: pytest.FixtureRequest) -> Iterator[str]:
    """A sandbox with the partitions, GPU types and limits of the module's example."""
    place = Path(f"/tmp/hpl{os.getpid()}")
    with _up(place, "--like", str(EXAMPLES / example_of(request) / "hpcrun.yaml")):
        yield str(place)


@pytest.fixture(scope="module")
def small(
    request: pytest.FixtureRequest, sandbox: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, Path]:
    """The project of the module's example, and a finished run of its job ``small``."""
    made = copy_of(example_of(request), tmp_path_factory.mktemp("small"), environment(sandbox))
    return made, made.train("small", *getattr(request.module, "SMALL_WORDS", ()))


def example_of(request: pytest.FixtureRequest) -> str:
    """Return the name of the example that a module tests."""
    return request.path.stem.removeprefix("test_").replace("_", "-")


@contextmanager
def _up(place: Path, *options: str) -> Iterator[None]:
    """Start a sandbox, and stop it at the end; its sockets need a short path."""
    require(shutil.which("slurmctld", path="/usr/sbin:/usr/bin"), "slurmctld")
    argv = [sys.executable, "-m", "hpcrun", "sandbox"]
    env = environment(place) | {"HOME": str(Path.home())}
    with taken_down(place):
        subprocess.run([*argv, "up", *options], env=env, check=True, capture_output=True)
        yield


@pytest.fixture
def project(tmp_path: Path, sandbox: Path) -> Callable[[str], Project]:
    """Copy an example by its name, for a user beside the sandbox."""
    return lambda name: copy_of(name, tmp_path, environment(sandbox))
