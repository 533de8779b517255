"""Command lines that submit, end, requeue and enter jobs, and what answers them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

SCRIPT = "job.sbatch"
# Submits the script in the current folder: this is the job's WorkDir then, and tags the run.
SBATCH = ("sbatch", "--parsable", SCRIPT)
# When a job would start; sbatch reads the script from its input.
ESTIMATE = ("sbatch", "--test-only")
# Slurm's version, which srun knows by itself.
VERSION = ("srun", "--version")
Version = tuple[int, int]
# From this version on a step with --overlap shares GPUs too (Slurm 22.05, RELEASE_NOTES).
_SHARES_GPUS = (22, 5)


class Estimate(Struct, frozen=True):
    """When and where a job would start: ``start`` is a local time, as Slurm has it."""

    start: str
    processors: int
    nodes: str
    partition: str


def parse_estimate(stderr: str) -> Estimate | None:
    """Read the answer to ``sbatch --test-only``; None where it is a refusal.

    >>> parse_estimate("sbatch: Job 5 to start at 2026-11-20T12:00:00 using 8 processors on nodes "
    ...                "n[1-2] in partition gpu")
    Estimate(start='2026-11-20T12:00:00', processors=8, nodes='n[1-2]', partition='gpu')
    """
    # 26.05 prints a stray letter behind the time.
    match = re.search(
        r"to start at (\S+)(?: \S+)? using (\d+) processors on nodes (\S*)"
        r"(?: in partition (\S+))?",
        stderr,
    )
    if match is None:
        return None
    return Estimate(match[1], int(match[2]), match[3], match[4] or "")


def parse_sbatch(stdout: str) -> str | None:
    """Read the job id from ``sbatch --parsable``; None where there is none.

    A federation adds the cluster; a site's wrapper may print lines before, or sbatch's sentence.

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

    sbatch has a quote parser of its own (src/sbatch/opt.c, ``get_argument``): an unquoted ``#``
    or blank ends the value, a lone quote is fatal, and a backslash escapes the next character,
    inside quotes too. A newline cannot be carried: the caller refuses it before.

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
    r"""Write a path for ``--output``, whose file names are patterns (sbatch(1), FILENAME PATTERN).

    A backslash ends the meaning of ``%``, and is itself taken out; the pattern's grammar also
    reads a WorkDir that goes before a relative path.

    >>> print(quote_pattern(r"/runs/50%\a"), quote_pattern("/runs/a"))
    /runs/50\%\\a /runs/a
    """
    return re.sub(r"([%\\])", r"\\\1", path)


def scancel_argv(*job_ids: str, pending: bool = False) -> list[str]:
    """Cancel jobs by their ids; with ``pending`` Slurm itself spares those that have begun."""
    return ["scancel", *(["--state=PENDING"] if pending else []), *job_ids]


def requeue_argv(job_ids: Sequence[str], *, hold: bool = False) -> list[str]:
    """Requeue jobs or tasks, running or over; with ``hold`` they wait until they are released."""
    return ["scontrol", "requeuehold" if hold else "requeue", ",".join(job_ids)]


def set_requeue_argv(job_ids: Sequence[str], *, may: bool) -> list[str]:
    """Let Slurm requeue jobs, or forbid it, as sbatch's --requeue and --no-requeue do."""
    return ["scontrol", "update", f"JobId={','.join(job_ids)}", f"Requeue={int(may)}"]


def parse_refusals(stderr: str) -> dict[str, str]:
    """Read why scontrol did not change single jobs: id -> Slurm's message.

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
    """Read Slurm's version from srun's; None where there is none.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 26.05.0-0rc1"), parse_version("?")
    ((22, 5), (26, 5), None)
    """
    found = re.search(r"(\d+)\.(\d+)", stdout)
    return (int(found[1]), int(found[2])) if found else None


def shares_gpus(version: Version | None) -> bool:
    """Return whether overlapping steps share GPUs; where the version is not known they may not.

    >>> shares_gpus((22, 5)), shares_gpus((20, 11)), shares_gpus(None)
    (True, False, False)
    """
    return version is not None and version >= _SHARES_GPUS


def shell_argv(
    job_number: str, node: str, command: Sequence[str], *, terminal: bool, version: Version | None
) -> list[str]:
    """Run a command on one node of a running job, with the job's own CPUs, memory and GPUs.

    ``job_number`` is Slurm's own; an array's task has one too, since srun does not take 7_3. Where
    steps cannot share GPUs it gets none: it would wait for ever for those that the job uses.
    """
    argv = [*_overlapping(job_number, version), "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    return [*argv, *(["--pty"] if terminal else []), *command]


def overlap_argv(
    job_id: str, nodes: int, name: str, command: Sequence[str], version: Version | None
) -> list[str]:
    """Run a command once on each node of a running job, beside its steps.

    With --overlap and --mem=0 the step shares CPUs and memory. Before 22.05 it would hold the GPUs
    that it sees, and the job's own next step would wait for them: there it gets none, as where the
    version is not known. It is given up when it cannot begin within seconds, and never waits for a
    place in the job.
    """
    argv = [*_overlapping(job_id, version), f"--nodes={nodes}", f"--ntasks={nodes}"]
    argv += ["--ntasks-per-node=1", f"--job-name={name}", "--chdir=/", "--immediate=15"]
    return [*argv, *command]


def _overlapping(job: str, version: Version | None) -> list[str]:
    # No memory of its own: the job's steps may have all of it.
    argv = ["srun", f"--jobid={job}", "--overlap", "--mem=0", "--mpi=none", "--quiet"]
    return argv if shares_gpus(version) else [*argv, "--gres=none"]
