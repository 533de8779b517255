"""Determine a job's state from Slurm's responses and the run's records."""

from __future__ import annotations

from msgspec import Struct, field

from hpcrun.runs.ends import END_NAMES, END_STATES
from hpcrun.runs.records import End, History, Submitted
from hpcrun.slurm import UNKNOWN, SlurmJob, is_final

# The harness writes a heartbeat every 30 s; this allows for four missed ones and for clock skew.
HEARTBEAT_TIMEOUT_S = 150.0
# If sbatch's response was lost, the job may still appear during this time.
LOST_REPLY_WINDOW_S = 600.0
# If sacct reports a job as running that squeue does not show and that gives no sign of life for
# this long, it is a "runaway job".
RUNAWAY_AFTER_S = 3600.0
# squeue may not show a job immediately after sbatch responded; the job is not lost yet.
SUBMISSION_GRACE_S = 30.0
# If Slurm does not answer, the record of an end counts after this time, in which Slurm may requeue.
RECORD_COUNTS_AFTER_S = 60.0
# Slurm counts whole seconds from the job's start, the job from the start of its script.
_CLOCK_SKEW_S = 2.0
# Slurm's reasons to end a job that never ran. Other reasons of a cancelled job state why it waited.
_FINAL_REASONS = frozenset({"DependencyNeverSatisfied", "DeadLine"})
# Slurm's reason for a script that was killed or could not be launched.
NOT_LAUNCHED = "JobLaunchFailure"
# Final states of hpcrun's own: the job died without a record; Slurm never accepted it; its search
# ended it early, because other trials were better.
LOST, NOT_SUBMITTED, PRUNED = "LOST", "NOT_SUBMITTED", "PRUNED"
# The final states of jobs that have not failed, as their exit code 0 shows.
OK_STATES = ("COMPLETED", PRUNED)


class JobEvidence(Struct, frozen=True, kw_only=True):
    """The information about a job from which its state is determined.

    Attributes:
        in_reach: False if Slurm did not respond.
        missing_from_array: Slurm shows the job's array, but not this task.
        limit: The job's time limit in seconds, if known.
    """

    history: History
    now: float
    in_reach: bool = True
    queue: SlurmJob | None = None
    account: SlurmJob | None = None
    missing_from_array: bool = False
    limit: float | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """The state of a job and its source.

    Attributes:
        state: A state of Slurm, LOST (it died without a record), NOT_SUBMITTED, PRUNED (a trial of
            a search, which was ended early) or UNKNOWN (retry later).
        source: squeue, sacct, seen (an earlier response of Slurm) or record.
        notes: Contradictions between sources.
    """

    state: str
    final: bool = False
    reason: str = ""
    exit_code: int | None = None
    source: str = "record"
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.state in OK_STATES


def is_final_state(state: str) -> bool:
    """Return True if a state is final: one of Slurm's, or hpcrun's own."""
    return is_final(state) or state in (LOST, NOT_SUBMITTED, PRUNED)


