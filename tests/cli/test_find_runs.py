"""Finding runs: the filters of hpcrun status, and names of runs in place of ids."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Caller
from tests.cli.status_runs import answers, make_run, queued

LR, OLD, TRAIN = (
    "20261120-081455-lr-7k3q",
    "20261119-081455-train-ab12",
    "20261121-081455-train-cd34",
)


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for Slurm's commands."""
    for name in ("sacct", "scontrol"):
        answers(hpcrun.tools, name)
    return hpcrun.tools


@pytest.fixture
def runs(hpcrun: Caller, tools: Path) -> None:
    """One run that is running, and two that failed and timed out."""
    rows = ""
    for run_id, job_id, state in (
        (LR, "15", "RUNNING"),
        (OLD, "14", "FAILED"),
        (TRAIN, "16", "TIMEOUT"),
    ):
        rows += queued(make_run(hpcrun, run_id, job_id, log=f"this is {run_id}\n"), job_id, state)
    answers(tools, "squeue", rest=rows)


def listed(hpcrun: Caller, *options: str) -> list[str]:
    done = hpcrun("status", "--json", *options)
    assert done.code == 0, done
    return [row["run_id"] for row in done.json["runs"]]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--name", "train"], [TRAIN, OLD]),
        (["--name", "l*"], [LR]),
        (["--name", "tra"], []),
        (["--state", "running"], [LR]),
        (["--state", "ACTIVE"], [LR]),
        (["--state", "failed"], [TRAIN, OLD]),
        (["--state", "timeout, running"], [TRAIN, LR]),
        (["--state", "completed"], []),
        (["--since", "2026-11-20T08:00:00+00:00"], [TRAIN, LR]),
        (["--since", "2026-11-20T08:00:00+00:00", "--state", "failed"], [TRAIN]),
        (["--state", "failed", "-n", "1"], [TRAIN]),
        (["--name", "train", "-n", "1"], [TRAIN]),
        (["--all", "--name", "train"], [TRAIN, OLD]),
    ],
)
def test_status_lists_only_runs_that_match(
    hpcrun: Caller, runs: None, options: list[str], wanted: list[str]
) -> None:
    assert listed(hpcrun, *options) == wanted


def test_status_counts_older_runs_that_match(hpcrun: Caller, runs: None) -> None:
    for options in (("--name", "train"), ("--state", "failed")):
        assert hpcrun("status", "--json", "-n", "1", *options).json["older"] == 1
    assert "no run matches" in hpcrun("status", "--name", "nothing").out


def test_since_accepts_an_age(hpcrun: Caller, tools: Path) -> None:
    answers(tools, "squeue")
    stamps = (time.time() - age for age in (60, 3 * 86400))
    ids = [time.strftime("%Y%m%d-%H%M%S-a-7k3q", time.gmtime(stamp)) for stamp in stamps]
    for run_id in ids:
        make_run(hpcrun, run_id, None, ended=time.time())
    assert listed(hpcrun, "--since", "2d") == ids[:1]
    assert listed(hpcrun, "--since", "4d") == ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--state", "broken"], "--state broken: no such state"),
        (["--state", ","], "--state ,: no such state"),
        (["--since", "yesterday"], "--since yesterday: not a time"),
        (["15", "--state", "failed"], "select from the list of runs, not from one JOB"),
    ],
)
def test_unusable_filter_is_an_error(
    hpcrun: Caller, runs: None, options: list[str], message: str
) -> None:
    done = hpcrun("status", *options)
    assert done.code == 2 and message in done.err and "fix:" in done.err


def test_name_means_its_newest_run(hpcrun: Caller, runs: None) -> None:
    done = hpcrun("logs", "train")
    assert f"this is {TRAIN}" in done.out and f"this is {OLD}" not in done.out
    assert f"train: 2 runs have this name; the newest is {TRAIN}" in done.err
    done = hpcrun("logs", "lr")
    assert f"this is {LR}" in done.out and "have this name" not in done.err
    (run,) = hpcrun("status", "train", "--json").json["runs"]
    assert run["run_id"] == TRAIN


def test_cancel_refuses_a_name_of_several_runs(hpcrun: Caller, runs: None) -> None:
    done = hpcrun("cancel", "train")
    assert done.code == 2, done
    assert f"train: 2 runs have this name: {TRAIN}, {OLD}" in done.err


def test_sweep_is_listed_by_the_states_of_its_runs() -> None:
    from hpcrun.monitor import RunFilter
    from hpcrun.runs import History, JobStatus, Verdict

    def matches(word: str, final: bool, **states: int) -> bool:
        verdict = Verdict(state="RUNNING", final=final)
        row: Any = JobStatus(verdict=verdict, history=History(run_id=LR), states=states)
        return RunFilter(states=frozenset({word})).matches_state(row)

    assert matches("FAILED", True, COMPLETED=3, OUT_OF_MEMORY=1)
    assert not matches("FAILED", True, COMPLETED=3, CANCELLED=1, FAILED=0)
    assert matches("COMPLETED", False, COMPLETED=1, RUNNING=1)
    assert matches("ACTIVE", False, COMPLETED=1, RUNNING=1)
