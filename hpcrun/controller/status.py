"""Finds out the state of jobs: one squeue and at most one sacct for any number of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_conf_of, slurm_transport
from hpcrun.controller.targets import unknown_job
from hpcrun.errors import HpcrunError, OutOfReach
from hpcrun.runs.layout import RunFolder, sweep_folder
from hpcrun.runs.records import History, Seen
from hpcrun.runs.status import JobStatus
from hpcrun.runs.store import read_history, read_plan, write_record
from hpcrun.runs.verdict import LOST, Evidence, Verdict, decide
from hpcrun.slurm.jobs import SlurmJob, is_part, is_possible
from hpcrun.slurm.states import UNKNOWN, is_final
from hpcrun.transport import Transport

# Jobs that one command is asked about.
_AT_ONCE = 1000

T = TypeVar("T")


# ---- runs


class Memory(dict[object, Any]):
    """Slurm's answers: who looks at the files often asks Slurm seldom, and clears it then.

    Its answers about runs are kept by the slurm.conf.
    """

    def once(self, question: object, ask: Callable[[], T]) -> T:
        """Ask, unless the answer is known."""
        if question not in self:
            self[question] = ask()
        answer: T = self[question]
        return answer


class Answers(Struct, frozen=True, kw_only=True):
    """What one Slurm answered about some runs. ``silence`` is why squeue gave no answer, else "".

    ``rows`` are squeue's by the last part of their WorkDir and by job id, ``accounts`` sacct's by
    job id.
    ``asked``: the jobs and arrays that it was asked about. ``secrets``: when those of the runs were
    written (mtime_ns) that lay there before Slurm was asked.
    """

    conf: str | None
    conf_is_gone: bool
    silence: str
    rows: dict[str, dict[str, SlurmJob]]
    accounts: dict[str, SlurmJob]
    asked: frozenset[str]
    secrets: dict[Path, int]


def status_of(
    context: Context, runs: Sequence[RunFolder], memory: Memory | None = None
) -> list[JobStatus]:
    """Find out the state of some runs; silence of Slurm is reported, never raised.

    With ``memory`` a Slurm whose answer it holds is not asked again.
    """
    memory = Memory() if memory is None else memory
    histories = {run.path: read_history(run) for run in runs}
    by_conf: dict[str | None, list[RunFolder]] = {}
    for run in runs:
        by_conf.setdefault(conf_of(context, histories[run.path]), []).append(run)
    found: dict[Path, JobStatus] = {}
    for conf, group in by_conf.items():
        is_news = conf not in memory
        pairs = [(run, histories[run.path]) for run in group]
        answers = memory.once(conf, partial(ask, context, conf, pairs))
        for run in group:
            # Read again: the job may have ended while Slurm was asked.
            status = judge(answers, run, read_history(run))
            if is_news:
                _remember(run, status.history, status.verdict)
            found[run.path] = structs.replace(status, plan=read_plan(run))
    return [found[run.path] for run in runs]


def conf_of(context: Context, history: History) -> str | None:
    """Return the slurm.conf by which a run was submitted: it names the Slurm to ask."""
    if history.submitted is not None:
        return history.submitted.slurm_conf
    return slurm_conf_of(context)


def ask(
    context: Context,
    conf: str | None,
    runs: Sequence[tuple[RunFolder, History]],
    also: Sequence[str] = (),
) -> Answers:
    """Ask one Slurm about the runs that were submitted to it: squeue once, and sacct about what
    squeue does not show. ``also`` are other job ids that squeue alone is asked about."""
    transport = slurm_transport(context, conf)
    with contextlib.suppress(OutOfReach):  # then Slurm is silent too, and that is reported
        transport.refresh([run.path for run, _ in runs])
    job_ids = {run.path: job_id_of(history) for run, history in runs}
    # Runs of this machine alone need no Slurm.
    asked = [job_ids[run.path] for run, history in runs if not is_local(history)] + [*also]
    conf_is_gone = conf is not None and not Path(conf).exists()
    secrets = {run.path: stamp for run, _ in runs if (stamp := _stamp(run.secrets))}
    silence, rows, accounts = "", list[SlurmJob](), dict[str, SlurmJob]()
    is_slow = False
    if asked and not conf_is_gone:
        try:
            rows = _rows(transport, asked, strict=any(_is_open(history) for _, history in runs))
        except OutOfReach as error:
            # A Slurm that lets squeue wait for so long would let sacct wait as well.
            silence, is_slow = error.message, error.maybe_done
    queued = _by_tag(rows)
    missing = [
        job_id
        for run, history in runs
        if (job_id := job_ids[run.path]) and _row_of(run, history, queued) is None
    ]
    if missing and not conf_is_gone and not is_slow:
        wanted = _whole_arrays(missing)
        for start in range(0, len(wanted), _AT_ONCE):
            answer = scheduler.accounting(transport, wanted[start : start + _AT_ONCE])
            if answer is None:
                break
            accounts |= {row.job_id: row for row in answer}
    return Answers(
        conf=conf,
        conf_is_gone=conf_is_gone,
        silence=silence,
        rows=queued,
        accounts=accounts,
        asked=frozenset(_whole_arrays([job_id for job_id in asked if job_id])),
        secrets=secrets,
    )


def judge(answers: Answers, run: RunFolder, history: History) -> JobStatus:
    """Decide a run's state by what Slurm answered and its own records; its plan is not read."""
    row = _row_of(run, history, answers.rows)
    job_id = job_id_of(history) or (row.job_id if row else None)
    tag = tag_of(run, history)
    account = _own(answers.accounts.get(job_id or ""), tag)
    silence = answers.silence
    if answers.conf_is_gone and not is_local(history) and not _was_here(history):
        silence = f"{answers.conf}, by which the job was submitted, is not on this machine"
    missing_from_array = (
        history.task is not None
        and account is None
        and row is None
        and _is_left_over(job_id, tag, answers)
    )
    verdict = decide(
        Evidence(
            history=history,
            now=time.time(),
            in_reach=not silence,
            queue=row,
            account=account,
            limit=_limit_of(run, history),
            missing_from_array=missing_from_array,
        )
    )
    if verdict.state == LOST and job_id and job_id.partition("_")[0] not in answers.asked:
        # It is younger than the answers.
        verdict = Verdict(
            state=UNKNOWN, final=False, source="record", reason="submitted a moment ago"
        )
    if verdict.final and verdict.source in ("squeue", "sacct"):
        _remove_secrets(answers, run, never_began=missing_from_array)
    return JobStatus(
        run=run,
        history=history,
        verdict=verdict,
        job=row or account,
        job_id=job_id,
        slurm_conf=history.submitted.slurm_conf if history.submitted else None,
        values=history.task.values if history.task else {},
        out_of_reach=silence if not is_local(history) else "",
    )


