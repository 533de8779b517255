"""From evidence to verdict: every branch, and claims that are never made."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hpcrun.runs.records import Attempt, Begin, Cancelled, End, History, Submitted
from hpcrun.runs.verdict import (
    HEARTBEAT_TIMEOUT_S,
    LOST,
    SUBMISSION_GRACE_S,
    JobEvidence,
    Verdict,
    decide_state,
)
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.states import ACTIVE, FINAL, UNKNOWN, WAITING

NOW = 1_800_000_000.0
LONG_AGO = NOW - 3600


def begin() -> Begin:
    return Begin(attempt=0, job_id="7", host="n1", pid=1, nodes="n1", begun_at=LONG_AGO)


def end(exit_code: int = 0, stopped_by: str | None = None) -> End:
    return End(
        attempt=0,
        job_id="7",
        exit_code=exit_code,
        signal=None,
        stopped_by=stopped_by,
        first_failure=None,
        begun_at=LONG_AGO,
        ended_at=NOW,
    )


def queue(state: str, reason: str = "None") -> SlurmJob:
    return SlurmJob(job_id="7", source="squeue", state=state, reason=reason)


def account(state: str) -> SlurmJob:
    return SlurmJob(job_id="7", source="sacct", state=state, exit_code="0:0")


BEGUN = Attempt(index=0, begin=begin())
LIVELY = Attempt(index=0, begin=begin(), beat=NOW - 20)
OPENED = Attempt(index=0)
DONE = Attempt(index=0, begin=begin(), end=end())
FAILED = Attempt(index=0, begin=begin(), end=end(3))
STOPPED = Attempt(index=0, begin=begin(), end=end(143, "TERM"))
TO_GO_ON = structs.replace(end(143, "TERM"), why="time_limit", next="requeue")
BETWEEN = Attempt(index=0, begin=begin(), end=TO_GO_ON)
INTERRUPTED = Attempt(index=0, begin=begin(), end=end(143, "INT"))


@pytest.mark.parametrize(
    ("ending", "state", "reason"),
    [
        ("preempted", "RUNNING", "about to end: preemption"),
        ("time_limit", "RUNNING", "about to end: the time limit"),
        ("preempted", "PENDING", ""),
        (None, "RUNNING", ""),
    ],
)
def test_ending_job_has_a_reason(ending: str | None, state: str, reason: str) -> None:
    attempt = Attempt(index=0, begin=begin(), ending=ending)
    assert verdict(attempt, queue=queue(state)).reason == reason


def verdict(
    *attempts: Attempt,
    job_id: str | None = "7",
    submitted: bool = True,
    ago: float = 3600,
    cancelled: bool = False,
    runs_per_job: int = 1,
    **evidence: Any,
) -> Verdict:
    sent = Submitted(
        job_id=job_id,
        cluster="c",
        slurm_conf=None,
        submitted_at=NOW - ago,
        host="login",
        user="me",
        runs_per_job=runs_per_job,
    )
    history = History(
        run_id=time.strftime("%Y%m%d-%H%M%S-job-7k3q", time.gmtime(NOW - ago)),
        submitted=sent if submitted else None,
        cancelled=Cancelled(cancelled_at=NOW, user="me") if cancelled else None,
        attempts=list(attempts),
    )
    return decide_state(JobEvidence(history=history, now=NOW, **evidence))


def short(made: Verdict) -> tuple[str, bool, str, int | None]:
    return made.state, made.final, made.source, made.exit_code


SILENT: dict[str, Any] = {"in_reach": False}
LOCAL: dict[str, Any] = {"job_id": None}


@pytest.mark.parametrize(
    ("attempts", "evidence", "expected"),
    [
        # The queue takes precedence over all other evidence.
        ([], {"queue": queue("PENDING")}, ("PENDING", False, "squeue", None)),
        ([BEGUN], {"queue": queue("RUNNING")}, ("RUNNING", False, "squeue", None)),
        ([DONE], {"queue": queue("COMPLETING")}, ("COMPLETING", False, "squeue", None)),
        ([DONE], {"queue": queue("COMPLETED")}, ("COMPLETED", True, "squeue", 0)),
        ([FAILED], {"queue": queue("FAILED")}, ("FAILED", True, "squeue", 3)),
        ([BEGUN], {"queue": queue("NODE_FAIL")}, ("NODE_FAIL", True, "squeue", None)),
        # The earlier end of a requeued job is not final.
        ([FAILED], {"queue": queue("PENDING")}, ("PENDING", False, "squeue", None)),
        (
            [BEGUN],
            {"queue": queue("RUNNING"), "account": account("FAILED")},
            ("RUNNING", False, "squeue", None),
        ),
        # An unknown state is not an end.
        ([], {"queue": queue(UNKNOWN)}, (UNKNOWN, False, "squeue", None)),
        (
            [],
            {"queue": queue(UNKNOWN), "account": account("TIMEOUT")},
            ("TIMEOUT", True, "sacct", None),
        ),
        # An end between two attempts has no exit code; one that Slurm did not requeue has one.
        ([BETWEEN], {"queue": queue("CANCELLED")}, ("CANCELLED", True, "squeue", None)),
        ([BETWEEN], {"account": account("CANCELLED")}, ("CANCELLED", True, "sacct", None)),
        (
            [BETWEEN],
            {"queue": queue("FAILED", "JobLaunchFailure")},
            ("FAILED", True, "squeue", None),
        ),
        ([BETWEEN], {"queue": queue("FAILED")}, ("TIMEOUT", True, "squeue", 143)),
        # Next, the accounting.
        ([DONE], {"account": account("COMPLETED")}, ("COMPLETED", True, "sacct", 0)),
        ([STOPPED], {"account": account("TIMEOUT")}, ("TIMEOUT", True, "sacct", 143)),
        ([BEGUN], {"account": account("OUT_OF_MEMORY")}, ("OUT_OF_MEMORY", True, "sacct", None)),
        ([BEGUN], {"account": account("CANCELLED"), **SILENT}, ("CANCELLED", True, "sacct", None)),
        # The accounting lags behind, so the end record decides.
        ([DONE], {"account": account("RUNNING")}, ("COMPLETED", True, "record", 0)),
        ([FAILED], {"account": account("RUNNING")}, ("FAILED", True, "record", 3)),
        # Another cluster of the federation runs it, so its end record decides.
        ([BEGUN], {"queue": queue("REVOKED")}, ("REVOKED", False, "squeue", None)),
        ([DONE], {"account": account("REVOKED")}, ("COMPLETED", True, "record", 0)),
        # Finally, the record alone.
        ([DONE], {}, ("COMPLETED", True, "record", 0)),
        ([FAILED], {}, ("FAILED", True, "record", 3)),
        ([STOPPED], {}, ("CANCELLED", True, "record", 143)),
        ([STOPPED], {"cancelled": True}, ("CANCELLED", True, "record", 143)),
        # Terminated at its time limit, which only Slurm does.
        ([STOPPED], {"limit": NOW - LONG_AGO}, ("TIMEOUT", True, "record", 143)),
        ([STOPPED], {"limit": NOW - LONG_AGO + 60}, ("CANCELLED", True, "record", 143)),
        (
            [STOPPED],
            {"limit": NOW - LONG_AGO, "cancelled": True},
            ("CANCELLED", True, "record", 143),
        ),
        ([INTERRUPTED], {"limit": 60.0}, ("CANCELLED", True, "record", 143)),
        ([FAILED], {"limit": 60.0}, ("FAILED", True, "record", 3)),
        ([], {"cancelled": True}, ("CANCELLED", True, "record", None)),
        ([BEGUN], {"cancelled": True}, ("CANCELLED", True, "record", None)),
        # Forgotten by Slurm and dead without an end.
        ([], {}, (LOST, True, "record", None)),
        ([OPENED], {}, (LOST, True, "record", None)),
        ([BEGUN], {}, (LOST, True, "record", None)),
        ([FAILED, BEGUN], {}, (LOST, True, "record", None)),
        # squeue may not show a job that sbatch accepted a moment ago.
        ([], {"ago": SUBMISSION_GRACE_S - 1}, (UNKNOWN, False, "record", None)),
        ([], {"ago": SUBMISSION_GRACE_S + 1}, (LOST, True, "record", None)),
        # sbatch's reply was lost and no job has the folder.
        ([], {"submitted": False}, ("NOT_SUBMITTED", True, "record", None)),
        ([], {"submitted": False, "ago": 60.0}, (UNKNOWN, False, "record", None)),
        ([BEGUN], {"submitted": False}, (LOST, True, "record", None)),
        # A recent heartbeat outweighs a missing queue entry; so does sacct, for a while.
        ([LIVELY], {}, (UNKNOWN, False, "record", None)),
        ([LIVELY], {"submitted": False}, (UNKNOWN, False, "record", None)),
        ([LIVELY], {"cancelled": True}, (UNKNOWN, False, "record", None)),
        ([LIVELY], {"account": account("RUNNING")}, (UNKNOWN, False, "sacct", None)),
        ([], {"account": account("PENDING"), "ago": 60.0}, (UNKNOWN, False, "sacct", None)),
        ([BEGUN], {"account": account("RUNNING")}, (LOST, True, "record", None)),
        ([], {"submitted": False, "queue": queue("RUNNING")}, ("RUNNING", False, "squeue", None)),
        # Without a reply nothing is known, and nothing has ended.
        ([], SILENT, (UNKNOWN, False, "record", None)),
        ([BEGUN], SILENT, (UNKNOWN, False, "record", None)),
        ([FAILED], SILENT, (UNKNOWN, False, "record", None)),
        ([], {"submitted": False, **SILENT}, (UNKNOWN, False, "record", None)),
        ([FAILED], {"account": account("RUNNING"), **SILENT}, (UNKNOWN, False, "record", None)),
        # A local run needs no Slurm.
        ([DONE], LOCAL, ("COMPLETED", True, "record", 0)),
        ([FAILED], {**LOCAL, **SILENT}, ("FAILED", True, "record", 3)),
        ([STOPPED], LOCAL, ("CANCELLED", True, "record", 143)),
        ([], {**LOCAL, "ago": HEARTBEAT_TIMEOUT_S - 1}, ("RUNNING", False, "record", None)),
        ([], {**LOCAL, "ago": HEARTBEAT_TIMEOUT_S + 1}, (LOST, True, "record", None)),
        (
            [Attempt(index=0, begin=begin(), beat=NOW - 30)],
            LOCAL,
            ("RUNNING", False, "record", None),
        ),
        (
            [Attempt(index=0, begin=begin(), beat=NOW - HEARTBEAT_TIMEOUT_S - 1)],
            LOCAL,
            (LOST, True, "record", None),
        ),
    ],
)
def test_state_is_decided_from_all_evidence(
    attempts: list[Attempt],
    evidence: dict[str, Any],
    expected: tuple[str, bool, str, int | None],
) -> None:
    assert short(verdict(*attempts, **evidence)) == expected


@pytest.mark.parametrize("state", sorted(WAITING | ACTIVE | FINAL))
def test_state_in_the_queue_takes_precedence(state: str) -> None:
    made = verdict(BEGUN, queue=queue(state))
    assert (made.state, made.final, made.ok) == (state, state in FINAL, state == "COMPLETED")


def test_reason_is_taken_from_slurm() -> None:
    assert verdict(queue=queue("PENDING", "Priority")).reason == "Priority"
    assert verdict(queue=queue("RUNNING", "None")).reason == ""


@pytest.mark.parametrize(
    ("attempts", "evidence", "text"),
    [
        ([], SILENT, "Slurm does not answer; it has no records yet"),
        ([BEGUN], SILENT, "Slurm does not answer; its own record shows that it began"),
        (
            [FAILED],
            SILENT,
            "Slurm does not answer; its own record shows that it ended with exit code 3",
        ),
        ([], {}, "Slurm no longer knows the job, and it never started"),
        ([OPENED], {}, "Slurm no longer knows the job, and it left no record"),
        ([BEGUN], {}, "Slurm no longer knows the job, and it died on n1 without a record"),
        ([], {**LOCAL, "ago": 999}, "no heartbeat for 999 s and no end record"),
    ],
)
def test_reason_explains_the_end(
    attempts: list[Attempt], evidence: dict[str, Any], text: str
) -> None:
    assert verdict(*attempts, **evidence).reason == text


@pytest.mark.parametrize(
    ("attempts", "evidence", "notes"),
    [
        ([DONE], {"queue": queue("COMPLETED")}, []),
        ([FAILED], {"queue": queue("FAILED")}, []),
        ([FAILED], {"queue": queue("RUNNING")}, []),
        (
            [FAILED],
            {"queue": queue("COMPLETED")},
            ["Slurm reports COMPLETED, the job's own record exit code 3"],
        ),
        (
            [DONE],
            {"account": account("NODE_FAIL")},
            ["Slurm reports NODE_FAIL, the job's own record exit code 0"],
        ),
        (
            [],
            {"queue": queue("FAILED")},
            ["the job left no record: do the compute nodes see the folder of the run?"],
        ),
        ([DONE], {"account": account("RUNNING")}, ["sacct does not show its end yet"]),
        ([STOPPED], {}, ["it was stopped by SIGTERM: cancelled, or out of time"]),
        ([STOPPED], {"cancelled": True}, []),
        ([STOPPED], {"limit": 60.0}, []),
    ],
)
def test_notes_follow_from_the_evidence(
    attempts: list[Attempt], evidence: dict[str, Any], notes: list[str]
) -> None:
    assert verdict(*attempts, **evidence).notes == notes


ROWS = st.one_of(st.none(), st.sampled_from(sorted(WAITING | ACTIVE | FINAL | {UNKNOWN})))


@given(
    attempts=st.lists(st.sampled_from([OPENED, BEGUN, DONE, FAILED, STOPPED]), max_size=2),
    shown=ROWS,
    accounted=ROWS,
    in_reach=st.booleans(),
    submitted=st.booleans(),
    cancelled=st.booleans(),
    ago=st.sampled_from([0.0, 60.0, 9999.0]),
)
def test_invariants_hold_for_all_evidence(
    attempts: list[Attempt],
    shown: str | None,
    accounted: str | None,
    in_reach: bool,
    submitted: bool,
    cancelled: bool,
    ago: float,
) -> None:
    made = verdict(
        *attempts,
        submitted=submitted,
        cancelled=cancelled,
        ago=ago,
        in_reach=in_reach,
        queue=None if shown is None else queue(shown),
        account=None if accounted is None else account(accounted),
    )
    assert made.final == (made.state in FINAL | {LOST, "NOT_SUBMITTED"})
    assert made.source in ("squeue", "sacct", "record")
    if not in_reach and shown is None and accounted not in FINAL:
        assert made.state == UNKNOWN  # silence is no end
    if shown in WAITING | ACTIVE:
        assert made.state == shown
    if made.state == UNKNOWN:
        assert made.reason


@pytest.mark.parametrize(
    ("attempts", "evidence", "state"),
    [
        ([], {}, "CANCELLED"),
        ([], {"ago": 20}, UNKNOWN),
        ([], {"in_reach": False}, UNKNOWN),
        ([], {"queue": queue("PENDING")}, "PENDING"),
        ([], {"account": account("FAILED")}, "FAILED"),
        ([DONE], {}, "COMPLETED"),
    ],
)
def test_task_missing_from_its_array_is_decided(
    attempts: list[Attempt], evidence: dict[str, Any], state: str
) -> None:
    assert verdict(*attempts, job_id="7_3", missing_from_array=True, **evidence).state == state
    assert verdict(job_id="7_3", ago=3600).state == LOST


def test_foreign_job_needs_no_records() -> None:
    history = History(run_id="7")
    made = decide_state(JobEvidence(history=history, now=NOW, queue=queue("FAILED")))
    assert (made.state, made.notes) == ("FAILED", [])


def test_pending_reason_is_no_reason_of_the_end() -> None:
    for state in ("COMPLETED", "CANCELLED"):
        assert verdict(queue=queue(state, "Resources")).reason == ""
    never = verdict(queue=queue("CANCELLED", "DependencyNeverSatisfied"))
    assert never.reason == "DependencyNeverSatisfied"
    assert verdict(queue=queue("NODE_FAIL", "NodeDown")).reason == "NodeDown"
    assert verdict(queue=queue("PENDING", "Resources")).reason == "Resources"


def test_run_sharing_a_job_has_a_separate_end() -> None:
    def shared(*attempts: Attempt, state: str = "RUNNING", **more: Any) -> tuple[str, bool]:
        made = verdict(*attempts, runs_per_job=4, queue=queue(state), **more)
        return made.state, made.final

    assert shared(DONE) == ("COMPLETED", True), "the job goes on"
    assert shared(FAILED) == ("FAILED", True)
    assert shared(INTERRUPTED, cancelled=True) == ("CANCELLED", True)
    assert shared(DONE, state="FAILED") == ("COMPLETED", True), "another one failed"
    assert shared(LIVELY) == ("RUNNING", False) and shared(state="PENDING") == ("PENDING", False)
    assert shared(state="PENDING", cancelled=True) == ("CANCELLED", True)
    # The end of the job ends all of its runs; Slurm reports the reason.
    assert shared(STOPPED, state="TIMEOUT") == ("TIMEOUT", True)
    assert shared(LIVELY, state="NODE_FAIL") == ("NODE_FAIL", True)


@pytest.mark.parametrize(
    ("attempt", "seconds", "state"),
    [
        (DONE, 30, UNKNOWN),
        (DONE, 90, "COMPLETED"),
        (FAILED, 90, "FAILED"),
        (BETWEEN, 9000, UNKNOWN),
        (STOPPED, 9000, UNKNOWN),  # Slurm may have requeued it
        (BEGUN, 9000, UNKNOWN),
        (LIVELY, 9000, UNKNOWN),
    ],
)
def test_record_of_an_end_counts_if_slurm_stays_silent(
    attempt: Attempt, seconds: float, state: str
) -> None:
    history = History(run_id="r", attempts=[attempt])
    verdict = decide_state(JobEvidence(history=history, now=NOW + seconds, in_reach=False))
    assert (verdict.state, verdict.final) == (state, state != UNKNOWN)
    if verdict.final:
        assert verdict.notes == ["Slurm does not answer; this is the run's own record"]
