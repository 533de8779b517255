"""Output of submissions and dry runs, of a run and of a sweep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from hpcrun.actions import Prepared
from hpcrun.cli.output import (
    emit_json,
    output_display,
    print_line,
    print_lines,
    print_message,
    print_note,
    print_pairs,
    print_table,
)
from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.plan import Plan, column_names, parse_seconds
from hpcrun.render import FIXED, HOSTS_SCRIPT, RenderedFile
from hpcrun.runs import PIPELINE, RunFolder, SweepFolder
from hpcrun.text import format_count, format_duration, format_next_steps, format_sweep_size
from hpcrun.views import format_role_rows

if TYPE_CHECKING:
    from hpcrun.actions import Again
    from hpcrun.slurm import Estimate
    from hpcrun.spec import JobSpec


def describe_run(made: Prepared, *, by_slurm: bool = True) -> list[tuple[str, str]]:
    """Describe a run, or the common properties of a sweep's runs, in a few lines."""
    plan = made.plan
    rows = [("note", text) for text in plan.notes]
    rows.append(("sweep" if made.is_sweep else "run", plan.run_id))
    rows += _describe_search(made.spec)
    rows.append(("what", plan.description))
    what = "one process per node" if plan.launcher == "none" else plan.launcher
    if made.is_own_script:
        what = "started by the script"
    if plan.launcher != "none" and plan.precision:
        what += f", {plan.precision}"
    nodes = f"{plan.node_range} nodes" if plan.node_range else format_count(plan.nodes, "node")
    shape = f"{nodes} × {format_count(plan.gpus_per_node, 'GPU')}"
    if plan.gpus_per_node and plan.accelerator == "cpu":
        shape += " (CPUs stand in for them here)"
    if plan.roles:
        names = " and ".join(role.name for role in plan.roles)
        nodes = format_count(plan.all_nodes, "node")
        shape = f"{nodes} × {format_count(plan.all_gpus_per_node, 'GPU')}"
        if plan.components:
            shape = f"{nodes} of {len(plan.components) + 1} kinds, as a heterogeneous job"
        rows.append(("shape", f"{shape}, roles {names}"))
        rows += format_role_rows(plan)
    else:
        rows.append(("shape", f"{shape}, {what}"))
    if plan.effective_batch is not None and not _has_several_batches(made):
        steps = f"{plan.gradient_accumulation_steps} accumulated"
        ranks = format_count(plan.world_size, "rank")
        batch = f"{plan.micro_batch_per_gpu} per GPU × {steps} × {ranks}"
        rows.append(("batch", f"{batch} = {plan.effective_batch} effective"))
    if by_slurm:
        rows.append(("request", _request(plan)))
    rows.append(("folder", made.folder))
    return rows


def _describe_search(spec: JobSpec) -> list[tuple[str, str]]:
    """Describe the search of a sweep and its space; without a search, no rows."""
    search = spec.search
    rows = []
    if search.method != "grid":
        goal = f", {search.goal}s {search.metric}" if search.metric is not None else ""
        when = "draws values when each run starts" if search.method == "tpe" else "draws values"
        rows.append(("search", f"{search.method} {when}{goal}"))
        for key, values in search.space.items():
            shown = " or ".join(values) if isinstance(values, list) else values.describe()
            rows.append(("space", f"{key}: {shown}"))
    return [*rows, ("pruning", search.describe_pruning())]


def _request(plan: Plan) -> str:
    """Describe the request to Slurm: time limit, CPUs and memory of a node, partition, account."""
    asked = dict(plan.directives)
    limit, cpus = asked.get("time"), asked.get("cpus-per-task")
    parts = ["the default time limit"]
    if limit:
        parts = ["no time limit"]
        if (allowed := parse_seconds(limit)) not in (0, float("inf")):
            parts = [f"{format_duration(allowed)} at most"]
    if "exclusive" in asked:
        parts.append("whole nodes")
    elif cpus and cpus.isdecimal():
        parts.append(f"{format_count(int(cpus) * plan.tasks_per_node, 'CPU')} a node")
    memory = asked.get("mem")
    if memory and memory != "0" and "exclusive" not in asked:
        parts.append(f"{_memory(memory)} a node")
    for option in ("partition", "account"):
        parts += [f"{option} {asked[option]}"] if asked.get(option) else []
    return ", ".join(parts)


