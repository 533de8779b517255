"""Finds out the state of runs: one squeue and at most one sacct for any number of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_conf_of, slurm_transport
from hpcrun.controller.state.foreign import find_any, own_names
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.plan.types import Plan
from hpcrun.runs.find import find_run, list_runs, no_runs_in
from hpcrun.runs.layout import RunFolder, SweepFolder, sweep_folder
from hpcrun.runs.records import History, Seen
from hpcrun.runs.store import read_history, read_plan, write_record
from hpcrun.runs.verdict import LOST, Evidence, Verdict, decide
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.states import UNKNOWN, is_final
from hpcrun.transport import Transport

# Jobs that one command is asked about.
_AT_ONCE = 1000


class RunStatus(Struct, frozen=True, kw_only=True):
    """A run with all that was found out about it."""

    run: RunFolder
    history: History
    plan: Plan | None
    verdict: Verdict
    queue: SlurmJob | None
    account: SlurmJob | None
    job_id: str | None
    out_of_reach: str = ""


def resolve(context: Context, word: str | None) -> RunFolder:
    """Find the run that a word names; none means the newest. Raises InputError."""
    run = find_run(context.runs_dir, word)
    if run is None and word is not None and (own := own_names(context, [word])):
        run = find_run(context.runs_dir, own[word])
    if run is None:
        raise _no_such_run(context, word)
    return run


def resolve_any(context: Context, word: str | None) -> RunFolder | SweepFolder:
    """Find the run or the sweep that a word names; none means the newest. Raises InputError."""
    found = find_any(context, word)
    if found is None:
        raise _no_such_run(context, word)
    return found


def _no_such_run(context: Context, word: str | None) -> InputError:
    if word is None:
        return InputError(
            no_runs_in(context.runs_dir), fix="hpcrun submit JOB; hpcrun jobs lists them"
        )
    return InputError(
        f"{word}: no such run in {context.runs_dir}", fix="hpcrun status lists the runs"
    )


def newest(context: Context, count: int) -> list[RunFolder]:
    """The newest runs, newest first."""
    return list(islice(list_runs(context.runs_dir), count))


def status_of(
    context: Context, runs: Sequence[RunFolder], memory: Memory | None = None
) -> list[RunStatus]:
    """Find out the state of some runs; silence of Slurm is told, never raised.

    With ``memory`` a Slurm whose answer it holds is not asked again.
    """
    memory = Memory() if memory is None else memory
    histories = {run.path: read_history(run) for run in runs}
    by_conf: dict[str | None, list[RunFolder]] = {}
    for run in runs:
        by_conf.setdefault(conf_of(context, histories[run.path]), []).append(run)
    found: dict[Path, RunStatus] = {}
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


class Answers(Struct, frozen=True, kw_only=True):
    """What one Slurm said of some runs. ``silence`` is why squeue said nothing, else "".

    ``rows`` are squeue's by the last part of their WorkDir, ``accounts`` sacct's by job id.
    ``asked``: the jobs and arrays that it was asked about. ``secrets``: when those of the runs were
    written (mtime_ns) that lay there before Slurm was asked.
    """

    conf: str | None
    conf_is_gone: bool
    silence: str
    rows: dict[str, list[SlurmJob]]
    accounts: dict[str, SlurmJob]
    asked: frozenset[str]
    secrets: dict[Path, int]


T = TypeVar("T")


class Memory(dict[object, Any]):
    """What Slurm has said: who looks at the files often asks Slurm seldom, and forgets it then.

    Its answers about runs go by the slurm.conf.
    """

    def once(self, question: object, ask: Callable[[], T]) -> T:
        """Ask, unless the answer is known."""
        if question not in self:
            self[question] = ask()
        answer: T = self[question]
        return answer


def conf_of(context: Context, history: History) -> str | None:
    """The slurm.conf by which a run was submitted: it tells which Slurm to ask."""
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
            told = scheduler.accounting(transport, wanted[start : start + _AT_ONCE])
            if told is None:
                break
            accounts |= {row.job_id: row for row in told}
    return Answers(
        conf=conf,
        conf_is_gone=conf_is_gone,
        silence=silence,
        rows=queued,
        accounts=accounts,
        asked=frozenset(_whole_arrays([job_id for job_id in asked if job_id])),
        secrets=secrets,
    )


def judge(answers: Answers, run: RunFolder, history: History) -> RunStatus:
    """Decide a run's state by what Slurm answered and its own records; its plan is not read."""
    row = _row_of(run, history, answers.rows)
    job_id = job_id_of(history) or (row.job_id if row else None)
    tag = tag_of(run, history)
    account = _own(answers.accounts.get(job_id or ""), tag)
    quiet = answers.silence
    if answers.conf_is_gone and not is_local(history) and not _was_here(history):
        quiet = f"{answers.conf}, by which the job was submitted, is not on this machine"
    missing = (
        history.task is not None
        and account is None
        and _is_left_over(job_id, tag, answers.rows.get(tag, ()), answers.accounts.values())
    )
    verdict = decide(
        Evidence(
            history=history,
            now=time.time(),
            in_reach=not quiet,
            queue=row,
            account=account,
            limit=_limit_of(run, history),
            missing_from_array=missing,
        )
    )
    if verdict.state == LOST and job_id and job_id.partition("_")[0] not in answers.asked:
        # It is younger than the answers.
        verdict = Verdict(
            state=UNKNOWN, final=False, source="record", reason="submitted a moment ago"
        )
    if verdict.final and verdict.source in ("squeue", "sacct"):
        _remove_secrets(answers, run, missing_from_array=missing)
    return RunStatus(
        run=run,
        history=history,
        plan=None,
        verdict=verdict,
        queue=row,
        account=account,
        job_id=job_id,
        out_of_reach=quiet if not is_local(history) else "",
    )


