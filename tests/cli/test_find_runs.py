"""Finding runs: the filters of hpcrun status, and names of runs in place of ids."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Caller
from tests.cli.status_runs import NOW, answers, make_run, queued

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
        (["15", "--state", "failed"], "apply to the list of runs, not to one JOB"),
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


def set_project(hpcrun: Caller, run_id: str, project: Path | str) -> None:
    path = hpcrun.runs / run_id / "submitted.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "project": str(project)}))


def test_default_is_the_newest_run_of_the_project(hpcrun: Caller, runs: None) -> None:
    for run_id, project in ((TRAIN, "/home/ada/other"), (OLD, hpcrun.project)):
        set_project(hpcrun, run_id, project)
    assert LR in hpcrun("logs").out  # its project is unknown, as with older versions
    set_project(hpcrun, LR, "/home/ada/other")
    assert OLD in hpcrun("logs").out
    set_project(hpcrun, OLD, "/home/ada/other")
    done = hpcrun("logs")
    assert done.code == 2, done
    assert f"the newest run, {TRAIN}, is of /home/ada/other" in done.err, done
    assert TRAIN in hpcrun("logs", "16").out


def test_default_outside_any_project_is_the_newest_run_of_all(hpcrun: Caller, runs: None) -> None:
    set_project(hpcrun, TRAIN, "/home/ada/other")
    profile = (hpcrun.project / "hpcrun.yaml").read_text()
    (hpcrun.project / "hpcrun.yaml").unlink()
    folder = Path(hpcrun.environ["HOME"]) / ".config" / "hpcrun" / "clusters"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text(profile)
    assert TRAIN in hpcrun("logs").out


@pytest.fixture
def trained(hpcrun: Caller, tools: Path) -> None:
    """Four runs with losses, one of which is of another project."""
    answers(tools, "squeue")
    for number, name in enumerate(("base1", "base2", "other", "base3")):
        log = "".join(f"step={step} loss={5 - step / (20 + number)}\n" for step in range(1, 60))
        run_id = f"2026112{number}-081455-{name}-7k3{number + 2}"
        make_run(hpcrun, run_id, str(20 + number), ended=NOW - 60, log=log)
    set_project(hpcrun, "20261123-081455-base3-7k35", "/home/ada/elsewhere")


def compared(hpcrun: Caller, *words: str) -> list[str]:
    done = hpcrun("compare", "--json", *words)
    assert done.code == 0, done
    return [run["source"].split("-")[2] for run in done.json["runs"]]


def test_compare_takes_patterns_and_the_newest_runs(hpcrun: Caller, trained: None) -> None:
    assert compared(hpcrun, "base*") == ["base1", "base2", "base3"]
    assert compared(hpcrun, "--last", "2") == ["base2", "other"]  # of this project
    done = hpcrun("compare", "base1", "--last", "9")
    assert done.code == 2 and "--last selects the runs" in done.err, done
    done = hpcrun("compare", "nothing*")
    assert done.code == 2 and "no run has a name like nothing*" in done.err, done
    done = hpcrun("compare", "--sweep", "20")
    assert done.code == 2 and "--sweep 20: a run, and not a sweep" in done.err, done


def test_project_and_sort_select_and_order_the_list(hpcrun: Caller, trained: None) -> None:
    elsewhere = "20261123-081455-base3-7k35"
    assert listed(hpcrun, "--project", "/home/ada/elsewhere") == [elsewhere]
    assert listed(hpcrun, "--project", "elsewhere", "--name", "base*") == [elsewhere]
    assert listed(hpcrun, "--project", ".") == []
    best = listed(hpcrun, "--sort", "loss", "-n", "2")
    assert [run_id.split("-")[2] for run_id in best] == ["base1", "base2"]  # the steepest curves
    shown = hpcrun("status")
    assert "PROJECT" in shown.out and "elsewhere" in shown.out, shown
    assert "PROJECT" not in hpcrun("status", "--name", "base1").out
    done = hpcrun("status", "20", "--sort", "loss")
    assert done.code == 2 and "apply to the list of runs" in done.err, done


def record_arguments(hpcrun: Caller, run_id: str, **arguments: str) -> None:
    """Add the arguments of a program to the record of a run's submission."""
    path = hpcrun.runs / run_id / "submitted.json"
    options = {f"--{name}": value for name, value in arguments.items()}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arguments": options}))


def test_status_shows_arguments_that_differ_between_runs_of_a_job(
    hpcrun: Caller, runs: None
) -> None:
    record_arguments(hpcrun, LR, lr="5", epochs="9")
    path = hpcrun.runs / LR / "submitted.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": "lr"}))
    record_arguments(hpcrun, OLD, lr="1e-4", epochs="3")
    record_arguments(hpcrun, TRAIN, lr="3e-4", epochs="3", compile="")
    rows = {row["run_id"]: row["changed"] for row in hpcrun("status", "--json").json["runs"]}
    assert rows == {
        LR: {},  # no other run of its name is listed
        TRAIN: {"--lr": "3e-4", "--compile": ""},
        OLD: {"--lr": "1e-4", "--compile": None},
    }
    text = hpcrun("status").out
    assert "--lr 3e-4 --compile" in text and "--lr 1e-4, without --compile" in text
    assert hpcrun("status", "--name", "train", "-n", "1", "--json").json["runs"][0]["changed"] == {}
