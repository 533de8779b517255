"""Views of the status of jobs: single lines, a listing, one job in detail, and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hpcrun.plan import Plan, column_names, format_label
from hpcrun.runs import (
    LOST,
    Attempt,
    JobStatus,
    RankedTrial,
    SearchResult,
    Sweep,
    Verdict,
    WhyWaiting,
)
from hpcrun.slurm import explain_reason, format_exit_code, format_limit, parse_exit_code
from hpcrun.text import (
    BOLD,
    Column,
    Display,
    Table,
    dim,
    format_clock,
    format_count,
    format_duration,
    format_next_steps,
    format_pairs,
    format_sweep_size,
    format_table,
    is_whole_number,
    json_number,
    paint,
    replace_unprintable,
)
from hpcrun.views import attempts
from hpcrun.views.cause import diagnosis_json, format_cause, format_cause_rows, format_cause_suffix

# ---- single lines about a job

# Yellow and cyan of the 16 standard colours are hard to read on white; these are xterm-256 colours.
RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = "31", "32", "38;5;130", "34", "35", "38;5;30"
_COLOURS = {"COMPLETED": GREEN, "RUNNING": BLUE, "PENDING": YELLOW, "UNKNOWN": YELLOW}
_COLOURS["CANCELLED"] = _COLOURS["PRUNED"] = MAGENTA  # not shown as failures


def state_colour(state: str) -> str:
    """Return the colour of a state as an SGR parameter."""
    return _COLOURS.get(state, RED)


def describe_reason(verdict: Verdict) -> str:
    """Describe why a job has ended; for a job that has not ended, return Slurm's reason."""
    return explain_reason(verdict.reason).words if verdict.final else verdict.reason


def describe_stall(status: JobStatus) -> str:
    """Describe how long a run has made no progress, and the suspected rank; "" without a stall."""
    stall = status.stall
    if stall is None:
        return ""
    step = "no step yet" if stall.step is None else "no step"
    seconds = status.stalled_for
    seconds = seconds if seconds < 120 else 60 * round(seconds / 60)
    text = f"{step} for {format_duration(seconds).removesuffix(' 0 s')}"
    if stall.suspect is not None:
        host = f" on {stall.suspect.host}" if stall.suspect.host else ""
        return replace_unprintable(
            f"{text}: rank {stall.suspect.rank}{host} is {stall.suspect.why}"
        )
    return f"{text}: all ranks are in {stall.collective.name}" if stall.collective else text


def format_values(values: Mapping[str, str]) -> str:
    """Format a sweep run's own values as a suffix of its state."""
    return f" [{format_label(values)}]" if values else ""


def format_state(status: JobStatus, display: Display) -> str:
    """Format a state that is not final in one line."""
    reason = f" ({status.reason})" if status.reason else ""
    return dim(f"{status.label}: {status.state}{reason}", display) + format_values(status.values)


def format_end(status: JobStatus, display: Display) -> str:
    """Format the end of a job in one line: state, exit code, first failed process, sweep values."""
    colour = state_colour(status.state)
    text = paint(f"{status.label}: {status.state}", f"{colour};{BOLD}", display)
    if not status.ok:
        text += _describe_failure(status)
    is_explained = status.diagnosis is not None and status.diagnosis.cause is not None
    has_reason = status.verdict.reason and (status.state == LOST or not is_explained)
    reason = f" ({describe_reason(status.verdict)})" if has_reason else ""
    return text + reason + format_cause_suffix(status.diagnosis) + format_values(status.values)


def _describe_failure(status: JobStatus) -> str:
    if status.run is None:
        # Slurm's code:signal is used if there is no record of the exit code.
        by_slurm = format_exit_code(status.job.exit_code) if status.job is not None else ""
        text = f"exit code {status.exit_code}" if status.exit_code else by_slurm
        return f", {text}" if text not in ("", "exit code 0") else ""
    if status.end is None or status.ended_between:
        return ""
    text, failure = f", exit code {status.end.exit_code}", status.end.first_failure
    if failure is not None and failure.why is not None:
        text += f"; {status.failure}"
    elif failure is not None:
        how = f" by signal {failure.signal}" if failure.signal else ""
        text += f"; {status.culprit} failed first{how}"
    return text


