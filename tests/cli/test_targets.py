"""Resolving words to runs, sweeps and other Slurm jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.context import load_context
from hpcrun.monitor.targets import find_targets, find_targets_by_word
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.slurm import client
from hpcrun.slurm.jobs import SlurmJob
from tests.cli.calling import Caller
from tests.cli.status_runs import make_run, write_sweep

RUN = "20261120-081455-train-7k3r"


@pytest.fixture
def asked(hpcrun: Caller, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the queries: there are a run of job 15 and a sweep of job 40, whose task 3 is 99."""
    attempt = make_run(hpcrun, RUN, "15").attempts / "0"
    (attempt / "end.json").write_text('{"attempt": 0, "job_id": "15", "next": "16"}')
    folder = write_sweep(hpcrun, 6)
    task = SlurmJob(
        job_id="40_3", number="99", source="squeue", state="RUNNING", work_dir=str(folder)
    )
    questions: list[list[str]] = []

    def queue(_: object, job_ids: list[str]) -> list[SlurmJob]:
        questions.append(job_ids)
        return [task]

    monkeypatch.setattr(client, "query_queue", queue)
    return questions


@pytest.mark.parametrize(
    ("word", "name"),
    [
        (None, "20261121-000000-lr-7k3q.array"),
        ("15", RUN),
        ("7k3r", RUN),
        ("40", "20261121-000000-lr-7k3q.array"),
        ("40_[0-5%2]", "20261121-000000-lr-7k3q.array"),  # pending tasks in the notation of squeue
        ("40_3", "20261121-000000-lr.3-7k3q"),
        ("99", "20261121-000000-lr.3-7k3q"),  # the job number of the task
        ("16", RUN),  # the job as which it continued
        ("77", "77"),
        ("77_4", "77_4"),
        ("77+1", "77+1"),
        ("nothing", None),
    ],
)
def test_word_is_resolved_to_run_sweep_or_job(
    hpcrun: Caller, asked: list[list[str]], word: str | None, name: str | None
) -> None:
    target = find_targets_by_word(load_context(hpcrun.environ, hpcrun.project), [word])[word]
    found = target.path.name if isinstance(target, (RunFolder, SweepFolder)) else target
    assert found == name
    # Only a number that belongs to no run may be that of a task.
    assert asked == ([[word]] if word in ("99", "77") else [])


def test_many_words_need_one_query(hpcrun: Caller, asked: list[list[str]]) -> None:
    words = ["15", "99", "77", "40_[1-2]", "8_[4,6]", "77", str(10**12)]
    targets = find_targets(load_context(hpcrun.environ, hpcrun.project), words)
    assert asked == [["99", "77"]]
    tasks = [f"20261121-000000-lr.{index}-7k3q" for index in (3, 1, 2)]
    assert [run.run_id for run in targets.runs] == [RUN, *tasks]
    assert targets.jobs == ["77", "8_4", "8_6", str(10**12)]


def test_slurm_is_not_queried_without_sweeps(
    hpcrun: Caller, asked: list[list[str]], tmp_path: Path
) -> None:
    hpcrun.write("hpcrun.yaml", f'runs_dir: "{tmp_path}/others"\n')
    found = find_targets_by_word(load_context(hpcrun.environ, hpcrun.project), ["99"])
    assert found == {"99": "99"}
    assert asked == []
