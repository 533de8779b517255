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


SWEEP = (
    "command: [echo, '{{checkpoint_dir}}', '{{lr}}']\nresources: {{gpus_per_node: 0}}\n"
    "sweep: {{lr: [1, 2, 3]}}\ncheckpoint: {{dir: '{folder}'}}\n"
)


def _sort_arrays_first(path: Path) -> tuple[bool, str]:
    return path.suffix != ".array", path.name


class Queue:
    """Slurm, with the jobs that were submitted."""

    def __init__(self, hpcrun: Caller) -> None:
        self.hpcrun = hpcrun
        self.rows: dict[str, tuple[Path, str]] = {}

    def set(self, job_id: str, state: str) -> None:
        self.rows[job_id] = (self.rows[job_id][0], state)
        self._answer()

    def _answer(self) -> None:
        rows = [
            row(run, f"{job_id}{task}", state)
            for job_id, (run, state) in self.rows.items()
            for task in (("_0", "_1", "_2") if run.suffix == ".array" else ("",))
        ]
        replay(self.hpcrun.tools, "squeue", (0, "".join(rows), ""))

    def call(self, *words: str, state: str = "PENDING") -> Done:
        """Submit or resubmit; where that is done the job is in the queue."""
        job_id = str(7 + len(self.rows))
        replay(self.hpcrun.tools, "sbatch", (0, f"{job_id}\n", ""))
        self._answer()
        before = {*self.hpcrun.runs.glob("2*")}
        done = self.hpcrun(*words)
        if done.code == 0:
            made = min({*self.hpcrun.runs.glob("2*")} - before, key=_sort_arrays_first)
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


@pytest.mark.parametrize(
    "other",
    [
        SWEEP.format(folder="FOLDER/{lr}"),
        # A part, and values in another order.
        SWEEP.format(folder="FOLDER/{lr}") + "sweep_part: 3/3\n",
        SWEEP.format(folder="FOLDER/{lr}").replace("[1, 2, 3]", "[9, 3]"),
        # One run, by another path; the first sweep's last run has this directory.
        JOB.format(folder="FOLDER/x/../3"),
    ],
    ids=["the same sweep", "part", "other values", "single run"],
)
def test_submission_does_not_save_where_a_run_of_a_sweep_saves(
    hpcrun: Caller, queue: Queue, folder: Path, other: str
) -> None:
    hpcrun.write("sweep.yaml", SWEEP.format(folder=f"{folder}/{{lr}}"))
    hpcrun.write("other.yaml", other.replace("FOLDER", str(folder)))
    first = queue.call("submit", "sweep.yaml")
    assert first.code == 0, first
    done = queue.call("submit", "other.yaml")
    assert done.code == 2 and "is PENDING and saves there" in done.err, done
    assert queue.call("submit", "other.yaml", "--after", "7").code == 0
    hpcrun.write("apart.yaml", SWEEP.format(folder=f"{folder}/apart-{{lr}}"))
    assert queue.call("submit", "apart.yaml").code == 0


def test_sweep_does_not_save_where_a_single_run_saves(
    hpcrun: Caller, queue: Queue, folder: Path
) -> None:
    hpcrun.write("job.yaml", JOB.format(folder=folder / "2"))
    assert queue.call("submit", "job.yaml").code == 0
    hpcrun.write("sweep.yaml", SWEEP.format(folder=f"{folder}/{{lr}}"))
    assert refused(queue.call("submit", "sweep.yaml"), folder / "2", "PENDING")
    kept = queue.call("submit", "sweep.yaml", "--no-check")
    assert kept.code == 0 and "--no-check: checkpoint.dir: " in kept.out, kept


def test_only_some_runs_of_a_sweep_save_outside_of_their_directories(
    hpcrun: Caller, queue: Queue, folder: Path
) -> None:
    text = SWEEP.replace("lr: [1, 2, 3]", "checkpoint.dir: [own, '{folder}']").replace(
        ", '{{lr}}'", ""
    )
    hpcrun.write("sweep.yaml", text.format(folder=folder))
    assert queue.call("submit", "sweep.yaml").code == 0
    assert refused(queue.call("submit", "job.yaml"), folder, "PENDING")


