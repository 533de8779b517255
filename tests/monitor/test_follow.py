"""Following many files at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.actions.logs import JobLogs, Lines
from hpcrun.context import load_context
from hpcrun.logs.files import LogFile
from hpcrun.monitor.poll import Monitor, Snapshot
from hpcrun.runs.records import History
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Verdict


class TwoLooks(Monitor):
    """A job that is over at the second look."""

    looks = 0

    def poll(self, *, last: bool = False) -> Snapshot:
        self.looks += 1
        verdict = Verdict(state="COMPLETED", final=self.looks > 1, source="squeue")
        status = JobStatus(job_id="7", history=History(run_id="7"), verdict=verdict)
        return Snapshot(statuses=[status], changed=[status], is_over=self.looks > 1)


class ManyRanks(JobLogs):
    """The logs of thousands of ranks."""

    folder: Path

    def files(self) -> list[LogFile]:
        """List the files."""
        return [LogFile(self.folder / f"rank-{rank}.log", rank=rank) for rank in range(3000)]


class TwoRuns(JobLogs):
    """Two runs of a sweep; one is started again while it is followed."""

    folder: Path

    def files(self) -> list[LogFile]:
        """List what is there."""
        there = sorted(self.folder.glob("*-*"))
        names = [path.name.split("-") for path in there]
        return [
            LogFile(path, int(attempt), rank=0, job_id=job)
            for path, (attempt, job) in zip(there, names, strict=True)
        ]


def test_new_attempt_makes_only_its_own_run_read(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    logs = TwoRuns(load_context(clean_environ, tmp_path))
    logs.folder = tmp_path
    logs.monitor = TwoLooks(load_context(clean_environ, tmp_path), [])
    for name in ("0-a", "0-b"):
        (tmp_path / name).touch()
    events = logs.follow(sleep=lambda _: None)
    assert isinstance(next(events), JobStatus)
    for name in ("0-a", "0-b", "1-a"):
        (tmp_path / name).write_text(f"{name}\n")
    shown = [
        each.heading[:9] or each.data.decode().strip() for each in events if isinstance(each, Lines)
    ]
    assert shown == ["0-a", "attempt 1", "1-a", "0-b"]


@pytest.mark.slow
def test_thousands_of_files_are_compared_quickly(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    context = load_context(clean_environ, tmp_path)
    (tmp_path / "rank-2999.log").write_text("last\n")
    logs = ManyRanks(context)
    logs.monitor = TwoLooks(context, [])
    logs.folder = tmp_path
    begun = time.process_time()
    events = list(logs.follow(sleep=lambda _: None))
    lines = [event.data for event in events if isinstance(event, Lines)]
    assert lines == [b"last\n"] and isinstance(events[-1], JobStatus)
    # A pairwise comparison takes more than six seconds.
    assert time.process_time() - begun < 3