def _remove_secrets(answers: Answers, run: RunFolder, *, missing_from_array: bool) -> None:
    """Remove what the job could not remove itself any more.

    Secrets that came while Slurm was asked, or later, are the next attempt's; a task that is
    missing from its array has none.
    """
    stamp = _stamp(run.secrets)
    if stamp and (missing_from_array or answers.secrets.get(run.path) == stamp):
        with contextlib.suppress(OSError):
            run.secrets.unlink()


def _stamp(path: Path) -> int:
    """When a file was written, in nanoseconds by its file system's clock; 0: it is not there."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a thousand times in a row
    except OSError:
        return 0


def _limit_of(run: RunFolder, history: History) -> float | None:
    """How many seconds the job may run, where that may tell why it was stopped; else None."""
    end = history.last.end if history.last else None
    is_open = end is not None and end.stopped_by is not None and history.cancelled is None
    if not is_open or is_local(history):
        return None
    plan = read_plan(run)
    asked = dict(plan.directives).get("time") if plan is not None else None
    if not asked:
        return None
    from hpcrun.plan.directives import parse_seconds  # here: it is seldom needed

    try:
        return parse_seconds(asked) or None  # 0 is no limit (sbatch.1, --time)
    except ValueError:
        return None


def _remember(run: RunFolder, history: History, verdict: Verdict) -> None:
    """Keep a final state that Slurm will forget; a run of somebody else's stays as it is."""
    if verdict.source == "squeue" and not verdict.final and history.seen is not None:
        forget_end(run)
    if not verdict.final or verdict.source not in ("squeue", "sacct"):
        return
    old, count = history.seen, len(history.attempts)
    told = (verdict.state, verdict.reason, count, False)
    if old is None or (old.state, old.reason, old.attempts, old.by_record) != told:
        seen = Seen(state=verdict.state, reason=verdict.reason, attempts=count)
        with contextlib.suppress(OSError, HpcrunError):
            run.seen.parent.mkdir(exist_ok=True)
            write_record(run.seen, seen)


def forget_end(run: RunFolder) -> None:
    """Forget the end of a run that was requeued: however long it waits now, it is not over."""
    with contextlib.suppress(OSError):
        run.seen.unlink(missing_ok=True)


def _is_open(history: History) -> bool:
    """Tell whether a run is lost if Slurm does not know it: nothing else tells of its end."""
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
    """The last part of the job's WorkDir: the run's folder, or that of its sweep."""
    if history.task is None:
        return run.run_id
    return sweep_folder(run.path.parent, history.task.sweep_id).path.name


def _own(row: SlurmJob | None, tag: str) -> SlurmJob | None:
    """A cluster that counts anew may have given the number to another job: then None."""
    return row if row is not None and Path(row.work_dir or tag).name == tag else None


def _is_left_over(
    job_id: str | None, tag: str, rows: Iterable[SlurmJob], accounts: Iterable[SlurmJob]
) -> bool:
    """Tell whether Slurm shows the array of a task that it does not show itself.

    In the accounting each task that began has a row. In the queue a row without a task, as 7, is
    what was left of the array when the last tasks that waited were cancelled.
    """
    array = (job_id or "").partition("_")[0]
    left = [row.work_dir for row in rows if row.job_id == array and is_final(row.state)]
    left += [row.work_dir for row in accounts if row.job_id.partition("_")[0] == array]
    return any(Path(work_dir or tag).name == tag for work_dir in left)


def job_id_of(history: History) -> str | None:
    """The run's Slurm id: as sbatch told it, else as the job itself did."""
    if history.submitted is not None:
        return history.submitted.job_id
    begin = history.last.begin if history.last else None
    return (begin.job_id or None) if begin else None


def _was_here(history: History) -> bool:
    """Tell whether the run was submitted from this machine, as to a sandbox that is gone."""
    return (
        history.submitted is not None and history.submitted.host == os.uname().nodename
    )  # socket takes long to import


def _by_tag(rows: Iterable[SlurmJob]) -> dict[str, list[SlurmJob]]:
    """Sort squeue's rows by the last part of their WorkDir."""
    found: dict[str, list[SlurmJob]] = {}
    for row in rows:
        found.setdefault(row.work_dir.rstrip("/").rpartition("/")[2], []).append(row)
    return found


def _row_of(
    run: RunFolder, history: History, rows: Mapping[str, Sequence[SlurmJob]]
) -> SlurmJob | None:
    """The run's row: its WorkDir tells, since a cluster that counts anew gives ids out again."""
    task = history.task
    own = list(rows.get(tag_of(run, history), ()))
    if task is not None:
        own = [row for row in own if row.job_id.endswith(f"_{task.index}")]
    submitted = history.submitted
    if submitted is not None:
        return next((row for row in own if row.job_id == submitted.job_id), None)
    # A job that sbatch refused for its constraints shows in the queue all the same.
    return next((row for row in own if row.reason != "BadConstraints"), None)


def is_local(history: History) -> bool:
    """Tell whether it is a run of this machine, without Slurm."""
    return history.submitted is not None and history.submitted.job_id is None
