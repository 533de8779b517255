"""Notations of job ids: those of squeue, and the job number of an array task."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun import find
from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller
from tests.cli.status_runs import answers, queued, write_sweep
from tests.json_schemas import check_json
from tests.slurm_answers import sacct_row, show_job

RUN = "20261121-000000-lr"
HEADED = ("--me --format=%i", "JOBID\n")


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for Slurm's commands."""
    return hpcrun.tools


@pytest.fixture
def sweep(hpcrun: Caller, tools: Path) -> Caller:
    """Write a sweep of two runs, job 40, whose first task also has the job number 41."""
    folder = RunFolder(write_sweep(hpcrun, 2))
    rows = [queued(folder, f"40_{n}", "PENDING", "Priority", A=str(41 + n)) for n in range(2)]
    whole = ("--jobs=40", "".join(rows))
    answers(tools, "squeue", ("--jobs=41", rows[0]), HEADED, whole)
    for name in ("sacct", "scontrol"):
        answers(tools, name)
    return hpcrun


def test_pending_array_notation_of_squeue_names_the_array(sweep: Caller) -> None:
    whole = sweep("status", "40", "--json").json
    assert [run["job_id"] for run in whole["runs"]] == ["40_0", "40_1"]
    for word in ("40_[0-1]", "40_[0-1%4]"):
        assert sweep("status", word, "--json").json == whole
        done = sweep("logs", word)
        assert done.code == 0, done
        assert done.err == "none of the 2 runs of the sweep has output yet\n"


def test_pending_array_notation_names_arrays_of_other_programs(hpcrun: Caller, tools: Path) -> None:
    run = RunFolder(Path("/elsewhere"))
    answers(tools, "squeue", rest=queued(run, "7_0", "PENDING", "Priority"))
    for name in ("sacct", "scontrol"):
        answers(tools, name)
    done = hpcrun("status", "7_[0-5%2]", "--json")
    check_json("status", done.json)
    assert [run["job_id"] for run in done.json["runs"]] == ["7_0"]
    done = hpcrun("logs", "7_[0-5%2]")
    assert done.code == 0 and "PENDING; no output yet" in done.err, done


def test_task_number_finds_its_run(sweep: Caller) -> None:
    (run,) = sweep("status", "41", "--json").json["runs"]
    assert (run["kind"], run["job_id"]) == ("run", "40_0")
    waiting = "job 40_0: PENDING; no output yet: waiting for its turn in the queue"
    assert sweep("logs", "41").err.startswith(waiting)


def test_task_number_finds_its_run_in_every_command(sweep: Caller, tools: Path) -> None:
    ended = answers(tools, "scancel")
    (reported,) = sweep("requeue", "41", "--json").json["runs"]
    assert (reported["run_id"], reported["reason"]) == (f"{RUN}.0-7k3q", "it is already pending")
    (reported,) = sweep("wait", "41", "--timeout", "0", "--json").json["runs"]
    assert reported["run_id"] == f"{RUN}.0-7k3q"
    assert "40_0 is PENDING" in sweep("resubmit", "41").err
    asked = tools / "squeue.calls"
    asked.unlink()
    (reported,) = sweep("cancel", "41", "--json").json["runs"]
    assert (reported["run_id"], reported["cancelled"]) == (f"{RUN}.0-7k3q", True)
    assert ended.read_text() == "40_0\n" and asked.read_text().count("\n") == 2
    assert (sweep.runs / f"{RUN}.0-7k3q" / "cancelled.json").exists()


def test_task_number_finds_curve_and_api_run(
    sweep: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sweep.runs / f"{RUN}.0-7k3q" / "logs" / "0" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 1 loss 2.5\nstep 2 loss 2.0\n")
    (reported,) = sweep("parse", "41", "--json").json["runs"]
    assert (reported["source"], reported["points"]) == (f"{RUN}.0-7k3q", 2)
    for name in ("PATH", "HOME", "HPCRUN_SANDBOX_DIR"):
        monkeypatch.setenv(name, sweep.environ[name])
    assert find(41, cwd=sweep.project).id == f"{RUN}.0-7k3q"


@pytest.mark.parametrize("verb", ["status", "cancel", "wait"])
def test_empty_squeue_output_does_not_mean_unknown_job(
    hpcrun: Caller, tools: Path, verb: str
) -> None:
    answers(tools, "squeue")
    (tools / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (tools / "sacct").chmod(0o755)
    done = hpcrun(verb, "99", *(["--timeout", "0"] if verb == "wait" else []))
    assert done.code == 4 and "neither a run" not in done.err, done
    if verb != "wait":  # which continues to query until its timeout
        assert "squeue prints nothing, not even its column names" in done.err, done


@pytest.mark.parametrize(("text", "code"), [("3:0", 3), ("0:9", 137)])
def test_exit_code_is_known_without_accounting(
    hpcrun: Caller, tools: Path, text: str, code: int
) -> None:
    answers(tools, "squeue", rest=queued(RunFolder(Path("/elsewhere")), "7", "FAILED"))
    (tools / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (tools / "sacct").chmod(0o755)
    reported = {"ExitCode": text, "NumNodes": "1 NumCPUs=4", "TRES": "cpu=4", "Command": "/a"}
    answers(tools, "scontrol", rest=show_job("7", "FAILED", **reported))
    shown = hpcrun("status", "7").out
    words = f"signal {code - 128}" if code > 128 else str(code)
    assert f"  exit code {words}\n" in shown and "  asks for  1 node, 4 CPUs\n" in shown
    done = hpcrun("status", "7", "--json")
    check_json("status", done.json)
    assert done.json["runs"][0]["exit_code"] == code


def test_running_job_has_no_exit_code(hpcrun: Caller, tools: Path) -> None:
    answers(tools, "squeue", rest=queued(RunFolder(Path("/elsewhere")), "7", "RUNNING"))
    answers(tools, "sacct", rest=sacct_row("7", "RUNNING"))
    answers(tools, "scontrol", rest=show_job("7", NumNodes="1 NumCPUs=4", Command="/a"))
    assert "exit code" not in hpcrun("status", "7").out
    assert hpcrun("status", "7", "--json").json["runs"][0]["exit_code"] is None
