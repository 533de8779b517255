"""Folders for sandboxes in tests: short paths below /tmp, removed afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.sandbox import lifecycle
from tests.sandbox.using import taken_down


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that does not exist yet, in a folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="hps", dir="/tmp"))
    folder.chmod(0o755)
    with taken_down(folder / "s") as made:
        yield made


@pytest.fixture(scope="module")
def running() -> Iterator[lifecycle.SandboxStatus]:
    """One sandbox of the default shape for all tests of a module that do not change it."""
    with taken_down(Path(tempfile.mkdtemp(prefix="hps", dir="/tmp")) / "s") as made:
        yield lifecycle.up(made)
