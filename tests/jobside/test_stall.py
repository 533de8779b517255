"""Stall detection with simulated times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from hpcrun.jobside.stall import StallWatch
from hpcrun.runs.ends import Stall, Suspect
from hpcrun.runs.flight import find_culprit
from tests.jobside.watched_job import Doer


class Watched:
    """A run whose watcher looks at it each 30 s of a time that the test makes up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deeds: list[Callable[[StallWatch], None]] = []
        self.now = 1_700_000_000
        self.began = self.now
        self.found: list[int] = []
        self.is_stalled = False
        for name in ("attempts/0/stacks", "logs/0"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def do(self, deed: Callable[[], object]) -> None:
        self.deeds.append(lambda _: (deed(), None)[1])

    def write_file(self, name: str, text: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text)

    def write(self, name: str, text: str) -> None:
        self.do(lambda: self.write_file(f"logs/0/{name}", text))

    def look(self, text: str | None = None, *, rank: int = 0, after: int = 30) -> None:
        self.now += after
        if text is not None:
            self.write(f"rank-{rank}.log", f"{text}\n")
        at = self.now

        def look(watch: StallWatch) -> None:
            watch.look(at)
            if watch.reports == 1 and not self.is_stalled:
                self.found.append(at - self.began)
            self.is_stalled = watch.reports > 0

        self.deeds.append(look)

    def silence(self, seconds: int) -> None:
        for _ in range(seconds // 30):
            self.look()

    def steps(self, count: int, every: int = 30, first: int = 1) -> None:
        for step in range(first, first + count):
            self.silence(every - 30)
            self.look(f"step {step} loss 2.5")

    def stalls(self, **env: str) -> list[int]:
        """Return the times since the start at which a stall was found."""
        out: list[str] = []
        environ = {"HPCRUN_RUN_DIR": str(self.folder), "HPCRUN_ATTEMPT": "0", **env}
        environ |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
        watch = StallWatch(environ, out.append, Doer(out))
        for deed in self.deeds:
            deed(watch)
        self.out = "\n".join(out).replace("hpcrun: ", "say: ")
        return self.found

    @property
    def record(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / "attempts/0/stall.json").read_text())
        return read


@pytest.fixture
def run(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "it's a run $(x)")


def test_run_that_stops_after_some_steps_is_stalled(run: Watched) -> None:
    run.steps(10)
    run.silence(1200)
    assert run.stalls() == [300 + 600]
    record = run.record
    assert (record["step"], record["threshold"]) == (10, 600)
    # Repeated twice, because stacks of other nodes appear late on a network file system.
    assert record["silent_seconds"] == 660
    assert record["since"] == run.began + 300
    assert (record["ranks"], record["stacks"]) == ([], [])
    assert run.out.count("took") == 1


def test_slow_steps_raise_the_stall_limit(run: Watched) -> None:
    run.steps(5, every=300)
    run.silence(3600)
    assert run.stalls() == [1500 + 3000]


def test_completed_pause_raises_the_stall_limit(run: Watched) -> None:
    run.steps(10)
    run.silence(570)  # the first evaluation
    run.steps(10, first=11)
    run.silence(1080)  # a longer one, within twice the first
    run.steps(3, first=21)
    assert run.stalls() == []


def test_startup_may_take_half_an_hour_without_output(run: Watched) -> None:
    run.look("loading")
    run.silence(1740)
    run.look("compiling")  # whatever it writes counts here
    run.silence(1740)
    run.steps(3)
    assert run.stalls() == []


def test_run_without_any_step_is_stalled(run: Watched) -> None:
    run.look("loading")
    run.silence(2400)
    assert run.stalls() == [30 + 1800]
    assert run.record["step"] is None


def test_time_before_the_ranks_start_is_ignored(run: Watched) -> None:
    run.silence(7200)  # the setup, a copy to the nodes
    run.steps(3)
    assert run.stalls() == []


def test_stall_limit_of_the_job_applies(run: Watched) -> None:
    run.steps(10, every=60)
    run.silence(600)
    # The poll interval is a quarter of the limit; one poll counts for at most two intervals.
    assert run.stalls(HPCRUN_STALLED_AFTER="120") == [600 + 120]
    assert run.record["threshold"] == 120


def test_suspended_job_is_not_stalled(run: Watched) -> None:
    run.steps(10)
    run.look(after=86400)
    run.silence(300)
    run.look(after=7200)
    run.steps(2, first=11)
    assert run.stalls() == []


def test_clock_set_back_is_harmless(run: Watched) -> None:
    run.steps(5)
    run.look(after=-3600)
    run.steps(5, first=6)
    run.silence(900)
    assert len(run.stalls()) == 1


def test_run_that_continues_is_no_longer_stalled(run: Watched) -> None:
    run.steps(10)
    run.silence(700)
    run.steps(2, first=11)
    run.silence(1380)  # twice the pause of 720 s that ended
    assert len(run.stalls()) == 1
    assert not (run.folder / "attempts/0/stall.json").exists()
    assert "say: the run moves on" in run.out


def test_output_without_steps_doubles_the_limit_and_is_never_ended(run: Watched) -> None:
    run.steps(10)
    for count in range(60):
        run.look(f"retrying the store ({count})")
    assert run.stalls(HPCRUN_SURVIVE="stalled") == [300 + 1200]
    assert "scancel" not in run.out


@pytest.mark.parametrize("survive", ["", "preempted", "preempted stalled"])
def test_stalled_run_is_ended_only_on_request(run: Watched, survive: str) -> None:
    run.steps(10)
    run.silence(900)
    assert len(run.stalls(HPCRUN_SURVIVE=survive)) == 1
    is_asked = "stalled" in survive
    assert (run.folder / "attempts/0/stalled").exists() == is_asked
    # The steps of the launch, once, without the batch script.
    ended = [line for line in run.out.splitlines() if line.startswith("scancel")]
    assert ended == ["scancel 7.0", "scancel 7.1"] * is_asked


def test_steps_in_the_log_of_the_last_rank_count(run: Watched) -> None:
    for step in range(40):
        run.look(f" iteration {step}/ 100 |", rank=1)
        if step == 0:
            run.look("building the model", rank=0)
    assert run.stalls() == []


def test_bare_command_is_stalled_by_its_node_log(run: Watched) -> None:
    """Launcher output next to ranks is no progress; a command has only the node log."""
    run.do(lambda: run.write_file("attempts/0/began", ""))
    for step in range(10):
        run.write("node-0.log", f"step {step} loss 2.5\n")
        run.look()
    run.silence(900)
    assert run.stalls(HPCRUN_SURVIVE="stalled") == [300 + 600]
    assert (run.record["step"], run.record["ranks"]) == (9, [])
    assert "scancel 7.0" in run.out


def test_log_that_stopped_first_is_named(run: Watched) -> None:
    for step in range(6):
        run.look(f"step {step}", rank=0)
        run.write("rank-2.log", f"{step}\n")
        if step < 3:
            run.write("rank-1.log", f"{step}\n")
    run.silence(900)
    assert len(run.stalls()) == 1
    stall = find_culprit(convert(run.record, Stall), run.folder / "attempts/0", run.folder / "logs")
    assert stall.ranks == [1]
    assert stall.suspect == Suspect(rank=1, why="the first whose log stopped")


def test_pace_of_the_first_rank_is_recorded(run: Watched) -> None:
    run.steps(500, first=1)
    run.stalls()
    pace = json.loads((run.folder / "attempts/0/pace.json").read_text())
    assert 100 <= len(pace["steps"]) == len(pace["seconds"]) <= 200
    assert (pace["steps"][0], pace["steps"][-1]) == (1, 500)
    passed = pace["seconds"][-1] - pace["seconds"][0]
    assert passed / 499 == pytest.approx(30)
