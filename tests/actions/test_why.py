"""Failure diagnosis of runs that ended between two attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.actions.why import find_cause
from hpcrun.context import load_context
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Attempt, Begin, Cancelled, End, Failure, History
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import JobEvidence, decide_state
from hpcrun.slurm.accounts import JobAccounting
from hpcrun.slurm.jobs import SlurmJob

LOG = """
hpcrun: attempt 0 of job 7 begins on n1
slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T17:15:33 ***
slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-26T17:15:33 DUE TO JOB REQUEUE ***
"""
END = End(
    attempt=0,
    job_id="7",
    exit_code=137,
    signal=9,
    stopped_by=None,
    first_failure=Failure(
        rank=None, node=0, host="n1", exit_code=1, signal=None, at=1.0, why="1 of 2 GPUs"
    ),
    begun_at=100.0,
    ended_at=160.0,
    why="stalled",
    next="requeue",
)
GRACE: dict[str, Any] = {
    "why": "requeued",
    "next": None,
    "note": "Slurm would not start it again",
    "first_failure": None,
}
BY_ME = Cancelled(cancelled_at=190.0, user="me")
BEFORE = "before its next attempt"
KILLED = "the job's script was killed"
NOT_LAUNCHED = "the script of its next attempt could not be launched, or was killed"


@pytest.mark.parametrize(
    ("end", "cancelled", "state", "reason", "title"),
    [
        (END, BY_ME, "CANCELLED", "", "cancelled by me, 30 s after its last attempt"),
        (END, None, "CANCELLED", "", f"cancelled by its user, you, {BEFORE}"),
        (structs.replace(END, **GRACE), BY_ME, "CANCELLED", "", "cancelled by me, after 1 min 0 s"),
        (END, None, "FAILED", "JobLaunchFailure", NOT_LAUNCHED),
        (None, None, "FAILED", "JobLaunchFailure", KILLED),
    ],
)
def test_run_that_ended_before_its_next_attempt_is_diagnosed(
    tmp_path: Path,
    clean_environ: dict[str, str],
    end: End | None,
    cancelled: Cancelled | None,
    state: str,
    reason: str,
    title: str,
) -> None:
    run = RunFolder(tmp_path / "20261126-171532-a-7k3q")
    run.batch_log.parent.mkdir(parents=True)
    run.batch_log.write_text(LOG, encoding="utf-8")
    begin = Begin(attempt=0, job_id="7", host="n1", pid=1, nodes="n1", begun_at=100.0)
    attempts = [Attempt(index=0, begin=begin, end=end)]
    history = History(run_id=run.run_id, cancelled=cancelled, attempts=attempts)
    job = SlurmJob(job_id="7", source="squeue", state=state, reason=reason)
    status = JobStatus(
        run=run,
        history=history,
        verdict=decide_state(JobEvidence(history=history, now=200.0, queue=job)),
        job=job,
        job_id="7",
        account=JobAccounting(cancelled_by="1" if state == "CANCELLED" else "", user="you"),
        elapsed=60.0,
    )
    found = find_cause(load_context(clean_environ, tmp_path), status)
    assert found.cause is not None and found.cause.title == title
    assert "GPUs" not in status.reason, "of an attempt before"
    assert found.fixes == ["submit it again"], "never: it starts again"