def decide_state(evidence: JobEvidence) -> Verdict:
    """Determine a job's state.

    Slurm's queue takes precedence, then its accounting, then the run's own records: Slurm knows
    time limits and failed nodes; the records know exit codes and outlast Slurm's memory.
    """
    last, queue, account = evidence.history.last, evidence.queue, evidence.account
    if evidence.history.copy_of is not None:
        return _decide_copy(evidence)
    end = evidence.history.end
    if evidence.history.shares_job:
        if end is not None and end.stopped_by != "TERM":  # TERM is sent to all runs of the job
            return _decide_by_record(evidence)
        if last is None and evidence.history.cancelled is not None:
            return Verdict(state="CANCELLED", final=True, reason="before it began")
    if queue is not None and queue.state != UNKNOWN:
        return _decide_by_slurm(evidence.history, "squeue", queue.state, _clean_reason(queue))
    if account is not None and account.state != UNKNOWN:
        # A job that is not in the queue has ended even if the accounting reports it as running,
        # because the accounting lags behind.
        if is_final(account.state):
            return _decide_by_slurm(evidence.history, "sacct", account.state)
        if evidence.in_reach:
            if end is not None:
                return _decide_by_record(evidence, "sacct does not show its end yet")
            if evidence.now - evidence.history.last_sign < RUNAWAY_AFTER_S:
                reason = f"sacct calls it {account.state}, squeue does not show it"
                return Verdict(state=UNKNOWN, source="sacct", reason=reason)
    # Slurm keeps no record of a task that is cancelled while it waits.
    is_missing = evidence.missing_from_array and evidence.in_reach
    is_new = evidence.now - evidence.history.last_sign <= SUBMISSION_GRACE_S
    if is_missing and queue is None and last is None and not is_new:
        return Verdict(state="CANCELLED", final=True, source="sacct", reason="before it began")
    seen = evidence.history.seen
    if seen is not None and (seen.by_record or seen.attempts != len(evidence.history.attempts)):
        seen = None  # determine it again, or it predates the last attempt
    if queue is None and seen is not None:
        # An earlier response of Slurm counts because Slurm forgets jobs, or does not respond now.
        return _decide_by_slurm(evidence.history, "seen", seen.state, seen.reason)
    submitted = evidence.history.submitted
    if submitted is not None and submitted.job_id is None:
        return _decide_local(evidence, submitted)
    if queue is not None:
        reason = "Slurm names a state that hpcrun does not know"
        return Verdict(state=UNKNOWN, source="squeue", reason=reason)
    if not evidence.in_reach:
        if end is not None and end.next is None and not _may_be_requeued(evidence):
            return _decide_by_record(
                evidence, "Slurm does not answer; this is the run's own record"
            )
        known = "it has no records yet"
        if end is not None:
            known = f"its own record shows that it ended with exit code {end.exit_code}"
        elif last is not None and last.begin is not None:
            known = "its own record shows that it began"
        return Verdict(state=UNKNOWN, reason=f"Slurm does not answer; {known}")
    return _decide_by_record(evidence)


def _may_be_requeued(evidence: JobEvidence) -> bool:
    """Return True soon after an end, and always after one that was requested from outside."""
    end = evidence.history.end
    if end is None or end.stopped_by is not None:
        return True
    return evidence.now - end.ended_at < RECORD_COUNTS_AFTER_S


def _decide_copy(evidence: JobEvidence) -> Verdict:
    """Determine the state of a copied run directory: it has no job, only the copied records."""
    history, end, seen = evidence.history, evidence.history.end, evidence.history.seen
    note = f"a copy of {history.copy_of}, whose job it was"
    if seen is not None and seen.attempts == len(history.attempts):
        code = end.exit_code if end is not None else None
        return Verdict(
            state=seen.state, final=True, reason=seen.reason, exit_code=code, notes=[note]
        )
    if end is not None:
        return _decide_by_record(evidence, note)
    return Verdict(state=NOT_SUBMITTED, final=True, reason=note)


def _decide_by_record(evidence: JobEvidence, note: str = "") -> Verdict:
    """Determine the state from the run's own records, because Slurm no longer knows the job."""
    history, last, end = evidence.history, evidence.history.last, evidence.history.end
    notes = [note] if note else []
    if end is not None and end.next is not None and history.copy_of is None:
        if evidence.now - end.ended_at < LOST_REPLY_WINDOW_S:
            return Verdict(state=UNKNOWN, reason="its next attempt is about to be queued")
        notes.append("Slurm does not know of the attempt that was to follow")
    if end is not None:
        state = "COMPLETED" if end.exit_code == 0 else "FAILED"
        if end.why in END_STATES:
            state = END_STATES[end.why]
        elif end.stopped_by is not None:
            state, limit = "CANCELLED", evidence.limit
            # Slurm sends TERM at the time limit, never before it.
            is_out = limit is not None and end.ended_at - end.begun_at >= limit - _CLOCK_SKEW_S
            if history.cancelled is None and end.stopped_by == "TERM" and is_out:
                state = "TIMEOUT"
            elif history.cancelled is None:
                notes.append(f"it was stopped by SIG{end.stopped_by}: cancelled, or out of time")
        return Verdict(
            state=state,
            final=True,
            reason=_explain_pruning(state, end),
            exit_code=end.exit_code,
            notes=notes,
        )
    quiet = evidence.now - evidence.history.last_sign
    if last is not None and quiet < HEARTBEAT_TIMEOUT_S:
        reason = f"Slurm does not show the job, whose last heartbeat was {quiet:.0f} s ago"
        return Verdict(state=UNKNOWN, reason=reason)
    if history.cancelled is not None:
        return Verdict(state="CANCELLED", final=True, notes=notes)
    if history.submitted is None and history.answered is None and last is None:
        if quiet < LOST_REPLY_WINDOW_S:
            reason = "sbatch did not respond; Slurm may still accept the job"
            return Verdict(state=UNKNOWN, reason=reason)
        reason = "no Slurm job has this folder: sbatch never accepted it"
        return Verdict(state=NOT_SUBMITTED, final=True, reason=reason)
    if last is None and quiet < SUBMISSION_GRACE_S:
        return Verdict(state=UNKNOWN, reason="submitted a moment ago")
    if last is None:
        reason = "Slurm no longer knows the job, and it never started"
    elif last.begin is None:
        reason = "Slurm no longer knows the job, and it left no record"
    else:
        reason = f"Slurm no longer knows the job, and it died on {last.begin.host} without a record"
    return Verdict(state=LOST, final=True, reason=reason, notes=notes)


