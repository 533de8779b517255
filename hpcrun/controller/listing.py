"""The rows of a listing: the newest runs, with few files opened and one question to Slurm."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.controller.context import Context
from hpcrun.controller.status import Answers, Memory, ask, conf_of, forget_end, job_id_of, judge
from hpcrun.controller.why import with_whys
from hpcrun.errors import HpcrunError
from hpcrun.runs.find import list_names
from hpcrun.runs.layout import (
    ARRAY,
    RUN_ID,
    RunFolder,
    SweepFolder,
    array_of,
    sweep_folder,
    sweep_id_of,
)
from hpcrun.runs.records import (
    Attempt,
    History,
    Seen,
    SeenRow,
    Submitted,
    Sweep,
    SweepSeen,
    Task,
    TaskEnd,
)
from hpcrun.runs.status import JobStatus, Progress
from hpcrun.runs.store import (
    attempts_stamp,
    own_record,
    read_brief,
    read_if_there,
    read_plan,
    read_record,
    record_of_task,
    write_record,
)
from hpcrun.runs.verdict import LOST, Verdict, is_over
from hpcrun.slurm.states import UNKNOWN, WAITING, is_final
from hpcrun.views.lines import failure_text

# Slurm's accounting may be late; the records of a run decide for good only after this (in seconds).
LATE = 3600.0
# A job that ended so long ago is not requeued any more: squeue has forgotten it (MinJobAge).
SETTLED = 86400.0


class Listing(Struct, frozen=True):
    """Rows, newest first; ``older`` counts those left out; ``out_of_reach`` why Slurm is silent."""

    rows: list[JobStatus]
    older: int
    out_of_reach: str


def list_rows(
    context: Context,
    count: int | None,
    *,
    each_task: bool = False,
    memory: Memory | None = None,
) -> Listing:
    """Find out about the newest runs: ``count`` of them, None for all; a sweep counts as one.

    ``each_task`` gives the runs of sweeps rows of their own. Silence of Slurm is reported, never
    raised. With ``memory`` a Slurm whose answer it holds is not asked again.
    """
    memory = Memory() if memory is None else memory
    names = list_names(context.runs_dir)
    chosen = _entries(names, each_task=each_task)
    is_run = (name for name in chosen if RUN_ID.fullmatch(name.removesuffix(ARRAY)))
    shown = list(islice(is_run, count))
    found = _Found(context, [context.runs_dir / name for name in shown], memory)
    rows = _with_short_ids([found.row(context.runs_dir / name) for name in shown])
    silence = next((row.out_of_reach for row in rows if row.out_of_reach), "")
    if not silence:
        rows = with_whys(context, rows, memory)
    return Listing(rows, len(chosen) - len(shown), silence)


def _entries(names: Sequence[str], *, each_task: bool) -> list[str]:
    """The folders that get rows: of sweeps either the array's or those of its runs."""
    sweeps = {name for name in names if "." in name and name.endswith(ARRAY)}

    def has_row(name: str) -> bool:
        if name in sweeps:
            return not each_task
        return each_task or array_of(name) not in sweeps

    # There may be thousands: at first run ids are recognised by their form alone, and only the
    # names of sweeps and of their tasks have a point (a job's own name may have one, too).
    return [name for name in names if name[:8].isdigit() and ("." not in name or has_row(name))]


def _with_short_ids(rows: Sequence[JobStatus]) -> list[JobStatus]:
    """The newest run of a Slurm id goes by it; others by the end of their run id."""
    taken: set[str] = set()
    tails = Counter(_tail(row) for row in rows)
    named = []
    for row in rows:
        word = row.job_id if row.job_id not in taken else None
        if word is not None:
            taken.add(word)
        tail = _tail(row)
        # Digits alone would be a Slurm id.
        is_clear = tails[tail] == 1 and not tail.isdigit() and row.sweep is None
        named.append(structs.replace(row, short_id=word or (tail if is_clear else row.run_id)))
    return named


def _tail(row: JobStatus) -> str:
    return row.run_id.rpartition("-")[2]


