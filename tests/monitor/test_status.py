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


@pytest.mark.parametrize("is_answered", [True, False])
def test_runs_that_share_a_job_have_its_state_before_the_submission_is_recorded(
    tmp_path: Path,
    clean_environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    is_answered: bool,
) -> None:
    sweep = SweepFolder(tmp_path / "20261121-000001-a-7k3p.array")
    runs = []
    for index in range(6):
        run = sweep.run(index)
        task = Task(sweep_id=sweep.sweep_id, index=index, values={})
        answer = f"7_{index // 2}" if is_answered else None
        history = History(run_id=run.run_id, task=task, answered=answer, runs_per_job=2)
        runs.append((run, history))
    rows = [
        SlurmJob(job_id=f"7_{task}", source="squeue", state=state, work_dir=str(sweep.path))
        for task, state in enumerate(["RUNNING", "PENDING", "PENDING"])
    ]
    monkeypatch.setattr(client, "query_queue", lambda *_, **__: rows)
    answers = query_slurm(load_context(clean_environ, tmp_path), None, runs)
    found = [determine_status(answers, run, history) for run, history in runs]
    assert [one.job_id for one in found] == ["7_0", "7_0", "7_1", "7_1", "7_2", "7_2"]
    assert [one.state for one in found] == ["RUNNING"] * 2 + ["PENDING"] * 4
    assert [one.word for one in found] == [run.run_id for run, _ in runs]
