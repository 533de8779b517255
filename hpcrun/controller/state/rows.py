"""What a listing shows of a run: found out once, and remembered when the run is over."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from msgspec import Struct, field, structs

from hpcrun.controller.state.status import RunStatus, job_id_of
from hpcrun.controller.state.why import Waiting
from hpcrun.controller.state.words import failure_text
from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.records import Attempt, Seen, SeenRow
from hpcrun.runs.store import attempts_stamp, read_plan, write_record
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.states import WAITING, is_unlimited, parse_duration

# Slurm's accounting may be late; the records of a run decide for good only after this (in seconds).
LATE = 3600.0


class Row(Struct, frozen=True, kw_only=True):
    """A run, or a sweep with all its runs, in a listing.

    ``id`` is the shortest word that ``find`` takes for it. Times are in seconds: ``submitted_at``
    since the epoch, ``elapsed`` of the last attempt, ``limit`` the job's. ``gpu_hours`` are of all
    attempts. ``states`` counts the states of a sweep's runs. None: not known, or there is none.
    """

    id: str
    run: RunFolder | None
    sweep: SweepFolder | None
    job_id: str | None
    slurm_conf: str | None
    name: str
    verdict: Verdict
    submitted_at: float | None
    elapsed: float | None = None
    limit: float | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    step: int | None = None
    loss: float | None = None
    log: Path | None = None
    gpu_hours: float | None = None
    remark: str = ""
    start: str = ""
    values: dict[str, str] = field(default_factory=dict)
    states: dict[str, int] | None = None
    out_of_reach: str = ""

    @property
    def waiting(self) -> Waiting | None:
        """What must be known to explain why it waits; None where it does not, or Slurm says not."""
        if self.verdict.state not in WAITING or not self.verdict.reason or self.job_id is None:
            return None
        return Waiting(self.job_id, self.verdict.reason, self.start, self.slurm_conf)


def kept_row(run: RunFolder, seen: Seen, kept: SeenRow) -> Row:
    """Make the row of a run that was over when it was looked at last."""
    return Row(
        id=run.run_id,
        run=run,
        sweep=None,
        job_id=kept.job_id,
        slurm_conf=kept.slurm_conf,
        name=kept.name or run.run_id,
        verdict=Verdict(
            state=seen.state,
            final=True,
            source="record" if seen.by_record else "seen",
            reason=seen.reason,
            exit_code=kept.exit_code,
        ),
        submitted_at=kept.submitted_at,
        elapsed=kept.elapsed,
        nodes=kept.nodes,
        gpus_per_node=kept.gpus_per_node,
        step=kept.step,
        loss=kept.loss,
        gpu_hours=None if kept.gpu_seconds is None else kept.gpu_seconds / 3600,
        remark=kept.remark,
        values=kept.values,
    )


def row_of(status: RunStatus) -> Row:
    """Make the row of a run that was judged; reads the end of its log, and its plan if it must."""
    history, queue, account = status.history, status.queue, status.account
    submitted = history.submitted
    name, nodes, gpus = None, None, None
    if submitted is not None and submitted.name is not None:
        name, nodes, gpus = submitted.name, submitted.nodes, submitted.gpus_per_node
    elif (plan := status.plan or read_plan(status.run)) is not None:
        name, nodes, gpus = plan.name, plan.nodes, plan.gpus_per_node
    point = None
    if history.attempts:
        # Here: the reader of lines takes a moment.
        from hpcrun.controller.state.progress import formats_of, last_point

        told = status.plan or submitted
        point = last_point(status.run, formats_of(told.log_patterns if told else ()))
    elapsed = elapsed_of(status)
    seconds = gpu_seconds(status, nodes, gpus)
    limit = queue.limit if queue else account.limit if account else ""
    return Row(
        id=status.run.run_id,
        run=status.run,
        sweep=None,
        job_id=status.job_id,
        slurm_conf=submitted.slurm_conf if submitted else None,
        name=name or status.run.run_id,
        verdict=status.verdict,
        submitted_at=submitted.submitted_at if submitted else None,
        elapsed=elapsed,
        limit=None if is_unlimited(limit) else parse_duration(limit),
        nodes=nodes,
        gpus_per_node=gpus,
        step=point.step if point else None,
        loss=point.loss if point else None,
        log=point.file if point else None,
        gpu_hours=None if seconds is None else seconds / 3600,
        remark=_how_it_failed(status),
        start=queue.start if queue else "",
        values=history.task.values if history.task else {},
        out_of_reach=status.out_of_reach,
    )


def _how_it_failed(status: RunStatus) -> str:
    """Who failed first; only the plan knows a launcher from a bare command."""
    last = status.history.last
    failure = last.end.first_failure if last and last.end else None
    if failure is not None and failure.rank is None and status.plan is None:
        status = structs.replace(status, plan=read_plan(status.run))
    return failure_text(status)


def elapsed_of(status: RunStatus) -> float | None:
    """Seconds of the last attempt, by its own records where there are any, else by Slurm."""
    last = status.history.last
    if last is not None and (own := _seconds(last, is_over=status.verdict.final)) is not None:
        return own
    if status.queue is not None and status.verdict.state not in WAITING:
        return parse_duration(status.queue.elapsed)
    account = status.account
    has_begun = account is not None and account.state not in WAITING
    return parse_duration(account.elapsed) if account is not None and has_begun else None


def _seconds(attempt: Attempt, *, is_over: bool) -> float | None:
    """How long an attempt ran: to its end, to its last sign of life, or until now."""
    if attempt.end is not None:
        return max(0.0, attempt.end.ended_at - attempt.end.begun_at)
    if attempt.begin is None or (is_over and attempt.beat is None):
        return None
    until = attempt.beat if is_over and attempt.beat is not None else time.time()
    return max(0.0, until - attempt.begin.begun_at)


def gpu_seconds(status: RunStatus, nodes: int | None, gpus_per_node: int | None) -> float | None:
    """Seconds that the run has held GPUs for, times their number; None without GPUs."""
    if not nodes or not gpus_per_node or not status.history.attempts:
        return None
    *before, last = status.history.attempts
    told = [_seconds(attempt, is_over=True) for attempt in before]
    told.append(elapsed_of(status) if last else None)
    return sum(seconds or 0.0 for seconds in told) * nodes * gpus_per_node


def remember_row(status: RunStatus, row: Row) -> None:
    """Keep the row of a run that is over, if nothing can change it any more but a requeue."""
    history, verdict = status.history, status.verdict
    end = history.last.end if history.last else None
    by_record = verdict.source == "record"
    ended_at = end.ended_at if end else time.time() if verdict.source == "squeue" else None
    if not verdict.final or status.out_of_reach or (by_record and not _is_sure(status)):
        return
    if history.copy_of is not None:  # what it shows is another's
        return
    kept = SeenRow(
        stamp=attempts_stamp(status.run),
        run_id=status.run.run_id,
        job_id=job_id_of(history) or status.job_id,
        slurm_conf=row.slurm_conf,
        name=row.name,
        nodes=row.nodes,
        gpus_per_node=row.gpus_per_node,
        submitted_at=row.submitted_at,
        ended_at=ended_at,
        elapsed=row.elapsed,
        gpu_seconds=None if row.gpu_hours is None else row.gpu_hours * 3600,
        exit_code=verdict.exit_code,
        remark=row.remark,
        step=row.step,
        loss=row.loss,
        sweep_id=history.task.sweep_id if history.task else None,
        values=row.values,
    )
    seen = Seen(
        state=verdict.state,
        reason=verdict.reason,
        attempts=len(history.attempts),
        by_record=by_record
        or (verdict.source == "seen" and bool(history.seen and history.seen.by_record)),
        row=kept,
    )
    with contextlib.suppress(OSError, HpcrunError):
        status.run.seen.parent.mkdir(exist_ok=True)
        write_record(status.run.seen, seen)


def _is_sure(status: RunStatus) -> bool:
    """Tell whether a run's own word for its end is enough to be remembered.

    Where it leaves something open, Slurm's accounting may yet tell.
    """
    end = status.history.last.end if status.history.last else None
    if end is None:
        return False
    return not status.verdict.notes or time.time() - end.ended_at > LATE


def is_open(seen: Seen, kept: SeenRow) -> bool:
    """Tell whether Slurm may yet tell of a run what its own records do not."""
    is_recent = kept.ended_at is not None and time.time() - kept.ended_at <= LATE
    return seen.by_record and kept.job_id is not None and is_recent