def format_verdict(status: JobStatus, display: Display) -> str:
    """Format how a run ended, contradictions between sources, and a suggested command."""
    text = format_end(status, display)
    if status.run is None:
        return text
    text += "".join(f"\n  note: {note}" for note in status.notes)
    verb = "logs --err" if not status.ok else "parse" if status.is_training else "logs"
    if status.state == "CANCELLED" and not status.attempts:
        verb = "status"  # the run has no output
    return f"{text}\n  hpcrun {verb} {status.word}"


# ---- the listing

_LISTING = (
    Column("CLUSTER", optional=True),
    Column("ID", optional=True),
    Column("PROJECT", optional=True, least=6, most=16, goes=2),
    Column("JOB", optional=True, least=6, most=24),
    Column("STATE", optional=True),
    Column("AGE", right=True, optional=True, goes=1),
    Column("TIME", right=True, optional=True, goes=7),
    Column("LIMIT", right=True, optional=True, goes=3),
    Column("NODES", optional=True, goes=5),
    Column("STEP", right=True, optional=True, goes=6),
    Column("LOSS", right=True, optional=True, goes=8),
    Column("GPU-H", right=True, optional=True, goes=4),
    Column("", below=True),
)


def format_listing(
    rows: Sequence[JobStatus], older: int, display: Display, *, now: float | None = None
) -> list[str]:
    """Lay out one line per run; the reason why it waits or failed is placed after or below it.

    Clusters and projects are shown if there are several.

    Args:
        now: The time for the ages of runs, in seconds since the epoch; None: without ages.
    """
    clusters, projects = {row.cluster for row in rows}, {row.project for row in rows}
    cells = [
        [
            replace_unprintable(row.cluster) if len(clusters) > 1 else "",
            *_format_row(row, display, now, with_project=len(projects) > 1),
        ]
        for row in rows
    ]
    lines = Table(_LISTING, cells, display).lines()
    if older:
        lines.append(
            dim(f"{format_count(older, 'older run')}: hpcrun status --all, or -n N", display)
        )
    return lines


_MAX_CHANGED = 5  # the number of changed arguments that a row shows


def format_age(seconds: float) -> str:
    """Format an age with one unit.

    >>> [format_age(each) for each in (20, 200, 20_000, 200_000, 2_000_000)]
    ['20s', '3m', '5h', '2d', '23d']
    """
    for unit, size, most in (("s", 1, 60), ("m", 60, 3600), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{max(0, seconds) // size:.0f}{unit}"
    return f"{seconds // 86_400:.0f}d"


def _format_row(
    row: JobStatus, display: Display, now: float | None, *, with_project: bool
) -> list[str]:
    gpus = f"x{row.gpus_per_node}" if row.gpus_per_node else ""
    nodes = f"{row.node_count}{gpus}" if row.node_count else ""
    state = row.state
    if row.states is not None and len(row.states) != 1:
        state = f"{sum(row.states.values())} RUNS"
    hours = row.gpu_hours
    return [
        row.id,
        replace_unprintable((row.project or "").rpartition("/")[2]) if with_project else "",
        replace_unprintable(row.name),
        paint(state, state_colour(row.state), display),
        "" if now is None or row.submitted_at is None else format_age(now - row.submitted_at),
        format_clock(row.elapsed) if row.elapsed is not None else "",
        format_clock(row.limit) if row.limit is not None and not row.final else "",
        nodes,
        _format_number(row.step),
        _format_loss(row.loss),
        "" if hours is None else f"{hours:.2f}" if hours < 10 else f"{hours:,.0f}",
        replace_unprintable(_format_remark(row)),
    ]


def _format_number(value: int | None) -> str:
    return "" if value is None else str(value)


def _format_loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4g}"


def _format_remark(row: JobStatus) -> str:
    states = _format_counts(row.states or {})
    # a single state is already shown in its column
    if row.states is not None and len(row.states) == 1:
        (count,) = row.states.values()
        states = f"{count} run{'s' if count > 1 else ''}"
    why = row.remark or describe_reason(row.verdict) or ("" if row.final else describe_stall(row))
    between = f"restarts {attempts.describe_next_attempt(row)}" if row.is_between else ""
    parts = [
        format_label(row.values),
        _format_changed(row),
        states,
        between,
        row.why.line() if row.why else why,
    ]
    return "; ".join([*filter(None, parts), *row.notes])


def _format_changed(row: JobStatus) -> str:
    """Format the arguments that differ from other runs of the job, as on a command line."""
    shown = list(row.changed.items())[:_MAX_CHANGED]
    own = [f"{name} {value}".strip() for name, value in shown if value is not None]
    without = [name for name, value in shown if value is None]
    more = len(row.changed) - len(shown)
    texts = (
        " ".join(own),
        f"without {' '.join(without)}" if without else "",
        f"{more} more arguments differ" if more else "",
    )
    return ", ".join(filter(None, texts))


def _format_counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())


