"""srun: a shell, or a command, on one node of a running job.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

# From this version on a step with --overlap shares GPUs too (Slurm 22.05, RELEASE_NOTES).
_SHARES_GPUS = (22, 5)


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
