"""Submitted runs whose states Slurm reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.ownership import name_of_user
from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import submit
from tests.slurm_answers import squeue_row


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands, and write a job to submit."""
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    return hpcrun.tools


def submitted(
    hpcrun: Caller, tools: Path, *job_ids: str, options: Sequence[str] = ()
) -> list[Path]:
    """Submit runs with the given job ids."""
    found = []
    for job_id in job_ids:
        replay(tools, "sbatch", (0, f"{job_id}\n", ""))
        done = submit(hpcrun, "--json", *options)
        assert done.code == 0, done
        found.append(Path(done.json["run_dir"]))
    return found


def others(job_id: str, state: str, user: str = "") -> str:
    """Return the row of a job that hpcrun did not submit."""
    return squeue_row(job_id, state, u=user or name_of_user(os.getuid()), Z="/elsewhere")