class _Found:
    """What the folders and Slurm show of the runs of a listing."""

    def __init__(self, context: Context, folders: Sequence[Path], memory: Memory) -> None:
        self.context = context
        self.memory = memory
        self.news: set[str | None] = set()
        self.kept: dict[Path, tuple[Seen, SeenRow]] = {}
        self.histories: dict[Path, History] = {}
        self.sweeps: dict[Path, _SweepRow] = {}
        self.broken: dict[Path, str] = {}
        for folder in folders:
            if sweep_id_of(folder.name) is None:
                self._read(RunFolder(folder))
                continue
            try:
                self.sweeps[folder] = _SweepRow(folder)
            except (OSError, HpcrunError) as error:
                self.broken[folder] = str(error)
        self._ask()

    def _read(self, run: RunFolder) -> None:
        """Read what there is; one folder that cannot be read must not hide the others."""
        try:
            seen = read_if_there(run.seen, Seen)
            if seen is not None and seen.row is not None and _is_kept(run, seen.row):
                self.kept[run.path] = seen, seen.row
            else:
                self.histories[run.path] = read_brief(run, seen)
        except (OSError, HpcrunError) as error:
            self.broken[run.path] = str(error)

    def _ask(self) -> None:
        """Ask each Slurm once: about the runs that are not over, and those that may be requeued."""
        default = conf_of(self.context, History(run_id=""))
        runs: dict[str | None, list[tuple[RunFolder, History]]] = {}
        also: dict[str | None, list[str]] = {}
        for path, history in self.histories.items():
            runs.setdefault(conf_of(self.context, history), []).append((RunFolder(path), history))
        for path, (seen, kept) in self.kept.items():
            if _may_change(seen, kept):
                pair = (RunFolder(path), _as_history(path.name, seen, kept))
                runs.setdefault(kept.slurm_conf, []).append(pair)
                continue
            is_recent = (kept.ended_at or 0.0) > time.time() - SETTLED
            if is_recent and kept.job_id is not None:
                also.setdefault(kept.slurm_conf, []).append(kept.job_id)
        for sweep in self.sweeps.values():
            if sweep.is_settled:
                continue
            history, submitted = sweep.history, sweep.submitted
            conf = conf_of(self.context, history)
            if sweep.is_known and submitted is not None and submitted.job_id is not None:
                also.setdefault(conf, []).append(submitted.job_id)
            else:
                pair = (RunFolder(sweep.folder.path), history)
                runs.setdefault(conf, []).append(pair)
        confs = dict.fromkeys([*runs, *also]) or {default: None}
        self.news = {conf for conf in confs if conf not in self.memory}
        for conf in self.news:
            self.memory[conf] = ask(self.context, conf, runs.get(conf, []), also.get(conf, ()))

    def row(self, folder: Path) -> JobStatus:
        """The row of a run or a sweep, remembered when it is over."""
        if folder in self.broken:
            return _broken_row(folder, self.broken[folder])
        try:
            sweep = self.sweeps.get(folder)
            if sweep is not None:
                return sweep.row(self.memory.get(conf_of(self.context, sweep.history)))
            return self._run_row(folder)
        except (OSError, HpcrunError) as error:
            return _broken_row(folder, str(error))

    def _run_row(self, folder: Path) -> JobStatus:
        run = RunFolder(folder)
        if folder in self.kept:
            seen, kept = self.kept[folder]
            answers: Answers | None = self.memory.get(kept.slurm_conf)
            rows = answers.rows.get(_tag(run, kept.sweep_id), {}) if answers else {}
            shown = rows.get(kept.job_id or "")
            again = shown is not None and not is_final(shown.state)
            # The end by the run's own records is replaced by Slurm's where that is known by now.
            late = answers.accounts.get(kept.job_id or "") if answers else None
            is_known = seen.by_record and (shown is not None or (late and is_final(late.state)))
            if not again and not is_known:
                return _kept_row(run, seen, kept)
            if again and kept.slurm_conf in self.news:
                forget_end(run)
            self.histories[folder] = read_brief(run)  # requeued since, or now known
        history = self.histories[folder]
        conf = conf_of(self.context, history)
        status = as_row(judge(self.memory[conf], run, history))
        if conf in self.news:
            _remember_row(status)
        return status


def _is_kept(run: RunFolder, kept: SeenRow) -> bool:
    """Return whether a row that is remembered is this run's, with all its attempts."""
    return kept.run_id in (None, run.run_id) and kept.stamp == attempts_stamp(run)


def _may_change(seen: Seen, kept: SeenRow) -> bool:
    """Return whether Slurm may yet know more of a run's end than its own records do."""
    is_recent = kept.ended_at is not None and time.time() - kept.ended_at <= LATE
    return seen.by_record and kept.job_id is not None and is_recent