# ---- one run

_MAX_WARNINGS = 10  # the number of node warnings that are shown


def format_run(
    status: JobStatus,
    display: Display,
    *,
    local_time: Callable[[float], str],
    has_checkpoints: bool,
    there: str = "",
) -> list[str]:
    """Lay out all details of one run, and suggested commands.

    Args:
        local_time: Formats seconds since the epoch for people.
        has_checkpoints: A new run could resume from checkpoints of this one.
        there: The run's directory on a remote cluster.
    """
    plan, history, last, end = status.plan, status.history, status.last, status.end
    cluster = f" on {history.submitted.cluster}" if history.submitted else ""
    rows = [
        ("state", _format_state_source(status, display)),
        *_why_rows(status.why),
        *format_cause_rows(status.diagnosis),
        *_stall_rows(status, display),
        ("run", status.run_id),
        ("job", f"{status.job_id}{cluster}" if status.job_id else ""),
        ("sweep", format_label(history.task.values) if history.task else ""),
    ]
    if plan is not None:
        how = plan.launcher if status.is_training else "a command on each node"
        nodes = plan.node_range if plan.node_range and last is None else plan.nodes
        spare = plan.survive.spare_nodes
        how += f", and {format_count(spare, 'spare node')}" if spare else ""
        if plan.roles:
            rows += format_role_rows(plan, last)
        else:
            rows.append(("shape", f"{nodes} × {plan.gpus_per_node} GPUs, {how}"))
        rows.append(("batch", f"{plan.effective_batch} effective" if plan.effective_batch else ""))
    at = "" if status.step is None else f"step {status.step}, "
    rows += [
        ("progress", "" if status.loss is None else f"{at}loss {status.loss:.6g}"),
        ("warning", describe_diverged_loss(status)),
        ("time", _format_time(status, local_time)),
        ("nodes", last.begin.nodes if last and last.begin else ""),
        ("exit code", "" if not end or status.ended_between else attempts.format_exit(end)),
        ("failed", status.failure),
        ("restarts", "" if status.final else attempts.describe_restarts(status)),
        ("cost", attempts.format_cost(status.cost, has_gpus=bool(status.gpu_hours))),
        *attempts.format_usage_rows(
            status.used,
            has_gpus=bool(status.gpus_per_node),
            estimated=status.plan.estimated_memory if status.plan is not None else None,
        ),
    ]
    if status.attempts > 1 or (end is not None and end.next is not None):
        rows += [("attempt", text) for text in attempts.format_attempts(status, local_time)]
    if status.run is not None:
        log = str(status.progress.log or status.run.logs) if history.attempts else ""
        rows += [("there", there), ("folder", str(status.run.path)), ("log", log)]
    rows += _provenance_rows(status, local_time)
    if plan is not None and status.is_training and (has_checkpoints or there or not status.final):
        rows.append(("saves to", plan.checkpoint_dir or ""))
    warnings = last.warnings if last else []
    more = [f"and {len(warnings) - _MAX_WARNINGS} more"] if len(warnings) > _MAX_WARNINGS else []
    rows += [("warning", replace_unprintable(text)) for text in [*warnings[:_MAX_WARNINGS], *more]]
    rows += [("note", text) for text in status.notes]
    name = paint(plan.name if plan else status.run_id, BOLD, display)
    return [
        name,
        *format_pairs(rows, display),
        *_suggest_commands(status, display, has_checkpoints),
    ]


