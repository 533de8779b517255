"""Following many files at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from hpcrun.controller.context import Context, load_context
from hpcrun.controller.state.foreign import ForeignStatus
from hpcrun.controller.watch.follow import Lines, State, follow
from hpcrun.controller.watch.watched import Status, Watched
from hpcrun.logs.files import LogFile
from hpcrun.runs.verdict import Verdict


class Sweep(Watched):
    """Tasks with thousands of ranks, all over at the second look."""

    def __init__(self, context: Context, folder: Path) -> None:
        super().__init__(context, [0.0])
        self.folder = folder
        self.looks = 0

    def files(self) -> list[LogFile]:
        """Made anew each time, as by reading the folders."""
        return [LogFile(self.folder / f"rank-{rank}.log", rank=rank) for rank in range(3000)]

    def _ask(self, context: Context) -> Iterator[tuple[str, Status]]:
        self.looks += 1
        verdict = Verdict(state="COMPLETED", final=self.looks > 1, source="squeue")
        yield "7", ForeignStatus(job_id="7", verdict=verdict, queue=None, account=None)

    def _look_around(self, now: float) -> None:
        self._pace.news(now)


def test_thousands_of_files_are_told_apart_at_once(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    context = load_context(clean_environ, tmp_path)
    (tmp_path / "rank-2999.log").write_text("last\n")
    begun = time.process_time()
    events = list(follow(Sweep(context, tmp_path), sleep=lambda _: None))
    lines = [event.data for event in events if isinstance(event, Lines)]
    assert lines == [b"last\n"] and isinstance(events[-1], State)
    # Each compared with each: six seconds and more.
    assert time.process_time() - begun < 3