def _memory(text: str) -> str:
    """Format memory in Slurm's notation with the largest unit that gives an integer.

    >>> _memory("2097152M"), _memory("200G"), _memory("1500")
    ('2T', '200G', '1500M')
    """
    match = re.fullmatch("([0-9]+)([KMGT]?)", text)
    if match is None:
        return text
    size, unit = int(match[1]), match[2] or "M"
    while size and size % 1024 == 0 and unit != "T":
        size, unit = size // 1024, "KMGT"["KMGT".index(unit) + 1]
    return f"{size}{unit}"


def _describe_survival(plan: Plan) -> str:
    """Describe after which ends a run continues."""
    if plan.survive.when:
        from hpcrun.views import describe_survival  # deferred: --dry-run does not print it

        return describe_survival(plan.survive)
    return "never (set survive.when to change this)"


def _has_several_batches(sweep: Prepared) -> bool:
    return len({run.plan.effective_batch for run in sweep.runs}) > 1


# ---- submitted ---------------------------------------------------------------------------------


def _job_id(made: Prepared, job_id: str, index: int) -> str:
    """Return the job id of a run; in a sweep that of the array's task, which runs may share."""
    return f"{job_id}_{index // made.plan.runs_per_job}" if made.is_sweep else job_id


def submission_json(made: Prepared, job_id: str) -> dict[str, Any]:
    """Return the JSON of a submission."""
    plan = made.plan
    if not made.is_sweep:
        return {
            "run_id": plan.run_id,
            "job_id": job_id,
            "run_dir": plan.run_dir,
            "cluster": plan.cluster,
            "effective_batch": plan.effective_batch,
            "notes": plan.notes,
        }
    return {
        "sweep_id": plan.run_id,
        "job_id": job_id,
        "sweep_dir": str(made.path),
        "cluster": plan.cluster,
        "notes": plan.notes,
        "runs": [
            {
                "run_id": run.plan.run_id,
                "job_id": _job_id(made, job_id, index),
                "run_dir": run.plan.run_dir,
                "values": run.values,
                "effective_batch": run.plan.effective_batch,
            }
            for index, run in enumerate(made.runs)
        ],
    }


def show_submission(made: Prepared, job_id: str) -> None:
    """Print what was submitted, and useful next commands."""
    plan = made.plan
    head = f"Submitted {click.style(plan.name, bold=True)} to {plan.cluster} as job {job_id}"
    if made.is_sweep:
        head += f": {format_sweep_size(len(made.runs), made.spec.runs_at_once)}"
    print_line(head)
    survival = [] if made.is_own_script else [("restarts", _describe_survival(plan))]
    print_pairs([*describe_run(made), *survival])
    verbs = [
        (f"logs -f {job_id}", "follow its output"),
        (f"status {job_id}", "its state"),
        (f"parse {job_id}", "the loss curve"),
        (f"cancel {job_id}", "cancel it"),
    ]
    if made.is_sweep:
        _print_values(made)
        one = f"{job_id}_0" if plan.runs_per_job == 1 else made.runs[0].plan.run_id
        verbs = [
            (f"status {job_id}", "the state of all its runs"),
            (f"logs -f {one}", "follow the output of one"),
            (f"parse {job_id}", "a loss curve for each"),
            (f"cancel {job_id}", f"cancel it; {one} for one run"),
        ]
    print_lines(format_next_steps(*verbs, display=output_display()))


def _print_values(sweep: Prepared) -> None:
    if not any(run.values for run in sweep.runs):
        return  # they are drawn when the runs start
    batches = [str(run.plan.effective_batch) for run in sweep.runs]
    if not _has_several_batches(sweep):
        batches = []
    header = ["TASK", *column_names(sweep.spec.sweep_keys), *(["batch"] if batches else [])]
    rows = [
        [str(index), *run.values.values(), *batches[index : index + 1], ""]
        for index, run in enumerate(sweep.runs)
    ]
    print_table([*header, ""], rows)