def format_role_rows(plan: Plan, last: Attempt | None = None) -> list[tuple[str, str]]:
    """Return a row for each role: its size, and its state in the last attempt."""
    rows = []
    for role in plan.roles:
        nodes = format_count(len(role.nodes), "node")
        name = f"{role.name} (main)" if role.is_main else role.name
        parts = [f"{name}: {nodes} × {format_count(role.gpus, 'GPU')}"]
        if role.group and role.group <= len(plan.components):
            options = dict(plan.components[role.group - 1])
            kinds = [
                f"{key} {options[key]}" for key in ("partition", "constraint") if key in options
            ]
            parts += [" ".join(kinds)] if kinds else []
        state = last.roles.get(role.name) if last is not None else None
        if state is not None:
            parts.append(f"{state.state} on {','.join(state.hosts)}, port {state.port}")
        elif role.waits_for:
            verb = "is" if len(role.waits_for) == 1 else "are"
            parts.append(f"starts when {' and '.join(role.waits_for)} {verb} ready")
        rows.append(("role", replace_unprintable("; ".join(parts))))
    return rows


def _format_time(status: JobStatus, local_time: Callable[[float], str]) -> str:
    may = format_limit(status.job.limit) if status.job is not None else ""
    ran = format_clock(status.elapsed)
    if status.elapsed is None:
        ran = "not known" if status.attempts else "0:00"
    hours = "" if status.gpu_hours is None else f"{status.gpu_hours:.2f} GPU hours"
    ended = f"ended {local_time(status.ended_at)}" if status.ended_at else ""
    return "; ".join(part for part in (f"{ran} {may}".strip(), ended, hours) if part)


def _format_state_source(status: JobStatus, display: Display) -> str:
    by = {"seen": "as Slurm reported earlier", "record": "from its own records"}
    source = by.get(status.source, f"by {status.source}")
    reason = f" ({describe_reason(status.verdict)})" if status.verdict.reason else ""
    return f"{paint(status.state, state_colour(status.state), display)}{reason}, {source}"


def _why_rows(why: WhyWaiting | None) -> list[tuple[str, str]]:
    return [("why", why.line(with_fix=False)), ("fix", why.fix)] if why else []


def describe_diverged_loss(status: JobStatus) -> str:
    """Describe a last loss that is nan or infinite, which no exit code shows; "" otherwise."""
    if status.loss is None or math.isfinite(status.loss):
        return ""
    at = "" if status.step is None else f" at step {status.step}"
    return f"the last loss is {status.loss:g}{at}: the training diverged; hpcrun parse shows where"


def _provenance_rows(
    status: JobStatus, local_time: Callable[[float], str]
) -> list[tuple[str, str]]:
    plan, submitted = status.plan, status.history.submitted
    if plan is None:
        return []
    origin = plan.provenance
    at = f"{local_time(submitted.submitted_at)} " if submitted is not None else ""
    by = f"by {origin.user}, " if origin.user else ""
    commit = origin.git_commit or ""
    dirty = ", with uncommitted changes" if origin.git_dirty else ""
    rows = [
        ("submitted", f"{at}{by}hpcrun {plan.hpcrun_version}"),
        ("command", origin.command),
        ("project", origin.project),
        ("commit", f"{commit[:12]}{dirty}" if commit else ""),
    ]
    return [(key, replace_unprintable(text)) for key, text in rows]


