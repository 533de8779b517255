"""A sandbox of two nodes for the examples, and copies of them.

Effects: starts and stops a sandbox.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.examples.project import Project, copy_of, environment
from tests.needs import require
from tests.torch_extensions import CACHE


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Path]:
    """The folder of a sandbox that is up: two nodes, four GPUs in name on each."""
    require(shutil.which("slurmctld", path="/usr/sbin:/usr/bin"), "slurmctld")
    place = Path(f"/tmp/hpe{os.getpid()}")  # sockets need a short path
    argv = [sys.executable, "-m", "hpcrun", "sandbox"]
    env = environment(place) | {"HOME": str(Path.home())}
    subprocess.run([*argv, "up"], env=env, check=True, capture_output=True)
    # What DeepSpeed compiles stays from one test run to the next.
    with (place / "cluster.yaml").open("a", encoding="utf-8") as profile:
        profile.write(f"cache_dir: {CACHE}\n")
    yield place
    subprocess.run([*argv, "down"], env=env, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, sandbox: Path) -> Callable[[str], Project]:
    """Copy an example by its name, for a user beside the sandbox."""
    return lambda name: copy_of(name, tmp_path, environment(sandbox))
