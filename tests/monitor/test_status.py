"""States of runs from one query of Slurm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.context import load_context
from hpcrun.monitor.status import determine_status, query_slurm
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.records import History, Submitted, Task
from hpcrun.slurm import client
from hpcrun.slurm.jobs import SlurmJob

TASKS = 6000


def test_states_of_a_large_sweep_are_decided_in_one_pass(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = SweepFolder(tmp_path / "20261121-000001-a-7k3p.array")
    runs = []
    for index in range(TASKS):
        run = sweep.run(index)
        submitted = Submitted(
            job_id=f"7_{index}", cluster="c", slurm_conf=None, submitted_at=0.0, host="", user=""
        )
        task = Task(sweep_id=sweep.sweep_id, index=index, values={})
        runs.append((run, History(run_id=run.run_id, submitted=submitted, task=task)))
    rows = [
        SlurmJob(job_id=f"7_{index}", source="squeue", state="RUNNING", work_dir=str(sweep.path))
        for index in range(TASKS)
    ]
    monkeypatch.setattr(client, "query_queue", lambda *_, **__: rows)
    begun = time.process_time()
    answers = query_slurm(load_context(clean_environ, tmp_path), None, runs)
    states = {determine_status(answers, run, history).state for run, history in runs}
    assert states == {"RUNNING"}
    assert time.process_time() - begun < 10
