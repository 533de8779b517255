"""hpcrun show."""

from __future__ import annotations

from typing import Any

import click

from hpcrun.cli.options import JOB_OR_RUN, cluster_option, context, json_option
from hpcrun.cli.output import emit_json, say
from hpcrun.errors import InputError


@click.command("show")
@click.argument("what", required=False, type=JOB_OR_RUN)
@click.option("--file", "name", metavar="NAME", help="Print this file of the run, e.g. job.sbatch.")
@cluster_option
@json_option
def command(what: str | None, name: str | None, cluster: str | None, as_json: bool) -> int:
    """Show a job as it would be submitted, or a run's job and files.

    WHAT is a job's name, a run id, a sweep's id or a Slurm job id; the default is the newest run.
    """
    import msgspec

    from hpcrun.assets import list_jobs
    from hpcrun.controller.context import read_text
    from hpcrun.controller.prepare import load_spec
    from hpcrun.controller.targets import resolve
    from hpcrun.runs.layout import SECRETS, SweepFolder
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
    secrets = run.path / SECRETS
    files = sorted(
        str(path.relative_to(run.path))
        for path in run.path.rglob("*")
        if path.is_file() and not path.is_relative_to(run.code) and path != secrets
    )
    if name is not None:
        if name not in files:
            raise InputError(f"{run.path.name} has no file {name}", fix=f"it has {' '.join(files)}")
        say(read_text(run.path / name).rstrip("\n"))
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