def submit_and_watch(
    context: Context,
    made: Prepared,
    again: Again | None = None,
    *,
    follow: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit, print the submission and watch it to its end if requested.

    ``again``: the submission repeats earlier runs. Returns 0, or 1 if a watched run did not
    succeed. Raises InputError.
    """
    if follow and made.is_sweep:
        raise InputError(
            "--follow: a sweep has a log for each run", fix="--wait, or hpcrun logs -f of one run"
        )
    if again is None:
        from hpcrun.actions import submit_job  # deferred: --dry-run does not submit

        submission = submit_job(context, made)
        plan = structs.replace(made.plan, notes=[*made.plan.notes, *submission.notes])
        made = structs.replace(made, plan=plan)
    else:
        from hpcrun.actions import submit_again

        submission = submit_again(again)
        again = structs.replace(again, notes=[*again.notes, *submission.notes])
    job_id = submission.job_id
    try:
        if as_json:
            emit_json(submission_json(made, job_id) if again is None else again_json(again, job_id))
        else:
            if again is not None:
                show_origin(again)
            show_submission(made, job_id)
    except OSError:  # standard output is closed
        print_note(f"submitted: job {job_id}")
        raise
    if not (follow or wait):
        return 0
    from hpcrun.cli.show_logs import (  # deferred: only --follow and --wait need it
        wait_for_runs,
        watch_run,
    )

    if made.is_sweep:
        from hpcrun.runs import runs_of

        sweep = SweepFolder(made.path)
        return wait_for_runs(context, runs_of(sweep), name=sweep.sweep_id, quiet=as_json)
    return watch_run(context, RunFolder(made.path), logs=follow, quiet=as_json)


def submit_several(
    context: Context, several: Sequence[Prepared], *, wait: bool, as_json: bool
) -> int:
    """Submit several jobs one after the other, and watch them to their ends if requested.

    If Slurm refuses one of them, the earlier ones stay submitted, and are listed. Returns 0, or 1
    if a watched run did not succeed.
    """
    from hpcrun.actions import submit_job

    done: list[tuple[Prepared, str]] = []
    try:
        for made in several:
            submission = submit_job(context, made)
            plan = structs.replace(made.plan, notes=[*made.plan.notes, *submission.notes])
            made = structs.replace(made, plan=plan)
            done.append((made, submission.job_id))
            if not as_json:
                _print_one_of_several(made, submission.job_id)
    except BaseException:
        if done:
            ids = " ".join(job_id for _, job_id in done)
            left = len(several) - len(done)
            print_note(f"submitted before the error: {ids} ({left} not submitted)")
        raise
    group = several[0].plan.group
    if as_json:
        jobs = [submission_json(made, job_id) for made, job_id in done]
        emit_json({"group": group, "jobs": jobs})
    else:
        named = group or " ".join(job_id for _, job_id in done)
        verbs = [
            (f"status {named}", "their states"),
            (f"compare {named}", "speed, memory and loss side by side"),
            (f"cancel {named}", "cancel all of them"),
        ]
        print_lines(format_next_steps(*verbs, display=output_display()))
    if not wait:
        return 0
    from hpcrun.cli.show_logs import wait_for_runs
    from hpcrun.runs import runs_of

    folders = [SweepFolder(one.path) if one.is_sweep else RunFolder(one.path) for one in several]
    runs = [run for folder in folders for run in runs_of(folder)]
    return wait_for_runs(context, runs, name=group or "", quiet=as_json)


def _print_one_of_several(made: Prepared, job_id: str) -> None:
    rows = describe_run(made)
    for name, text in rows:
        if name == "note":
            print_note(click.style(f"note: {made.plan.name}: {text}", dim=True))
    shown = dict(rows)
    text = f"Submitted {click.style(made.plan.name, bold=True)} as job {job_id}: {shown['shape']}"
    if made.is_sweep:
        text += f"; {format_sweep_size(len(made.runs), made.spec.runs_at_once)}"
    elif made.plan.effective_batch is not None:
        text += f"; batch {made.plan.effective_batch}"
    print_line(text)


def show_several(
    context: Context, several: Sequence[Prepared], *, test_only: bool, as_json: bool
) -> None:
    """Print what several submissions would write, or when they would start."""
    group = several[0].plan.group
    if not test_only:
        if as_json:
            emit_json({"group": group, "jobs": [files_json(made) for made in several]})
        for made in () if as_json else several:
            show_files(made, as_json=False)
        return
    from hpcrun.actions import estimate_start

    found = [(made.plan, estimate_start(context, made)) for made in several]
    if as_json:
        emit_json({"group": group, "jobs": [estimate_json(*each) for each in found]})
    for plan, estimate in () if as_json else found:
        show_estimate(plan, estimate, as_json=False)


def show_origin(again: Again) -> None:
    """Print, as notes, which values come from which earlier run."""
    first = again.earlier[0]
    name = first.label
    if len(again.earlier) > 1:
        name += f" and {len(again.earlier) - 1} more"
    kept = [folder for folder in again.checkpoint_dirs if folder is not None]
    checkpoints = f"{len(kept)} resume from their checkpoints"
    if len(kept) < 2:
        checkpoints = f"resumes from {kept[0]}" if kept else "starts from scratch"
    code = "the original code" if again.context.code is not None else "the current code"
    print_note(click.style(f"resubmitting {name} with {code}; {checkpoints}", dim=True))
    for text in again.notes:
        print_note(click.style(f"note: {text}", dim=True))


def again_json(again: Again, job_id: str) -> dict[str, Any]:
    """Return the JSON of a resubmission."""
    made = again.prepared
    return {
        "job_id": job_id,
        "sweep_id": made.plan.run_id if made.is_sweep else None,
        "cluster": made.plan.cluster,
        "code": "then" if again.context.code is not None else "now",
        "runs": [
            {
                "run_id": run.plan.run_id,
                "job_id": _job_id(made, job_id, index),
                "run_dir": run.plan.run_dir,
                "resubmitted_from": status.run_id,
                "checkpoint_dir": run.plan.checkpoint_dir,
                "goes_on": folder is not None,
            }
            for index, (run, status, folder) in enumerate(
                zip(made.each(), again.earlier, again.checkpoint_dirs, strict=True)
            )
        ],
        "notes": again.notes,
    }


# ---- not submitted -----------------------------------------------------------------------------


def estimate_json(plan: Plan, estimate: Estimate) -> dict[str, Any]:
    """Return the JSON of the estimated start of a job."""
    answer = {"name": plan.name, "cluster": plan.cluster, **structs.asdict(estimate)}
    return {**answer, "notes": plan.notes}


def show_estimate(plan: Plan, estimate: Estimate, *, as_json: bool) -> None:
    """Print when and where a job would currently start."""
    if as_json:
        emit_json(estimate_json(plan, estimate))
        return
    print_line(
        f"{click.style(plan.name, bold=True)} was not submitted; {plan.cluster} would accept it"
    )
    nodes = f"{estimate.nodes or '?'}, {format_count(estimate.processors, 'processor')}"
    rows = [("start", _format_start(estimate)), ("nodes", nodes), ("partition", estimate.partition)]
    print_pairs([*(("note", text) for text in plan.notes), *rows])


def _format_start(estimate: Estimate) -> str:
    from datetime import datetime  # deferred: only estimates need it

    from hpcrun.monitor import NOT_EXPECTED, is_expected, parse_time

    start = parse_time(estimate.start)
    is_known = start is None or is_expected(start, datetime.now())
    return estimate.start.replace("T", " ") if is_known else NOT_EXPECTED


def files_json(made: Prepared) -> dict[str, Any]:
    """Return the JSON of the files that a submission would write."""
    answer: dict[str, Any] = {**_files_by_name(made.files), "notes": made.plan.notes}
    if made.is_sweep:
        answer["runs"] = [
            {"values": run.values, "files": _files_by_name(run.files)} for run in made.runs
        ]
    return answer


def show_files(made: Prepared, *, as_json: bool) -> None:
    """Print the files that a submission would write; for a sweep its script and the first run's."""
    if as_json:
        emit_json(files_json(made))
        return
    for text in made.plan.notes:
        print_message("note", text, dim=True)
    print_line(click.style("==> summary <==", bold=True))
    print_pairs([row for row in describe_run(made) if row[0] != "note"])
    print_line()
    if not made.is_sweep:
        _print_files(made.files)
        return
    _print_files([file for file in made.files if file.name == "job.sbatch"])
    size = format_sweep_size(len(made.runs), made.spec.runs_at_once)
    print_line(click.style(f"==> {size} <==", bold=True))
    _print_values(made)
    print_line()
    print_line(click.style("==> the files of the first run <==", bold=True))
    records = ("task.json", "search.json")
    _print_files([file for file in made.runs[0].files if file.name not in records])


def _files_by_name(files: Sequence[RenderedFile]) -> dict[str, str]:
    return {file.name: file.text for file in files if not file.is_binary}


def _print_files(files: Sequence[RenderedFile]) -> None:
    hidden = (*FIXED, HOSTS_SCRIPT, "plan.json", PIPELINE)
    for file in files:
        if file.name not in hidden and not file.is_binary and "/" not in file.name:
            print_line(click.style(f"==> {file.name} <==", bold=True))
            print_line(file.text)