def _remove_secrets(answers: Answers, run: RunFolder, *, never_began: bool) -> None:
    """Remove what the job could not remove itself any more.

    Secrets that came while Slurm was asked, or later, are the next attempt's.
    """
    stamp = _stamp(run.secrets)
    if stamp and (never_began or answers.secrets.get(run.path) == stamp):
        with contextlib.suppress(OSError):
            run.secrets.unlink()


def _stamp(path: Path) -> int:
    """When a file was written, in nanoseconds by its file system's clock; 0: it is not there."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a thousand times in a row
    except OSError:
        return 0


def _limit_of(run: RunFolder, history: History) -> float | None:
    """Return how many seconds the job may run, where that may explain its end; else None."""
    end = history.last.end if history.last else None
    is_open = end is not None and end.stopped_by is not None and history.cancelled is None
    if not is_open or is_local(history):
        return None
    plan = read_plan(run)
    limit = dict(plan.directives).get("time") if plan is not None else None
    if not limit:
        return None
    from hpcrun.plan.directives import parse_seconds  # here: it is seldom needed

    try:
        return parse_seconds(limit) or None  # 0 is no limit (sbatch.1, --time)
    except ValueError:
        return None


def _remember(run: RunFolder, history: History, verdict: Verdict) -> None:
    """Keep a final state that Slurm will forget; a run of somebody else's stays as it is."""
    if verdict.source == "squeue" and not verdict.final and history.seen is not None:
        forget_end(run)
    if not verdict.final or verdict.source not in ("squeue", "sacct"):
        return
    old, count = history.seen, len(history.attempts)
    found = (verdict.state, verdict.reason, count, False)
    if old is None or (old.state, old.reason, old.attempts, old.by_record) != found:
        seen = Seen(state=verdict.state, reason=verdict.reason, attempts=count)
        with contextlib.suppress(OSError, HpcrunError):
            run.seen.parent.mkdir(exist_ok=True)
            write_record(run.seen, seen)


