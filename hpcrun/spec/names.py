"""Names with a meaning of their own: hpcrun's variables and sbatch options, and planned words."""

from __future__ import annotations

import re

# The rendezvous and the ranks are hpcrun's business: a value of the user's would split the job.
OWNED_VARIABLES = r"HPCRUN_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT"

# sbatch options that restate a field: the field is the place to say them, or the plan and the
# directive would disagree. ``false`` drops the line, for sites that forbid it.
SAID_ELSEWHERE = {
    "account": "resources.account",
    "cpus-per-gpu": "resources.cpus_per_gpu",
    "cpus-per-task": "resources.cpus_per_gpu",
    "gpus": "resources.gpus_per_node",
    "gpus-per-node": "resources.gpus_per_node",
    "gpus-per-socket": "resources.gpus_per_node",
    "gpus-per-task": "resources.gpus_per_node",
    "gres": "resources.gpus_per_node",
    "ntasks-per-gpu": "resources.gpus_per_node",
    "ntasks-per-node": "resources.gpus_per_node",
    "partition": "resources.partition",
    "time": "resources.time",
    "tres-per-task": "resources.gpus_per_node",
}

# The same, but hpcrun cannot do without the line.
SAID_ONLY_ELSEWHERE = {
    "job-name": "name",
    "nodes": "resources.nodes",
    "ntasks": "resources.gpus_per_node",
}

# sbatch options that no job can have here, and why, or what to do instead.
_LOGS = "what the job prints is in its run's logs, where hpcrun logs finds it"
_QUIET = "hpcrun reads sbatch's answer itself"
_PRINTS = "it prints something, and submits nothing"
_ALL_GPUS = "a rank must see all GPUs of its node, or NCCL finds no way between them"
REFUSED = {
    "array": "a job of many runs is a sweep, as in sweep: {lr: [1e-4, 3e-4]}",
    "chdir": "Slurm's folder of a job is its run's, by which hpcrun finds it; the script starts in "
    "the project",
    "clusters": "hpcrun asks one Slurm about its runs: write a profile for each (slurm_conf)",
    "error": _LOGS,
    "gpu-bind": _ALL_GPUS,
    "help": _PRINTS,
    "input": "a batch job has nothing to read; args and env reach the script",
    "no-kill": "the ranks that are left would wait for the lost one for ever",
    "open-mode": "it is append: a requeued attempt must not wipe the log before it",
    "output": _LOGS,
    "parsable": _QUIET,
    "quiet": _QUIET,
    "signal": "hpcrun does not pass signals on to the script yet: it would only end the job",
    "test-only": "hpcrun submit --test-only",
    "tres-bind": _ALL_GPUS,
    "usage": _PRINTS,
    "version": _PRINTS,
    "wait": "hpcrun submit --wait",
    "wrap": "a command is a job of its own: hpcrun submit -- COMMAND",
}

# What a profile's ``rename`` can say hpcrun's own options as (plan.directives has the grammar).
RENAMES = {
    "gres": ("gpus-per-node", "gpus"),
    "mem": ("mem-per-cpu", "mem-per-gpu"),
    "cpus-per-task": ("cpus-per-gpu",),
    "ntasks-per-node": ("ntasks",),
    "constraint": ("prefer",),
}

# Words of the design that no type has yet, by class and key.
PLANNED_KEYS = {"Cluster": {"host"}}


def is_owned_variable(name: str) -> bool:
    """Tell whether hpcrun itself sets this environment variable.

    >>> is_owned_variable("MASTER_PORT"), is_owned_variable("HPCRUN_X"), is_owned_variable("X")
    (True, True, False)
    """
    return re.fullmatch(OWNED_VARIABLES, name) is not None
