"""scontrol show job: how a job stands and where its output goes, in one answer."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.slurm.scontrol import value_of
from hpcrun.slurm.states import parse_exit_code, parse_state


class JobOutput(Struct, frozen=True, kw_only=True):
    """A job, or a task of an array by its id as 7_3; what waits of an array is one, as 7_[4-6].

    ``stdout`` and ``stderr`` are the same file unless the job asked for two; "" where the job has
    none (an salloc). ``restarts`` counts requeues; ``exit_code`` is 0 until the job is over.
    """

    job_id: str
    state: str
    reason: str
    exit_code: int | None
    restarts: int
    nodes: str
    stdout: str
    stderr: str

    @property
    def task(self) -> str:
        """The task's number in its array; "" for other jobs."""
        return self.job_id.partition("_")[2]


def parse_job_outputs(text: str) -> list[JobOutput]:
    """Read the answer of ``scontrol --oneliner show job``; what is no job is left out.

    >>> text = "JobId=9 ArrayJobId=7 ArrayTaskId=3 JobName=a JobState=RUNNING Reason=None "
    >>> text += "Restarts=1 ExitCode=0:0 NodeList=n1 StdErr=/a b.err StdIn=/x StdOut=/o"
    >>> job = parse_job_outputs(text)[0]
    >>> job.job_id, job.state, job.restarts, job.nodes, job.stderr
    ('7_3', 'RUNNING', 1, 'n1', '/a b.err')
    """
    records = re.split(r"(?m)^(?=JobId=)", text)
    return [_job(record) for record in records if value_of(record, "JobId")]


def _job(record: str) -> JobOutput:
    job_id = value_of(record, "JobId").split()[0]
    array, task = value_of(record, "ArrayJobId"), value_of(record, "ArrayTaskId")
    if array and task:
        job_id = f"{array}_{task}" if task.isdigit() else f"{array}_[{task}]"
    reason = value_of(record, "Reason")
    restarts = value_of(record, "Restarts")
    nodes = value_of(record, "NodeList")
    return JobOutput(
        job_id=job_id,
        state=parse_state(value_of(record, "JobState").split(" ")[0]),
        reason="" if reason in ("None", "NonZeroExitCode") else reason.split(" ")[0],
        exit_code=parse_exit_code(value_of(record, "ExitCode")),
        restarts=int(restarts) if restarts.isdigit() else 0,
        nodes="" if nodes == "(null)" else nodes,
        stdout=_path(record, "StdOut"),
        stderr=_path(record, "StdErr") or _path(record, "StdOut"),  # 26.05: empty where it is one
    )


def _path(record: str, key: str) -> str:
    found = value_of(record, key)
    return found if found.startswith("/") else ""
