"""What the user's jobs are doing now: states, curves, and how busy their nodes are.

Never changes or cancels anything.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.assets import name_of_user
from hpcrun.controller.context import Context, job_environment, slurm_transport
from hpcrun.controller.state.status import conf_of
from hpcrun.controller.state.words import job_of_another
from hpcrun.controller.top.log import Progress, TopLog
from hpcrun.controller.top.queue import Queue
from hpcrun.controller.top.usage import UsageStep, close_all
from hpcrun.controller.top.usage_lines import NodeUse
from hpcrun.errors import InputError, OutOfReach
from hpcrun.plan.directives import parse_seconds
from hpcrun.plan.types import label
from hpcrun.runs.find import find, is_job_id
from hpcrun.runs.layout import RUN_ID, RunFolder, SweepFolder, sweep_folder, sweep_id_of
from hpcrun.runs.records import End, History
from hpcrun.runs.store import read_history, read_task
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.states import is_unlimited

# So many jobs have a usage step: each costs an srun process here, and this is a login node.
MOST_STEPS = 8
# Seconds between two looks at a run's records.
_RECORDS_EVERY = 2.0


class TopJob(Struct, frozen=True, kw_only=True):
    """A job that waits or runs. Times are in seconds; None: not known.

    ``name`` is Slurm's, with the values of a sweep's run. ``limit`` is infinite where there is
    none. ``end`` is what the run's own record says of its end, which Slurm may be yet to learn.
    ``why_no_use`` is empty where nodes tell their use, or may do so yet.
    """

    row: SlurmJob
    run: RunFolder | None
    name: str
    elapsed: float | None
    limit: float | None
    end: End | None
    progress: Progress
    uses: list[NodeUse]
    why_no_use: str


class Top:
    """The jobs that wait or run, and what is known of them; ``look`` now and then."""

    def __init__(
        self, context: Context, words: Sequence[str] = (), *, count: int = 20, usage: bool = True
    ) -> None:
        """Watch all of the user's jobs, or those that the words name.

        Raises InputError, OutOfReach.
        """
        job_ids, context = _named(context, words)
        self._context = context
        self._count = count
        self._usage = usage
        # Little of the user's goes to the nodes, but srun is the one that the user has.
        self._env = job_environment(context, "clean")
        self._env["PATH"] = context.environ.get("PATH") or self._env["PATH"]
        self._version: tuple[int, int] | str | None = "unasked"
        self._queue = Queue(slurm_transport(context), job_ids)
        self._me = _my_names(context)
        self._watched: dict[str, _Watched] = {}

    @property
    def out_of_reach(self) -> str:
        """Why nothing new is known of the jobs' states; empty while Slurm answers."""
        return self._queue.out_of_reach

    @property
    def is_known(self) -> bool:
        """Whether Slurm has answered at all."""
        return self._queue.asked_at is not None

    @property
    def left_out(self) -> int:
        """How many jobs there are beyond the ``count`` first."""
        return max(0, len(self._queue.jobs) - self._count)

    def look(self, now: float) -> bool:
        """Do what is due at a time of the monotonic clock; tell whether there is news.

        A look is short: Slurm is waited for by a thread, and one log is read at a time.
        """
        news = self._queue.look(now)
        if news:
            self._sort_out()
        for watched in self._watched.values():
            news |= watched.look_at_use(now)
        due = min(self._watched.values(), key=lambda each: each.next_look, default=None)
        if due is not None and due.next_look <= now:
            news |= due.look_at_files(now)
        return news

    def jobs(self, now: float) -> list[TopJob]:
        """The jobs as they are known: those that run first, then those that wait; newest first."""
        asked_at = now if self._queue.asked_at is None else self._queue.asked_at
        return [each.job(now - asked_at) for each in self._watched.values()]

    def has_all(self) -> bool:
        """Tell whether each log was read, and each node has told its use or will not."""
        return self.is_known and all(each.has_all() for each in self._watched.values())

    def close(self) -> None:
        """End the usage steps."""
        close_all([each.step for each in self._watched.values() if each.step is not None])

    def _sort_out(self) -> None:
        """Go by what Slurm has said last."""
        jobs = sorted(self._queue.jobs, key=_order)[: self._count]
        before, self._watched = self._watched, {}
        steps = 0
        for job in jobs:
            watched = before.pop(job.job_id, None)
            if watched is None or watched.row.number != job.number:
                watched = _Watched(self._context, job)
            watched.row = job
            watched.add_log(self._context, self._queue.outputs.get(job.job_id, ()))
            self._watched[job.job_id] = watched
            if self._usage and job.state == "RUNNING":
                steps += 1
                self._add_step(watched, job, steps)
        close_all([each.step for each in before.values() if each.step is not None])

    def _add_step(self, watched: _Watched, job: SlurmJob, order: int) -> None:
        if watched.step is not None:
            return
        if order > MOST_STEPS:
            watched.why_no_use = f"use is shown of {MOST_STEPS} jobs at once: name the job"
        elif job.user not in self._me:
            watched.why_no_use = f"the job is {job.user}'s"
        elif job.nodes.isdigit():
            if isinstance(self._version, str):
                self._version = scheduler.version(slurm_transport(self._context))
            watched.why_no_use = ""
            nodes = int(job.nodes)
            watched.step = UsageStep(job.number, nodes, self._env, self._version)


