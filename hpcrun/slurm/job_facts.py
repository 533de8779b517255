"""scontrol show job: what a job that hpcrun did not submit asked for, and where its output goes.

Pure.
"""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.slurm.scontrol import parse_stderr_path, parse_stdout_path


class JobFacts(Struct, frozen=True, kw_only=True):
    """What squeue and sacct do not tell of a job; "" and None where Slurm does not say.

    ``gpus`` are of all nodes. ``part`` is the number of a part of a heterogeneous job, else "".
    """

    job_id: str
    user: str = ""
    account: str = ""
    qos: str = ""
    nodes: str = ""
    cpus: str = ""
    gpus: int | None = None
    part: str = ""
    command: str = ""
    stdout: str = ""
    stderr: str = ""


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
    job_id = f"{array}_{task}" if array and task.isdigit() else _word(record, "JobId")
    allocated = _word(record, "AllocTRES")  # 23.02 and later; before there was one TRES
    tres = allocated if "=" in allocated else _word(record, "ReqTRES") or _word(record, "TRES")
    # Models stand beside their sum: gres/gpu=4,gres/gpu:a100=4.
    gpus = re.search(r"gres/gpu=(\d+)", tres)
    models = [int(count) for count in re.findall(r"gres/gpu:[^=,]+=(\d+)", tres)]
    command = re.search(r" Command=(.*?)(?: [A-Z][A-Za-z/:]*=|\s*$)", record, re.DOTALL)
    return JobFacts(
        job_id=job_id,
        user=_word(record, "UserId").partition("(")[0],
        account=_word(record, "Account"),
        qos=_word(record, "QOS"),
        nodes=_word(record, "NumNodes"),
        cpus=_word(record, "NumCPUs"),
        gpus=int(gpus[1]) if gpus else sum(models) if models else None,
        part=_word(record, "HetJobOffset"),
        command=command[1] if command and command[1] != "(null)" else "",
        stdout=parse_stdout_path(record) or "",
        stderr=parse_stderr_path(record) or "",
    )


def _word(record: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S+)", record)
    return found[1] if found and found[1] != "(null)" else ""
