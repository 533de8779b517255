"""Queries and commands to Slurm over a transport; returns jobs or raises errors.

If Slurm does not answer, every function raises OutOfReach; callers that can do without an answer
suppress it. A negative answer (no such job, no accounting) is an empty list or None.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.errors import CommandFailed, OutOfReach, SchedulerRefused
from hpcrun.files import add_notice
from hpcrun.remote import Result, RunCommand, Transport, explain_no_answer
from hpcrun.slurm import accounts, commands, jobs
from hpcrun.slurm.accounts import JobAccounting
from hpcrun.slurm.commands import Estimate
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.reasons import matches_answer, refusal_fix

# Replies may take long on a busy cluster (MessageTimeout is 10 s, and clients retry).
TIMEOUT = 60.0
# sacct reads the steps of each job, which takes the database longer than the jobs alone.
_MAX_JOBS_PER_REPORT = 500
_NO_CLUSTER = "try again later; or, to try hpcrun without a cluster: hpcrun sandbox up"
_WRAPPER = "does squeue work in your shell? It may be the site's wrapper, or a broken Slurm"


def _run(transport: Transport, argv: Sequence[str], *, changes: bool = False) -> Result:
    """Run a command. If it ``changes`` something, OutOfReach tells whether it was sent."""
    try:
        result = transport.run(argv, timeout=TIMEOUT)
        check_answered(result, changes=changes)
        return result
    except OutOfReach as silence:
        if not (changes and silence.maybe_done):
            raise
        raise OutOfReach(
            f"{silence.message}; it may have happened anyway",
            fix="hpcrun status shows whether it did",
            maybe_done=True,
        ) from silence


def check_answered(result: Result, *, changes: bool = False) -> None:
    """Raise OutOfReach if a Slurm command reports that Slurm did not answer."""
    if result.exit_code != 0 and matches_answer(result.stderr, "silence"):
        raise OutOfReach(
            f"{result.argv[0]}: Slurm does not answer: {_last_line(result.stderr)}",
            fix="running jobs continue; try again later",
            maybe_done=changes and not matches_answer(result.stderr, "never sent"),
        )


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _strip_prefixes(stderr: str) -> str:
    """Return sbatch's message without its prefixes."""
    lines = stderr.split("\n")
    return "\n".join(x.removeprefix("sbatch: ").removeprefix("error: ") for x in lines).strip()