def _stall_rows(status: JobStatus, display: Display) -> list[tuple[str, str]]:
    stall, run, last = status.stall, status.run, status.last
    if stall is None or run is None or last is None:
        return []
    stacks = run.attempts / str(last.index) / "stacks" if stall.stacks else ""
    return [("stalled", paint(describe_stall(status), RED, display)), ("stacks", str(stacks))]


def _suggest_time_option(status: JobStatus) -> str:
    """Return the option that doubles a job's time limit, if the limit has ended the job."""
    if status.state != "TIMEOUT" or not status.limit:
        return ""
    minutes, seconds = divmod(round(2 * status.limit), 60)
    return f" --time {minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _suggest_commands(status: JobStatus, display: Display, has_checkpoints: bool) -> list[str]:
    word = status.word
    verbs: list[tuple[str, str]] = []
    if not status.final:
        if status.attempts:
            verbs.append((f"logs -f {word}", "follow its output"))
            verbs += [(f"parse -f {word}", "its loss curve")] * status.is_training
        verbs.append((f"cancel {word}", "cancel it"))
    elif status.attempts:
        failed = (f"logs --err {word}", "what went wrong")
        verbs.append((f"logs {word}", "its output") if status.ok else failed)
        verbs += [(f"parse {word}", "its loss curve")] * status.is_training
        if not status.ok and status.job_id:
            why = "run again, resuming from its checkpoints" if has_checkpoints else "again"
            more = _suggest_time_option(status)
            verbs.append((f"resubmit {word}{more}", f"{why}, with more time" if more else why))
    return format_next_steps(*verbs, display=display)


# ---- a sweep, and jobs that hpcrun did not submit


def format_sweep(
    sweep: Sweep,
    statuses: Sequence[JobStatus],
    display: Display,
    search: SearchResult | None = None,
) -> list[str]:
    """Lay out a line for each run of a sweep; of a search, the best runs first."""
    states = _format_counts(Counter(status.state for status in statuses))
    size = format_sweep_size(sweep.tasks, sweep.limit)
    head = f"{paint(sweep.name, BOLD, display)}: {size}: {states}"
    keys = list(dict.fromkeys(key for status in statuses for key in status.values))
    has_progress = any(status.loss is not None for status in statuses) and search is None
    trials = {trial.run_id: trial for trial in search.trials} if search is not None else {}
    places = {run_id: place for place, run_id in enumerate(trials)}
    statuses = sorted(statuses, key=lambda status: places.get(status.run_id, 0))
    rows = [
        [
            status.word,
            status.state,
            format_clock(status.elapsed),
            *(status.values.get(key, "-") for key in keys),
            *([_format_number(status.step), _format_loss(status.loss)] if has_progress else []),
            *_format_trial(trials.get(status.run_id)),
            _describe_end(status),
        ]
        for status in statuses
    ]
    columns = [*column_names(keys), *(["STEP", "LOSS"] if has_progress else [])]
    if search is not None:
        columns += ["STEP", replace_unprintable(search.search.metric), "RANK"]
    columns.append("")
    return [head, *format_table(["JOBID", "STATE", "TIME", *columns], rows, display)]


def _format_trial(trial: RankedTrial | None) -> list[str]:
    """Format the step, the metric and the rank of a trial; [] for a run of no search."""
    if trial is None:
        return []
    rank = "" if trial.rank is None else str(trial.rank)
    return [_format_number(trial.step), _format_loss(trial.value), rank]


