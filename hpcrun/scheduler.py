"""Runs Slurm's commands over a transport and says what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcrun.errors import CommandFailed, OutOfReach, SchedulerRefused
from hpcrun.slurm.active import ActiveJob, active_argv, is_active_garbled, parse_active
from hpcrun.slurm.answers import is_silence, is_unknown_job, refusal_fix, was_never_sent
from hpcrun.slurm.job_nodes import (
    JobNodes,
    parse_job_nodes,
    parse_sacct_nodes,
    sacct_nodes_argv,
    show_job_nodes_argv,
)
from hpcrun.slurm.job_output import JobOutput, parse_job_outputs
from hpcrun.slurm.sacct import AccountRow, parse_sacct, sacct_argv
from hpcrun.slurm.sacct import is_garbled as is_account_garbled
from hpcrun.slurm.sbatch import (
    Estimate,
    estimate_argv,
    parse_estimate,
    parse_sbatch,
    sbatch_argv,
)
from hpcrun.slurm.scancel import scancel_argv
from hpcrun.slurm.scontrol import (
    may_requeue_argv,
    parse_job_number,
    parse_output_paths,
    parse_refusals,
    requeue_argv,
    show_job_argv,
)
from hpcrun.slurm.squeue import (
    PendingRow,
    QueueRow,
    headed_argv,
    parse_pending,
    parse_squeue,
    pending_argv,
    squeue_argv,
)
from hpcrun.slurm.squeue import is_garbled as is_queue_garbled
from hpcrun.slurm.srun import parse_version, version_argv
from hpcrun.slurm.states import is_final
from hpcrun.transport import Result, Transport

# A reply may take long on a busy cluster (MessageTimeout is 10 s, and clients retry).
TIMEOUT = 60.0


def _ask(transport: Transport, argv: Sequence[str]) -> Result:
    result = transport.run(argv, timeout=TIMEOUT)
    if result.exit_code != 0 and is_silence(result.stderr):
        raise OutOfReach(
            f"{argv[0]}: Slurm does not answer: {_last_line(result.stderr)}",
            fix="nothing is known until it does; running jobs go on without it: try again later",
        )
    return result


def _order(transport: Transport, argv: Sequence[str]) -> Result:
    """Give an order; its OutOfReach says so where the order may have arrived all the same."""
    try:
        return _ask(transport, argv)
    except OutOfReach as silence:
        was_sent = "does not answer" in silence.message and not was_never_sent(silence.message)
        if not (silence.maybe_done or was_sent):
            raise
        raise OutOfReach(
            f"{silence.message}; it may have been done all the same",
            fix="hpcrun status tells",
            maybe_done=True,
        ) from silence


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _excerpt(text: str) -> str:
    return ascii(" ".join(text[:200].split())[:60])


def _plain(stderr: str) -> str:
    """Give sbatch's words without its prefixes."""
    lines = stderr.split("\n")
    return "\n".join(x.removeprefix("sbatch: ").removeprefix("error: ") for x in lines).strip()


def submit(transport: Transport, run_dir: str, env: Mapping[str, str]) -> str:
    """Submit ``run_dir/job.sbatch`` and return the job id.

    A lost reply is settled by looking for the job whose WorkDir is the run folder.
    Raises SchedulerRefused; and OutOfReach, with ``maybe_done`` while it is unknown whether Slurm
    took the job.
    """
    try:
        result = transport.run(sbatch_argv(), cwd=run_dir, env=env, timeout=TIMEOUT)
    except OutOfReach as error:
        return _settle(transport, run_dir, error)
    job_id = parse_sbatch(result.stdout)
    if result.exit_code == 0 and job_id is not None:
        return job_id
    if result.exit_code == 0:
        silence = OutOfReach(
            f"sbatch printed no job id: {result.stdout.strip()!r}", maybe_done=True
        )
        return _settle(transport, run_dir, silence)
    message = _plain(result.stderr)
    if is_silence(result.stderr):
        silence = OutOfReach(
            f"sbatch: Slurm does not answer: {message}",
            fix="try again later; or, to try hpcrun without a cluster: hpcrun sandbox up",
            maybe_done=not was_never_sent(result.stderr),
        )
        return _settle(transport, run_dir, silence)
    raise SchedulerRefused(
        f"Slurm refused the job: {message or f'sbatch ended with code {result.exit_code}'}",
        fix=refusal_fix(result.stderr),
    )


