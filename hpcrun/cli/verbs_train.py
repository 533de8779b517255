"""The verbs submit, run, rehearse, jobs and show."""

from __future__ import annotations

import os
import re
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
    cluster_option,
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


@click.command("submit", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@job_options
@click.option(
    "--after",
    type=RUN,
    multiple=True,
    help="Start only after this run or job has succeeded. Repeatable; accepts a list, e.g. 7,8.",
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
    dry_run: bool,
    test_only: bool,
    follow: bool,
    wait: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit a job to Slurm.

    JOB is a name that `hpcrun jobs` lists, or a job file. Arguments after -- are passed to the
    script. Without JOB they are the command to run: hpcrun submit -- hostname.
    """
    from hpcrun.actions import Checks, build_dependency, prepare_job
    from hpcrun.cli.show_submission import show_estimate, show_files, submit_and_watch

    where = make_context(cluster, debug=options["debug"], job=job)
    spec, extra_args, origin = load_requested_job(where, job, options)
    first = build_dependency(where, after)
    checks = Checks(strict=not options["no_check"])
    made = prepare_job(
        where, spec, extra_args=extra_args, after=first, origin=origin, checks=checks
    )
    if dry_run and not test_only:
        show_files(made, as_json=as_json)
        return 0
    if test_only:
        from hpcrun.actions import estimate_start  # deferred: --dry-run does not submit

        show_estimate(made.plan, estimate_start(where, made), as_json=as_json)
        return 0
    return submit_and_watch(where, made, follow=follow, wait=wait, as_json=as_json)


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


def describe_trial(trial: Trial) -> str:
    """Describe the result of one trial of a rehearsal.

    >>> from hpcrun.actions.rehearse import Trial
    >>> describe_trial(Trial(fault="node", run_dir="", ok=True, resumed_at=9, replayed=2))
    'a dead node: came back from its start, at step 9, 2 steps done again'
    >>> [describe_trial(Trial(fault="limit", run_dir="", tried=each)) for each in (False, True)]
    ['time limit: was not tried', 'time limit: did not come back']
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
        return f"{name}: {'did not come back' if trial.tried else 'was not tried'}"
    text = f"{name}: came back from {trial.checkpoint or 'its start'}"
    if trial.resumed_at is not None:
        text += f", at step {trial.resumed_at}"
        text += f", {format_count(trial.replayed or 0, 'step')} done again"
    if trial.difference is not None:
        gap = trial.difference
        was, is_now = (
            "no number" if each is None else f"{each:.10g}" for each in (gap.expected, gap.value)
        )
        text += f"; the first other value: {gap.metric} {is_now} at step {gap.step}"
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
            print_note(f"the job itself does not ask for all of it: survive: {{when: [{when}]}}")
        if keep:
            print_line(f"the runs: {Path(trials[0].run_dir).parent}")
    return 0 if all(trial.ok for trial in trials) else 1


@click.command("jobs")
@json_option
def jobs(as_json: bool) -> int:
    """List the jobs that can be submitted: those of the project, yours, and the presets."""
    from hpcrun.actions import describe_job
    from hpcrun.assets import list_jobs
    from hpcrun.context import find_project

    project = find_project(Path.cwd())
    jobs = [
        {"name": name, "from": whose, "file": str(path), **describe_job(project, os.environ, path)}
        for name, (whose, path) in list_jobs(project, os.environ).items()
    ]
    if as_json:
        emit_json({"jobs": jobs})
        return 0
    print_table(
        ["JOB", "FROM", "WHAT"],
        [(str(j["name"]), str(j["from"]), str(j["error"] or j["description"])) for j in jobs],
    )
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
    hidden = re.compile(rf"\.?{SECRETS}.*|environment")
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