def _decide_local(evidence: JobEvidence, submitted: Submitted) -> Verdict:
    """Determine the state of a run of ``hpcrun run``, which only has its records."""
    last = evidence.history.last
    if last is not None and last.end is not None:
        return _decide_by_record(evidence)
    quiet = evidence.now - max(submitted.submitted_at, last.beat or 0.0 if last else 0.0)
    if quiet > HEARTBEAT_TIMEOUT_S:
        reason = f"no heartbeat for {quiet:.0f} s and no end record"
        return Verdict(state=LOST, final=True, reason=reason)
    return Verdict(state="RUNNING")


def _clean_reason(queue: SlurmJob) -> str:
    """Return why a job waits or why it ended; Slurm keeps an obsolete reason after the end."""
    waited = queue.state in ("COMPLETED", "CANCELLED") and queue.reason not in _FINAL_REASONS
    return "" if waited or queue.reason in ("None", "NonZeroExitCode") else queue.reason


def _is_of_next_attempt(state: str, reason: str) -> bool:
    """Return True if a job's end belongs to an attempt after the last recorded one."""
    return state.startswith("CANCELLED") or (state, reason) == ("FAILED", NOT_LAUNCHED)


def _decide_by_slurm(history: History, source: str, state: str, reason: str = "") -> Verdict:
    """Create the verdict from Slurm's response; note contradictions by the job's record."""
    end, notes = history.end, []
    final = source == "seen" or is_final(state)
    if final and end is not None and end.next is not None and _is_of_next_attempt(state, reason):
        end = None  # the record belongs to an earlier attempt
    if final and end is not None and end.why in END_STATES and state in ("COMPLETED", "FAILED"):
        # Slurm reports the exit of the batch script, which was asked to end for the recorded
        # reason.
        state = END_STATES[end.why]
    elif state == "PREEMPTED" and end is not None and (end.why, end.exit_code) == ("done", 0):
        # Slurm 24.05 to 25.11 also report PREEMPTED for the attempt after the preempted one.
        state = "COMPLETED"
    # A job of another program never has records, so only hpcrun's own jobs get this note.
    if state == "FAILED" and history.last is None and history.submitted is not None:
        notes.append("the job left no record: do the compute nodes see the folder of the run?")
    if final and end is not None and (state in OK_STATES) != (end.exit_code == 0):
        notes.append(f"Slurm reports {state}, the job's own record exit code {end.exit_code}")
    code = end.exit_code if final and end is not None else None
    # Slurm reports RUNNING until the grace time of a preemption has passed.
    if state == "RUNNING" and end is None and history.last is not None and history.last.ending:
        reason = f"about to end: {END_NAMES.get(history.last.ending, 'asked to')}"
    if final and end is not None:
        reason = _explain_pruning(state, end) or reason
    return Verdict(
        state=state, final=final, source=source, reason=reason, exit_code=code, notes=notes
    )


def _explain_pruning(state: str, end: End) -> str:
    """Return why a trial was pruned; "" for other states."""
    return end.note or "" if state == PRUNED else ""