def forget_end(run: RunFolder) -> None:
    """Forget the end of a run that was requeued: however long it waits now, it is not over."""
    with contextlib.suppress(OSError):
        run.seen.unlink(missing_ok=True)


def _is_open(history: History) -> bool:
    """Return whether a run is lost if Slurm does not know it: no other record has its end."""
    has_ended = history.last is not None and history.last.end is not None
    return not has_ended and history.seen is None and not is_local(history)


def _rows(transport: Transport, job_ids: Sequence[str | None], *, strict: bool) -> list[SlurmJob]:
    """Ask squeue once: by job ids, which finds colleagues' jobs too, or, where one is not known
    (a lost reply of sbatch), for all of the user's jobs."""
    known = [job_id for job_id in job_ids if job_id is not None]
    wanted = _whole_arrays(known)
    # A command line has its bounds (128 KiB for a word).
    complete = len(known) == len(job_ids) and len(wanted) <= _AT_ONCE
    return scheduler.queue(transport, wanted if complete else (), strict=strict)


def _whole_arrays(job_ids: Sequence[str]) -> list[str]:
    """Ask for arrays and not for their tasks: shorter, and sacct knows no task that waits."""
    return list(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids))


def tag_of(run: RunFolder, history: History) -> str:
    """Return the last part of the job's WorkDir: the run's folder, or that of its sweep."""
    if history.task is None:
        return run.run_id
    return sweep_folder(run.path.parent, history.task.sweep_id).path.name


def _own(job: SlurmJob | None, tag: str) -> SlurmJob | None:
    """A cluster that counts from 1 again may have given the number to another job: then None."""
    return job if job is not None and Path(job.work_dir or tag).name == tag else None


def _is_left_over(job_id: str | None, tag: str, answers: Answers) -> bool:
    """Return whether Slurm shows the array of a task, but not the task itself.

    In the accounting each task that began has a row. In the queue a row without a task, as 7, is
    what was left of the array when the last tasks that waited were cancelled.
    """
    array = (job_id or "").partition("_")[0]
    left = answers.rows.get(tag, {}).get(array)
    return (left is not None and is_final(left.state)) or any(
        row.array == array and _own(row, tag) is not None for row in answers.accounts.values()
    )


def job_id_of(history: History) -> str | None:
    """Return the run's Slurm id: as sbatch printed it, else as the job itself recorded it."""
    if history.submitted is not None:
        return history.submitted.job_id
    begin = history.last.begin if history.last else None
    return (begin.job_id or None) if begin else None


def _was_here(history: History) -> bool:
    """Return whether the run was submitted from this machine, as to a sandbox that is gone."""
    return (
        history.submitted is not None and history.submitted.host == os.uname().nodename
    )  # socket takes long to import


def _by_tag(rows: Iterable[SlurmJob]) -> dict[str, dict[str, SlurmJob]]:
    """Sort squeue's rows by the last part of their WorkDir, and by job id: there are thousands."""
    found: dict[str, dict[str, SlurmJob]] = {}
    for row in rows:
        found.setdefault(row.folder, {})[row.job_id] = row
    return found


def _row_of(
    run: RunFolder, history: History, rows: Mapping[str, Mapping[str, SlurmJob]]
) -> SlurmJob | None:
    """Find the run's row, by its WorkDir: a cluster that counts again gives ids out twice."""
    task, submitted = history.task, history.submitted
    own = rows.get(tag_of(run, history), {})
    if submitted is not None:
        return own.get(submitted.job_id or "")
    end = f"_{task.index}" if task is not None else ""
    # A job that sbatch refused for its constraints shows in the queue all the same.
    known = (row for row in own.values() if row.reason != "BadConstraints")
    return next((row for row in known if row.job_id.endswith(end)), None)


def is_local(history: History) -> bool:
    """Return whether it is a run of this machine, without Slurm."""
    return history.submitted is not None and history.submitted.job_id is None


# ---- Slurm jobs that hpcrun did not submit


