"""The verbs submit, run, fit, when, rehearse, jobs and show."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import (
    FILE,
    JOB,
    JOB_OR_RUN,
    RUN,
    JobCommand,
    Value,
    cluster_option,
    collect_overrides,
    job_options,
    json_option,
    load_requested_job,
    make_context,
)
from hpcrun.cli.output import (
    discard_output,
    emit_json,
    print_line,
    print_note,
    print_pairs,
    print_table,
)
from hpcrun.errors import InputError

if TYPE_CHECKING:
    from hpcrun.actions import Trial
    from hpcrun.fit import ModelShape, Training
    from hpcrun.spec import JobSpec


@click.command("submit", cls=JobCommand)
@click.argument("job", required=False, type=JOB, metavar="[JOB...]")
@job_options
@click.option(
    "--as",
    metavar="NAME",
    help="A name for the runs of several jobs: hpcrun compare NAME.",
)
@click.option(
    "--after",
    type=RUN,
    multiple=True,
    help="Start only after this run or job has succeeded. Repeatable; accepts a list, e.g. 7,8.",
)
@click.option(
    "--after-each",
    type=RUN,
    help="Of a sweep, start each run after the run with the same number of this sweep.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--test-only", is_flag=True, help="Ask Slurm when the job would start, and stop.")
@click.option("--follow", is_flag=True, help="Show the output until the job ends.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@cluster_option
@json_option
def submit(
    job: str | None,
    after: Sequence[str],
    after_each: str | None,
    dry_run: bool,
    test_only: bool,
    follow: bool,
    wait: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit jobs to Slurm.

    JOB is a name that `hpcrun jobs` lists, or a job file. Arguments after -- are passed to the
    script. Without JOB they are the command to run: hpcrun submit -- hostname.

    All jobs are checked before the first one is submitted. With --as NAME, status, compare, parse,
    wait and cancel accept NAME for all of them; later submissions can be added.

    JOB may also be a pipeline, pipelines/JOB.yaml: its stages are submitted with dependencies on
    each other, and have one id for status, wait, cancel, why and resubmit. If the submission was
    interrupted, the same command submits the rest.

    JOB may also be an sbatch script: it runs as with sbatch, with its own directives, and hpcrun
    records the run. --dry-run then shows what is added to it.
    """
    from hpcrun.actions import (
        Checks,
        RequestedJob,
        build_dependency,
        build_each_dependency,
        check_pairs,
        is_batch_script,
        prepare_job,
        prepare_jobs,
        split_jobs,
    )
    from hpcrun.assets import find_pipeline_file
    from hpcrun.cli.show_submission import (
        show_estimate,
        show_files,
        show_several,
        submit_and_watch,
        submit_several,
    )

    where = make_context(cluster, debug=options["debug"], job=job)
    names = [job, *options.get("more_jobs", [])]
    files = [
        file
        for name in names
        if name is not None
        and (file := find_pipeline_file(name, where.project, where.environ)) is not None
    ]
    if files:
        from hpcrun.cli.submit_pipeline import submit_pipeline

        if len(names) > 1:
            raise InputError(
                f"{files[0]} is a pipeline, which is submitted alone",
                fix=f"hpcrun submit {files[0].stem}",
            )
        watch = {"dry_run": dry_run, "wait": wait, "as_json": as_json}
        other = {"after": after, "after_each": after_each, "test_only": test_only, "follow": follow}
        return submit_pipeline(where, files[0], options, other, **watch)
    scripts = [name for name in names if name is not None and is_batch_script(where, name)]
    if scripts:
        from hpcrun.cli.submit_script import submit_script

        if len(names) > 1:
            raise InputError(
                f"{scripts[0]} is an sbatch script, which is submitted alone",
                fix=f"hpcrun submit {scripts[0]}",
            )
        if after_each is not None:
            raise InputError(
                f"--after-each: {scripts[0]} is an sbatch script, and no sweep",
                fix=f"--dependency=aftercorr:{after_each} in the script",
            )
        watch = {"follow": follow, "wait": wait, "as_json": as_json}
        kind = "dry-run" if dry_run else "test-only" if test_only else "submit"
        return submit_script(where, scripts[0], after, options, kind=kind, **watch)
    requested = [RequestedJob(*load_requested_job(where, name, options)) for name in names]
    parts = split_jobs(where, requested)
    before = build_each_dependency(where, after_each) if after_each is not None else None
    if before is not None and (after or len(parts) > 1):
        message = "cannot be used with --after" if after else "needs one job, which is a sweep"
        raise InputError(f"--after-each: {message}", fix="submit the sweep alone")
    first = before.dependency if before is not None else build_dependency(where, after)
    strict = not options["no_check"]
    if len(parts) > 1:
        if follow:
            fix = "--wait, or hpcrun logs -f of one of them"
            raise InputError(f"--follow: {len(parts)} jobs have as many logs", fix=fix)
        several = prepare_jobs(where, parts, after=first, strict=strict)
        if dry_run or test_only:
            show_several(where, several, test_only=test_only, as_json=as_json)
            return 0
        return submit_several(where, several, wait=wait, as_json=as_json)
    (part,) = parts
    checks = Checks(strict=strict)
    made = prepare_job(
        where,
        part.spec,
        extra_args=part.extra_args,
        after=first,
        origin=part.origin,
        checks=checks,
        submit=_format_arguments(job, part.spec, options, cluster, after) if not before else "",
    )
    if before is not None:
        check_pairs(
            (before.name, before.runs), (made.plan.name, made), fix=f"--after {before.name}"
        )
    if dry_run and not test_only:
        show_files(made, as_json=as_json)
        return 0
    if test_only:
        from hpcrun.actions import estimate_start  # deferred: --dry-run does not submit

        show_estimate(made.plan, estimate_start(where, made), as_json=as_json)
        return 0
    return submit_and_watch(where, made, follow=follow, wait=wait, as_json=as_json)


