"""Places for sandboxes in tests: short paths below /tmp, taken down and removed afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.sandbox import lifecycle


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that does not exist yet, in a folder of its own that any user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="hps", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder / "s"
    finally:
        try:
            if (folder / "s" / "sandbox.json").exists():
                lifecycle.down(folder / "s")
        finally:
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def running() -> Iterator[lifecycle.SandboxStatus]:
    """One sandbox of the default shape for all tests of a module that leave it as it is."""
    folder = Path(tempfile.mkdtemp(prefix="hps", dir="/tmp"))
    try:
        yield lifecycle.up(folder / "s")
    finally:
        lifecycle.down(folder / "s")
        shutil.rmtree(folder)
