"""Command lines that submit, cancel, requeue and enter jobs, and parsers of their output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

SCRIPT = "job.sbatch"
# Submits the script in the current folder, which becomes the job's WorkDir and identifies the run.
SBATCH = ("sbatch", "--parsable", SCRIPT)
# Prints when a job would start; sbatch reads the script from stdin.
ESTIMATE = ("sbatch", "--test-only")
# Slurm's version; srun prints it without contacting slurmctld.
VERSION = ("srun", "--version")
Version = tuple[int, int]
# From this version on, a step with --overlap shares GPUs too (Slurm 22.05, RELEASE_NOTES).
_SHARES_GPUS = (22, 5)


class Estimate(Struct, frozen=True):
    """When and where a job would start; ``start`` is a local time in Slurm's format."""

    start: str
    processors: int
    nodes: str
    partition: str


def sbatch_argv(options: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Build the call of sbatch with further options, and arguments for the script.

    >>> sbatch_argv(["--job-name=a"], ["b"])
    ['sbatch', '--parsable', '--job-name=a', 'job.sbatch', 'b']
    """
    return [*SBATCH[:-1], *options, SBATCH[-1], *arguments]


def parse_estimate(stderr: str) -> Estimate | None:
    """Parse the output of ``sbatch --test-only``; None for a rejection.

    >>> parse_estimate("sbatch: Job 5 to start at 2026-11-20T12:00:00 using 8 processors on nodes "
    ...                "n[1-2] in partition gpu")
    Estimate(start='2026-11-20T12:00:00', processors=8, nodes='n[1-2]', partition='gpu')
    """
    # 26.05 prints a stray letter after the time.
    match = re.search(
        r"to start at (\S+)(?: \S+)? using (\d+) processors on nodes (\S*)"
        r"(?: in partition (\S+))?",
        stderr,
    )
    if match is None:
        return None
    return Estimate(match[1], int(match[2]), match[3], match[4] or "")


def parse_sbatch(stdout: str) -> str | None:
    """Parse the job id from ``sbatch --parsable``; None if there is none.

    A federation appends the cluster; a site's wrapper may print lines before it, or sbatch's
    sentence.

    >>> parse_sbatch("123\\n"), parse_sbatch("welcome\\n45;mpp2\\n"), parse_sbatch("error\\n")
    ('123', '45', None)
    >>> parse_sbatch("Submitted batch job 630114 on cluster mpp2\\n")
    '630114'
    """
    for line in reversed(stdout.splitlines()):
        match = re.fullmatch(r"\s*(?:Submitted batch job )?(\d+)(;\S+| on cluster \S+)?\s*", line)
        if match:
            return match.group(1)
    return None


def quote_directive(value: str) -> str:
    r"""Quote a value for an ``#SBATCH --name=value`` line.

    sbatch has a quote parser of its own (src/sbatch/opt.c, ``get_argument``): an unquoted ``#`` or
    blank ends the value, a lone quote is fatal, and a backslash escapes the next character, also
    inside quotes. A newline cannot be quoted, so the caller must reject it.

    >>> print(quote_directive("plain-1.2"))
    plain-1.2
    >>> print(quote_directive('it\'s "run" #3 \\ x'))
    "it's \"run\" #3 \\ x"
    """
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]-]+", value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def quote_pattern(path: str) -> str:
    r"""Escape a path for ``--output``, whose file names are patterns (sbatch(1), FILENAME PATTERN).

    A backslash disables ``%`` and is removed; the same grammar applies to a WorkDir that is
    prepended to a relative path.

    >>> print(quote_pattern(r"/runs/50%\a"), quote_pattern("/runs/a"))
    /runs/50\%\\a /runs/a
    """
    return re.sub(r"([%\\])", r"\\\1", path)


def scancel_argv(*job_ids: str, pending: bool = False) -> list[str]:
    """Return the command that cancels jobs; with ``pending`` Slurm skips jobs that have started."""
    return ["scancel", *(["--state=PENDING"] if pending else []), *job_ids]


def requeue_argv(job_ids: Sequence[str], *, hold: bool = False) -> list[str]:
    """Return the command that requeues jobs or tasks; with ``hold`` they wait for a release."""
    return ["scontrol", "requeuehold" if hold else "requeue", ",".join(job_ids)]


def set_requeue_argv(job_ids: Sequence[str], *, may: bool) -> list[str]:
    """Return the command that sets whether jobs may be requeued, as sbatch's --requeue does."""
    return ["scontrol", "update", f"JobId={','.join(job_ids)}", f"Requeue={int(may)}"]


def parse_refusals(stderr: str) -> dict[str, str]:
    """Parse why scontrol did not change single jobs: id -> Slurm's message.

    >>> parse_refusals("Job has already finished for job 7\\n8_1: Invalid job id specified\\n"
    ...                "8_2: No error\\n")
    {'7': 'Job has already finished', '8_1': 'Invalid job id specified'}
    """
    found: dict[str, str] = {}
    for line in stderr.splitlines():
        match = re.fullmatch(
            r"(?P<message>.+) for job (?P<id>[0-9_]+)\s*", line.strip()
        ) or re.fullmatch(r"(?:.*\s)?(?P<id>[0-9]+(?:_[0-9]+)?): (?P<message>.+)", line.strip())
        if match is not None and match["message"] != "No error":
            found[match["id"]] = match["message"].strip()
    return found


def parse_version(stdout: str) -> Version | None:
    """Parse Slurm's version from srun's output; None if there is none.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 26.05.0-0rc1"), parse_version("?")
    ((22, 5), (26, 5), None)
    """
    found = re.search(r"(\d+)\.(\d+)", stdout)
    return (int(found[1]), int(found[2])) if found else None


def shares_gpus(version: Version | None) -> bool:
    """Return True if overlapping steps share GPUs; False if the version is unknown.

    >>> shares_gpus((22, 5)), shares_gpus((20, 11)), shares_gpus(None)
    (True, False, False)
    """
    return version is not None and version >= _SHARES_GPUS


def shell_argv(
    job_number: str, node: str, command: Sequence[str], *, terminal: bool, version: Version | None
) -> list[str]:
    """Return a command line that runs on one node of a running job, with its CPUs, memory and GPUs.

    ``job_number`` is Slurm's own number, which an array's task also has: srun does not accept 7_3.
    If steps cannot share GPUs the step gets none, since it would wait forever for GPUs in use.
    """
    argv = [*_overlapping(job_number, version), "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    return [*argv, *(["--pty"] if terminal else []), *command]


def overlap_argv(
    job_id: str, nodes: int, name: str, command: Sequence[str], version: Version | None
) -> list[str]:
    """Return a command line that runs once on each node of a running job, next to its steps.

    With --overlap and --mem=0 the step shares CPUs and memory. Before 22.05 it would hold the GPUs
    that it sees and block the job's next step, so it gets none there, nor if the version is
    unknown. It is aborted if it cannot start within seconds, so that it never waits for resources.
    """
    argv = [*_overlapping(job_id, version), f"--nodes={nodes}", f"--ntasks={nodes}"]
    argv += ["--ntasks-per-node=1", f"--job-name={name}", "--chdir=/", "--immediate=15"]
    return [*argv, *command]


def _overlapping(job: str, version: Version | None) -> list[str]:
    # No memory of its own, since the job's steps may have all of it.
    argv = ["srun", f"--jobid={job}", "--overlap", "--mem=0", "--mpi=none", "--quiet"]
    return argv if shares_gpus(version) else [*argv, "--gres=none"]
