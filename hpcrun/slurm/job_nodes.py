"""The nodes of a job and what it has on each: GPUs, else tasks."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.slurm.nodelist import expand
from hpcrun.slurm.states import parse_state


class JobNodes(Struct, frozen=True, kw_only=True):
    """A job's nodes, in Slurm's order; none while it waits.

    ``slots`` has the job's GPUs on each node, or its tasks where it has no GPUs; it is empty where
    Slurm does not tell.
    """

    job_id: str
    state: str
    reason: str = ""
    hosts: list[str] = []
    slots: list[int] = []


def show_job_nodes_argv(job_id: str) -> list[str]:
    """Ask slurmctld for a job with the details of each node."""
    return ["scontrol", "--details", "show", "job", job_id]


def parse_job_nodes(text: str) -> list[JobNodes]:
    r'''Read ``scontrol --details show job``: a job, or all tasks of an array or parts of a job.

    Every key that is read begins a line or follows one that holds no free text.

    >>> text = """JobId=7 JobName=x
    ...    JobState=RUNNING Reason=None Dependency=(null)
    ...    NodeList=n[1-2]
    ...    NumNodes=2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
    ...      Nodes=n1 CPU_IDs=1-2 Mem=4000 GRES=gpu:a100:2(IDX:1-2)
    ...      Nodes=n2 CPU_IDs=1 Mem=2000 GRES=gpu:a100:1(IDX:1)
    ... """
    >>> parse_job_nodes(text)[0].slots
    [2, 1]
    '''
    return [_parse_one(record) for record in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)[1:]]


def _parse_one(record: str) -> JobNodes:
    head = record.partition("\n")[0]
    node_list = _value(r"^ +NodeList=(\S+)", record)
    hosts = [] if node_list == "(null)" else expand(node_list)
    return JobNodes(
        job_id=_job_id(head),
        state=parse_state(_value(r"^ +JobState=(\S+)", record)),
        reason=_value(r"^ +JobState=\S+ Reason=(\S+)", record),
        hosts=hosts,
        slots=_slots(record, hosts) if hosts else [],
    )


def _value(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""


def _job_id(head: str) -> str:
    """Name the job as Slurm's commands take it: 7, 5_1 for a task, 6+1 for a part."""
    if task := re.match(r"JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=(\S+)", head):
        return f"{task[1]}_{task[2]}"
    if part := re.match(r"JobId=\d+ HetJobId=(\d+) HetJobOffset=(\d+)", head):
        return f"{part[1]}+{part[2]}"
    return _value(r"^JobId=(\d+)", head)


def _slots(record: str, hosts: list[str]) -> list[int]:
    cpus, gpus = dict[str, int](), dict[str, int]()
    lines = re.findall(
        r"^ +Nodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(.*)$", record, flags=re.MULTILINE
    )
    for nodes, ids, gres in lines:
        for host in expand(nodes):
            cpus[host] = cpus.get(host, 0) + _count_ids(ids)
            gpus[host] = gpus.get(host, 0) + count_gpus(gres)
    if any(gpus.values()):
        return [gpus.get(host, 0) for host in hosts]
    # AllocTRES since 23.02, below a ReqTRES that may say another number; before it was TRES.
    tres = _value(r"^ +(?:Alloc)?TRES=(\S+)", record)
    total = count_gpus(_value(r"^ +JOB_GRES=(\S+)", record)) or count_tres_gpus(tres)
    if total:
        # Of a job that has ended Slurm keeps the sum alone; --gpus-per-node says it is even.
        is_even = len(hosts) == 1 or count_gpus(_value(r"^ +TresPerNode=(\S+)", record)) > 0
        return [total // len(hosts)] * len(hosts) if is_even else []
    return _tasks(record, [cpus.get(host, 0) for host in hosts])


def _count_ids(text: str) -> int:
    """Count the CPUs of ``0-3,8``."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)


def count_gpus(gres: str) -> int:
    """Count the GPUs, of all types, in a list of generic resources.

    >>> count_gpus("gpu:a100:4(IDX:0-3),gpu:v100:2(IDX:0,2),shard:8"), count_gpus("gres/gpu:1")
    (6, 1)
    >>> count_gpus("(null)"), count_gpus("gres:gpu:h100:8"), count_gpus("gpu")
    (0, 8, 1)
    """
    total = 0
    for word in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = re.split(r"[:=]", re.sub(r"^gres[:/]", "", word))
        if name == "gpu":
            # Behind the name stand a type, a count or both; a type may be a number (4090).
            total += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return total


def count_tres_gpus(text: str) -> int:
    """Count the GPUs in a list of trackable resources.

    Types are listed beside the sum: ``gres/gpu=4,gres/gpu:a100=4``.

    >>> count_tres_gpus("cpu=8,mem=16G,node=2,gres/gpu=4,gres/gpu:a100=4")
    4
    """
    return int(_value(r"\bgres/gpu=(\d+)", text) or 0)


def _tasks(record: str, cpus: list[int]) -> list[int]:
    """Tell the tasks of each node, where what Slurm shows leaves no choice."""
    tasks = int(_value(r"^ +NumNodes=.* NumTasks=(\d+)", record) or 0)
    if len(cpus) == 1:
        return [tasks] if tasks else []
    each = int(_value(r"\bNtasksPerN:B:S:C=(\d+):", record) or 0)
    if each * len(cpus) == tasks > 0:  # beside --ntasks it is but a limit
        return [each] * len(cpus)
    if tasks == len(cpus):
        return [1] * len(cpus)
    cpus_per_task = int(_value(r"^ +NumNodes=.* CPUs/Task=(\d+)", record) or 1)
    by_cpus = [count // max(1, cpus_per_task) for count in cpus]
    return by_cpus if sum(by_cpus) == tasks else []


def sacct_nodes_argv(job_id: str) -> list[str]:
    """Ask the accounting for the nodes of a job that slurmctld has forgotten."""
    return [
        "sacct",
        "--allocations",
        "--noheader",
        "--parsable2",
        "--format=JobID,State,NodeList,AllocTRES",
        f"--jobs={job_id}",
    ]


def parse_sacct_nodes(stdout: str) -> list[JobNodes]:
    """Read ``sacct``'s rows; they have the sum of a job's GPUs, so slots for one node alone.

    >>> parse_sacct_nodes("7|COMPLETED|n1|cpu=2,gres/gpu=2,node=1\\n")[0].slots
    [2]
    """
    found = []
    for line in stdout.splitlines():
        fields = line.split("|")
        if len(fields) == 4:
            job_id, state, node_list, tres = fields
            is_placed = node_list not in ("", "None assigned", "(null)")
            hosts = expand(node_list) if is_placed else []
            gpus = count_tres_gpus(tres)
            slots = [gpus] if len(hosts) == 1 and gpus else []
            found.append(
                JobNodes(job_id=job_id, state=parse_state(state), hosts=hosts, slots=slots)
            )
    return found
