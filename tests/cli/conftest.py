"""A caller in a project of its own, on a machine without Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.cli import output
from tests.cli.calling import Caller


@pytest.fixture
def hpcrun(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Caller:
    """No Slurm on the PATH, whatever this machine has; one that is slow here is no news."""
    monkeypatch.setattr(output, "SLOW", 600.0)
    return Caller(tmp_path, clean_environ)
