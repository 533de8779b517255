"""A copy of a project in examples/, and hpcrun commands in it against a sandbox."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import hpcrun_forks
from tests.source import ROOT
from tests.torch_extensions import CACHE

EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Project:
    """The folder of a project, and the environment of its user's shell."""

    folder: Path
    env: dict[str, str]

    def hpcrun(self, *args: str) -> str:
        """Call hpcrun in the project, check its exit code, and return its output."""
        done = self.try_hpcrun(*args)
        assert done.returncode == 0, f"hpcrun {' '.join(args)}\n{done.stdout[-6000:]}{done.stderr}"
        return done.stdout

    def try_hpcrun(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Call hpcrun in the project; return its exit code and output."""
        return hpcrun_forks.run(args, cwd=self.folder, env=self.env)

    def python(self, code: str, *args: str) -> str:
        """Run Python code in the project in one process and thread, and return its output."""
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=self.folder, env={**self.env, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    def dry_run(self, *words: str) -> dict[str, str]:
        """Return the text of each file that would be submitted, by name."""
        shown = self.hpcrun("submit", "--dry-run", *words)
        parts = re.split(r"^==> (\S+) <==\n", shown, flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def train(self, job: str, *args: str) -> Path:
        """Submit a job to the sandbox, wait until it succeeds, and return the folder of its run."""
        argv = ["submit", job, "--cluster", "sandbox", "--follow", *args]
        done = self.try_hpcrun(*argv)
        assert done.returncode == 0, f"hpcrun {' '.join(argv)}\n{done.stdout[-6000:]}{done.stderr}"
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("  folder  ")]
        return Path(line.split(maxsplit=1)[1])

    def curves(self, run: Path) -> dict[str, dict[float, float]]:
        """Return the metrics of a run by name and step, as `hpcrun parse` reads them."""
        reported = json.loads(
            self.hpcrun("parse", "--json", "--full", "--cluster", "sandbox", run.name)
        )
        metrics: dict[str, Any] = reported["runs"][0]["metrics"]
        return {
            name: dict(zip(each["steps"], each["values"], strict=True))
            for name, each in metrics.items()
        }


def copy_of(name: str, tmp_path: Path, env: dict[str, str]) -> Project:
    """Copy the files of an example that git lists, without outputs of earlier runs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", name],
        cwd=EXAMPLES, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for path in filter(None, listed.split("\0")):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((EXAMPLES / path).read_bytes())
    # DeepSpeed's answers about configurations are cached for all tests.
    cache = tmp_path / "hpcrun" / "cache"
    if not cache.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        cache.parent.mkdir(exist_ok=True)
        cache.symlink_to(CACHE)
    return Project(tmp_path / name, {**env, "HOME": str(tmp_path)})


def shapes(jobs: Iterable[str], *others: str) -> list[Any]:
    """Return the command lines of jobs as pytest parameters; mark ``others`` as thorough."""
    marks = dict.fromkeys(others, pytest.mark.thorough)
    return [pytest.param(words, marks=marks.get(words, ())) for words in jobs]


def environment(sandbox: Path) -> dict[str, str]:
    """Return the environment of a user's shell with a sandbox in this folder."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
        "HPCRUN_SANDBOX_DIR": str(sandbox),
    }
