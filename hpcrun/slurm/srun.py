"""srun: steps in a running job: a shell on one node, a command on all; and Slurm's version."""

from __future__ import annotations

import re
from collections.abc import Sequence

# From this version on a step with --overlap shares GPUs too (Slurm 22.05, RELEASE_NOTES).
_SHARES_GPUS = (22, 5)


def version_argv() -> list[str]:
    """Ask for Slurm's version, which srun knows by itself."""
    return ["srun", "--version"]


def parse_version(stdout: str) -> tuple[int, int] | None:
    """Read Slurm's version off srun's; None where it shows none.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 26.05.0-0rc1"), parse_version("?")
    ((22, 5), (26, 5), None)
    """
    found = re.search(r"(\d+)\.(\d+)", stdout)
    return (int(found[1]), int(found[2])) if found else None


def shares_gpus(version: tuple[int, int] | None) -> bool:
    """Tell whether overlapping steps share GPUs; where the version is not known they may not.

    >>> shares_gpus((22, 5)), shares_gpus((20, 11)), shares_gpus(None)
    (True, False, False)
    """
    return version is not None and version >= _SHARES_GPUS


def shell_argv(
    job_number: str,
    node: str,
    words: Sequence[str],
    *,
    terminal: bool,
    version: tuple[int, int] | None,
) -> list[str]:
    """Run a command on one node of a running job, with the job's own CPUs, memory and GPUs.

    ``job_number`` is Slurm's own; an array's task has one too, since srun does not take 7_3. Where
    steps cannot share GPUs it gets none: it would wait for ever for those that the job uses.
    """
    argv = ["srun", f"--jobid={job_number}", "--overlap", "--quiet", "--nodes=1"]
    # No memory of its own: the job's steps may have all of it.
    argv += ["--ntasks=1", f"--nodelist={node}", "--mem=0", "--mpi=none"]
    if not shares_gpus(version):
        argv.append("--gres=none")
    if terminal:
        argv.append("--pty")
    return [*argv, *words]


def beside_argv(
    job_id: str, nodes: int, name: str, words: Sequence[str], version: tuple[int, int] | None
) -> list[str]:
    """Run a command once on each node of a running job, beside its steps.

    With --overlap and --mem=0 the step shares CPUs and memory. Before 22.05 it would hold the GPUs
    that it sees, and the job's own next step would wait for them: there it gets none, as where the
    version is not known. It is given up when it cannot begin within seconds, and never waits for a
    place in the job.
    """
    argv = ["srun", f"--jobid={job_id}", "--overlap", "--mem=0", "--immediate=15", "--mpi=none"]
    argv += [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    argv += [f"--job-name={name}", "--chdir=/", "--quiet"]
    if not shares_gpus(version):
        argv.append("--gres=none")
    return [*argv, *words]
