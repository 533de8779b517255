"""cancel and requeue that are interrupted, refused or outdated leave a consistent state."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.life_runs import submitted
from tests.cli.slurm_rows import calls, row
from tests.cli.status_runs import make_run

REFUSED = "echo 'Access/permission denied for job 7' >&2; exit 1\n"
SILENT = "echo 'scontrol: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands, and write a job with a secret."""
    job = "command: [hostname]\nresources: {gpus_per_node: 0}\nsecrets: [A_SECRET]\n"
    hpcrun.write("job.yaml", job)
    hpcrun.environ["A_SECRET"] = "of mine"
    return hpcrun.tools


def script(tools: Path, name: str, body: str) -> Path:
    """Create a command from lines of sh; return the file that records its calls."""
    asked = tools / f"{name}.asked"
    (tools / name).unlink(missing_ok=True)
    (tools / name).write_text(f'#!/bin/sh\necho "$*" >>"{asked}"\n{body}\n')
    (tools / name).chmod(0o755)
    return asked


def failed(hpcrun: Caller, tools: Path, *job_ids: str) -> list[Path]:
    """Submit runs that have ended, and therefore have no secrets any more."""
    runs = submitted(hpcrun, tools, *job_ids)
    rows = [row(run, job_id, "FAILED") for run, job_id in zip(runs, job_ids, strict=True)]
    replay(tools, "squeue", (0, "".join(rows), ""))
    for run, job_id in zip(runs, job_ids, strict=True):
        assert hpcrun("status", job_id).code == 0
        assert not (run / "secrets.env").exists()
    return runs


def test_secrets_are_written_before_requeueing_and_removed_after_a_refusal(
    hpcrun: Caller, tools: Path
) -> None:
    (run,) = failed(hpcrun, tools, "7")
    script(tools, "scontrol", f'test -e "{run}/secrets.env" && touch "{tools}/there"\n{REFUSED}')
    done = hpcrun("requeue", "7")
    assert done.code == 3 and "permission denied" in done.err
    assert (tools / "there").exists() and not (run / "secrets.env").exists()
    # A missing response is not a refusal: Slurm may have started the job.
    script(tools, "scontrol", SILENT)
    assert hpcrun("requeue", "7").code == 4
    assert (run / "secrets.env").exists()


def test_watcher_with_a_stale_answer_keeps_secrets(hpcrun: Caller, tools: Path) -> None:
    (run,) = failed(hpcrun, tools, "7")
    script(tools, "scontrol", f'rm "{run}/secrets.env"')
    assert hpcrun("requeue", "7").code == 0
    assert (run / "secrets.env").is_file()


def test_unwritable_secrets_do_not_prevent_other_requeues(hpcrun: Caller, tools: Path) -> None:
    one, two = failed(hpcrun, tools, "7", "8")
    (one / "secrets.env").mkdir()  # like a full disk: even root cannot write there
    asked = script(tools, "scontrol", "")
    done = hpcrun("requeue", "7", "8", "--json")
    assert [shown["requeued"] for shown in done.json["runs"]] == [False, True]
    assert "secrets.env" in done.json["runs"][0]["reason"]
    assert calls(asked) == ["requeue 8"] and (two / "secrets.env").is_file()


@pytest.mark.slow
def test_ctrl_c_takes_effect_after_the_accepted_job_is_complete(
    hpcrun: Caller, tools: Path
) -> None:
    (run,) = failed(hpcrun, tools, "7")
    (run / "cancelled.json").write_text("{}")
    script(tools, "scontrol", "kill -INT $PPID; sleep 0.2")
    done = hpcrun.process("requeue", "7")
    assert done.code == 130, done
    assert (run / "secrets.env").is_file()
    assert not (run / "cancelled.json").exists() and not (run / "cache/seen.json").exists()


def test_temporary_requeue_permission_is_reverted_if_slurm_does_not_respond(
    hpcrun: Caller, tools: Path
) -> None:
    one, two = submitted(hpcrun, tools, "7", "8")
    for run in (one, two):
        (run / "secrets.env").unlink()
        (run / "plan.json").unlink()  # of a job that has no secrets
    replay(tools, "squeue", (0, row(one, "7", "RUNNING") + row(two, "8", "RUNNING"), ""))
    disabled = "echo 'Requested operation is presently disabled for job 8' >&2; exit 1"
    asked = script(
        tools, "scontrol", f'case "$*" in *7,8) {disabled} ;; "requeue 8") {SILENT} ;; esac'
    )
    done = hpcrun("requeue", "7", "8", "--json")
    assert done.code == 4
    # The other one had been accepted before.
    assert [shown["requeued"] for shown in done.json["runs"]] == [True, False]
    assert calls(asked)[1:] == ["update JobId=8 Requeue=1", "requeue 8", "update JobId=8 Requeue=0"]


