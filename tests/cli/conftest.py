"""A caller in a project of its own, on a machine without Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller


@pytest.fixture
def hpcrun(tmp_path: Path, clean_environ: dict[str, str]) -> Caller:
    """No Slurm on the PATH, whatever this machine has."""
    return Caller(tmp_path, clean_environ)
