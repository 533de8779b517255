"""One quick job on a real Slurm: sandbox up, submit, log, end, sandbox down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.needs import require_command


def test_job_runs_on_a_sandbox(place: Path, tmp_path: Path, clean_environ: dict[str, str]) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    require_command("slurmctld", path)
    env = clean_environ | {"HPCRUN_SANDBOX_DIR": str(place), "PATH": path}

    def hpcrun(*argv: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrun", *argv],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    hpcrun("sandbox", "up")
    (tmp_path / "job.yaml").write_text(
        # Each waits for the other: the first to fail would have Slurm end the one that is late.
        "command: [bash, -c, 'echo node $SLURM_NODEID of $SLURM_NNODES; touch at$SLURM_NODEID;\n"
        "  until test -e at0 -a -e at1; do sleep 0.1; done; exit 7']\n"
        "resources: {nodes: 2, gpus_per_node: 1}\n"
    )
    hpcrun("submit", "--wait", "job.yaml", code=1)
    (listed,) = json.loads(hpcrun("status", "--json"))["runs"]
    assert (listed["state"], listed["exit_code"]) == ("FAILED", 7)
    log = hpcrun("logs", listed["job_id"])
    assert "node 0 of 2\n" in log and "node 1 of 2\n" in log
    # Running jobs are not ended silently; ended jobs do not count.
    job_id = json.loads(hpcrun("submit", "--json", "--", "sleep", "600"))["job_id"]
    hpcrun("sandbox", "down", code=2)
    hpcrun("cancel", job_id)
    hpcrun("sandbox", "down")
    assert not place.exists()
