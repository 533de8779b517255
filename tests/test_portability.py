"""Nothing on the laptop's side needs Linux; commands that start jobs on this machine say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.errors import InputError
from hpcrun.sandbox.lifecycle import up
from tests.source import ROOT

# These modules run only on the nodes of a cluster.
ON_NODES = "hpcrun/jobside/"


@pytest.mark.slow
def test_laptop_side_uses_nothing_that_only_linux_has() -> None:
    words = ["--platform", "darwin", "--cache-dir", str(ROOT / ".mypy_cache" / "darwin"), "hpcrun"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "checked" in done.stdout, done
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if not line.startswith(ON_NODES)] == []


def test_sandbox_refuses_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match="runs only on Linux"):
        up(tmp_path)
