"""Runs that would save into one folder at the same time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.calling import Caller, Done, replay
from tests.cli.slurm_rows import row

# It can resume: else a new run would not be given the folder of an earlier one at all.
JOB = (
    "command: [echo, '{{checkpoint_dir}}']\nresources: {{gpus_per_node: 0}}\n"
    "checkpoint: {{dir: {folder}}}\n"
)


class Queue:
    """Slurm, with the jobs that were submitted."""

    def __init__(self, hpcrun: Caller) -> None:
        self.hpcrun = hpcrun
        self.rows: dict[str, tuple[Path, str]] = {}

    def set(self, job_id: str, state: str) -> None:
        self.rows[job_id] = (self.rows[job_id][0], state)
        self._answer()

    def _answer(self) -> None:
        rows = "".join(row(run, job_id, state) for job_id, (run, state) in self.rows.items())
        replay(self.hpcrun.tools, "squeue", (0, rows, ""))

    def call(self, *words: str, state: str = "PENDING") -> Done:
        """Submit or resubmit; where that is done the job is in the queue."""
        job_id = str(7 + len(self.rows))
        replay(self.hpcrun.tools, "sbatch", (0, f"{job_id}\n", ""))
        self._answer()
        before = {*self.hpcrun.runs.glob("2*")}
        done = self.hpcrun(*words)
        if done.code == 0:
            (made,) = {*self.hpcrun.runs.glob("2*")} - before
            self.rows[job_id] = (made, state)
            self._answer()
        else:
            assert {*self.hpcrun.runs.glob("2*")} == before
        return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "scratch" / "ckpt"
    found.mkdir(parents=True)
    (found / "step1").touch()
    return found


@pytest.fixture
def queue(hpcrun: Caller, folder: Path) -> Queue:
    hpcrun.write("job.yaml", JOB.format(folder=folder))
    return Queue(hpcrun)


def refused(done: Done, folder: Path, state: str) -> bool:
    return (
        done.code == 2 and f"{folder}: " in done.err and f"is {state} and saves there" in done.err
    )


@pytest.mark.slow
def test_two_resubmits_do_not_save_into_one_absolute_folder(queue: Queue, folder: Path) -> None:
    assert queue.call("submit", "job.yaml").code == 0
    queue.set("7", "FAILED")
    again = queue.call("resubmit", "7", state="RUNNING")
    assert again.code == 0 and f"resumes from {folder}" in again.err, again
    assert refused(queue.call("resubmit", "7"), folder, "RUNNING")
    assert refused(queue.call("resubmit", "7", "--fresh"), folder, "RUNNING")
    queue.set("8", "FAILED")
    assert queue.call("resubmit", "7").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["again", "another job", "a link", "the folder of a run", "dry run"]
)
def test_a_submission_does_not_save_where_another_run_saves(
    hpcrun: Caller, queue: Queue, folder: Path, tmp_path: Path, how: str
) -> None:
    if how == "the folder of a run":
        folder = hpcrun.runs / "20261120-081455-old-7k3q" / "checkpoints"
        hpcrun.write("job.yaml", JOB.format(folder=folder))
    assert queue.call("submit", "job.yaml").code == 0
    words = ["submit", "job.yaml"]
    if how == "another job":
        hpcrun.write("other.yaml", JOB.format(folder=f"{folder}/../{folder.name}"))
        words[1] = "other.yaml"
    elif how == "a link":
        (tmp_path / "link").symlink_to(folder.parent)
        hpcrun.write("job.yaml", JOB.format(folder=tmp_path / "link" / folder.name))
        folder = tmp_path / "link" / folder.name
    elif how == "dry run":
        words.append("--dry-run")
    assert refused(queue.call(*words), folder, "PENDING")


@pytest.mark.slow
def test_runs_that_follow_each_other_may_save_into_one_folder(
    hpcrun: Caller, queue: Queue, folder: Path
) -> None:
    assert queue.call("submit", "job.yaml", state="RUNNING").code == 0
    assert queue.call("submit", "job.yaml", "--after", "7").code == 0
    assert refused(queue.call("submit", "job.yaml", "--after", "7"), folder, "PENDING")
    kept = queue.call("submit", "job.yaml", "--no-check")
    assert kept.code == 0 and "--no-check: checkpoint.dir: " in kept.out, kept
    hpcrun.write("own.yaml", JOB.format(folder="checkpoints"))
    for name in ("own.yaml", "own.yaml"):
        done = queue.call("submit", name)
        assert done.code == 0, done


@pytest.mark.slow
def test_of_two_submissions_at_once_both_are_seen(
    hpcrun: Caller, queue: Queue, folder: Path
) -> None:
    """Another hpcrun has written its run, and has not called sbatch yet."""
    assert queue.call("submit", "job.yaml").code == 0
    (run,) = hpcrun.runs.glob("2*")
    (run / "submitted.json").unlink()
    queue.rows.clear()
    done = queue.call("submit", "job.yaml")
    assert done.code == 2 and f"{run.name} is " in done.err and str(folder) in done.err, done
    shutil.rmtree(run)
    assert queue.call("submit", "job.yaml").code == 0
    (run,) = hpcrun.runs.glob("2*")
    assert json.loads((run / "submitted.json").read_text())["checkpoint_dir"] == str(folder)