def expected_start(transport: Transport, script: str, env: Mapping[str, str]) -> Estimate:
    """Ask when a job would start, if it were submitted now. Nothing stays behind.

    Raises SchedulerRefused, OutOfReach.
    """
    result = transport.run(estimate_argv(), env=env, timeout=TIMEOUT, stdin=script)
    estimate = parse_estimate(result.stderr)
    if result.exit_code == 0 and estimate is not None:
        return estimate
    message = _plain(result.stderr) or f"sbatch ended with code {result.exit_code}"
    if is_silence(result.stderr):
        raise OutOfReach(
            f"sbatch: Slurm does not answer: {message}",
            fix="try again later; or, to try hpcrun without a cluster: hpcrun sandbox up",
        )
    raise SchedulerRefused(f"Slurm would refuse the job: {message}", fix=refusal_fix(result.stderr))


def _settle(transport: Transport, run_dir: str, silence: OutOfReach) -> str:
    """Find out whether a request without an answer has arrived; raise the silence if not seen.

    Not to see the job proves nothing: the request may still be on its way.
    """
    if silence.maybe_done:
        try:
            found = find_by_folder(transport, run_dir)
        except OutOfReach:
            found = None
        if found is not None:
            return found
    raise silence


def find_by_folder(transport: Transport, run_dir: str) -> str | None:
    """Find the job whose WorkDir is this run's folder; None when Slurm shows none.

    The folder is told by its last part, the run id, which is unique: WorkDir may be spelled
    through other links.
    """
    run_id = run_dir.rstrip("/").rpartition("/")[2]
    for row in queue(transport):
        # A job that sbatch refused for its constraints shows in the queue all the same.
        if row.reason != "BadConstraints" and row.work_dir.rstrip("/").rpartition("/")[2] == run_id:
            return row.job_id.partition("_")[0]  # of an array, not of one of its tasks
    return None


def queue(
    transport: Transport, job_ids: Sequence[str] = (), *, surely: bool = False
) -> list[QueueRow]:
    """Ask squeue once, for my jobs or those named; jobs that Slurm has forgotten are not there.

    ``surely``: that there are none decides something; a squeue that says nothing, as a site's
    broken wrapper does, is asked for its column names then. Raises OutOfReach when Slurm does not
    answer.
    """
    result = _ask(transport, squeue_argv(job_ids))
    if result.exit_code != 0 and not is_unknown_job(result.stderr):
        raise OutOfReach(f"squeue failed: {_last_line(result.stderr)}")
    if is_queue_garbled(result.stdout):
        raise OutOfReach(
            f"squeue answered what is no list of jobs: {_excerpt(result.stdout)}",
            fix="does squeue work by itself? It may be a wrapper of the site's, or a broken Slurm",
        )
    says_nothing = surely and result.exit_code == 0 and not result.stdout
    if says_nothing and not _ask(transport, headed_argv()).stdout.strip():
        raise OutOfReach(
            "squeue answers nothing, not even its column names",
            fix="does squeue work by itself? It may be a wrapper of the site's, or a broken Slurm",
        )
    return parse_squeue(result.stdout)


def accounting(
    transport: Transport, job_ids: Sequence[str], *, surely: bool = False
) -> list[AccountRow] | None:
    """Ask sacct once; None where there is no accounting or it does not answer.

    ``surely``: that it knows no such job decides something; then its silence is OutOfReach.
    """
    if not job_ids:
        return []
    try:
        result = transport.run(sacct_argv(job_ids), timeout=TIMEOUT)
    except OutOfReach as silence:
        if surely and silence.maybe_done:
            raise
        return None
    if result.exit_code != 0 or is_account_garbled(result.stdout):
        return None
    return parse_sacct(result.stdout)


def output_paths(transport: Transport, job_id: str) -> list[str]:
    """Ask where a job's output goes, and its errors where that is another file; none: forgotten."""
    result = _ask(transport, show_job_argv(job_id))
    return parse_output_paths(result.stdout) if result.exit_code == 0 else []


def job_nodes(transport: Transport, job_id: str) -> list[JobNodes]:
    """Ask for a job's nodes, in the accounting where slurmctld has forgotten it; empty: unknown.

    An array or a heterogeneous job gives one for each of its jobs. Raises OutOfReach.
    """
    result = _ask(transport, show_job_nodes_argv(job_id))
    if result.exit_code == 0:
        return parse_job_nodes(result.stdout)
    if not is_unknown_job(result.stderr):
        raise OutOfReach(f"scontrol failed: {_last_line(result.stderr)}")
    try:
        result = transport.run(sacct_nodes_argv(job_id), timeout=TIMEOUT)
    except OutOfReach:
        return []
    return parse_sacct_nodes(result.stdout) if result.exit_code == 0 else []


