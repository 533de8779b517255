"""scontrol show job: what a job that hpcrun did not submit asked for, and where its output goes."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.slurm.scontrol import value_of


class JobFacts(Struct, frozen=True, kw_only=True):
    """What squeue and sacct do not tell of a job; "" and None where Slurm does not say.

    ``job_id`` is 5_2 for a task of an array, 5+1 for a part of a heterogeneous job. ``gpus`` are
    of all nodes. ``exit_code`` is Slurm's ``code:signal``, 0:0 as long as the job is not over.
    """

    job_id: str
    user: str = ""
    account: str = ""
    qos: str = ""
    nodes: str = ""
    cpus: str = ""
    gpus: int | None = None
    command: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: str = ""


def parse_job_facts(text: str) -> list[JobFacts]:
    """Read ``scontrol --oneliner show job``: a job, each task of an array, or each part of a job.

    >>> text = "JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName=a UserId=me(7) Account=x QOS=q"
    >>> facts = parse_job_facts(text + " NumNodes=1 NumCPUs=4 TRES=cpu=4,gres/gpu=2 Command=/a b")
    >>> facts[0].job_id, facts[0].gpus, facts[0].command
    ('5_2', 2, '/a b')
    """
    return [_parse_one(record) for record in re.split(r"(?m)^(?=JobId=\d)", text) if record.strip()]


def _parse_one(record: str) -> JobFacts:
    array, task = _word(record, "ArrayJobId"), _word(record, "ArrayTaskId")
    het, part = _word(record, "HetJobId"), _word(record, "HetJobOffset")
    job_id = f"{array}_{task}" if array and task.isdigit() else _word(record, "JobId")
    job_id = f"{het}+{part}" if het and part else job_id
    allocated = _word(record, "AllocTRES")  # 23.02 and later; before there was one TRES
    tres = allocated if "=" in allocated else _word(record, "ReqTRES") or _word(record, "TRES")
    # Models stand beside their sum: gres/gpu=4,gres/gpu:a100=4.
    gpus = re.search(r"gres/gpu=(\d+)", tres)
    models = [int(count) for count in re.findall(r"gres/gpu:[^=,]+=(\d+)", tres)]
    command = value_of(record, "Command")
    return JobFacts(
        job_id=job_id,
        user=_word(record, "UserId").partition("(")[0],
        account=_word(record, "Account"),
        qos=_word(record, "QOS"),
        nodes=_word(record, "NumNodes"),
        cpus=_word(record, "NumCPUs"),
        gpus=int(gpus[1]) if gpus else sum(models) if models else _asked_gpus(record),
        command=command if command != "(null)" else "",
        stdout=value_of(record, "StdOut"),
        stderr=value_of(record, "StdErr") or value_of(record, "StdOut"),
        exit_code=_word(record, "ExitCode"),
    )


def _asked_gpus(record: str) -> int | None:
    """Without accounting of GPUs (AccountingStorageTRES) only what was asked for is told."""
    found = re.search(
        r"TresPer(Job|Node)=\S*?gres[:/]gpu[:=](?:[^:=,\s]*[a-z][^:=,\s]*[:=])?(\d+)", record
    )
    nodes = _word(record, "NumNodes").partition("-")[0]
    if found is None or not nodes.isdigit():
        return None
    return int(found[2]) * (int(nodes) if found[1] == "Node" else 1)


def _word(record: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S+)", record)
    return found[1] if found and found[1] != "(null)" else ""
