"""Waiting for many runs: query frequency, and the events that end the wait."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hpcrun.context import Context, load_context
from hpcrun.errors import InputError, OutOfReach
from hpcrun.monitor import poll as monitor
from hpcrun.monitor.poll import (
    MAX_FILE_DELAY_S,
    MAX_QUERY_BURST,
    MIN_QUERY_TIMEOUT_S,
    Monitor,
    WatchedRuns,
    WatchedSlurmJobs,
    poll_all,
)
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import History, read_history
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import LOST, Verdict
from hpcrun.slurm.states import is_final


class World:
    """A clock that moves when somebody sleeps, and a Slurm that says what it is told to."""

    def __init__(self, folder: Path, count: int) -> None:
        self.now = 0.0
        self.runs = [RunFolder(folder / f"20261121-0000{n:02}-a-{n:04}") for n in range(count)]
        for run in self.runs:
            run.attempts.mkdir(parents=True)
            run.logs.mkdir()
        self.states = dict.fromkeys(self.runs, "PENDING")
        self.asked: list[tuple[float, list[RunFolder]]] = []
        self.events: list[tuple[float, Callable[[], None]]] = []
        # Of jobs that hpcrun did not submit: states by id, or what is wrong with Slurm.
        self.others: dict[str, str] | OutOfReach = {}
        self.with_ended: list[bool] = []
        # Response time of Slurm; no query exceeds the caller's limit.
        self.slow = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()

    def at(self, when: float, happens: Callable[[], None]) -> None:
        self.events.append((when, happens))

    def status_of(self, context: Context, runs: Sequence[RunFolder]) -> list[JobStatus]:
        self.asked.append((self.now, list(runs)))
        is_silent = self.is_silent(context)
        return [self.status(run, "UNKNOWN" if is_silent else self.states[run]) for run in runs]

    def is_silent(self, context: Context) -> bool:
        """Advance the time of a reply; return True if the caller did not wait for it."""
        limit = self.now + self.slow if context.deadline is None else context.deadline
        self.now = min(self.now + self.slow, max(limit, self.now))
        return self.slow > 0 and self.now >= limit

    def status_of_jobs(
        self, context: Context, job_ids: Sequence[str], *, ended: bool
    ) -> dict[str, list[JobStatus]]:
        self.asked.append((self.now, []))
        self.with_ended.append(ended)
        if self.is_silent(context):
            raise OutOfReach("squeue did not respond", maybe_done=True)
        if isinstance(self.others, OutOfReach):
            raise self.others
        return {
            job_id: [
                JobStatus(
                    job_id=name,
                    history=History(run_id=name),
                    verdict=Verdict(state=state, final=is_final(state), source="squeue"),
                )
                for name, state in self.others.items()
                if name.partition("_")[0] == job_id
            ]
            for job_id in job_ids
        }

    def wait(
        self, context: Context, *, timeout: float | None = None, others: Sequence[str] = ()
    ) -> Iterator[JobStatus]:
        """Wait for the runs and other jobs; yield each report with its time."""
        end = None if timeout is None else self.now + timeout
        watched = Monitor(context, [WatchedRuns(self.runs), WatchedSlurmJobs(others)], deadline=end)
        yield from poll_all([watched], deadline=end, sleep=self.sleep)

    def status(self, run: RunFolder, state: str) -> JobStatus:
        final = state in ("COMPLETED", "FAILED")
        history = read_history(run)
        end = history.last.end if history.last else None
        verdict = Verdict(
            state=state, final=final, source="squeue", exit_code=end.exit_code if end else None
        )
        return JobStatus(run=run, history=history, verdict=verdict, job_id="7")

    def begin(self, run: RunFolder) -> None:
        (run.attempts / "0").mkdir()
        self.states[run] = "RUNNING"

    def end(self, run: RunFolder, code: int = 0) -> None:
        """Write the job's end record."""
        record = {"attempt": 0, "job_id": "7", "exit_code": code, "signal": None}
        record |= {"stopped_by": None, "first_failure": None, "begun_at": 1.0, "ended_at": 2.0}
        (run.attempts / "0" / "end.json").write_text(json.dumps(record))