def cancel_all(transport: Transport, job_ids: Sequence[str], *, pending: bool = False) -> None:
    """Cancel jobs, tasks or arrays; those that are over already are no error.

    ``pending``: only what has not begun. Raises SchedulerRefused (another user's job), OutOfReach.
    """
    # A word of a command line has no end, but a site's wrapper may have one.
    for start in range(0, len(job_ids), 500):
        result = _order(transport, scancel_argv(*job_ids[start : start + 500], pending=pending))
        is_over = is_unknown_job(result.stderr) or "already complet" in result.stderr
        if "ermission" in result.stderr or "ccess" in result.stderr:
            raise SchedulerRefused(f"scancel: {_last_line(result.stderr)}")
        if result.exit_code != 0 and not is_over:
            raise CommandFailed(result.argv, result.exit_code, result.stdout, result.stderr)


def active_jobs(
    transport: Transport, job_ids: Sequence[str] = (), *, ended: bool = False
) -> list[ActiveJob]:
    """Ask squeue once for my jobs, or those named, that wait or run; ``ended``: or are over.

    Raises OutOfReach.
    """
    result = _ask(transport, active_argv(job_ids))
    if result.exit_code != 0 and not is_unknown_job(result.stderr):
        raise OutOfReach(f"squeue failed: {_last_line(result.stderr)}")
    if is_active_garbled(result.stdout):
        raise OutOfReach(f"squeue answered what is no list of jobs: {_excerpt(result.stdout)}")
    jobs = parse_active(result.stdout)
    return [job for job in jobs if ended or not is_final(job.row.state)]


def version(transport: Transport) -> tuple[int, int] | None:
    """Ask which Slurm is installed here, as (22, 5); None where srun does not tell."""
    try:
        result = transport.run(version_argv(), timeout=TIMEOUT)
    except OutOfReach:
        return None
    return parse_version(result.stdout) if result.exit_code == 0 else None


def pending(
    transport: Transport, job_ids: Sequence[str] = (), partition: str = ""
) -> list[PendingRow]:
    """Ask squeue what jobs wait for, by ids or all of a partition; empty where it does not say."""
    try:
        result = transport.run(pending_argv(job_ids, partition), timeout=TIMEOUT)
    except OutOfReach:
        return []
    return parse_pending(result.stdout) if result.exit_code == 0 else []


def show(transport: Transport, argv: Sequence[str]) -> str:
    """Ask for what is nice to know; "" where Slurm does not say, for whatever reason."""
    try:
        result = transport.run(argv, timeout=TIMEOUT)
    except OutOfReach:
        return ""
    return result.stdout if result.exit_code == 0 else ""


def requeue(transport: Transport, job_ids: Sequence[str], *, hold: bool = False) -> dict[str, str]:
    """Start jobs anew; return Slurm's words for those that it refuses, by id. Raises OutOfReach."""
    return _each(transport, requeue_argv(job_ids, hold=hold), job_ids)


def let_requeue(transport: Transport, job_ids: Sequence[str], *, may: bool) -> dict[str, str]:
    """Allow or forbid that jobs are started anew; return refusals by id. Raises OutOfReach."""
    return _each(transport, may_requeue_argv(job_ids, may=may), job_ids)


def _each(transport: Transport, argv: Sequence[str], job_ids: Sequence[str]) -> dict[str, str]:
    result = _order(transport, argv)
    refused = {key: said for key, said in parse_refusals(result.stderr).items() if key in job_ids}
    if result.exit_code != 0 and not refused:
        return dict.fromkeys(job_ids, _last_line(result.stderr))
    return refused


def job_number(transport: Transport, job_id: str) -> str | None:
    """Ask for the number by which srun knows a job; None when Slurm has forgotten it.

    Raises OutOfReach.
    """
    result = _ask(transport, show_job_argv(job_id))
    return parse_job_number(result.stdout) if result.exit_code == 0 else None


def job_outputs(transport: Transport, job_id: str) -> list[JobOutput]:
    """Ask how a job, or each task of an array, stands and where its output goes; none: forgotten.

    Raises OutOfReach.
    """
    result = _ask(transport, show_job_argv(job_id))
    if result.exit_code == 0:
        return parse_job_outputs(result.stdout)
    if not is_unknown_job(result.stderr):
        raise OutOfReach(f"scontrol failed: {_last_line(result.stderr)}")
    return []


def tell(transport: Transport, argv: Sequence[str]) -> str | None:
    """Give what a question that changes nothing is answered; None where Slurm says no.

    Raises OutOfReach when Slurm does not answer.
    """
    result = _ask(transport, argv)
    return result.stdout if result.exit_code == 0 else None