def _format_arguments(
    job: str | None,
    spec: JobSpec,
    options: dict[str, Any],
    cluster: str | None,
    after: Sequence[str],
) -> str:
    """Format the arguments that submit a whole sweep under a name; "" for a part of one."""
    from hpcrun.actions import make_group_name

    if not spec.sweep_keys or spec.sweep_part is not None:
        return ""
    words = [job] if job is not None else []
    words += ["--as", spec.group or make_group_name(spec, end="parts")]
    words += ["--cluster", cluster] if cluster is not None else []
    words += [word for run in after for word in ("--after", run)]
    for override in collect_overrides(options):
        if override.partition("=")[0].strip() != "group":
            words += ["--set", override]
    words += [f"--{name.replace('_', '-')}" for name in ("debug", "no_check") if options[name]]
    return shlex.join([*words, "--", *options["extra_args"]] if options["extra_args"] else words)


@click.command("run", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@click.option("--hostfile", type=FILE, help="Run on these hosts over SSH, without Slurm.")
@job_options
@cluster_option
def run(job: str | None, hostfile: str | None, cluster: str | None, **options: Any) -> int:
    """Run a job in the foreground.

    The job runs on the nodes of the surrounding salloc, if there is one; otherwise on this machine,
    or on the hosts of a hostfile. Ctrl-C ends the job on all hosts.
    """
    from hpcrun.actions import (
        Checks,
        adapt_to_pool,
        adapt_to_this_machine,
        assign_cpus,
        fit_to_pool,
        load_host_pool,
        prepare_spec,
        run_in_foreground,
    )
    from hpcrun.cli.show_logs import watch_run
    from hpcrun.cli.show_submission import describe_run
    from hpcrun.signals import interrupt_on_signals

    pool = None
    where = make_context(cluster, debug=options["debug"], job=job)
    if hostfile is not None:
        pool = load_host_pool(where, hostfile)
        where = adapt_to_pool(where, pool)
    else:
        where = adapt_to_this_machine(where)
    spec, extra_args, origin = load_requested_job(where, job, options)
    spec = fit_to_pool(pool, spec) if pool is not None else assign_cpus(where, spec)
    checks = Checks(strict=not options["no_check"], in_queue=False)
    prepared = prepare_spec(where, spec, extra_args=extra_args, origin=origin, checks=checks)

    with interrupt_on_signals(), run_in_foreground(where, prepared) as (run, process):
        place = "here" if pool is None else f"on {pool.source}"
        try:
            try:
                print_line(f"Running {prepared.plan.name} {place}")
                print_pairs(describe_run(prepared, by_slurm=False))
                return watch_run(where, run, logs=True, process=process)
            except OSError as error:  # an error of the output must not end the training
                again = f"the run continues: hpcrun logs -f {run.run_id}"
                print_note(f"{error.strerror}: no more is shown; {again}")
                discard_output()
                return watch_run(where, run, logs=False, quiet=True, process=process)
        except KeyboardInterrupt:
            print_note("stopping the run")
            raise


# A trace takes 5 to 60 seconds, besides the time in which the script reads its data.
_TRACE_LIMIT_S = 600.0


def _refuse_options_of_jobs() -> None:
    """Refuse options that a job file has keys for."""
    call = click.get_current_context()
    allowed = (
        *("job", "model", "seq", "gpu", "table", "trace", "overrides", "cluster", "as_json"),
        *("measure", "steps", "time", "yes"),
    )
    for parameter in call.command.params:
        source = call.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is click.core.ParameterSource.COMMANDLINE:
            if parameter.name in ("pure", "keep_gradients"):
                raise InputError(
                    f"{parameter.opts[-1]} with a job: its script decides that",
                    fix="--trace, which traces two steps of the script",
                )
            raise InputError(
                f"{parameter.opts[-1]} with a job: the job has it",
                fix="--set KEY=VALUE, as in --set deepspeed.zero_stage=3",
            )


def _check_options_of_measure(job: str | None, *, measure: bool) -> None:
    """Refuse --measure without a job or with options of an estimate, and its options without it."""
    call = click.get_current_context()
    given = [
        parameter.opts[-1]
        for parameter in call.command.params
        if call.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if not measure:
        alone = [option for option in given if option in ("--steps", "--time", "--yes")]
        if alone:
            raise click.UsageError(f"{alone[0]} is an option of --measure")
        return
    if job is None:
        raise click.UsageError("--measure runs the script of a job: name one")
    other = [each for each in given if each in ("--model", "--seq", "--table", "--trace")]
    if other:
        raise InputError(f"--measure with {other[0]}: the job is measured as it is")


def _read_numbers(model: str | None, options: dict[str, Any]) -> tuple[ModelShape, Training]:
    """Read the model and the settings from the options of ``hpcrun fit``."""
    from hpcrun.actions import (
        StartFolder,
        build_training_settings,
        load_model_shape,
        parse_parameter_count,
    )
    from hpcrun.fit import build_shape

    count = parse_parameter_count(options["params"]) if options["params"] else None
    numbers = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    if model is not None:
        given = [f"--{name.replace('_', '-')}" for name in ("params", *numbers) if options[name]]
        if given:
            raise InputError(f"--model and {given[0]}: the model's config.json has the dimensions")
        shape = load_model_shape(
            model, os.environ, StartFolder.local(Path.cwd()), counts_weights=True
        )
    elif count is None and not (options["layers"] and options["hidden"]):
        message = "name a job, or a model: --model DIR, --params 7B, or --layers and --hidden"
        raise click.UsageError(message)
    else:
        parts = [f"--{name.replace('_', '-')}" for name in numbers[:-1] if options[name]]
        if parts and not (options["layers"] and options["hidden"]):
            raise InputError(
                f"{parts[0]} has no effect without --layers and --hidden",
                fix="give both, or --params alone for the model states",
            )
        shape = build_shape(parameters=count, **{name: options[name] for name in numbers})
    training = build_training_settings(options)
    if training.trainable is not None and training.trainable > shape.parameters:
        raise InputError(
            f"--trainable {options['trainable']}: the model has {shape.parameters:,} parameters"
        )
    return shape, training


@click.command("fit")
@click.argument("job", required=False, type=JOB)
@click.option("--model", type=FILE, help="A folder with config.json, or a name in the hub's cache.")
@click.option("--params", help="Number of parameters, e.g. 7B or 125M.")
@click.option("--layers", type=click.IntRange(1), help="Number of transformer blocks.")
@click.option("--hidden", type=click.IntRange(1), help="Width of the model.")
@click.option("--heads", type=click.IntRange(1), help="Number of attention heads.")
@click.option("--kv-heads", type=click.IntRange(1), help="Number of key-value heads.")
@click.option("--ffn", type=click.IntRange(1), help="Width of a gated feed-forward network.")
@click.option("--vocab", type=click.IntRange(1), help="Size of the vocabulary.")
@click.option("--trainable", help="Number of trained parameters, e.g. 20M with LoRA.")
@click.option("--seq", type=click.IntRange(1), help="Tokens per sample.")
@click.option("--batch", type=click.IntRange(1), default=1, help="Samples per GPU (default: 1).")
@click.option(
    "--accumulate",
    type=click.IntRange(1),
    default=1,
    help="Forward passes per optimizer step (default: 1).",
)
@click.option(
    "--zero",
    type=click.Choice(["0", "1", "2", "3"]),
    help="DeepSpeed's ZeRO stage (default: 2 with several GPUs).",
)
@click.option("--fsdp", is_flag=True, help="FSDP2 instead of DeepSpeed.")
@click.option("--ddp", is_flag=True, help="DDP instead of DeepSpeed.")
@click.option(
    "--offload",
    type=click.Choice(["none", "optimizer", "all"]),
    default="none",
    help="States in host memory: the optimizer's, or with ZeRO 3 also parameters.",
)
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp16", "fp32"]),
    default="bf16",
    help="Number format of the computation (default: bf16).",
)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "adamw_8bit", "sgd", "momentum", "adafactor", "lion", "muon"]),
    default="adamw",
    help="The optimizer (default: adamw).",
)
@click.option(
    "--pure",
    is_flag=True,
    help="Weights, gradients and optimizer states in the format of --precision, without autocast.",
)
@click.option(
    "--keep-gradients",
    is_flag=True,
    help="Gradients exist until the backward pass: torch before 2.0, "
    "zero_grad(set_to_none=False), or zero_grad after the forward pass.",
)
@click.option("--checkpointing", is_flag=True, help="Recompute activations in the backward pass.")
@click.option(
    "--attention",
    type=click.Choice(["eager", "sdpa", "flash"]),
    default="sdpa",
    help="Attention implementation (default: sdpa).",
)
@click.option("-N", "--nodes", type=click.IntRange(1), default=1, help="Number of nodes.")
@click.option(
    "--gpus-per-node", type=click.IntRange(1), default=1, help="Number of GPUs on each node."
)
@click.option("--gpu", help="GPU type or memory, e.g. a100-40g, h100 or 48G.")
@click.option("--table", is_flag=True, help="Compare ZeRO stages, offload, checkpointing and GPUs.")
@click.option(
    "--trace",
    is_flag=True,
    help="Trace two steps of the job's own script on this machine, without weights or a GPU.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Submit a short job that measures some steps of the job with its own resources.",
)
@click.option(
    "--steps",
    type=click.IntRange(2),
    default=2,
    help="Steps that --measure makes (default: 2).",
)
@click.option(
    "-t",
    "--time",
    default="15m",
    help="The time limit with --measure, unless the job's is shorter (default: 15m).",
)
@click.option("-y", "--yes", is_flag=True, help="Submit with --measure without a question.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    type=Value("key=value", "keys"),
    help="Override a key of the job, e.g. deepspeed.zero_stage=3.",
)
@cluster_option
@json_option
def fit(
    job: str | None,
    model: str | None,
    gpu: str | None,
    table: bool,
    trace: bool,
    measure: bool,
    steps: int,
    time: str,
    yes: bool,
    overrides: tuple[str, ...],
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Estimate the memory of a training before it is submitted.

    The model is the one that JOB's arguments name (--model_name_or_path), a folder with a
    config.json (--model), or numbers (--params, --layers, --hidden). With JOB, the sharding, batch
    and precision are the job's. The estimate is computed, not measured: docs/memory.md says how
    accurate it is.

    With --trace, the job's script runs on this machine in the job's Python until its second
    optimizer step. Its parameters and everything that it moves to a GPU have a shape but no
    numbers, so neither weights nor a GPU are needed. The script's data must exist.

    With --measure, a job with the resources of JOB runs its script until the second optimizer step
    and ends. The memory and the seconds per step that it measured are shown beside the estimate,
    and calibrate later estimates of the same model on this cluster.
    """
    from hpcrun.actions import compare_sizes, estimate_json, sizes_json
    from hpcrun.fit import estimate_memory, list_candidates, parse_gpu

    capacity = calibration = host = None
    _check_options_of_measure(job, measure=measure)
    if job is not None:
        _refuse_options_of_jobs()
        if measure:
            from hpcrun.cli.measure_job import measure_job

            where = make_context(cluster, job=job)
            return measure_job(
                *(where, job, overrides),
                steps=steps,
                limit=time,
                gpu=gpu,
                asks=not yes,
                as_json=as_json,
            )
        from hpcrun.actions import load_job_memory, load_traced_memory

        where = make_context(cluster, job=job)
        if trace:
            if model is not None or options["seq"] is not None:
                raise InputError("--trace with --model or --seq: the script determines them")
            memory = load_traced_memory(where, job, overrides, _TRACE_LIMIT_S)
        else:
            memory = load_job_memory(where, job, overrides, model=model, sequence=options["seq"])
        shape, training, capacity = memory.shape, memory.training, memory.capacity
        calibration, host = memory.calibration, memory.host_capacity
    else:
        if overrides:
            raise click.UsageError("--set changes a job: name one")
        if trace:
            raise click.UsageError("--trace runs the script of a job: name one")
        shape, training = _read_numbers(model, options)
    capacity = parse_gpu(gpu) if gpu is not None else capacity
    estimate = estimate_memory(shape, training, calibration)
    candidates = list_candidates(shape, training, calibration) if table else []
    sizes = compare_sizes(shape, training, calibration, capacity, host) if table else []
    if as_json:
        answer = estimate_json(estimate, capacity, host)
        answer["candidates"] = [
            {"name": each.name, **estimate_json(each.estimate, capacity, host)}
            for each in candidates
        ]
        answer["sizes"] = sizes_json(sizes)
        emit_json(answer)
        return 0
    from hpcrun.cli.show_fit import show_candidates, show_fit, show_sizes

    if table:
        show_candidates(candidates, training, estimate, capacity, host)
        show_sizes(sizes, capacity, host)
    else:
        show_fit(shape, training, estimate, capacity, host)
    return 0


def _parse_numbers(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Parse the numbers of nodes of ``hpcrun when``."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) for word in words):
        raise click.BadParameter(f"{text}: not a list of numbers, as in 1,2,4")
    return [int(word) for word in words]


@click.command("when")
@click.argument("job", type=JOB)
@click.option(
    "-N",
    "--nodes",
    default="",
    metavar="LIST",
    callback=_parse_numbers,
    help="Numbers of nodes to compare, e.g. 1,2,4 (default: the job's).",
)
@click.option(
    "-p",
    "--partition",
    default="",
    metavar="LIST",
    help="Partitions to compare, e.g. gpu,long (default: the job's).",
)
@click.option("-t", "--time", help="The time limit, e.g. 2h.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    type=Value("key=value", "keys"),
    help="Override a key of the job, e.g. batch.micro_batch_per_gpu=4.",
)
@cluster_option
@json_option
def when(
    job: str,
    nodes: list[int],
    partition: str,
    time: str | None,
    overrides: tuple[str, ...],
    cluster: str | None,
    as_json: bool,
) -> int:
    """Ask Slurm when a job would start in several shapes, without submitting it.

    The earliest end comes first. The start is Slurm's current estimate (sbatch --test-only): jobs
    that end early make it earlier, and jobs with a higher priority later. The end follows from
    earlier runs of the same job, if there are any; the end and the cost at most are those of a job
    that runs to its time limit. The exit code is 1 if Slurm refuses all shapes.
    """
    from datetime import datetime

    import msgspec

    from hpcrun.actions import estimate_starts
    from hpcrun.cli.show_fit import show_starts

    where = make_context(cluster, job=job)
    changes = [*overrides, *([f"resources.time={time}"] if time is not None else [])]
    partitions = [word.strip() for word in partition.split(",") if word.strip()]
    now = datetime.now()
    found = estimate_starts(where, job, changes, nodes, partitions, now)
    if as_json:
        runs = [
            {
                "run_id": each.run_id,
                "gpus": each.size if each.unit == "GPU" else None,
                "nodes": each.size if each.unit == "node" else None,
                "training_seconds": each.seconds,
                "measured_steps": each.measured_steps,
            }
            for each in found.earlier_runs
        ]
        limits = [
            {
                "owner": each.owner,
                "resource": each.resource,
                "allowed_hours": each.allowed,
                "used_hours": each.used,
            }
            for each in found.limits
        ]
        shapes = msgspec.to_builtins(found.shapes)
        answer = {"cluster": where.cluster.name, "shapes": shapes, "earlier_runs": runs}
        emit_json({**answer, "limits": limits})
    else:
        show_starts(found, now)
    return 1 if all(one.refused for one in found.shapes) else 0


def describe_trial(trial: Trial) -> str:
    """Describe the result of one trial of a rehearsal.

    >>> from hpcrun.actions.rehearse import Trial
    >>> describe_trial(Trial(fault="node", run_dir="", ok=True, resumed_at=9, replayed=2))
    'a dead node: recovered from its start, at step 9, 2 steps repeated'
    >>> [describe_trial(Trial(fault="limit", run_dir="", tried=each)) for each in (False, True)]
    ['time limit: was not tried', 'time limit: did not recover']
    """
    from hpcrun.text import format_count

    name = {
        None: "undisturbed",
        "preempt": "preemption",
        "limit": "time limit",
        "node": "a dead node",
    }[trial.fault]
    if trial.fault is None:
        steps = f"{trial.steps} steps" if trial.steps is not None else "no steps in its log"
        return f"{name}: {steps}, {trial.seconds:.0f} s" if trial.ok else f"{name}: failed"
    if not trial.ok and trial.difference is None:
        return f"{name}: {'did not recover' if trial.tried else 'was not tried'}"
    text = f"{name}: recovered from {trial.checkpoint or 'its start'}"
    if trial.resumed_at is not None:
        text += f", at step {trial.resumed_at}"
        text += f", {format_count(trial.replayed or 0, 'step')} repeated"
    if trial.difference is not None:
        gap = trial.difference
        was, is_now = (
            "no number" if each is None else f"{each:.10g}" for each in (gap.expected, gap.value)
        )
        text += f"; the first difference: {gap.metric} {is_now} at step {gap.step}"
        text += f", undisturbed {was}"
    elif trial.same:
        how = "to the last digit" if not trial.spread else f"within {trial.spread:.0e}"
        text += f"; the same curve {how} ({format_count(trial.compared, 'value')})"
    return text


@click.command("rehearse", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@click.option(
    "--fault",
    type=click.Choice(["preempt", "limit", "node", "all"]),
    default="all",
    help="The interruption to test: preemption, time limit or node failure (default: all).",
)
@click.option(
    "--within",
    metavar="TIME",
    default="90s",
    help="How long to wait for the first checkpoint (default: 90s).",
)
@click.option("--keep", is_flag=True, help="Keep the run directories.")
@job_options
@cluster_option
@json_option
def rehearse(
    job: str | None,
    fault: str,
    within: str,
    keep: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Test whether a job recovers from interruptions with an identical loss curve.

    The job runs on the CPUs of this machine, in a separate sandbox with the shape of your cluster:
    once without interruption, and once each with a preemption, the time limit and a node failure
    soon after the first checkpoint. The losses are then compared step by step. The exit code is 0
    if the job recovered from every interruption with an identical curve, and 1 otherwise.

    The sandbox job has at most two nodes with two simulated GPUs each, unless --nodes or
    --gpus-per-node is given. Arguments after -- are passed to the script: make the model small, and
    save checkpoints often.
    """
    import msgspec

    from hpcrun.actions import FAULTS, RehearsalRequest, rehearse_job
    from hpcrun.cli.options import parse_duration

    where = make_context(cluster, debug=options["debug"], job=job)
    spec, extra_args, origin = load_requested_job(where, job, options)
    resources = spec.resources
    small = msgspec.structs.replace(
        resources,
        nodes=resources.most_nodes if options["nodes"] else min(resources.most_nodes, 2),
        gpus_per_node=options["gpus_per_node"] or min(resources.gpus_per_node, 2),
    )
    spec = msgspec.structs.replace(spec, resources=small)
    faults = [each for each in FAULTS if fault in (each, "all")]
    asked = RehearsalRequest(
        spec, extra_args, origin, faults, parse_duration(within), not options["no_check"]
    )
    print_note(f"rehearsing on {small.nodes} x {small.gpus_per_node} GPUs, in name only")
    trials = rehearse_job(where, asked, keep=keep, say=print_note)
    if as_json:
        emit_json({"trials": msgspec.to_builtins(trials)})
    else:
        for trial in trials:
            print_line(describe_trial(trial))
            if trial.why:
                print_line(f"  {trial.why}")
            if trial.fix:
                print_line(f"  fix: {trial.fix}")
        if missing := [trial.cause for trial in trials if trial.cause and not trial.asked_for]:
            when = ", ".join([*spec.survive.when, *missing])
            print_note(f"the job itself does not set all of these: survive: {{when: [{when}]}}")
        if keep:
            print_line(f"the runs: {Path(trials[0].run_dir).parent}")
    return 0 if all(trial.ok for trial in trials) else 1


@click.command("jobs")
@json_option
def jobs(as_json: bool) -> int:
    """List the jobs that can be submitted: those of the project, yours, and the presets.

    Pipelines of the project follow, with their stages.
    """
    from hpcrun.actions import describe_job, describe_pipeline
    from hpcrun.assets import list_jobs, list_pipelines
    from hpcrun.context import find_project

    project = find_project(Path.cwd())
    jobs = [
        {"name": name, "from": whose, "file": str(path), **describe_job(project, os.environ, path)}
        for name, (whose, path) in list_jobs(project, os.environ).items()
    ]
    pipelines = [
        {"name": name, "file": str(file), **describe_pipeline(file)}
        for name, file in list_pipelines(project).items()
    ]
    if as_json:
        emit_json({"jobs": jobs, **({"pipelines": pipelines} if pipelines else {})})
        return 0
    rows = [(str(j["name"]), str(j["from"]), str(j["error"] or j["description"])) for j in jobs]
    for each in pipelines:
        text = each["error"] or f"a pipeline of {', '.join(each['stages'])}"
        rows.append((str(each["name"]), "project", text))
    print_table(["JOB", "FROM", "WHAT"], rows)
    return 0


@click.command("show")
@click.argument("what", required=False, type=JOB_OR_RUN)
@click.option("--file", "name", metavar="NAME", help="Print this file of the run, e.g. job.sbatch.")
@cluster_option
@json_option
def show(what: str | None, name: str | None, cluster: str | None, as_json: bool) -> int:
    """Show a job as it would be submitted, or a run's job and files.

    WHAT is a job's name, a run id, a sweep's id or a Slurm job id; the default is the newest run.
    """
    import msgspec

    from hpcrun.actions import load_spec, masker_of
    from hpcrun.assets import list_jobs
    from hpcrun.context import read_text
    from hpcrun.monitor import resolve_run_or_sweep
    from hpcrun.runs import SECRETS, RunFolder, SweepFolder
    from hpcrun.spec import dump_job

    if name is not None and as_json:
        raise InputError(
            "--file prints the raw file, which is not JSON",
            fix=f"hpcrun show RUN --file {name} without --json",
        )
    where = make_context(cluster, job=what)
    if what is not None and (
        what in list_jobs(where.project, where.environ) or what.endswith((".yaml", ".yml"))
    ):
        if name is not None:
            raise InputError(f"{what} is a job and has no files yet", fix="submit --dry-run")
        spec = load_spec(where, what)
        if as_json:
            emit_json({"job": _replace_nonfinite(msgspec.to_builtins(spec))})
        else:
            print_line(dump_job(spec).rstrip("\n"))
        return 0
    run = resolve_run_or_sweep(where, what)
    # Values of secrets, leftovers of a killed submission, and environments for hosts of a hostfile.
    hidden = re.compile(rf"\.?{SECRETS}.*|environment|notify\.json")
    files = sorted(
        str(path.relative_to(run.path))
        for path in run.path.rglob("*")
        if path.is_file() and not path.is_relative_to(run.code) and not hidden.fullmatch(path.name)
    )
    if name is not None:
        if name not in files:
            raise InputError(f"{run.path.name} has no file {name}", fix=f"it has {' '.join(files)}")
        text = read_text(run.path / name)
        if isinstance(run, RunFolder) and (run.path / name).is_relative_to(run.logs):
            text = masker_of(where, [run]).text(text)
        print_line(text.rstrip("\n"))
        return 0
    spec_text = read_text(run.path / "spec.yaml")
    if as_json:
        emit_json(
            {
                "run_id": None if isinstance(run, SweepFolder) else run.run_id,
                "sweep_id": run.sweep_id if isinstance(run, SweepFolder) else None,
                "run_dir": str(run.path),
                "spec": spec_text,
                "files": files,
            }
        )
        return 0
    print_line(f"# {run.path.name}, in {run.path}")
    print_line(spec_text.rstrip("\n"))
    print_line("# files: hpcrun show RUN --file NAME")
    for file in files:
        print_line(f"#   {file}")
    return 0


def _replace_nonfinite(value: Any) -> Any:
    """Replace nan and infinities, which JSON lacks, by strings, as in the JSON of parse."""
    from hpcrun.text import json_number

    if isinstance(value, dict):
        return {key: _replace_nonfinite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(each) for each in value]
    return json_number(value) if isinstance(value, float) else value