@pytest.fixture
def context(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    return load_context(clean_environ, tmp_path)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    def made(count: int) -> World:
        world = World(tmp_path, count)
        monkeypatch.setattr(time, "monotonic", world.monotonic)
        monkeypatch.setattr(monitor, "status_of", world.status_of)
        monkeypatch.setattr(monitor, "status_of_jobs", world.status_of_jobs)
        return world

    return made


@pytest.mark.slow
def test_idle_wait_queries_slurm_twice_a_minute(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(5)
    shown = list(world.wait(context, timeout=1800))
    assert [status.verdict.state for status in shown] == ["PENDING"] * 5
    assert 50 <= len(world.asked) <= 2 * 30 + 2
    assert all(runs == world.runs for _, runs in world.asked)  # all at once
    assert 1800 <= world.now <= 1801


def test_end_is_detected_at_once_and_not_queried_again(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(2)
    first, second = world.runs
    world.runs.append(first)

    def over() -> None:
        world.end(first, 3)
        world.states[first] = "FAILED"

    world.at(100, lambda: world.begin(first))
    world.at(500, over)
    world.at(900, lambda: world.states.update({second: "COMPLETED"}))
    shown = []
    for status in world.wait(context):
        shown.append((status.run, status.verdict.state, status.verdict.exit_code, world.now))
    assert [each[:3] for each in shown] == [
        (first, "PENDING", None),
        (second, "PENDING", None),
        (first, "RUNNING", None),
        (first, "FAILED", 3),
        (second, "COMPLETED", None),
    ]
    assert [round(each[3], -1) for each in shown[2:4]] == [100, 500]  # within seconds of the news
    assert shown[4][3] <= 940  # no file shows that
    assert all(runs == [second] for when, runs in world.asked if when > 510)


def test_missing_data_is_no_end(make: Callable[[int], World], context: Context) -> None:
    world = make(1)
    (run,) = world.runs
    world.begin(run)
    world.at(60, lambda: world.states.update({run: "UNKNOWN"}))
    world.at(3000, lambda: world.states.update({run: "RUNNING"}))
    world.at(3050, lambda: world.states.update({run: "COMPLETED"}))
    shown = [(s.verdict.state, world.now) for s in world.wait(context)]
    assert [state for state, _ in shown] == ["RUNNING", "UNKNOWN", "RUNNING", "COMPLETED"]
    # A recovering Slurm catches up gradually, so it is queried again soon.
    back = shown[2][1]
    assert len([when for when, _ in world.asked if back <= when < back + 20]) >= 4


def test_the_end_record_may_come_late_or_never(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(20)
    for run in world.runs:
        world.begin(run)
        world.states[run] = "FAILED"
    world.at(2, lambda: world.end(world.runs[0], 9))
    shown = list(world.wait(context))
    codes = Counter(status.verdict.exit_code for status in shown)
    assert codes == {9: 1, None: 19}
    assert world.now <= MAX_FILE_DELAY_S + 1  # all are waited for together


def test_zero_timeout_queries_once(make: Callable[[int], World], context: Context) -> None:
    world = make(1)
    shown = list(world.wait(context, timeout=0))
    assert [status.verdict.state for status in shown] == ["PENDING"] and len(world.asked) == 1
    world.begin(world.runs[0])
    world.states[world.runs[0]] = "FAILED"
    shown = list(world.wait(context, timeout=0))
    assert [status.verdict.state for status in shown] == ["FAILED"], "late records or not"
    world.runs.clear()
    assert list(world.wait(context)) == []


@pytest.mark.slow
def test_many_short_runs_cost_few_queries(make: Callable[[int], World], context: Context) -> None:
    world = make(400)

    def over(run: RunFolder) -> None:
        world.begin(run)
        world.end(run)
        world.states[run] = "COMPLETED"

    for number, run in enumerate(world.runs):
        world.at(float(number), lambda run=run: over(run))  # type: ignore[misc]
    shown = list(world.wait(context))
    assert sum(status.verdict.ok for status in shown) == 400
    assert world.now < 400 + 40
    assert len(world.asked) <= MAX_QUERY_BURST + 4 * 440 / 60 + 2


def test_hanging_slurm_does_not_exceed_the_timeout(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(1)
    world.slow = 60.0
    shown = list(world.wait(context, timeout=20, others=["9"]))
    assert [status.verdict.state for status in shown] == ["UNKNOWN"] * 2 and world.now <= 20
    # A caller with zero timeout still gets a reply if one arrives quickly.
    begun = world.now
    assert [s.verdict.state for s in world.wait(context, timeout=0)] == ["UNKNOWN"]
    assert world.now == begun + MIN_QUERY_TIMEOUT_S
    world.slow = 1.0
    assert [s.verdict.state for s in world.wait(context, timeout=0)] == ["PENDING"]


def test_query_cut_off_by_the_timeout_is_ignored(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(1)
    (run,) = world.runs

    def begin() -> None:
        world.begin(run)
        world.slow = 60.0

    world.at(97, begin)
    shown = [status.verdict.state for status in world.wait(context, timeout=100)]
    assert shown == ["PENDING"] and world.now == 100


# ---- jobs that hpcrun did not submit


def test_tasks_are_reported_individually(make: Callable[[int], World], context: Context) -> None:
    world = make(0)
    world.others = {"9_[1-2]": "PENDING", "9_0": "RUNNING"}
    world.at(50, lambda: setattr(world, "others", {"9_0": "FAILED", "9_1": "RUNNING"}))
    world.at(100, lambda: setattr(world, "others", {"9_1": "COMPLETED", "9_2": "COMPLETED"}))
    shown = [(each.job_id, each.verdict.state) for each in world.wait(context, others=["9"])]
    assert shown == [
        ("9_[1-2]", "PENDING"),
        ("9_0", "RUNNING"),
        ("9_0", "FAILED"),
        ("9_1", "RUNNING"),
        ("9_1", "COMPLETED"),
        ("9_2", "COMPLETED"),
    ]


def test_forgotten_job_is_lost_and_unknown_job_is_an_error(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(0)
    world.others = {"9_0": "RUNNING", "9_1": "COMPLETED"}
    world.at(10, lambda: setattr(world, "others", OutOfReach("squeue: no")))
    world.at(100, lambda: setattr(world, "others", {}))
    shown = [(each.job_id, each.verdict.state) for each in world.wait(context, others=["9"])]
    assert shown == [("9_0", "RUNNING"), ("9_1", "COMPLETED"), ("9_0", "UNKNOWN"), ("9_0", LOST)]
    with pytest.raises(InputError, match="8: neither a run"):
        list(world.wait(context, others=["8"]))


def test_initial_query_failure_hides_no_task_and_no_unknown_job(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(0)
    world.others = OutOfReach("squeue: no")
    world.at(10, lambda: setattr(world, "others", {"9_0": "RUNNING", "9_1": "FAILED"}))
    world.at(50, lambda: setattr(world, "others", {"9_0": "COMPLETED", "9_1": "FAILED"}))
    watched = Monitor(context, [WatchedSlurmJobs(["9"])])
    shown = [
        (each.job_id, each.state) for each in poll_all([watched], deadline=99, sleep=world.sleep)
    ]
    assert shown == [("9", "UNKNOWN"), ("9_0", "RUNNING"), ("9_1", "FAILED"), ("9_0", "COMPLETED")]
    # Tasks that ended earlier are queried with the first reply, however late it arrives.
    assert world.with_ended[:2] == [True, True]
    world.others = OutOfReach("squeue: no")
    world.at(world.now + 10, lambda: setattr(world, "others", {}))
    with pytest.raises(InputError, match="8: neither a run"):
        list(world.wait(context, others=["8"]))
