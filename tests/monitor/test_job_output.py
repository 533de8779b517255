"""File names of the output of jobs that hpcrun did not submit.

The names of the files are those that Slurm 22.05 wrote; tests/cluster/test_logs.py repeats it.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hpcrun.monitor.job_output import JobOutput
from hpcrun.slurm.jobs import SlurmJob

JOB: dict[str, Any] = {
    "source": "scontrol",
    "state": "RUNNING",
    "user": "root",
    "name": "wrap",
    "node_list": "vm",
}
ONE = SlurmJob(job_id="1035731", number="1035731", **JOB)
TASK = SlurmJob(job_id="1035739_3", number="1035740", **JOB)


@pytest.mark.parametrize(
    ("job", "shown", "written"),
    [
        (ONE, "/o/a-%8j.txt", "/o/a-01035731.txt"),
        (ONE, "/o/c-%n-%N.txt", "/o/c-0-vm.txt"),
        (ONE, "/o/d-%3n-%J.txt", "/o/d-000-1035731.txt"),
        (ONE, "/o/e-%5A_%3a.txt", "/o/e-1035731_4294967294.txt"),
        (ONE, "/o/f-%s-%12t.txt", "/o/f-batch-0000000000.txt"),
        (ONE, "/o/g-%10u-%9x.txt", "/o/g-root-wrap.txt"),
        (ONE, "/o/plain-50%.txt", "/o/plain-50%.txt"),
        (TASK, "/o/arr-%8A_%4a-%6j.txt", "/o/arr-01035739_0003-1035740.txt"),
    ],
)
def test_fields_that_scontrol_leaves_are_filled(job: SlurmJob, shown: str, written: str) -> None:
    output = JobOutput(job.job_id)
    output.jobs = [structs.replace(job, stdout=shown, stderr=shown)]
    assert [str(file.path) for file in output.files()] == [written]