def _as_history(run_id: str, seen: Seen, kept: SeenRow) -> History:
    """What is remembered of a run, as far as Slurm is asked by it."""
    submitted = Submitted(
        job_id=kept.job_id,
        cluster="",
        slurm_conf=kept.slurm_conf,
        submitted_at=kept.submitted_at or 0.0,
        host="",
        user="",
    )
    return History(run_id=run_id, submitted=submitted, seen=seen)


def _broken_row(folder: Path, why: str) -> JobStatus:
    sweep_id = sweep_id_of(folder.name)
    return JobStatus(
        history=History(run_id=sweep_id or folder.name),
        run=None if sweep_id else RunFolder(folder),
        sweep=SweepFolder(folder) if sweep_id else None,
        name=folder.name[16:].removesuffix(ARRAY).rpartition("-")[0],
        # Nothing can be found out by asking again soon.
        verdict=Verdict(state=UNKNOWN, final=True, source="record", reason=f"unreadable: {why}"),
        states={} if sweep_id else None,
    )


def _tag(run: RunFolder, sweep_id: str | None) -> str:
    return sweep_folder(run.path.parent, sweep_id).path.name if sweep_id else run.run_id


# ---- the row of one run


def _kept_row(run: RunFolder, seen: Seen, kept: SeenRow) -> JobStatus:
    """Make the row of a run that was over when it was looked at last."""
    return JobStatus(
        history=History(run_id=run.run_id),
        run=run,
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
        node_count=kept.nodes,
        gpus_per_node=kept.gpus_per_node,
        progress=_kept_progress(kept),
        gpu_hours=None if kept.gpu_seconds is None else kept.gpu_seconds / 3600,
        remark=kept.remark,
        values=kept.values,
    )


def _kept_progress(kept: SeenRow) -> Progress:
    return Progress(
        step=kept.step,
        value=kept.loss,
        metric=None if kept.loss is None else "loss",
        log=None if kept.log is None else Path(kept.log),
    )


def as_row(status: JobStatus) -> JobStatus:
    """Add what a row shows: reads the end of the run's log, and its plan if it must."""
    history, submitted, run = status.history, status.history.submitted, status.run
    assert run is not None
    name, nodes, gpus = None, None, None
    if submitted is not None and submitted.name is not None:
        name, nodes, gpus = submitted.name, submitted.nodes, submitted.gpus_per_node
    elif (plan := status.plan or read_plan(run)) is not None:
        name, nodes, gpus = plan.name, plan.nodes, plan.gpus_per_node
    kept = history.seen.row if history.seen is not None else None
    progress = Progress()
    if kept is not None and kept.log is not None and status.final and _is_kept(run, kept):
        progress = _kept_progress(kept)
    elif history.attempts:
        # Here: the reader of lines takes a moment.
        from hpcrun.controller.progress import formats_of, last_point

        source = status.plan or submitted
        progress = last_point(run, formats_of(source.log_patterns if source else ()))
    seconds = _gpu_seconds(status, nodes, gpus)
    return structs.replace(
        status,
        name=name or run.run_id,
        submitted_at=submitted.submitted_at if submitted else None,
        elapsed=elapsed_of(status),
        limit=status.job.limit_seconds if status.job else None,
        node_count=nodes,
        gpus_per_node=gpus,
        progress=progress,
        gpu_hours=None if seconds is None else seconds / 3600,
        remark=_how_it_failed(status),
    )


def _how_it_failed(status: JobStatus) -> str:
    """Who failed first; only the plan knows a launcher from a bare command."""
    failure = status.end.first_failure if status.end else None
    if failure is not None and failure.rank is None and status.plan is None and status.run:
        status = structs.replace(status, plan=read_plan(status.run))
    return failure_text(status)


def elapsed_of(status: JobStatus) -> float | None:
    """Seconds of the last attempt, by its own records where there are any, else by Slurm."""
    if status.last is not None and (own := _seconds(status.last, is_over=status.final)) is not None:
        return own
    job = status.job
    if job is None or (status.state if job.source == "squeue" else job.state) in WAITING:
        return None
    return job.elapsed_seconds


def _seconds(attempt: Attempt, *, is_over: bool) -> float | None:
    """How long an attempt ran: to its end, to its last sign of life, or until now."""
    if attempt.end is not None:
        return max(0.0, attempt.end.ended_at - attempt.end.begun_at)
    if attempt.begin is None or (is_over and attempt.beat is None):
        return None
    until = attempt.beat if is_over and attempt.beat is not None else time.time()
    return max(0.0, until - attempt.begin.begun_at)


