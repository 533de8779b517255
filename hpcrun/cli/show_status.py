"""The query and output of hpcrun status."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field, structs

from hpcrun.cli.output import emit_json, output_display, print_lines, print_note
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.monitor import (
    Level,
    RunFilter,
    SlurmCache,
    SortKey,
    StageStatus,
    describe_no_runs,
    describe_stages,
    find_group,
    find_targets_by_word,
    read_pipeline,
    sort_key,
    stage_json,
    status_of,
    status_of_job,
    unknown_run_error,
)
from hpcrun.ownership import foreign_owner
from hpcrun.runs import (
    JobStatus,
    RunFolder,
    SearchResult,
    Sweep,
    SweepFolder,
    has_checkpoints,
    read_search_result,
    read_sweep,
    runs_of,
)
from hpcrun.slurm import TIMEOUT, array_job_id
from hpcrun.text import Display
from hpcrun.views import (
    format_jobs,
    format_listing,
    format_run,
    format_sweep,
    job_json,
    listing_json,
    run_json,
)

# Timeout for clusters that are queried in parallel, and how long to wait for the slow ones after
# the others have answered, in seconds: a login alone may take five.
_CLUSTER_TIMEOUT_S, _SLOW_CLUSTER_WAIT_S = 20.0, 5.0
# Number of failed runs of a sweep, and of a listing, whose logs are examined at once.
_MAX_CAUSES, _MAX_CAUSES_OF_LISTING = 64, 8


class StatusQuery(Struct, frozen=True):
    """A status query: by a word, else for the ``count`` newest runs of ``only`` (None: all)."""

    word: str | None
    count: int | None = None
    each_task: bool = False
    only: RunFilter | None = None
    sort: SortKey | None = None


class QueryCache(Struct, kw_only=True):
    """Answers to one query that a watcher shares between redraws: see SlurmCache."""

    slurm: SlurmCache = field(default_factory=SlurmCache)
    target: RunFolder | SweepFolder | str | None = None
    group: list[RunFolder | SweepFolder] = field(default_factory=list)
    job: list[JobStatus] | None = None

    def clear(self) -> None:
        self.slurm.clear()
        self.target = self.job = None
        self.group = []


class StatusResult(Struct, frozen=True, kw_only=True):
    """The result: the rows of a listing, one run, the runs of a sweep, or other jobs.

    Attributes:
        silence: Why Slurm did not answer although its answer was needed.
        is_partial: Rows may be missing for that reason.
        older: Number of runs that were omitted.
        host: The host of a remote cluster.
        search: The trials of a sweep with a metric.
    """

    kind: str
    statuses: Sequence[JobStatus]
    silence: str = ""
    is_partial: bool = False
    older: int = 0
    host: str = ""
    sweep: Sweep | None = None
    search: SearchResult | None = None
    nothing: str = ""
    pipeline: str = ""
    stages: Sequence[StageStatus] = ()

    @property
    def is_over(self) -> bool:
        return all(status.final for status in self.statuses)

    @property
    def exit_code(self) -> int:
        """4 if a required answer of Slurm is missing; final states do not require one."""
        return 4 if self.silence and (self.is_partial or not self.is_over) else 0

    @property
    def states(self) -> list[object]:
        return [(status.id, status.state, status.states) for status in self.statuses]

    def json(self) -> dict[str, Any]:
        if self.kind == "listing":
            return listing_json(self.statuses, self.older, self.silence)
        if self.kind == "pipeline":
            rows = listing_json(self.statuses, self.older, self.silence)
            stages = [stage_json(one) for one in self.stages]
            return {**rows, "pipeline": {"name": self.pipeline, "stages": stages}}
        as_json = job_json if self.kind == "job" else run_json
        runs = {"runs": [as_json(status) for status in self.statuses]}
        if self.search is None:
            return runs
        from hpcrun.runs import compute_importance
        from hpcrun.views import search_json

        return {**runs, "search": search_json(self.search, compute_importance(self.search))}

    def lines(self, look: Display) -> list[str]:
        if self.kind == "pipeline":
            rows = [row for one in self.stages for row in one.rows()]
            return format_listing(rows, 0, look, now=time.time())
        if not self.statuses:
            return [self.nothing] if self.nothing else []
        if self.kind == "listing":
            return format_listing(self.statuses, self.older, look, now=time.time())
        if self.kind == "job":
            return format_jobs(array_job_id(self.statuses[0].job_id or ""), self.statuses, look)
        if self.sweep is not None:
            lines = format_sweep(self.sweep, self.statuses, look, self.search)
            if self.search is None:
                return lines
            from hpcrun.runs import compute_importance
            from hpcrun.views import format_search

            return [*lines, *format_search(self.search, compute_importance(self.search), look)]
        (status,) = self.statuses
        plan, attempts = status.plan, status.history.attempts
        has_saved = plan is not None and has_checkpoints(plan, attempts, is_here=not self.host)
        there = f"{self.host}:{plan.run_dir}" if self.host and plan is not None else ""
        return format_run(
            status,
            look,
            local_time=_local_time,
            has_checkpoints=has_saved,
            there=there,
        )


def query_status(
    context: Context, query: StatusQuery, cache: QueryCache | None = None
) -> StatusResult:
    """Determine the state of everything that a query covers. Raises InputError, OutOfReach.

    Answers in ``cache`` are not queried again.
    """
    cache = QueryCache() if cache is None else cache
    context = structs.replace(context, deadline=time.monotonic() + TIMEOUT)
    found = _query_status(context, query, cache)
    silent = (status.out_of_reach for status in found.statuses if status.out_of_reach)
    silence = found.silence or next(silent, "")
    statuses = found.statuses
    if not silence and any(status.is_waiting for status in statuses):
        from hpcrun.monitor import add_wait_reasons

        is_one = found.kind != "listing" and found.sweep is None and len(statuses) == 1
        statuses = add_wait_reasons(context, statuses, cache.slurm, count_ahead=is_one)
    if found.stages:
        waits = {status.run_id: status for status in statuses}
        stages = [
            structs.replace(one, statuses=[waits[each.run_id] for each in one.statuses])
            for one in found.stages
        ]
        found = structs.replace(found, stages=stages)
    host = context.cluster.host or ""
    return structs.replace(found, statuses=statuses, silence=silence, host=host)


def _query_status(context: Context, query: StatusQuery, cache: QueryCache) -> StatusResult:
    if query.word is None:
        from hpcrun.monitor import list_rows

        nothing = f"{describe_no_runs(context)}; hpcrun jobs lists what can be submitted"
        if query.only is not None:
            nothing = "no run matches; hpcrun status shows the newest runs of any name and state"
        rows, older, silence = list_rows(
            *(context, query.count),
            each_task=query.each_task,
            only=query.only,
            sort=query.sort,
            cache=cache.slurm,
        )
        if silence and context.cluster.host is not None:
            nothing = ""  # whether there are runs is unknown
        return StatusResult(
            kind="listing",
            statuses=_add_new_causes(context, rows),
            older=older,
            nothing=nothing,
            silence=silence,
            is_partial=bool(silence),
        )
    if cache.target is None and not cache.group:
        cache.target = find_targets_by_word(context, [query.word])[query.word]
        cache.group = find_group(context, query.word) if cache.target is None else []
    target = cache.target
    if cache.group and (pipeline := read_pipeline(cache.group)) is not None:
        rows = status_of(context, pipeline.runs(), cache.slurm, level="row")
        stages = describe_stages(pipeline, _add_new_causes(context, rows))
        rows = [status for one in stages for status in one.statuses]
        name = pipeline.record.name
        return StatusResult(kind="pipeline", statuses=rows, pipeline=name, stages=stages)
    if cache.group:
        runs = [run for one in cache.group for run in runs_of(one)]
        rows = status_of(context, runs, cache.slurm, level="row")
        return StatusResult(kind="listing", statuses=_add_new_causes(context, rows))
    if target is None:
        raise unknown_run_error(context, query.word)
    if isinstance(target, str):
        if cache.job is None:
            cache.job = status_of_job(context, target, in_detail=True)
        return StatusResult(kind="job", statuses=_add_end_details(context, cache.job))
    sweep = read_sweep(target) if isinstance(target, SweepFolder) else None
    level: Level = "detail" if sweep is None else "row"
    statuses = status_of(context, runs_of(target), cache.slurm, level=level)
    statuses = _add_end_details(context, statuses, in_sweep=sweep is not None)
    if sweep is None:
        statuses = [_add_notify_failures(status) for status in statuses]
    search = read_search_result(runs_of(target)) if sweep is not None else None
    return StatusResult(kind="run", statuses=statuses, sweep=sweep, search=search)


def _add_notify_failures(status: JobStatus) -> JobStatus:
    """Add a note on each channel to which a notification of the run could not be sent."""
    from hpcrun.jobside import list_failures, read_tries

    failures = list_failures(read_tries(str(status.folder.path)))
    if not failures:
        return status
    notes = [f"notify: {channel}: {text}" for channel, text in failures.items()]
    verdict = structs.replace(status.verdict, notes=[*status.verdict.notes, *notes])
    return structs.replace(status, verdict=verdict)


def _add_end_details(
    context: Context, statuses: list[JobStatus], *, in_sweep: bool = False
) -> list[JobStatus]:
    failed = [at for at, status in enumerate(statuses) if status.final and not status.ok]
    is_one = len(statuses) == 1 and statuses[0].final and not in_sweep
    if is_one:
        from hpcrun.monitor import add_accounting, add_resource_usage

        statuses = [add_resource_usage(context, add_accounting(context, statuses[0], always=True))]
    if failed and (is_one or in_sweep):
        from hpcrun.actions import add_cause  # deferred: the rules take long to import

        causes = {at: add_cause(context, statuses[at]) for at in failed[:_MAX_CAUSES]}
        statuses = [causes.get(at, status) for at, status in enumerate(statuses)]
    return statuses


def _add_new_causes(context: Context, rows: list[JobStatus]) -> list[JobStatus]:
    """Add the causes of runs that failed since the last listing.

    Each is found once: the diagnosis is stored in the run's directory, where listings find it.
    Logs on a remote cluster are not read for a listing.
    """
    if context.cluster.host is not None:
        return rows
    new = [
        at
        for at, row in enumerate(rows)
        if row.final and not row.ok and row.run is not None and row.last is not None
        if not row.remark and not row.run.why.exists() and not foreign_owner(row.run.path)
    ]
    if not new:
        return rows
    from hpcrun.actions import add_cause  # deferred: the rules take long to import
    from hpcrun.views import format_cause

    rows = list(rows)
    for at in new[:_MAX_CAUSES_OF_LISTING]:
        diagnosis = add_cause(context, rows[at]).diagnosis
        cause = diagnosis.cause if diagnosis is not None else None
        if cause is not None and not cause.without_log:
            rows[at] = structs.replace(rows[at], remark=format_cause(cause))
    return rows


def query_all_clusters(
    contexts: Sequence[Context], query: StatusQuery, faults: Sequence[InputError] = ()
) -> StatusResult:
    """Query several clusters in parallel, without waiting for slow ones.

    ``faults``: errors in the profiles of other clusters.
    """
    from queue import Empty, SimpleQueue

    found: dict[int, StatusResult | str] = {}
    answers: SimpleQueue[tuple[int, StatusResult | str]] = SimpleQueue()

    def ask(number: int) -> None:
        try:
            answers.put((number, query_status(contexts[number], query)))
        except HpcrunError as error:
            answers.put((number, error.message))

    for number in range(len(contexts)):
        threading.Thread(target=ask, args=(number,), daemon=True).start()
    until = last = time.monotonic() + _CLUSTER_TIMEOUT_S
    with contextlib.suppress(Empty):
        while len(found) < len(contexts):
            number, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
            found[number] = answer
            if isinstance(answer, StatusResult):
                until = min(last, time.monotonic() + _SLOW_CLUSTER_WAIT_S)
    rows: list[JobStatus] = []
    silent = [fault.message.replace("\n", "; ") for fault in faults]
    for number, context in enumerate(contexts):
        late = f"no answer yet (hpcrun status --cluster {context.cluster.name} waits for it)"
        one = found.get(number, late)
        silence = one if isinstance(one, str) else one.silence
        silent += [f"{context.cluster.name}: {silence}"] if silence else []
        rows += [] if isinstance(one, str) else one.statuses
    # Run ids start with the time of submission.
    rows.sort(key=lambda row: row.run_id, reverse=True)
    if (order := query.sort) is not None:
        rows.sort(key=lambda row: sort_key(row, order))
    return StatusResult(
        kind="listing",
        statuses=rows,
        silence="; ".join(silent),
        is_partial=bool(silent),
        nothing="" if silent else "no runs on any cluster",
    )


def _local_time(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(seconds))


def show_status(
    contexts: Sequence[Context], query: StatusQuery, faults: Sequence[InputError], *, as_json: bool
) -> int:
    """Print the result of a query; return the exit code. Raises InputError, OutOfReach."""
    with contexts[0].waiting():
        if len(contexts) + len(faults) == 1:
            found = query_status(contexts[0], query)
        else:
            found = query_all_clusters(contexts, query, faults)
    return print_status(found, as_json=as_json)


def print_status(found: StatusResult, *, as_json: bool = False) -> int:
    """Print a result; return the exit code."""
    if as_json:
        emit_json(found.json())
    else:
        print_lines(found.lines(output_display()))
    if found.silence:
        print_note(f"Slurm cannot be reached: {found.silence}")
    return found.exit_code