def test_runs_of_a_sweep_do_not_save_to_one_directory_by_two_paths(
    hpcrun: Caller, queue: Queue, folder: Path
) -> None:
    (folder.parent / "link").symlink_to(folder)
    hpcrun.write(
        "sweep.yaml",
        SWEEP.replace("[1, 2, 3]", f"[{folder.name}, link]").format(
            folder=f"{folder.parent}/{{lr}}"
        ),
    )
    done = queue.call("submit", "sweep.yaml")
    assert done.code == 2 and "would both save there" in done.err, done


def test_run_does_not_save_into_the_directory_of_an_unfinished_run(
    hpcrun: Caller, queue: Queue
) -> None:
    hpcrun.write("own.yaml", JOB.format(folder="checkpoints"))
    assert queue.call("submit", "own.yaml", state="RUNNING").code == 0
    (run,) = hpcrun.runs.glob("2*")
    hpcrun.write("job.yaml", JOB.format(folder=run / "checkpoints"))
    assert refused(queue.call("submit", "job.yaml"), run / "checkpoints", "RUNNING")


@pytest.mark.parametrize(
    ("dependency", "is_refused"),
    [
        ("afterany:8", False),  # 8 waits for 7
        ("after:8", True),  # it starts when 8 has started
        ("afterok:8?afterok:1", True),
        ("singleton", True),  # job 8 has another name
    ],
)
def test_dependencies_of_dependencies_count_if_they_wait_for_the_end(
    hpcrun: Caller, queue: Queue, dependency: str, is_refused: bool
) -> None:
    assert queue.call("submit", "job.yaml").code == 0
    hpcrun.write("between.yaml", JOB.format(folder="checkpoints"))
    assert queue.call("submit", "between.yaml", "--after", "7").code == 0
    hpcrun.write("other.yaml", (hpcrun.project / "job.yaml").read_text())
    done = queue.call("submit", "other.yaml", "--set", f"slurm.dependency={dependency}")
    assert done.code == (2 if is_refused else 0), done
    if dependency == "singleton":
        assert queue.call("submit", "job.yaml", "--set", "slurm.dependency=singleton").code == 0


def test_jobs_submitted_together_save_to_one_directory_only_one_after_the_other(
    hpcrun: Caller, folder: Path, queue: Queue
) -> None:
    hpcrun.write("jobs/a.yaml", JOB.format(folder=folder))
    hpcrun.write("jobs/b.yaml", JOB.format(folder=folder))
    hpcrun.write("jobs/own.yaml", JOB.format(folder="checkpoints"))
    done = hpcrun("submit", "a", "b", "--as", "both")
    assert done.code == 2 and f"{folder}: a and b would both save there" in done.err, done
    hpcrun.write("pipelines/bad.yaml", "one: {job: a}\ntwo: {job: b}\n")
    done = hpcrun("submit", "bad")
    assert done.code == 2 and f"{folder}: a and b would both save there" in done.err, done
    assert not [*hpcrun.runs.glob("2*")]
    order = "one: {job: a}\ntwo: {job: own, after: one}\nthree: {job: b, after: two}\n"
    hpcrun.write("pipelines/good.yaml", order)
    sbatch = hpcrun.tools / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\necho >>"{hpcrun.tools}/calls"\n'
        f'n=6; while read -r _; do n=$((n + 1)); done <"{hpcrun.tools}/calls"; echo "$n"\n'
    )
    sbatch.chmod(0o755)
    replay(hpcrun.tools, "squeue", (0, "", ""))
    replay(hpcrun.tools, "sacct", (1, "", "Slurm accounting storage is disabled"))
    done = hpcrun("submit", "good")
    assert done.code == 0, done
