"""What the message of a failed Slurm command means: a refusal, an unknown job, or no answer."""

from __future__ import annotations

import re

from hpcrun.patterns import pattern_of

# Texts of slurm_strerror (src/common/slurm_errno.c) and of the client library when the
# controller, the database or munge gives no answer.
_SILENCE = pattern_of(
    r"Unable to contact slurm controller"
    r"|Socket timed out"
    r"|Zero Bytes were transmitted"
    r"|Connection (refused|timed out|reset)"
    r"|Unable to establish (control machine|controller)"
    r"|slurm_persist_conn_open_without_init"
    r"|Problem talking to (the )?database"
    r"|Unable to connect to (the )?database"
    r"|(in standby|backup) mode"
    r"|fetch_config|Could not establish a configuration source"
    r"|(Insane|Incomplete) message"
    r"|Transport endpoint"
    r"|Unable to process configuration file"
    r"|Munge encode failed|Protocol authentication error"
    r"|No route to host",
    re.IGNORECASE,
)
_UNKNOWN_JOB = pattern_of(r"Invalid job id|Invalid job array", re.IGNORECASE)

# What to do about a refusal: the text of the answer -> the fix.
_FIXES = [
    (r"invalid partition", "name a partition of this cluster: sinfo lists them"),
    (
        r"invalid account|account/partition combination",
        "name your account: --account, or account: in hpcrun.yaml "
        "(sacctmgr show assoc user=$USER lists yours)",
    ),
    (r"time limit", "ask for less time: --time, or resources.time"),
    (r"--time specification", "write the time as 90 (minutes), 24:00:00 or 2-12 (days-hours)"),
    (
        r"feature specification",
        "no node has this feature: check slurm.constraint and the profile's gpu_types against "
        "sinfo -o '%P %f'",
    ),
    (r"reservation", "name a reservation that you may use: scontrol show reservation lists them"),
    (
        # 24.11 and later; before, Slurm took an unknown job for one that has ended well.
        r"dependency",
        "Slurm does not know the job to wait for (any more): submit without --after, or name "
        "another job",
    ),
    (
        r"node configuration is not available|invalid generic resource|invalid gres",
        "no node has what the job asks for, or too few have it: check resources.nodes, "
        "gpus_per_node, gpu_type, cpus_per_gpu and memory_per_node against "
        "sinfo -o '%P %D %G %c %m'",
    ),
    (
        r"node count",
        "check resources.nodes against the partition's limits: scontrol show partition",
    ),
    (
        r"job array specification",
        "a sweep has more runs than this Slurm takes in an array (scontrol show config: "
        "MaxArraySize): submit it in parts",
    ),
    (r"qos", "your QOS does not allow this: sacctmgr show qos lists the limits"),
]


def is_silence(stderr: str) -> bool:
    """Return whether the command got no answer, so that nothing is known.

    >>> is_silence("sbatch: error: Batch job submission failed: Socket timed out on send/recv")
    True
    >>> is_silence("sbatch: error: invalid partition specified: x")
    False
    """
    return bool(_SILENCE.search(stderr))


def was_never_sent(stderr: str) -> bool:
    """Return whether a request without an answer cannot have arrived: no connection, no munge.

    >>> was_never_sent("Unable to contact slurm controller (connect failure)")
    True
    >>> was_never_sent("Socket timed out on send/recv operation")
    False
    """
    causes = (
        "connect failure",
        "Munge encode failed",
        "Unable to process configuration file",
        "Could not establish a configuration source",
    )
    return any(cause in stderr for cause in causes)


def is_unknown_job(stderr: str) -> bool:
    """Return whether Slurm answered that it knows no such job (any more).

    >>> is_unknown_job("slurm_load_jobs error: Invalid job id specified")
    True
    """
    return bool(_UNKNOWN_JOB.search(stderr))


def refusal_fix(stderr: str) -> str:
    """Return what to change after a refusal; "" where Slurm's message has to be enough.

    >>> refusal_fix("sbatch: error: invalid partition specified: x")
    'name a partition of this cluster: sinfo lists them'
    """
    return next((fix for text, fix in _FIXES if re.search(text, stderr, re.IGNORECASE)), "")