def _gpu_seconds(status: JobStatus, nodes: int | None, gpus_per_node: int | None) -> float | None:
    """Seconds that the run has held GPUs for, times their number; None without GPUs."""
    if not nodes or not gpus_per_node or not status.history.attempts:
        return None
    *before, _ = status.history.attempts
    parts = [*(_seconds(attempt, is_over=True) for attempt in before), elapsed_of(status)]
    return sum(seconds or 0.0 for seconds in parts) * nodes * gpus_per_node


def _remember_row(status: JobStatus) -> None:
    """Keep the row of a run that is over, if nothing can change it any more but a requeue."""
    history, verdict, run = status.history, status.verdict, status.run
    by_record = verdict.source == "record"
    ended_at = status.end.ended_at if status.end else None
    if ended_at is None and verdict.source == "squeue":
        ended_at = time.time()
    if not verdict.final or status.out_of_reach or (by_record and not _is_sure(status)):
        return
    if run is None or history.copy_of is not None:  # what it shows is another's
        return
    kept = SeenRow(
        stamp=attempts_stamp(run),
        run_id=run.run_id,
        job_id=job_id_of(history) or status.job_id,
        slurm_conf=status.slurm_conf,
        name=status.name,
        nodes=status.node_count,
        gpus_per_node=status.gpus_per_node,
        submitted_at=status.submitted_at,
        ended_at=ended_at,
        elapsed=status.elapsed,
        gpu_seconds=None if status.gpu_hours is None else status.gpu_hours * 3600,
        exit_code=verdict.exit_code,
        remark=status.remark,
        step=status.step,
        loss=status.loss,
        log=str(status.progress.log) if status.progress.log else None,
        sweep_id=history.task.sweep_id if history.task else None,
        values=status.values,
    )
    seen = Seen(
        state=verdict.state,
        reason=verdict.reason,
        attempts=len(history.attempts),
        by_record=by_record
        or (verdict.source == "seen" and bool(history.seen and history.seen.by_record)),
        row=kept,
    )
    if seen == history.seen:
        return
    with contextlib.suppress(OSError, HpcrunError):
        run.seen.parent.mkdir(exist_ok=True)
        write_record(run.seen, seen)


def _is_sure(status: JobStatus) -> bool:
    """Return whether a run's own record of its end is enough to be remembered.

    Where it leaves something open, Slurm's accounting may yet have it.
    """
    end = status.end
    return end is not None and (not status.notes or time.time() - end.ended_at > LATE)


# ---- the row of a whole sweep


