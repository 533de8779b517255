"""The command line of hpcrun on the login host of a rig."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests import hpcrun_forks
from tests.cluster.rig import Rig
from tests.torch_extensions import CACHE
from tests.waiting import until


@dataclass(frozen=True)
class Submitted:
    """A submitted run and its folder."""

    run_id: str
    job_id: str
    folder: Path

    def record(self, name: str) -> Any:
        """Read one of the first attempt's records."""
        return json.loads((self.folder / "attempts" / "0" / name).read_text())

    def log(self) -> str:
        """Return all output, for messages of failed assertions."""
        return "\n".join(
            f"--- {path.relative_to(self.folder)}\n{path.read_text(errors='replace')}"
            for path in sorted((self.folder / "logs").rglob("*.log"))
        )


@dataclass(frozen=True)
class Site:
    """A project on a rig's login host."""

    rig: Rig
    project: Path
    profile: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> Site:
        """Write the project's cluster profile."""
        self.project.mkdir(parents=True, exist_ok=True)
        profile = {
            "name": "rig",
            "accelerator": "cpu",
            "slurm_conf": str(self.rig.conf),
            "runs_dir": str(self.rig.shared / "runs"),
            "cache_dir": str(CACHE),
            "python": sys.executable,
            "partitions": {"debug": {"gpus_per_node": 4, "cpus_per_node": 8}},
            "partition": "debug",
            "env": {"OMP_NUM_THREADS": "1"},
            **self.profile,
        }
        (self.project / "hpcrun.yaml").write_text(yaml.safe_dump(profile, allow_unicode=True))
        return self

    def environ(self) -> dict[str, str]:
        """Return an environment without settings of this machine for Slurm or hpcrun."""
        kept = {"PATH", "PYTHONPATH", "LANG", "LC_ALL", "USER", "LOGNAME", "TERM"}
        env = {name: value for name, value in os.environ.items() if name in kept}
        return {**env, "HOME": str(self.rig.shared / "home"), "HPCRUN_SANDBOX_DIR": "/nonexistent"}

    def hpcrun(
        self, *args: str | bytes, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run hpcrun in the project."""
        return hpcrun_forks.run(args, cwd=self.project, env=self.environ() | (env or {}))

    def submit(self, *args: str | bytes, env: dict[str, str] | None = None) -> Submitted:
        """Submit, and assert that Slurm accepts the job; options precede ``--``."""
        done = self.hpcrun("submit", "--json", *args, env=env)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        return Submitted(answer["run_id"], answer["job_id"], Path(answer["run_dir"]))

    def status(self, run: Submitted) -> dict[str, Any]:
        """Return the status of a run; exit code 4 (out of reach) is allowed."""
        done = self.hpcrun("status", "--json", run.run_id)
        assert done.returncode in (0, 4), done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)["runs"][0]
        return answer

    def follow(self, run: Submitted) -> subprocess.CompletedProcess[str]:
        """Follow a run to its end; the exit code is the run's."""
        return self.hpcrun("logs", "-f", run.run_id)

    def wait_for(self, run: Submitted, name: str) -> None:
        """Wait until a file of the run exists."""
        until((run.folder / name).exists, lambda: f"{name}\n{run.log()}")

    def start_again(self, job_id: str) -> None:
        """Start a requeued job immediately, without Slurm's delay of two minutes.

        This must not happen in the second in which the first attempt ended: slurmd would mistake
        the new credential for the revoked one with the same time, and the job would fail.
        """

        def state() -> str:
            return self.rig.run("squeue", "-h", "-j", job_id, "-o", "%T").stdout.strip()

        until(lambda: state() == "PENDING", f"job {job_id} to wait again")
        time.sleep(2)
        done = self.rig.run("scontrol", "update", f"jobid={job_id}", "StartTime=now")
        assert done.returncode == 0, done.stderr