def _describe_end(status: JobStatus) -> str:
    if status.diagnosis is not None and status.diagnosis.cause is not None:
        return format_cause(status.diagnosis.cause)
    return explain_reason(status.verdict.reason, status.job_id or "").words or status.failure


def format_jobs(job_id: str, statuses: Sequence[JobStatus], display: Display) -> list[str]:
    """Lay out Slurm's view of a job that hpcrun did not submit, or of an array's tasks."""
    if len(statuses) == 1:
        return _format_job(statuses[0], display)
    lines = [f"job {job_id}, not submitted by hpcrun: {len(statuses)} tasks or parts"]
    rows = []
    for status in statuses:
        job = status.job
        remark = status.why.line() if status.why else describe_reason(status.verdict)
        elapsed, nodes = (job.elapsed, job.node_list) if job else ("", "")
        rows.append([status.job_id or "", status.state, elapsed, nodes or "-", remark])
    lines += format_table(["JOBID", "STATE", "TIME", "NODES", ""], rows, display)
    if "_" in (statuses[0].job_id or ""):
        step = (f"status {statuses[0].job_id}", "one of them in detail")
        lines += format_next_steps(step, display=display)
    return lines


def _format_job(status: JobStatus, display: Display) -> list[str]:
    job = status.job
    rows = [("state", _format_state_source(status, display)), *_why_rows(status.why)]
    if job is not None:
        rows += [(key, getattr(job, key)) for key in ("user", "partition", "account", "qos")]
        gpus = "" if job.gpus is None else f", {job.gpus} GPU{'s' if job.gpus != 1 else ''}"
        size = f"{_format_range(job.nodes, 'node')}, {_format_range(job.cpus, 'CPU')}{gpus}"
        rows.append(("asks for", size if job.nodes and job.cpus else ""))
        rows.append(("time", f"{job.elapsed} {format_limit(job.limit)}".strip()))
        rows.append(("nodes", job.node_list))
        rows += attempts.format_usage_rows(status.used, has_gpus=bool(job.gpus))
    rows.append(("exit code", format_exit_code(_exit_code(status)).removeprefix("exit code ")))
    rows += format_cause_rows(status.diagnosis)
    if job is not None:
        rows += [("folder", job.work_dir), ("script", job.command), ("output", job.stdout)]
        rows.append(("errors", job.stderr if job.stderr != job.stdout else ""))
    rows += [("note", text) for text in status.notes]
    verbs = [(f"logs {status.job_id}", "its output")]
    if not status.final:
        verbs.append((f"cancel {status.job_id}", "cancel it"))
    name = f" {paint(job.name, BOLD, display)}" if job else ""
    return [
        f"job {status.job_id}{name}, not submitted by hpcrun",
        *format_pairs(rows, display),
        *format_next_steps(*verbs, display=display),
    ]


def _format_range(text: str, noun: str) -> str:
    """Format a number, or a range as scontrol prints it, with its noun."""
    least, _, most = text.partition("-")
    text = least if least == most else text
    return f"{text} {noun}" + ("s" if text != "1" else "")


def _exit_code(status: JobStatus) -> str:
    """Return Slurm's ``code:signal`` of a finished job."""
    return status.job.exit_code if status.job is not None and status.final else ""


# ---- JSON, stable: docs/json has the schemas


def listing_json(rows: Sequence[JobStatus], older: int, out_of_reach: str) -> dict[str, Any]:
    """Return the JSON of a listing."""
    return {
        "runs": [row_json(row) for row in rows],
        "older": older,
        "out_of_reach": out_of_reach or None,
    }


