"""A sweep as one row of a listing: how many of its runs are in which state."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hpcrun.controller.state.rows import Row
from hpcrun.controller.state.status import Answers, judge
from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.records import History, Submitted, Sweep, SweepSeen, Task, TaskEnd
from hpcrun.runs.store import (
    attempts_stamp,
    own_record,
    read_record,
    read_task_brief,
    record_of_task,
    write_record,
)
from hpcrun.runs.verdict import LOST, Verdict, is_over
from hpcrun.slurm.states import UNKNOWN, is_final

# A job that ended so long ago is not requeued any more: squeue has forgotten it (MinJobAge).
SETTLED = 86400.0


class SweepRow:
    """The runs of a sweep: Slurm tells their states, or they are remembered as over.

    Only what nobody knows is looked at in the runs' own folders: once, since it is remembered then.
    """

    def __init__(self, path: Path) -> None:
        """Read the sweep's own records. Raises HpcrunError."""
        self.folder = SweepFolder(path)
        seen = read_record(self.folder.seen, SweepSeen) if self.folder.seen.exists() else None
        self.seen = seen or SweepSeen(ends={})
        submitted = read_record(self.folder.submitted, Submitted)
        self.submitted = own_record(submitted, self.folder.sweep_id)
        record = read_record(self.folder.record, Sweep)
        self.name = record.name if record else self.folder.sweep_id
        self.tasks = record.tasks if record else 0

    @property
    def history(self) -> History:
        """What is known of the array itself, as of a run."""
        return History(run_id=self.folder.sweep_id, submitted=self.submitted)

    @property
    def is_settled(self) -> bool:
        """All runs have been over for so long that nothing can change any more."""
        ended_at = self.seen.ended_at
        return ended_at is not None and time.time() - ended_at > SETTLED

    @property
    def is_told(self) -> bool:
        """All runs are over, by Slurm's word: what a requeue would change squeue tells."""
        by_record = any(end.by_record for end in self.seen.ends.values())
        return self.seen.ended_at is not None and not by_record

    def row(self, answers: Answers | None) -> Row:
        """Make the row, by what the sweep's Slurm answered (None: it was not asked).

        Raises OSError, HpcrunError where a run's folder cannot be read.
        """
        submitted, silent = self.submitted, ""
        if self.is_settled:
            states = Counter(end.state for end in self.seen.ends.values())
        else:
            states, silent = self._find_states(answers)
        return Row(
            id=self.folder.sweep_id,
            run=None,
            sweep=self.folder,
            job_id=submitted.job_id if submitted else None,
            slurm_conf=submitted.slurm_conf if submitted else None,
            name=self.name,
            verdict=_of_all(states),
            submitted_at=submitted.submitted_at if submitted else None,
            nodes=submitted.nodes if submitted else None,
            gpus_per_node=submitted.gpus_per_node if submitted else None,
            states=dict(states),
            out_of_reach=silent,
        )

    def _find_states(self, answers: Answers | None) -> tuple[Counter[str], str]:
        """Count the runs by state; also why Slurm was silent where it was needed, else ""."""
        told = self._told(answers) if answers else {}
        states, silent = Counter[str](), ""
        ends: dict[str, TaskEnd] = {}
        for index in range(self.tasks):
            run, key = self.folder.run(index), str(index)
            known = self.seen.ends.get(key)
            stamp = attempts_stamp(run) if index not in told or is_final(told[index]) else 0
            end: TaskEnd | None = None
            if index in told:
                state = told[index]
                end = TaskEnd(state=state, stamp=stamp) if is_final(state) else None
            elif known is not None and known.stamp == stamp:
                state, end = known.state, known
            else:
                state, end, quiet = self._look_at(run, index, stamp, answers)
                silent = silent or quiet
            states[state] += 1
            if end is not None:
                ends[key] = end
        self._remember(ends)
        return states, silent

    def _told(self, answers: Answers) -> dict[int, str]:
        """The states that Slurm tells, by the numbers of the tasks: the queue's word goes first."""
        array = self.submitted.job_id if self.submitted else None
        tag = self.folder.path.name
        told: dict[int, str] = {}
        for account in answers.accounts.values():
            if Path(account.work_dir or tag).name == tag and is_final(account.state):
                told |= _of_task(array, account.job_id, account.state)
        for row in answers.rows.get(tag, ()):
            if row.state != UNKNOWN:
                told |= _of_task(array, row.job_id, row.state)
        return told

    def _look_at(
        self, run: RunFolder, index: int, stamp: int, answers: Answers | None
    ) -> tuple[str, TaskEnd | None, str]:
        """Find out about a run that Slurm does not show: state, end, and why Slurm is silent."""
        if answers is None:
            return UNKNOWN, None, ""
        task = Task(sweep_id=self.folder.sweep_id, index=index, values={})
        submitted = self.submitted and record_of_task(self.submitted, index)
        history = read_task_brief(run, task, submitted)
        status = judge(answers, run, history)
        verdict = status.verdict
        # A run that left no trace may yet show one, unless it never began.
        is_sure = verdict.state != LOST or not history.attempts
        if not verdict.final or status.out_of_reach or not is_sure:
            return verdict.state, None, status.out_of_reach
        end = TaskEnd(state=verdict.state, stamp=stamp, by_record=verdict.source == "record")
        return verdict.state, end, ""

    def _remember(self, ends: dict[str, TaskEnd]) -> None:
        """Keep the ends that are known; a sweep of somebody else's stays as it is."""
        ended_at = None
        if self.tasks and len(ends) == self.tasks:
            ended_at = self.seen.ended_at or time.time()
        seen = SweepSeen(ends=ends, ended_at=ended_at)
        if seen != self.seen:
            with contextlib.suppress(OSError, HpcrunError):
                self.folder.seen.parent.mkdir(exist_ok=True)
                write_record(self.folder.seen, seen)


def _of_task(array: str | None, job_id: str, state: str) -> dict[int, str]:
    """The task that a row is about, where it is one of the array; None: its id is not known.

    >>> _of_task("7", "7_3", "RUNNING"), _of_task("7", "7", "CANCELLED")
    ({3: 'RUNNING'}, {})
    """
    head, _, index = job_id.partition("_")
    return {int(index): state} if index.isdigit() and array in (head, None) else {}


def _of_all(states: Mapping[str, int]) -> Verdict:
    """One state for all runs of a sweep: the liveliest; of runs that are over the worst."""
    order = ("RUNNING", "COMPLETING", UNKNOWN, "PENDING")
    live = next((state for state in order if states.get(state)), None)
    live = live or next((state for state in states if not is_over(state)), None)
    if live is not None or not states:
        return Verdict(state=live or UNKNOWN, final=False, source="record")
    bad = [state for state in states if state != "COMPLETED"]
    worst = max(bad, key=lambda state: states[state], default="COMPLETED")
    return Verdict(state=worst, final=True, source="record")
