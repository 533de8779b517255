"""The verbs submit, run, jobs and show."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import click

from hpcrun.cli.options import (
    FILE,
    JOB,
    JOB_OR_RUN,
    RUN,
    JobCommand,
    asked_job,
    cluster_option,
    context,
    job_options,
    json_option,
)
from hpcrun.cli.output import emit_json, let_go, note, pairs, say, table
from hpcrun.errors import InputError


@click.command("submit", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@job_options
@click.option("--after", type=RUN, help="Start only after this run or job has succeeded.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--test-only", is_flag=True, help="Ask Slurm when it would start, and stop.")
@click.option("--follow", is_flag=True, help="Show the output until the job ends.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@cluster_option
@json_option
def submit(
    job: str | None,
    after: str | None,
    dry_run: bool,
    test_only: bool,
    follow: bool,
    wait: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit a job to Slurm.

    JOB is a name that `hpcrun jobs` lists, or a job file. Arguments after -- go to the script;
    without JOB they are the command to run: hpcrun submit -- hostname.
    """
    from hpcrun.cli.show_submission import (
        show_estimate,
        show_files,
        submission_json,
        submit_and_watch,
    )
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.prepare import dependency_on, prepare_job

    where = context(cluster, debug=options["debug"])
    spec, extra_args, origin = asked_job(where, job, options)
    first = dependency_on(where, after) if after is not None else None
    checks = Checks(strict=not options["no_check"])
    made = prepare_job(
        where, spec, extra_args=extra_args, after=first, origin=origin, checks=checks
    )
    if dry_run and not test_only:
        show_files(made, as_json=as_json)
        return 0
    from hpcrun.controller.submit import expected_start, submit_job  # here: a dry run needs none

    if test_only:
        show_estimate(made.plan, expected_start(where, made.plan, made.files), as_json=as_json)
        return 0
    return submit_and_watch(
        where,
        made,
        lambda: submit_job(where, made),
        lambda job_id: submission_json(made, job_id),
        follow=follow,
        wait=wait,
        as_json=as_json,
    )


@click.command("run", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@click.option("--hostfile", type=FILE, help="Run on these hosts, by ssh, without Slurm.")
@job_options
@cluster_option
def run(
    job: str | None,
    hostfile: str | None,
    cluster: str | None,
    **options: Any,
) -> int:
    """Run a job here, in the foreground.

    Without Slurm the job runs on this machine, or on the hosts of a hostfile; inside an salloc it
    uses the allocation. Ctrl-C ends it on all hosts.
    """
    from hpcrun.cli.show_submission import describe
    from hpcrun.cli.watch_logs import watch_run
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.prepare import prepare
    from hpcrun.controller.run import here, load_pool, on_pool, running, share_cpus, take_shape

    pool = None
    where = context(cluster, debug=options["debug"])
    if hostfile is not None:
        pool = load_pool(where, hostfile)
        where = on_pool(where, pool)
    else:
        where = here(where)
    spec, extra_args, origin = asked_job(where, job, options)
    spec = take_shape(pool, spec) if pool is not None else share_cpus(where, spec)
    checks = Checks(strict=not options["no_check"])
    prepared = prepare(where, spec, extra_args=extra_args, origin=origin, checks=checks)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, interrupt)
    with running(where, prepared) as (run, process):
        place = "here" if pool is None else f"on {pool.source}"
        try:
            try:
                say(f"Running {prepared.plan.name} {place}")
                pairs(describe(prepared))
                return watch_run(where, run, logs=True, process=process)
            except OSError as error:  # of what is shown: that ends no training
                again = f"the run goes on: hpcrun logs -f {run.run_id}"
                note(f"{error.strerror}: no more is shown; {again}")
                let_go()
                return watch_run(where, run, logs=False, quiet=True, process=process)
        except KeyboardInterrupt:
            note("stopping the run")
            raise


@click.command("jobs")
@json_option
def jobs(as_json: bool) -> int:
    """List the jobs that can be submitted: the project's, the user's, the built-in ones."""
    from hpcrun.assets import list_jobs
    from hpcrun.controller.context import find_project
    from hpcrun.controller.prepare import describe_job

    project = find_project(Path.cwd())
    jobs = [
        {"name": name, "from": whose, "file": str(path), **describe_job(project, os.environ, path)}
        for name, (whose, path) in list_jobs(project, os.environ).items()
    ]
    if as_json:
        emit_json({"jobs": jobs})
        return 0
    table(
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

    from hpcrun.assets import list_jobs
    from hpcrun.controller.context import read_text
    from hpcrun.controller.logs import masker_of
    from hpcrun.controller.prepare import load_spec
    from hpcrun.controller.targets import resolve
    from hpcrun.runs.layout import SECRETS, RunFolder, SweepFolder
    from hpcrun.spec.dump import dump_job

    if name is not None and as_json:
        raise InputError(
            "--file prints the file as it is, which is not JSON",
            fix=f"hpcrun show RUN --file {name} without --json",
        )
    where = context(cluster)
    if what is not None and (
        what in list_jobs(where.project, where.environ) or what.endswith((".yaml", ".yml"))
    ):
        if name is not None:
            raise InputError(f"{what} is a job and has no files yet", fix="submit --dry-run")
        spec = load_spec(where, what)
        if as_json:
            emit_json({"job": _finite(msgspec.to_builtins(spec))})
        else:
            say(dump_job(spec).rstrip("\n"))
        return 0
    run = resolve(where, what)
    # The values of secrets; of a submission that was killed; of an attempt on hosts of a hostfile.
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
        say(text.rstrip("\n"))
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
    say(f"# {run.path.name}, in {run.path}")
    say(spec_text.rstrip("\n"))
    say("# files: hpcrun show RUN --file NAME")
    for file in files:
        say(f"#   {file}")
    return 0


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinities: they become texts, as in the JSON of parse."""
    from hpcrun.views.numbers import number

    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return number(value) if isinstance(value, float) else value