class _SweepRow:
    """The runs of a sweep: Slurm shows their states, or they are remembered as over.

    Only what nobody knows is looked at in the runs' own folders: once, since it is remembered then.
    """

    def __init__(self, path: Path) -> None:
        """Read the sweep's own records. Raises HpcrunError."""
        self.folder = SweepFolder(path)
        self.seen = read_if_there(self.folder.seen, SweepSeen) or SweepSeen(ends={})
        submitted = read_record(self.folder.submitted, Submitted)
        self.submitted = own_record(submitted, self.folder.sweep_id)
        record = read_record(self.folder.record, Sweep)
        self.name = record.name if record else self.folder.sweep_id
        self.tasks = record.tasks if record else 0

    @property
    def history(self) -> History:
        """What is known of the array itself, as of a run."""
        return History(run_id=self.folder.sweep_id, submitted=self.submitted)

    @property
    def is_settled(self) -> bool:
        """All runs have been over for so long that nothing can change any more."""
        ended_at = self.seen.ended_at
        return ended_at is not None and time.time() - ended_at > SETTLED

    @property
    def is_known(self) -> bool:
        """All runs are over, by Slurm's answer: what a requeue would change squeue shows."""
        by_record = any(end.by_record for end in self.seen.ends.values())
        return self.seen.ended_at is not None and not by_record

    def row(self, answers: Answers | None) -> JobStatus:
        """Make the row, by what the sweep's Slurm answered (None: it was not asked).

        Raises OSError, HpcrunError where a run's folder cannot be read.
        """
        submitted, silence = self.submitted, ""
        if self.is_settled:
            states = Counter(end.state for end in self.seen.ends.values())
        else:
            states, silence = self._find_states(answers)
        return JobStatus(
            history=self.history,
            sweep=self.folder,
            job_id=submitted.job_id if submitted else None,
            slurm_conf=submitted.slurm_conf if submitted else None,
            name=self.name,
            verdict=_of_all(states),
            submitted_at=submitted.submitted_at if submitted else None,
            node_count=submitted.nodes if submitted else None,
            gpus_per_node=submitted.gpus_per_node if submitted else None,
            states=dict(states),
            out_of_reach=silence,
        )

    def _find_states(self, answers: Answers | None) -> tuple[Counter[str], str]:
        """Count the runs by state; also why Slurm was silent where it was needed, else ""."""
        shown = self._shown(answers) if answers else {}
        states, silence = Counter[str](), ""
        ends: dict[str, TaskEnd] = {}
        for index in range(self.tasks):
            run, key = self.folder.run(index), str(index)
            known = self.seen.ends.get(key)
            stamp = attempts_stamp(run) if index not in shown or is_final(shown[index]) else 0
            end: TaskEnd | None = None
            if index in shown:
                state = shown[index]
                end = TaskEnd(state=state, stamp=stamp) if is_final(state) else None
            elif known is not None and known.stamp == stamp:
                state, end = known.state, known
            else:
                state, end, quiet = self._look_at(run, index, stamp, answers)
                silence = silence or quiet
            states[state] += 1
            if end is not None:
                ends[key] = end
        self._remember(ends)
        return states, silence

    def _shown(self, answers: Answers) -> dict[int, str]:
        """The states that Slurm shows, by the numbers of the tasks; squeue's go first."""
        array = self.submitted.job_id if self.submitted else None
        tag = self.folder.path.name
        found: dict[int, str] = {}
        for account in answers.accounts.values():
            if Path(account.work_dir or tag).name == tag and is_final(account.state):
                found |= _of_task(array, account.job_id, account.state)
        for row in answers.rows.get(tag, {}).values():
            if row.state != UNKNOWN:
                found |= _of_task(array, row.job_id, row.state)
        return found

    def _look_at(
        self, run: RunFolder, index: int, stamp: int, answers: Answers | None
    ) -> tuple[str, TaskEnd | None, str]:
        """Find out about a run that Slurm does not show: state, end, and why Slurm is silent."""
        if answers is None:
            return UNKNOWN, None, ""
        task = Task(sweep_id=self.folder.sweep_id, index=index, values={})
        submitted = self.submitted and record_of_task(self.submitted, index)
        seen = read_if_there(run.seen, Seen)
        status = judge(answers, run, read_brief(run, seen, (task, submitted)))
        # A run that left no trace may yet show one, unless it never began.
        is_sure = status.state != LOST or not status.attempts
        if not status.final or status.out_of_reach or not is_sure:
            return status.state, None, status.out_of_reach
        end = TaskEnd(state=status.state, stamp=stamp, by_record=status.source == "record")
        return status.state, end, ""

    def _remember(self, ends: dict[str, TaskEnd]) -> None:
        """Keep the ends that are known; a sweep of somebody else's stays as it is."""
        ended_at = None
        if self.tasks and len(ends) == self.tasks:
            ended_at = self.seen.ended_at or time.time()
        seen = SweepSeen(ends=ends, ended_at=ended_at)
        if seen != self.seen:
            with contextlib.suppress(OSError, HpcrunError):
                self.folder.seen.parent.mkdir(exist_ok=True)
                write_record(self.folder.seen, seen)


def _of_task(array: str | None, job_id: str, state: str) -> dict[int, str]:
    """Return the task that a row is about, where it is one of the array; None: its id is not known.

    >>> _of_task("7", "7_3", "RUNNING"), _of_task("7", "7", "CANCELLED")
    ({3: 'RUNNING'}, {})
    """
    head, _, index = job_id.partition("_")
    return {int(index): state} if index.isdigit() and array in (head, None) else {}


def _of_all(states: Mapping[str, int]) -> Verdict:
    """One state for all runs of a sweep: the liveliest; of runs that are over the worst."""
    order = ("RUNNING", "COMPLETING", UNKNOWN, "PENDING")
    live = next((state for state in order if states.get(state)), None)
    live = live or next((state for state in states if not is_over(state)), None)
    if live is not None or not states:
        return Verdict(state=live or UNKNOWN, final=False, source="record")
    bad = [state for state in states if state != "COMPLETED"]
    worst = max(bad, key=lambda state: states[state], default="COMPLETED")
    return Verdict(state=worst, final=True, source="record")
