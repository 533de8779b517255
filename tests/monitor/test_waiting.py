"""Reasons why jobs wait."""

from __future__ import annotations

import time
from pathlib import Path

from hpcrun.context import load_context
from hpcrun.monitor.waiting import add_wait_reasons
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import History
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.jobs import SlurmJob


def test_pending_reasons_of_a_large_sweep_are_explained_quickly(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    waits = Verdict(state="PENDING", reason="Resources", source="squeue")
    statuses = [
        JobStatus(
            job_id=f"7_{index}",
            run=RunFolder(tmp_path),
            history=History(run_id="same"),
            verdict=waits,
            job=SlurmJob(job_id=f"7_{index}", source="squeue", state="PENDING", reason="Resources"),
        )
        for index in range(5000)
    ]
    context = load_context(clean_environ, tmp_path)
    begun = time.process_time()
    explained = add_wait_reasons(context, statuses)
    assert time.process_time() - begun < 5
    assert all(status.why is not None for status in explained)