def submit_script(
    transport: Transport,
    run_dirs: Sequence[Path],
    env: Mapping[str, str],
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> str:
    """Submit the ``job.sbatch`` in the first of some finished folders and return the job id.

    After a lost reply the job is identified by its WorkDir, which is the run folder.

    Raises:
        SchedulerRefused: Slurm rejected the job.
        OutOfReach: Slurm did not answer; ``maybe_done`` is True if the job may have been accepted.
    """
    argv = commands.sbatch_argv(options, arguments)
    try:
        result = transport.submit_directories(run_dirs, argv, env=env, timeout=TIMEOUT)
        job_id, message = commands.parse_sbatch(result.stdout), _strip_prefixes(result.stderr)
        if result.exit_code == 0 and job_id is not None:
            return job_id
        if result.exit_code == 0:
            answer = f"sbatch printed no job id: {result.stdout.strip()!r}"
            raise OutOfReach(answer, maybe_done=True)
        if matches_answer(result.stderr, "silence"):
            raise OutOfReach(
                f"sbatch: Slurm does not answer: {message}",
                fix=_NO_CLUSTER,
                maybe_done=not matches_answer(result.stderr, "never sent"),
            )
    except OutOfReach as silence:
        # The WorkDir of the job ends in the run id, which is unique; the rest of the path may
        # contain other links. A missing job proves nothing: the request may still be in flight.
        with contextlib.suppress(OutOfReach):
            for job in query_queue(transport) if silence.maybe_done else ():
                if job.is_taken and job.folder == run_dirs[0].name:
                    return job.array  # the array's id, not that of one task
        raise
    raise SchedulerRefused(
        f"Slurm refused the job: {message or f'sbatch ended with code {result.exit_code}'}",
        fix=refusal_fix(result.stderr),
    )


def query_expected_start(
    transport: Transport, script: str, env: Mapping[str, str], options: Sequence[str] = ()
) -> Estimate:
    """Return when a job would start if it were submitted now, without submitting it.

    Raises:
        SchedulerRefused: Slurm rejected the job.
        OutOfReach: Slurm did not answer.
    """
    argv = [*commands.ESTIMATE, *options]
    return _read_estimate(transport.run(argv, env=env, timeout=TIMEOUT, stdin=script))


# Prints sbatch's answer, and its start in seconds since 1970: the host has its own time zone. The
# user's defaults for sbatch would override directives.
_ESTIMATE_WITH_SECONDS = r"""
for name in ${!SBATCH_@}; do unset "$name"; done
answer=$(env "$@" 2>&1); code=$?
printf '%s\n' "$answer" >&2
start=$(printf '%s\n' "$answer" | sed -n 's/.*to start at \([^ ]*\) .*/\1/p' | head -n 1)
[[ ! $start ]] || date -d "$start" +%s
exit $code
"""


def build_estimate_query(
    script: str, env: Mapping[str, str], options: Sequence[str] = ()
) -> RunCommand:
    """Build a query for the start of a job; many of them need one trip.

    Args:
        env: The environment of the submission; of it, only the variables of Slurm are used.
    """
    defaults = [f"{name}={value}" for name, value in env.items() if name.startswith("SBATCH_")]
    own = sorted((name, value) for name, value in env.items() if name.startswith("SLURM_"))
    return RunCommand(
        ("bash", "-c", _ESTIMATE_WITH_SECONDS, "bash", *defaults, *commands.ESTIMATE, *options),
        timeout=TIMEOUT,
        stdin=script,
        env=tuple(own),
    )


def parse_expected_start(result: Result) -> Estimate:
    """Return the estimate of build_estimate_query(), in this machine's local time.

    Raises:
        SchedulerRefused: Slurm rejected the job.
        OutOfReach: Slurm did not answer.
    """
    if reason := explain_no_answer(result):
        raise OutOfReach(f"sbatch: Slurm does not answer: {reason}", fix=_NO_CLUSTER)
    estimate = _read_estimate(result)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        seconds = time.localtime(int(result.stdout))
        return structs.replace(estimate, start=time.strftime("%Y-%m-%dT%H:%M:%S", seconds))
    return estimate


def _read_estimate(result: Result) -> Estimate:
    estimate = commands.parse_estimate(result.stderr)
    if result.exit_code == 0 and estimate is not None:
        return estimate
    message = _strip_prefixes(result.stderr) or f"sbatch ended with code {result.exit_code}"
    if matches_answer(result.stderr, "silence"):
        raise OutOfReach(f"sbatch: Slurm does not answer: {message}", fix=_NO_CLUSTER)
    raise SchedulerRefused(f"Slurm would refuse the job: {message}", fix=refusal_fix(result.stderr))


def query_queue(
    transport: Transport, job_ids: Sequence[str] = (), *, strict: bool = False
) -> list[SlurmJob]:
    """Run squeue once, for my jobs or for some; jobs that Slurm has forgotten are missing.

    Args:
        strict: The caller relies on an empty result. If squeue then prints nothing, which a site's
            broken wrapper may do, column names are requested to verify it.

    Raises:
        OutOfReach: Slurm did not answer.
    """
    result = _run(transport, jobs.squeue_argv(job_ids))
    if result.exit_code != 0 and not matches_answer(result.stderr, "unknown job"):
        raise OutOfReach(f"squeue failed: {_last_line(result.stderr)}")
    stdout, banner = jobs.without_banner(result.stdout)
    # A banner without rows may come from something else than squeue.
    if banner and not stdout and "JOBID" not in _run(transport, jobs.SQUEUE_HEADED).stdout.split():
        stdout, banner = result.stdout, ""
    if banner:
        add_notice(f"squeue prints more than jobs, which is ignored: {banner[:60]!a}")
    if jobs.is_squeue_garbled(stdout):
        excerpt = ascii(" ".join(result.stdout[:200].split())[:60])
        raise OutOfReach(
            f"squeue answered with something other than a list of jobs: {excerpt}", fix=_WRAPPER
        )
    is_empty = strict and result.exit_code == 0 and not result.stdout
    if is_empty and not _run(transport, jobs.SQUEUE_HEADED).stdout.strip():
        raise OutOfReach("squeue prints nothing, not even its column names", fix=_WRAPPER)
    return jobs.parse_squeue(stdout)


def query_accounting(transport: Transport, job_ids: Sequence[str]) -> list[SlurmJob] | None:
    """Run sacct once; return None if there is no accounting. Raises OutOfReach."""
    if not job_ids:
        return []
    try:
        result = transport.run(jobs.sacct_argv(job_ids), timeout=TIMEOUT)
    except OutOfReach as silence:
        if silence.maybe_done:
            raise
        return None  # sacct is not installed
    if result.exit_code != 0 or jobs.is_sacct_garbled(result.stdout):
        return None
    return jobs.parse_sacct(result.stdout)


def query_job_accounting(transport: Transport, job_id: str) -> JobAccounting | None:
    """Return sacct's record of a finished job; None if there is none yet.

    Raises:
        OutOfReach: Slurm did not answer.
    """
    result = transport.run(accounts.accounting_argv(job_id), timeout=TIMEOUT)
    found = result.exit_code == 0
    return accounts.parse_accounting(result.stdout, job_id) if found else None


def query_reports(transport: Transport, job_ids: Sequence[str]) -> dict[str, JobAccounting]:
    """Return sacct's usage, energy and times of finished jobs, by their ids.

    Jobs without a record are missing, as are all without accounting.

    Raises:
        OutOfReach: Slurm did not answer.
    """
    found: dict[str, JobAccounting] = {}
    for start in range(0, len(job_ids), _MAX_JOBS_PER_REPORT):
        argv = accounts.report_argv(job_ids[start : start + _MAX_JOBS_PER_REPORT])
        result = transport.run(argv, timeout=TIMEOUT)
        if result.exit_code != 0:
            break
        found |= accounts.parse_report(result.stdout)
    return found


def query_node_reason(transport: Transport, node: str) -> str:
    """Return why a node is unavailable; "" if it is available. Raises OutOfReach."""
    return accounts.parse_node_reason(run_query(transport, accounts.show_node_argv(node)) or "")


def cancel_jobs(transport: Transport, job_ids: Sequence[str], *, pending: bool = False) -> None:
    """Cancel jobs, tasks or arrays; jobs that are already finished are no error.

    Args:
        pending: Cancel pending jobs only.

    Raises:
        SchedulerRefused: A job belongs to another user.
        OutOfReach: Slurm did not answer.
    """
    # Slurm accepts a list of any length, but a site's wrapper may not.
    for start in range(0, len(job_ids), 500):
        result = _run(
            transport,
            commands.scancel_argv(*job_ids[start : start + 500], pending=pending),
            changes=True,
        )
        is_over = matches_answer(result.stderr, "unknown job") or matches_answer(
            result.stderr, "over"
        )
        if matches_answer(result.stderr, "denied"):
            raise SchedulerRefused(f"scancel: {_last_line(result.stderr)}")
        if result.exit_code != 0 and not is_over:
            raise CommandFailed(result.argv, result.exit_code, result.stdout, result.stderr)


def query_version(transport: Transport) -> tuple[int, int] | None:
    """Return the version of Slurm, as (22, 5); None if srun is missing or prints none."""
    with contextlib.suppress(OutOfReach):
        return commands.parse_version(run_query(transport, commands.VERSION) or "")
    return None


def show_jobs(transport: Transport, job_id: str) -> list[SlurmJob]:
    """Return slurmctld's records of a job, all tasks of an array or all parts of a job.

    Returns:
        An empty list for a job that Slurm has forgotten.

    Raises:
        OutOfReach: Slurm did not answer.
    """
    result = _run(transport, jobs.show_job_argv(job_id))
    if result.exit_code == 0:
        return jobs.parse_show_job(result.stdout)
    if not matches_answer(result.stderr, "unknown job"):
        raise OutOfReach(f"scontrol failed: {_last_line(result.stderr)}")
    return []


def show_each_job(transport: Transport, job_ids: Sequence[str]) -> list[SlurmJob]:
    """Return slurmctld's records of many jobs by one command; unknown jobs are omitted.

    If Slurm does not answer, the list is empty. `scontrol show job` accepts no list of ids, but
    scontrol reads one command per line.
    """
    argv, lines = jobs.show_each_argv(job_ids)
    try:
        return jobs.parse_show_job(transport.run(argv, stdin=lines, timeout=TIMEOUT).stdout)
    except OutOfReach:
        return []


def query_pending(transport: Transport, partition: str) -> list[SlurmJob]:
    """Return all pending jobs of a partition, by squeue. Raises OutOfReach."""
    return jobs.parse_squeue(run_query(transport, jobs.squeue_argv(partition=partition)) or "")


def requeue_jobs(
    transport: Transport, job_ids: Sequence[str], *, hold: bool = False
) -> dict[str, str]:
    """Requeue jobs; return Slurm's message for each rejected job, by id. Raises OutOfReach."""
    return _refusals_by_job(transport, commands.requeue_argv(job_ids, hold=hold), job_ids)


def set_requeue(transport: Transport, job_ids: Sequence[str], *, may: bool) -> dict[str, str]:
    """Allow or forbid requeueing of jobs; return rejections by id. Raises OutOfReach."""
    return _refusals_by_job(transport, commands.set_requeue_argv(job_ids, may=may), job_ids)


def _refusals_by_job(
    transport: Transport, argv: Sequence[str], job_ids: Sequence[str]
) -> dict[str, str]:
    result = _run(transport, argv, changes=True)
    messages = commands.parse_refusals(result.stderr)
    refused = {job_id: messages[job_id] for job_id in job_ids if job_id in messages}
    if result.exit_code != 0 and not refused:
        return dict.fromkeys(job_ids, _last_line(result.stderr))
    return refused


def run_query(transport: Transport, argv: Sequence[str]) -> str | None:
    """Return the output of another query; None if Slurm rejects it. Raises OutOfReach."""
    result = _run(transport, argv)
    return result.stdout if result.exit_code == 0 else None
