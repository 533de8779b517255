"""Copies of run folders: the job belongs to the original, even if the copy is newer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.life_runs import submitted
from tests.cli.slurm_rows import calls, row


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands, and write a job to submit."""
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    return hpcrun.tools


def copy_of(run: Path) -> Path:
    """Copy a run like ``cp -a``, under a newer name."""
    copy = run.with_name(f"{run.name[:-4]}zzzz")
    shutil.copytree(run, copy, symlinks=True)
    return copy


def states(hpcrun: Caller, *argv: str) -> dict[str, tuple[str, str | None]]:
    rows = hpcrun("status", "--json", *argv).json["runs"]
    return {row["run_id"]: (row["state"], row["job_id"]) for row in rows}


def test_job_belongs_to_the_folder_it_was_submitted_from(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    ended = replay(tools, "scancel", (0, "", ""))
    copy = copy_of(run)
    assert states(hpcrun, "7") == {run.name: ("RUNNING", "7")}
    assert states(hpcrun) == {run.name: ("RUNNING", "7"), copy.name: ("NOT_SUBMITTED", None)}
    shown = f"a copy of {run.name}"
    assert f"{shown}, whose job it was" in hpcrun("status").out
    assert shown in hpcrun("status", "zzzz").out
    for verb in ("cancel", "resubmit", "requeue", "top", "hostfile"):
        done = hpcrun(verb, copy.name)
        assert done.code == 2 and shown in done.err, done
        assert f"fix: hpcrun {verb} {run.name}" in done.err, done
    assert not calls(ended)
    assert hpcrun("cancel", "7").code == 0 and calls(ended)


def test_copy_of_an_ended_run_shows_the_same_state(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    replay(tools, "sacct", (0, "", ""))
    assert hpcrun("status").code == 0  # the state is cached, in the copy too
    copy = copy_of(run)
    for _ in range(2):
        assert states(hpcrun) == {run.name: ("FAILED", "7"), copy.name: ("FAILED", None)}
        assert f"a copy of {run.name}, whose job it was" in hpcrun("status").out
    shutil.rmtree(run)
    replay(tools, "squeue", (0, "", ""))
    assert hpcrun("status", "7").code != 0
    assert hpcrun("clean", "zzzz", "-y").code == 0 and not copy.exists()


def test_copies_of_sweeps_and_tasks_are_recognized(hpcrun: Caller, tools: Path) -> None:
    text = (hpcrun.project / "job.yaml").read_text()
    hpcrun.write("job.yaml", f"{text}env: {{A: '1'}}\nsweep: {{env.A: ['1', '2']}}\n")
    replay(tools, "sbatch", (0, "7\n", ""))
    done = hpcrun("submit", "job.yaml", "--json")
    sweep = Path(done.json["sweep_dir"])
    tasks = [Path(one["run_dir"]) for one in done.json["runs"]]
    rows = "".join(row(sweep, f"7_{index}", "RUNNING") for index in range(2))
    replay(tools, "squeue", (0, rows, ""))
    one = copy_of(tasks[1])
    assert states(hpcrun, "7_1") == {tasks[1].name: ("RUNNING", "7_1")}
    assert states(hpcrun, one.name) == {one.name: ("NOT_SUBMITTED", None)}
    shutil.copytree(sweep, sweep.with_name(f"{sweep.name[:-10]}zzzz.array"))
    copy_of(tasks[0])
    assert states(hpcrun, "7") == {run.name: ("RUNNING", f"7_{i}") for i, run in enumerate(tasks)}
    listed = {one["sweep_id"]: one["job_id"] for one in hpcrun("status", "--json").json["runs"]}
    assert listed == {sweep.name[:-6]: "7", f"{sweep.name[:-10]}zzzz": None}