def row_json(row: JobStatus) -> dict[str, Any]:
    """Return the JSON of a row of a listing."""
    folder = row.run or row.sweep
    return {
        "kind": "sweep" if row.sweep else "run",
        "id": row.id,
        "run_id": row.run.run_id if row.run else None,
        "sweep_id": row.sweep.sweep_id if row.sweep else None,
        "job_id": row.job_id,
        "name": row.name,
        "cluster": row.cluster or None,
        "project": row.project,
        **_verdict_json(row),
        **_why_json(row.why),
        "submitted_at": row.submitted_at,
        "elapsed_seconds": _rounded(row.elapsed),
        "limit_seconds": row.limit,
        "nodes": row.node_count,
        "gpus_per_node": row.gpus_per_node,
        "step": row.step,
        "loss": None if row.loss is None else json_number(row.loss),
        "gpu_hours": _rounded(row.gpu_hours),
        "values": row.values,
        "changed": row.changed,
        "states": row.states,
        "run_dir": str(folder.path) if folder else "",
    }


def run_json(status: JobStatus) -> dict[str, Any]:
    """Return the JSON of a run in detail, which extends that of its row in a listing."""
    plan, submitted, last = status.plan, status.history.submitted, status.last
    cost = status.cost
    return {
        **row_json(status),
        "id": status.run.run_id if status.run else status.id,
        "cluster": submitted.cluster if submitted else None,
        "effective_batch": plan.effective_batch if plan else None,
        "node_list": last.begin.nodes if last and last.begin else None,
        "checkpoint_dir": plan.checkpoint_dir if plan else None,
        "log_dir": str(status.run.logs) if status.run else None,
        "provenance": _provenance_json(status.plan),
        "task": msgspec.to_builtins(status.history.task),
        "attempts": msgspec.to_builtins(status.history.attempts),
        "cost": cost and _rounded({**msgspec.to_builtins(cost), "goodput": cost.goodput}),
        "diagnosis": diagnosis_json(status.diagnosis),
        "used": _rounded(msgspec.to_builtins(status.used)),
    }


def _provenance_json(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {**msgspec.to_builtins(plan.provenance), "hpcrun_version": plan.hpcrun_version}


def job_json(status: JobStatus) -> dict[str, Any]:
    """Return the JSON of a job that hpcrun did not submit; ``run_id`` is null."""
    job = status.job
    texts: Mapping[str, str] = msgspec.to_builtins(job) if job else {}
    nodes = texts.get("nodes", "")
    return {
        "kind": "job",
        "id": status.job_id,
        "run_id": None,
        "job_id": status.job_id,
        "name": job.name if job else None,
        **_verdict_json(status),
        "exit_code": parse_exit_code(_exit_code(status)),
        **_why_json(status.why),
        **{name: texts.get(name) or None for name in ("user", "partition", "account", "qos")},
        "node_list": job.node_list if job else None,
        "nodes": int(nodes) if is_whole_number(nodes) else None,
        "gpus": job.gpus if job else None,
        "elapsed": job.elapsed if job else None,
        "limit": job.limit if job else None,
        **{name: texts.get(name) or None for name in ("work_dir", "stdout", "stderr")},
        "diagnosis": diagnosis_json(status.diagnosis),
        "used": _rounded(msgspec.to_builtins(status.used)),
    }


def ended_json(status: JobStatus) -> dict[str, Any]:
    """Return the JSON of a job after ``hpcrun wait``."""
    return {
        "run_id": status.run.run_id if status.run is not None else None,
        "job_id": status.job_id,
        "state": status.state,
        "final": status.final,
        "ok": status.ok,
        "exit_code": status.exit_code,
        "reason": status.reason or None,
        "diagnosis": diagnosis_json(status.diagnosis),
    }


def _verdict_json(status: JobStatus) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(status.verdict)
    return found | {"reason": status.reason or None}


def _why_json(why: WhyWaiting | None) -> dict[str, Any]:
    if why is None:
        return dict.fromkeys(("why", "fix", "expected_start", "ahead"))
    found = {"why": why.text, "fix": why.fix or None}
    return found | {"expected_start": why.start, "ahead": why.ahead}


def _rounded(value: Any) -> Any:
    """Round a number, or the numbers in a dict, to thousandths."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value