class _Watched:
    """One job, its log and its usage step."""

    def __init__(self, context: Context, job: SlurmJob) -> None:
        self.row = job
        self.run = _run_of(job)
        self.step: UsageStep | None = None
        self.why_no_use = ""
        self.next_look = 0.0
        self._name = _name(job, self.run)
        self._log: TopLog | None = None
        self._end: End | None = None
        self._records_at = 0.0

    def add_log(self, context: Context, outputs: Sequence[Path]) -> None:
        """Take up the log, once it is known where it is."""
        if self._log is None and (self.run is not None or outputs):
            self._log = TopLog(self.row.job_id, self.run, outputs)
            self.next_look = 0.0

    def look_at_use(self, now: float) -> bool:
        return self.step is not None and self.step.look(now)

    def look_at_files(self, now: float) -> bool:
        """Read on in the log and the records."""
        news = self._log is not None and self._log.look(now)
        if self.run is not None and now >= self._records_at:
            self._records_at = now + _RECORDS_EVERY
            last = read_history(self.run).last
            before, self._end = self._end, last.end if last is not None else None
            news |= before != self._end
        self.next_look = time.monotonic() + (0.5 if news else 1.0)
        return news

    def has_all(self) -> bool:
        # A use is a difference between two looks; a step that failed once has had its chance.
        uses = [] if self.step is None else self.step.uses()
        nodes = int(self.row.nodes) if self.row.nodes.isdigit() else 0
        has_use = (
            self.step is None
            or self.step.has_failed
            or (len(uses) >= nodes and all(use.cpus_busy is not None for use in uses))
        )
        return has_use and (self.next_look > 0 or self._log is None)

    def job(self, seconds_since: float) -> TopJob:
        """What is known, so many seconds after Slurm told the job's row."""
        elapsed = _seconds(self.row.elapsed)
        if elapsed is not None and self.row.state == "RUNNING" and self._end is None:
            elapsed += seconds_since
        return TopJob(
            row=self.row,
            run=self.run,
            name=self._name,
            elapsed=elapsed,
            limit=math.inf if is_unlimited(self.row.limit) else _seconds(self.row.limit),
            end=self._end,
            progress=Progress() if self._log is None else self._log.progress(),
            uses=[] if self.step is None else self.step.uses(),
            why_no_use=self.why_no_use or ("" if self.step is None else self.step.trouble),
        )


def _named(context: Context, words: Sequence[str]) -> tuple[list[str], Context]:
    """The Slurm ids that words mean, and the context with the Slurm whose they are."""
    named = [_job(context, word) for word in words]
    default = conf_of(context, History(run_id=""))
    confs = {conf or default for _, conf in named}
    if len(confs) > 1:
        raise InputError(
            f"{', '.join(words)}: jobs of several Slurms: {', '.join(sorted(map(str, confs)))}",
            fix="call hpcrun top for each",
        )
    conf = next(iter(confs), None)
    if conf and conf != default:
        if not Path(conf).exists():
            raise OutOfReach(f"{conf}, by which the job was submitted, is not on this machine")
        cluster = structs.replace(context.cluster, slurm_conf=conf)
        context = structs.replace(context, cluster=cluster)
    return [job_id for job_id, _ in named], context


def _job(context: Context, word: str) -> tuple[str, str | None]:
    """The Slurm id that a word means, and the slurm.conf by which it was submitted."""
    found = find(context.runs_dir, word)
    if found is None:
        if is_job_id(word):
            return word, None
        raise InputError(
            f"{word}: no such run in {context.runs_dir}", fix="hpcrun status lists the runs"
        )
    run = found.run(0) if isinstance(found, SweepFolder) else found
    history = read_history(run)
    if (error := job_of_another(history, "top")) is not None:
        raise error
    submitted = history.submitted
    if submitted is None or submitted.job_id is None:
        raise InputError(
            f"{word}: not a job of Slurm's: it runs on this machine", fix=f"hpcrun logs -f {word}"
        )
    if isinstance(found, SweepFolder):
        return submitted.job_id.partition("_")[0], submitted.slurm_conf
    return submitted.job_id, submitted.slurm_conf


def _my_names(context: Context) -> set[str]:
    """What squeue may call the user."""
    return {str(os.getuid()), context.environ.get("USER", ""), name_of_user(os.getuid())}


def _order(job: SlurmJob) -> tuple[bool, int]:
    number = int(job.number) if job.number.isdigit() else 0
    return job.state == "PENDING", number if job.state == "PENDING" else -number


def _run_of(row: SlurmJob) -> RunFolder | None:
    """The run whose job this is, in whatever runs folder: its WorkDir tells."""
    path = Path(row.work_dir)
    sweep_id = sweep_id_of(path.name)
    if sweep_id is not None:
        path = sweep_folder(path.parent, sweep_id).run(_task(row)).path
    elif not RUN_ID.fullmatch(path.name):
        return None
    return RunFolder(path) if path.is_dir() else None


def _task(row: SlurmJob) -> int:
    return int(row.task) if row.task.isdigit() else 0


def _name(row: SlurmJob, run: RunFolder | None) -> str:
    task = read_task(run) if run is not None else None
    if task is None:
        return row.name
    return f"{row.name} {label(task.values)}"


def _seconds(text: str) -> float | None:
    """Read Slurm's time; None for what is none, as INVALID."""
    try:
        return parse_seconds(text) if text[:1].isdigit() else None
    except ValueError:
        return None
