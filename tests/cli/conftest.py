"""A caller in a new project, on a machine without Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.cli import output
from tests.cli.calling import Caller
from tests.cli.status_runs import several, tools

__all__ = ["several", "tools"]  # fixtures


@pytest.fixture
def hpcrun(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Caller:
    """Remove Slurm from the PATH, and disable the notice about a slow Slurm."""
    monkeypatch.setattr(output, "SLOW_ANSWER_S", 600.0)
    return Caller(tmp_path, clean_environ)