def status_of_jobs(
    context: Context, job_ids: Sequence[str], *, ended: bool = False
) -> dict[str, list[JobStatus]]:
    """Ask once about jobs that hpcrun did not submit; of an array named as a whole all tasks.

    What Slurm does not know has an empty list. ``ended``: those tasks of a live array too that are
    over so long that the accounting alone knows them. Raises OutOfReach.
    """
    # A number that no job can have would be an error for the whole question.
    asked = [job_id for job_id in job_ids if is_possible(job_id)]
    if not asked:
        return {job_id: [] for job_id in job_ids}
    transport = slurm_transport(context)
    rows = scheduler.queue(transport, asked, strict=True)
    queued = _by_job(rows, asked)
    # A task by its own number, as $SLURM_JOB_ID has it: the rows have the task's other name.
    odd = len(rows) > sum(map(len, queued.values()))
    for job_id in [job_id for job_id in asked if odd and not queued[job_id]]:
        some = rows if len(asked) == 1 else scheduler.queue(transport, [job_id])
        queued[job_id] = {row.job_id: row for row in some if is_part(row.job_id)}
    missing = [
        job_id
        for job_id in asked
        if not queued[job_id]
        or (ended and not is_part(job_id) and any(map(is_part, queued[job_id])))
    ]
    is_needed = any(not queued[job_id] for job_id in missing)
    accounts = scheduler.accounting(transport, missing, strict=is_needed)
    accounted = _by_job(accounts or [], missing)
    found: dict[str, list[JobStatus]] = {}
    for job_id in job_ids:
        live, over = queued.get(job_id, {}), accounted.get(job_id, {})
        # The tasks that wait share a row of the accounting, and have their own in the queue.
        known = {*live, *(name for name in over if not live or "[" not in name)}
        found[job_id] = [
            _status(name, live.get(name), over.get(name)) for name in sorted(known, key=_task_order)
        ]
    return found


def status_of_job(context: Context, job_id: str, *, in_detail: bool = False) -> list[JobStatus]:
    """Ask Slurm about a job that hpcrun did not submit, or about all tasks of an array.

    ``in_detail``: with what scontrol alone knows, which is asked beside the others: on a busy
    cluster each answer takes long. Raises InputError for an unknown job, OutOfReach.
    """
    shown: list[SlurmJob] = []
    transport = slurm_transport(context)

    def show() -> None:
        with contextlib.suppress(OutOfReach):
            shown.extend(scheduler.show_jobs(transport, job_id))

    beside = Thread(target=show, daemon=True) if in_detail else None
    try:
        if beside is not None:
            beside.start()
    except RuntimeError:  # as many threads run as are allowed here
        beside = None
        show()
    statuses = status_of_jobs(context, [job_id], ended=True)[job_id]
    if beside is not None:
        beside.join()
    if not statuses:
        raise unknown_job(job_id)
    details = {job.job_id: job for job in shown}
    only = shown[0] if len(shown) == 1 and len(statuses) == 1 else None
    return [_with_details(status, details.get(status.job_id or "", only)) for status in statuses]


def _with_details(status: JobStatus, details: SlurmJob | None) -> JobStatus:
    """Add what scontrol alone knows to what squeue or sacct answered."""
    job = status.job
    if details is None or job is None:
        return status
    names = [name for name in SlurmJob.__struct_fields__ if getattr(job, name) in ("", None, ())]
    added = {name: getattr(details, name) for name in (*names, "nodes", "cpus")}
    return structs.replace(status, job=structs.replace(job, **added))


def _by_job(rows: Sequence[SlurmJob], job_ids: Sequence[str]) -> dict[str, dict[str, SlurmJob]]:
    """Sort rows by the jobs that were asked about, of each its tasks and parts by their ids."""
    found: dict[str, dict[str, SlurmJob]] = {job_id: {} for job_id in job_ids}
    for row in rows:
        for job_id in {row.job_id, row.array}:
            if job_id in found:
                found[job_id][row.job_id] = row
    return found


def _status(job_id: str, row: SlurmJob | None, account: SlurmJob | None) -> JobStatus:
    history = History(run_id=job_id)
    evidence = Evidence(history=history, now=time.time(), queue=row, account=account)
    job = row or account
    return JobStatus(
        job_id=job_id,
        history=history,
        verdict=decide(evidence),
        job=job,
        name=job.name if job else "",
    )


def _task_order(job_id: str) -> tuple[int, str]:
    task = job_id.replace("+", "_").partition("_")[2]
    return (int(task), "") if task.isdigit() else (-1, job_id)
