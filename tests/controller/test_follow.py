"""Following many files at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcrun.controller.state.foreign import ForeignStatus
from hpcrun.controller.watch.follow import Lines, State, follow
from hpcrun.controller.watch.watched import Status
from hpcrun.logs.files import LogFile
from hpcrun.runs.verdict import Verdict
from hpcrun.transport import Transport
from hpcrun.transport.local import LocalTransport


class Sweep:
    """Tasks with thousands of ranks, all over at the second look."""

    def __init__(self, folder: Path) -> None:
        self.transport: Transport = LocalTransport({})
        self.folder = folder
        self.looks = 0

    @property
    def statuses(self) -> Sequence[Status]:
        verdict = Verdict(state="COMPLETED", final=self.looks > 1, source="squeue")
        return [ForeignStatus(job_id="7", verdict=verdict, queue=None, account=None)]

    def files(self) -> list[LogFile]:
        """Made anew each time, as by reading the folders."""
        return [LogFile(self.folder / f"rank-{rank}.log", rank=rank) for rank in range(3000)]

    def look(self) -> list[Status]:
        self.looks += 1
        return list(self.statuses)

    def heard(self, file: LogFile, data: bytes | None) -> None:
        pass

    def settle(self, sleep: Callable[[float], None]) -> None:
        pass

    def attempt_line(self, file: LogFile) -> str:
        return ""


def test_thousands_of_files_are_told_apart_at_once(tmp_path: Path) -> None:
    (tmp_path / "rank-2999.log").write_text("last\n")
    begun = time.process_time()
    events = list(follow(Sweep(tmp_path), sleep=lambda _: None))
    lines = [event.data for event in events if isinstance(event, Lines)]
    assert lines == [b"last\n"] and isinstance(events[-1], State)
    # Each compared with each: six seconds and more.
    assert time.process_time() - begun < 3