def test_held_job_shows_how_to_release_it(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    release, admin = "scontrol release 7", "contact the site's support"
    held = [("JobHeldUser", release), ("job requeued in held state", release)]
    for reason, fix in [*held, ("JobHeldAdmin", admin)]:
        replay(tools, "squeue", (0, row(run, "7", "PENDING", reason), ""))
        done = hpcrun("requeue", "7")
        assert done.code == 0 and "is held" in done.out and fix in done.out


def test_job_started_before_scancel_is_not_reported_as_cancelled(
    hpcrun: Caller, tools: Path
) -> None:
    one, two = submitted(hpcrun, tools, "7", "8")
    before, after = tools / "before", tools / "after"
    before.write_text(row(one, "7", "PENDING") + row(two, "8", "PENDING"))
    after.write_text(row(one, "7", "RUNNING") + row(two, "8", "CANCELLED"))
    script(tools, "squeue", f'cat "{before}"')
    script(tools, "scancel", f'cp "{after}" "{before}"')
    (tools / "cp").symlink_to("/bin/cp")
    done = hpcrun("cancel", "--pending", "7", "8")
    assert done.code == 0 and "job 7 is unchanged: it is RUNNING, not PENDING" in done.out
    assert "job 8 was PENDING and is being cancelled" in done.out
    assert not (one / "cancelled.json").exists() and (two / "cancelled.json").exists()


@pytest.mark.slow
def test_local_runs_can_be_cancelled_on_a_full_disk(hpcrun: Caller) -> None:
    """This works even if the path to their folders contains another link."""
    link = hpcrun.runs.with_name("link")
    link.symlink_to(hpcrun.runs)
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    runs = [make_run(hpcrun, f"20261120-081455-train-7k3{end}", None) for end in "qr"]
    processes = []
    try:
        for run in runs:
            process = subprocess.Popen([*sleep, f"{link}/{run.run_id}/job.sbatch"])
            processes.append(process)
            begin = run.attempts / "0" / "begin.json"
            begin.write_text(begin.read_text().replace('"pid": 1', f'"pid": {process.pid}'))
            (run.attempts / "0" / "beat").write_text(str(time.time()))
            here = run.submitted.read_text().replace("elsewhere", os.uname().nodename)
            run.submitted.write_text(here)
        # Every write fails.
        full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
        ids = [run.run_id for run in runs]
        with hpcrun.start("cancel", *ids, preexec_fn=full) as cancel:
            out, err = cancel.communicate()
        assert cancel.returncode == 0 and out.count(b"is being cancelled") == 2, err
        assert err.count(b"cancelled all the same, without a record of it: ") == 2, err
        assert [process.wait() for process in processes] == [-signal.SIGTERM] * 2
    finally:
        for process in processes:
            process.kill()


GARBAGE = "echo '<html>oops</html>'"


@pytest.mark.parametrize(
    "words", [["cancel", "--pending"], ["requeue", "--failed"], ["resubmit", "--failed"]]
)
def test_commands_change_nothing_if_the_state_is_unreadable(
    hpcrun: Caller, tools: Path, words: list[str]
) -> None:
    submitted(hpcrun, tools, "7")
    for name in ("squeue", "sacct", "scontrol", "scancel"):
        script(tools, name, GARBAGE)
    done = hpcrun(*words, "7")
    assert done.code == 4 and "squeue answered with something other" in done.err, done
    assert not (tools / "scancel.asked").exists() and not done.out


def test_pending_job_is_not_reported_as_held(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    (run / "secrets.env").unlink()
    replay(tools, "squeue", (0, row(run, "7", "PENDING"), ""))
    asked = script(tools, "scontrol", "")
    done = hpcrun("requeue", "--hold", "7")
    assert done.code == 2 and "scontrol hold 7 holds it" in done.err
    assert calls(asked) == []


def test_lost_reply_says_that_the_command_may_have_succeeded(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    script(tools, "scancel", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
    done = hpcrun("cancel", "7")
    assert done.code == 4 and "it may have happened anyway" in done.err
    assert "hpcrun status shows whether it did" in done.err
    script(tools, "scancel", SILENT)
    assert "anyway" not in hpcrun("cancel", "7").err  # the command was never sent


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_ctrl_c_reports_what_was_done(hpcrun: Caller, tools: Path, verb: str) -> None:
    (run,) = submitted(hpcrun, tools, "7")
    (run / "secrets.env").unlink()
    (run / "plan.json").unlink()  # of a job that has no secrets
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    script(tools, "scancel" if verb == "cancel" else "scontrol", "kill -INT $PPID; sleep 0.2")
    done = hpcrun.process(verb, "7")
    assert done.code == 130, done
    assert "Slurm had already received the request: job 7" in done.err
    assert (run / "cancelled.json").exists() == (verb == "cancel")
