"""hpcrun wait, with replayed answers of Slurm."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import OutOfReach
from hpcrun.monitor import poll as monitor
from hpcrun.slurm import client
from hpcrun.slurm.jobs import SlurmJob
from tests.cli.calling import Caller, replay
from tests.cli.life_runs import others, submitted
from tests.cli.life_runs import tools as tools
from tests.cli.slurm_rows import account_row, calls, captured, row
from tests.cli.status_runs import make_run, queued
from tests.json_schemas import check_json
from tests.waiting import until


def test_wait_timeout_reports_whether_slurm_responded(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "PENDING", "Resources"), ""))
    done = hpcrun("wait", "--timeout", "0")
    assert (done.code, done.out) == (124, "") and "still running: job 7" in done.err
    replay(tools, "squeue", captured("squeue", "no-controller"))
    done = hpcrun("wait", "7", "--timeout", "0", "--json")
    check_json("wait", done.json)
    assert done.code == 4 and done.json["runs"][0]["state"] == "UNKNOWN"
    assert hpcrun("wait", "--timeout", "soon").code == 2


def test_wait_any_ends_with_the_first_job(hpcrun: Caller, tools: Path) -> None:
    one, two = submitted(hpcrun, tools, "7", "8")
    replay(tools, "squeue", (0, row(one, "7", "RUNNING") + row(two, "8", "COMPLETED"), ""))
    done = hpcrun("wait", "7", "8", "--any")
    assert (done.code, done.out) == (0, "job 8: COMPLETED\n"), done
    replay(tools, "squeue", (0, others("9", "FAILED"), ""))
    done = hpcrun("wait", "9", "--any")
    assert (done.code, done.out) == (
        1,
        "job 9: FAILED, and Slurm no longer knows its output file\n",
    ), done


def test_wait_starts_no_thread(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    (run,) = submitted(hpcrun, tools, "7")
    rows = row(run, "7", "RUNNING") + others("9", "COMPLETED")
    replay(tools, "squeue", (0, rows, ""))
    done = hpcrun("wait", "7", "9", "--any")
    assert (done.code, done.out) == (0, "job 9: COMPLETED\n"), done
    replay(tools, "squeue", (0, rows.replace("RUNNING", "FAILED"), ""))
    done = hpcrun("wait", "7", "9")
    assert done.code == 1 and sorted(done.out.splitlines())[1] == "job 9: COMPLETED", done


def test_wait_accepts_the_number_of_a_task(hpcrun: Caller, tools: Path) -> None:
    # The $SLURM_JOB_ID of a task; Slurm answers with the array notation.
    replay(tools, "squeue", (0, others("7_3", "RUNNING"), ""))
    ended = replay(tools, "scancel", (0, "", ""))
    done = hpcrun("cancel", "9", "--json")
    shown = [(run["job_id"], run["cancelled"]) for run in done.json["runs"]]
    assert (done.code, shown) == (0, [("7_3", True)])
    assert [line.partition("|")[2] for line in calls(ended)] == ["9"]


def test_wait_includes_tasks_that_ended_long_ago(hpcrun: Caller, tools: Path) -> None:
    rows = others("7_1", "COMPLETED") + others("7_2", "COMPLETED")
    replay(tools, "squeue", (0, rows, ""))
    replay(tools, "sacct", (0, account_row(Path("/elsewhere"), "7_0", "FAILED"), ""))
    done = hpcrun("wait", "7", "--json")
    states = {run["job_id"]: run["state"] for run in done.json["runs"]}
    assert (done.code, states) == (1, {"7_0": "FAILED", "7_1": "COMPLETED", "7_2": "COMPLETED"})


def test_wait_finds_ended_tasks_after_a_missing_first_response(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(tools, "squeue", (0, others("7_1", "COMPLETED") + others("7_2", "COMPLETED"), ""))
    replay(tools, "sacct", (0, "", ""))
    queue, asked = client.query_queue, []

    def silent_once(*args: Any, **options: Any) -> list[SlurmJob]:
        asked.append(args)
        if len(asked) == 1:
            raise OutOfReach("squeue: no")
        return queue(*args, **options)

    monkeypatch.setattr(client, "query_queue", silent_once)
    monkeypatch.setattr(monitor, "QUERY_PAUSE_S", 0.01)
    done = hpcrun("wait", "7", "--json", "--timeout", "600")
    assert (done.code, done.json["timed_out"]) == (0, False), done
    assert [run["job_id"] for run in done.json["runs"]] == ["7_1", "7_2"]


@pytest.mark.slow
def test_ctrl_c_ends_only_the_waiting(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    asked = replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    process = hpcrun.start("wait", "7")
    until(lambda: calls(asked), "its question to Slurm")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and b"the jobs continue" in err


def hang(tools: Path, *commands: str) -> Path:
    """Make commands of Slurm hang; return the file that records their calls."""
    notes = tools / "hung.calls"
    for command in commands:
        script = tools / command
        script.unlink(missing_ok=True)
        script.write_text(f'#!/bin/sh\necho {command} >>"{notes}"\nexec sleep 600\n')
        script.chmod(0o755)
    return notes


@pytest.mark.slow
def test_wait_ends_at_its_timeout_while_slurm_hangs(hpcrun: Caller, tools: Path) -> None:
    submitted(hpcrun, tools, "7")
    notes = hang(tools, "squeue", "sacct", "scontrol")
    done = hpcrun("wait", "7", "9", "--timeout", "1", "--json")
    check_json("wait", done.json)
    states = {run["job_id"]: run["state"] for run in done.json["runs"]}
    assert (done.code, states) == (4, {"7": "UNKNOWN", "9": "UNKNOWN"})
    assert notes.read_text() == "squeue\n", "one that hangs is enough"


@pytest.mark.slow
def test_missing_response_of_sacct_does_not_mean_unknown_job(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcrun.cli.show_status.TIMEOUT", 2.0)
    replay(tools, "squeue", (0, "", ""))
    hang(tools, "sacct", "scontrol")
    done = hpcrun("status", "9")
    assert done.code == 4 and "sacct did not respond" in done.err, done


BANNERS = {
    "before": "echo 'Welcome to the cluster!'; cat rows",
    "after": "cat rows; echo '* maintenance on Monday *'",
    "both": "echo; echo 'Welcome!'; cat rows; echo bye; echo",
}


@pytest.mark.parametrize("where", BANNERS)
@pytest.mark.parametrize("state", ["COMPLETED", ""])
def test_lines_of_a_sites_wrapper_around_the_queue_are_ignored(
    hpcrun: Caller, where: str, state: str
) -> None:
    """And named; a job that the queue no longer has is over by its own record."""
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=time.time(), log="step 1\n")
    rows = hpcrun.tools / "rows"
    rows.write_text(queued(run, "15", state) if state else "")
    script = BANNERS[where].replace("rows", f'"{rows}"')
    head = "[[ $* == *--noheader* ]] || { echo Welcome; echo JOBID; exit; }"
    (hpcrun.tools / "squeue").write_text(f"#!/bin/bash\n{head}\n{script}\n")
    (hpcrun.tools / "squeue").chmod(0o755)
    begun = time.monotonic()
    done = hpcrun.process("wait", "15", "--timeout", "60")
    assert done.code == 0 and time.monotonic() - begun < 30, done
    assert "squeue prints more than jobs" in done.err, done
    assert ("Monday" if where == "after" else "Welcome") in done.err


@pytest.mark.parametrize(
    "text", ["slurm_load_jobs error: Unable to contact slurm controller", "<html>", "no idea"]
)
def test_what_may_be_no_list_of_jobs_is_none(hpcrun: Caller, text: str) -> None:
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", log="step 1\n")
    rows = hpcrun.tools / "rows"
    rows.write_text(queued(run, "15", "RUNNING") if text.startswith("slurm") else "")
    (hpcrun.tools / "squeue").write_text(f'#!/bin/bash\necho "{text}"\ncat "{rows}"\n')
    (hpcrun.tools / "squeue").chmod(0o755)
    done = hpcrun.process("status", "15")
    assert "UNKNOWN" in done.out and "other than a list of jobs" in done.out + done.err, done
