"""Slurm jobs that hpcrun did not submit, whose states are followed: Slurm alone knows them.

Never changes or cancels anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import ForeignStatus, ask_foreign, unknown_job
from hpcrun.controller.watch.watched import Watched
from hpcrun.errors import OutOfReach
from hpcrun.runs.verdict import LOST, Verdict
from hpcrun.slurm.states import UNKNOWN

# Such jobs have no files that would tell of their end: seconds between two questions after a state
# has changed.
SUCCESSION = (2.0, 4.0, 8.0, 15.0)
_FORGOTTEN = Verdict(
    state=LOST,
    final=True,
    source="squeue",
    reason="Slurm has forgotten the job: how it ended is not known",
)

Told = Mapping[str, Sequence[ForeignStatus]]


class WatchedJobs(Watched):
    """Jobs and arrays by their ids; an array's tasks are told one by one."""

    def __init__(
        self, context: Context, job_ids: Sequence[str], *, deadline: float | None = None
    ) -> None:
        """Take the ids; look() raises InputError for one that Slurm does not know at first."""
        super().__init__(context, SUCCESSION, deadline)
        self._jobs: dict[str, list[ForeignStatus]] = {job_id: [] for job_id in job_ids}
        self._is_first = True

    def _tell(self, context: Context, job_ids: Sequence[str], *, ended: bool) -> Told:
        """Ask Slurm; of a job that it does not know an empty list. Raises OutOfReach.

        ``ended``: those tasks too that are over so long that the accounting alone knows them.
        """
        return ask_foreign(context, job_ids, ended=ended)

    def _ask(self, context: Context) -> Iterator[tuple[str, ForeignStatus]]:
        live = [job_id for job_id, known in self._jobs.items() if _live(known) or not known]
        try:
            told = self._tell(context, live, ended=self._is_first)
            if not self._is_first and any(_vanished(self._jobs[each], told[each]) for each in live):
                told = self._tell(context, live, ended=True)
        except OutOfReach as silence:
            unknown = Verdict(state=UNKNOWN, final=False, source="squeue", reason=silence.message)
            for job_id in live:
                for status in _live(self._jobs[job_id]) or [_nothing_of(job_id)]:
                    yield status.job_id, structs.replace(status, verdict=unknown)
            return
        for job_id in live:
            if self._is_first and not told[job_id]:
                raise unknown_job(job_id)
        self._is_first = False
        for job_id in live:
            yield from self._taken(job_id, told[job_id])

    def _taken(
        self, job_id: str, told: Sequence[ForeignStatus]
    ) -> Iterator[tuple[str, ForeignStatus]]:
        """Take what was told of one job; what Slurm tells of no more keeps its end, or is lost."""
        known = self._jobs[job_id]
        names = {status.job_id for status in told}
        gone = _vanished(known, told) if told or known else [_nothing_of(job_id)]
        over = [each for each in known if each.verdict.final and each.job_id not in names]
        lost = [structs.replace(status, verdict=_FORGOTTEN) for status in gone]
        self._jobs[job_id] = [*over, *told, *lost]
        # Tasks that wait share a row, under a name that goes as they begin.
        for status in known:
            if "[" in status.job_id and status.job_id not in names:
                self._known.pop(status.job_id, None)
        if _states(known) != _states(self._jobs[job_id]):
            self._pace.hurry()
        for status in self._jobs[job_id]:
            yield status.job_id, status


def _live(known: Iterable[ForeignStatus]) -> list[ForeignStatus]:
    return [status for status in known if not status.verdict.final]


def _vanished(known: Sequence[ForeignStatus], told: Sequence[ForeignStatus]) -> list[ForeignStatus]:
    """What was live a while ago and is not told of any more; of an array that waits no row."""
    names = {status.job_id for status in told}
    return [
        each for each in _live(known)
        if each.job_id not in names and ("[" not in each.job_id or not told)
    ]  # fmt: skip


def _states(known: Sequence[ForeignStatus]) -> list[tuple[str, str]]:
    return [(status.job_id, status.verdict.state) for status in known]


def _nothing_of(job_id: str) -> ForeignStatus:
    """A job of which nothing is known yet."""
    return ForeignStatus(job_id=job_id, verdict=_FORGOTTEN, queue=None, account=None)
