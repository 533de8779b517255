"""hpcrun logs.

Effects: those of the controller.
"""

from __future__ import annotations

import click

from hpcrun.cli.options import cluster_option, context, json_option


@click.command("logs")
@click.argument("job", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@cluster_option
@json_option
def command(job: str | None, follow: bool, cluster: str | None, as_json: bool) -> int:
    """Show a run's output: rank by rank, then the launchers' and the batch script's.

    JOB is a Slurm job id, as 123 or 123_4, or a run id; none means the newest run. Lines of other
    ranks than rank 0 begin with [rankN]:, those of other nodes' launchers with nodeN:. With -f the
    exit code is the run's: 0 if it ended well, 1 if not. With --json each line is a JSON object of
    its own.
    """
    from pathlib import Path

    from hpcrun import scheduler
    from hpcrun.cli.output import emit_bytes, emit_json_line, note
    from hpcrun.cli.watch import prefixed, watch
    from hpcrun.controller.context import slurm_transport
    from hpcrun.controller.status import resolve
    from hpcrun.errors import InputError
    from hpcrun.logs.files import LogFile, log_files
    from hpcrun.logs.tail import Tail
    from hpcrun.runs.store import find, is_job_id

    where = context(cluster)
    if job is not None and is_job_id(job) and find(where.runs_dir, job) is None:
        path = scheduler.stdout_path(slurm_transport(where), job)
        if path is None:
            raise InputError(f"{job}: neither a run of hpcrun nor a job that Slurm still knows")
        if follow:
            raise InputError(
                f"{job}: not submitted by hpcrun, so it cannot be followed", fix=f"tail -F {path}"
            )
        if not Path(path).exists():
            raise InputError(f"{job}: its output {path} is not there (yet)")
        files = [LogFile(Path(path))]
    else:
        run = resolve(where, job)
        if follow and not as_json:
            return watch(where, run, logs=True)
        if follow:
            raise click.UsageError("--json and --follow do not go together")
        files = log_files(run)
        if not files:
            note(f"{run.run_id}: no output yet")
    tail = Tail(slurm_transport(where))
    for file, data in tail.finish(files):
        if as_json:
            for line in data.decode("utf-8", "replace").splitlines():
                emit_json_line(
                    {
                        "attempt": file.attempt,
                        "node": file.node,
                        "rank": file.rank,
                        "line": line,
                    }
                )
        else:
            emit_bytes(prefixed(data, file.prefix))
    return 0
