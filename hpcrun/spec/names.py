"""Names with a meaning of their own: hpcrun's variables and sbatch options, and planned words.

Pure.
"""

from __future__ import annotations

import re

# The rendezvous and the ranks are hpcrun's business: a value of the user's would split the job.
OWNED_VARIABLES = r"HPCRUN_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT"

# sbatch options that restate a field: the field is the place to say them, or the plan and the
# directive would disagree. ``false`` drops the line, for sites that forbid it.
SAID_ELSEWHERE = {
    "account": "resources.account",
    "cpus-per-task": "resources.cpus_per_gpu",
    "gpus": "resources.gpus_per_node",
    "gpus-per-node": "resources.gpus_per_node",
    "gpus-per-socket": "resources.gpus_per_node",
    "gpus-per-task": "resources.gpus_per_node",
    "gres": "resources.gpus_per_node",
    "partition": "resources.partition",
    "time": "resources.time",
}

# sbatch options that follow from fields, or that hpcrun needs as they are to find its runs.
DECIDED = {
    "job-name": "name",
    "nodes": "resources.nodes",
    "ntasks": "resources.gpus_per_node",
    "ntasks-per-node": "resources.gpus_per_node",
    "array": "",
    "chdir": "",
    "clusters": "",
    "error": "",
    "input": "",
    "open-mode": "",
    "output": "",
    "parsable": "",
    "quiet": "",
    "signal": "",
    "test-only": "",
    "wait": "",
    "wrap": "",
}

# Words of the design that no type has yet, by class and key.
PLANNED_KEYS = {"Cluster": {"host"}}


def is_owned_variable(name: str) -> bool:
    """Tell whether hpcrun itself sets this environment variable.

    >>> is_owned_variable("MASTER_PORT"), is_owned_variable("HPCRUN_X"), is_owned_variable("X")
    (True, True, False)
    """
    return re.fullmatch(OWNED_VARIABLES, name) is not None
