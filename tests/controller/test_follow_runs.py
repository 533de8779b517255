"""Waiting for many runs: how often Slurm is asked, what ends it, and what does not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpcrun.controller.context import Context, load_context
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.watch import follow_runs as module
from hpcrun.controller.watch.follow_runs import follow_runs
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import read_history
from hpcrun.runs.verdict import Verdict


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

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()

    def at(self, when: float, happens: Callable[[], None]) -> None:
        self.events.append((when, happens))

    def status_of(self, context: Context, runs: Sequence[RunFolder]) -> list[RunStatus]:
        self.asked.append((self.now, list(runs)))
        return [self.status(run) for run in runs]

    def status(self, run: RunFolder) -> RunStatus:
        state = self.states[run]
        final = state in ("COMPLETED", "FAILED")
        history = read_history(run)
        end = history.last.end if history.last else None
        verdict = Verdict(
            state=state, final=final, source="squeue", exit_code=end.exit_code if end else None
        )
        return RunStatus(
            run=run,
            history=history,
            plan=None,
            verdict=verdict,
            queue=None,
            account=None,
            job_id="7",
        )

    def begin(self, run: RunFolder) -> None:
        (run.attempts / "0").mkdir()
        self.states[run] = "RUNNING"

    def end(self, run: RunFolder, code: int = 0) -> None:
        """The job's own record of its end."""
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
        monkeypatch.setattr(module, "time", world)
        monkeypatch.setattr(module, "status_of", world.status_of)
        return world

    return made


def test_half_an_hour_of_nothing_costs_two_questions_a_minute(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(5)
    told = list(follow_runs(context, world.runs, timeout=1800, sleep=world.sleep))
    assert [status.verdict.state for status in told] == ["PENDING"] * 5
    assert 50 <= len(world.asked) <= 2 * 30 + len(module.AFTER_NEWS) + 8
    assert all(runs == world.runs for _, runs in world.asked)  # all at once
    assert 1800 <= world.now <= 1801


def test_an_end_is_seen_at_once_and_asked_about_no_more(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(2)
    first, second = world.runs

    def over() -> None:
        world.end(first, 3)
        world.states[first] = "FAILED"

    world.at(100, lambda: world.begin(first))
    world.at(500, over)
    world.at(900, lambda: world.states.update({second: "COMPLETED"}))
    told = [
        (status.run, status.verdict.state, status.verdict.exit_code, world.now)
        for status in follow_runs(context, [*world.runs, first], sleep=world.sleep)
    ]
    assert [each[:3] for each in told] == [
        (first, "PENDING", None),
        (second, "PENDING", None),
        (first, "RUNNING", None),
        (first, "FAILED", 3),
        (second, "COMPLETED", None),
    ]
    assert [round(each[3], -1) for each in told[2:4]] == [100, 500]  # within seconds of the news
    assert told[4][3] <= 935  # of that no file tells
    assert all(runs == [second] for when, runs in world.asked if when > 510)


def test_silence_is_no_end(make: Callable[[int], World], context: Context) -> None:
    world = make(1)
    (run,) = world.runs
    world.begin(run)
    world.at(60, lambda: world.states.update({run: "UNKNOWN"}))
    world.at(3000, lambda: world.states.update({run: "RUNNING"}))
    world.at(3050, lambda: world.states.update({run: "COMPLETED"}))
    told = [(s.verdict.state, world.now) for s in follow_runs(context, [run], sleep=world.sleep)]
    assert [state for state, _ in told] == ["RUNNING", "UNKNOWN", "RUNNING", "COMPLETED"]
    # Slurm learns bit by bit what it has missed: it is asked again soon after it is back.
    back = told[2][1]
    assert len([when for when, _ in world.asked if back <= when < back + 20]) >= 4


def test_the_end_record_may_come_late_or_never(
    make: Callable[[int], World], context: Context
) -> None:
    world = make(20)
    for run in world.runs:
        world.begin(run)
        world.states[run] = "FAILED"
    world.at(2, lambda: world.end(world.runs[0], 9))
    told = list(follow_runs(context, world.runs, sleep=world.sleep))
    codes = Counter(status.verdict.exit_code for status in told)
    assert codes == {9: 1, None: 19}
    assert world.now <= module.FILES_LATE + 1  # all are waited for together


def test_no_time_to_wait_is_one_look(make: Callable[[int], World], context: Context) -> None:
    world = make(1)
    told = list(follow_runs(context, world.runs, timeout=0, sleep=world.sleep))
    assert [status.verdict.state for status in told] == ["PENDING"] and len(world.asked) == 1
    assert list(follow_runs(context, [], sleep=world.sleep)) == []
