"""The file of a run's secrets is removed when a command notices the end of the run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller
from tests.cli.status_runs import NOW, answers, make_run, queued, tools, write_sweep
from tests.cli.status_tables import HEADED

__all__ = ["tools"]  # a fixture
RUN = "20261120-081455-train-7k3q"
JOB = "command: [sleep, '60']\nresources: {gpus_per_node: 0}\nsecrets: [A_SECRET]\n"


def silent(run: RunFolder) -> None:
    """Write an attempt that started hours ago without a later heartbeat."""


def cancelled_while_it_waited(run: RunFolder) -> None:
    (run.attempts / "0" / "begin.json").unlink()
    (run.attempts / "0").rmdir()
    run.cancelled.write_text(json.dumps({"cancelled_at": NOW - 91, "user": "me"}))


def never_began(run: RunFolder) -> None:
    (run.attempts / "0" / "begin.json").unlink()
    (run.attempts / "0").rmdir()


def of_this_machine(run: RunFolder) -> None:
    """Write the records of an `hpcrun run` that was killed with all its processes."""
    submitted = json.loads(run.submitted.read_text())
    run.submitted.write_text(json.dumps(submitted | {"job_id": None}))


def never_submitted(run: RunFolder) -> None:
    never_began(run)
    run.submitted.unlink()


@pytest.mark.parametrize("argv", [(), (RUN,)])
@pytest.mark.parametrize(
    ("death", "state"),
    [
        (silent, "LOST"),
        (cancelled_while_it_waited, "CANCELLED"),
        (never_began, "LOST"),
        (of_this_machine, "LOST"),
        (never_submitted, "NOT_SUBMITTED"),
    ],
)
def test_secrets_are_removed_if_only_the_records_show_the_end(
    hpcrun: Caller, tools: Path, death: object, state: str, argv: tuple[str, ...]
) -> None:
    run = make_run(hpcrun, RUN, "15")
    assert callable(death)
    death(run)
    run.secrets.write_text("export A=1\n")
    os.utime(run.secrets, (NOW - 7200, NOW - 7200))
    answers(tools, "squeue", HEADED)
    answers(tools, "sacct")
    done = hpcrun("status", "--json", *argv)
    assert done.json["runs"][0]["state"] == state, done
    assert not run.secrets.exists()


@pytest.mark.parametrize("argv", [(), (RUN,)])
@pytest.mark.parametrize("record", ["end.json", "begin.json"])
def test_secrets_are_kept_while_the_next_attempt_starts_in_another_job(
    hpcrun: Caller, tools: Path, record: str, argv: tuple[str, ...]
) -> None:
    """The new attempt has a folder without record; the previous one names its job or has died."""
    run = make_run(hpcrun, RUN, "15", ended=NOW - 60 if record == "end.json" else None)
    path = run.attempts / "0" / record
    more = {"next": "16"} if record == "end.json" else {"successor": "16"}
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    (run.attempts / "1").mkdir()
    run.secrets.write_text("export A=1\n")
    os.utime(run.secrets, (NOW - 7200, NOW - 7200))
    answers(tools, "squeue", rest=queued(run, "15", "CANCELLED") + queued(run, "16", "RUNNING"))
    answers(tools, "sacct")
    (shown,) = hpcrun("status", "--json", *argv).json["runs"]
    assert (shown["state"], shown["job_id"]) == ("RUNNING", "16")
    assert run.secrets.exists()


def test_secrets_are_kept_if_the_end_is_uncertain(hpcrun: Caller, tools: Path) -> None:
    """Slurm does not respond, sacct still shows it running, or a submission takes long."""
    stopped = make_run(hpcrun, RUN, "15", ended=NOW - 60, exit_code=143)
    waits = make_run(hpcrun, "20261120-081456-train-7k3r", "16", attempts=0)
    slow = make_run(hpcrun, "20261120-081457-train-7k3s", None, attempts=0)
    slow.submitted.unlink()
    for run in (stopped, waits, slow):
        run.secrets.write_text("export A=1\n")
    rows = queued(waits, "16", "PENDING")
    answers(tools, "squeue", HEADED, rest=rows)
    (tools / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (tools / "squeue").write_text("#!/bin/sh\nexit 1\n")
    hpcrun("status")
    assert all(run.secrets.exists() for run in (stopped, waits, slow))
    answers(tools, "squeue", HEADED, rest=rows)
    answers(tools, "sacct")
    hpcrun("status")
    assert [run.secrets.exists() for run in (stopped, waits, slow)] == [False, True, True]


@pytest.mark.parametrize("states", [("CANCELLED", "FAILED"), ("", "")])
def test_secrets_of_ended_sweep_tasks_are_removed_by_a_listing(
    hpcrun: Caller, tools: Path, states: tuple[str, str]
) -> None:
    sweep = RunFolder(write_sweep(hpcrun, 2))
    submitted = json.loads(sweep.submitted.read_text())
    sweep.submitted.write_text(json.dumps(submitted | {"submitted_at": NOW - 7200}))
    files = [hpcrun.runs / f"20261121-000000-lr.{n}-7k3q" / "secrets.env" for n in (0, 1)]
    for file in files:
        file.write_text("export A=1\n")
    rows = [queued(sweep, f"40_{n}", state) for n, state in enumerate(states) if state]
    answers(tools, "squeue", HEADED, rest="".join(rows))
    answers(tools, "sacct")
    hpcrun("status")
    assert [file.exists() for file in files] == [False, False]


@pytest.mark.slow
def test_secrets_of_a_killed_local_run_are_removed(hpcrun: Caller) -> None:
    hpcrun.write("job.yaml", JOB)
    hpcrun.environ["A_SECRET"] = "sesame word"
    process = hpcrun.start("run", "job.yaml")
    try:
        while not (found := [*hpcrun.runs.glob("*/attempts/0/launched")]):
            assert process.poll() is None
        run = RunFolder(found[0].parents[2])
        assert run.secrets.exists()
        os.kill(json.loads((run.attempts / "0" / "begin.json").read_text())["pid"], signal.SIGKILL)
        process.wait(60)
        assert not run.secrets.exists()
    finally:
        process.kill()
        process.communicate()
