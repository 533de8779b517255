"""srun: a step beside those of a running job, that takes nothing from them.

Pure.
"""

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
    if version is None or version < _SHARES_GPUS:
        argv.append("--gres=none")
    return [*argv, *words]
