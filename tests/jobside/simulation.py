"""A simulated cluster that fails at random, to test restart decisions; deterministic per seed.

    python -m tests.jobside.simulation

Each run has a number of hours to train. It is preempted, reaches its time limit, loses nodes,
stands still, fails in its setup; checkpoints are damaged; some programs have an error at a step.
Its attempts end and continue by the rules that ship (hpcrun.jobside.ends), or as those of a naive
job that is requeued after whatever ended it, from the newest file that looks like a checkpoint.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcrun.jobside.ends import (
    Attempts,
    Steps,
    classify_end,
    decide_continuation,
    pause_before,
    steps_in,
)
from hpcrun.jobside.records import MAX_IDLE_ATTEMPTS
from hpcrun.runs.ends import SURVIVABLE_ENDS

HOUR = 3600.0
MAX_ATTEMPTS = 20
# Unstopped runs end here.
NAIVE_ATTEMPTS = 50
# How long a hung run is undetected.
NOTICED = 600.0
Event = Literal["done", "preempted", "limit", "node", "stall", "error", "memory", "setup", "damage"]


@dataclass(frozen=True)
class World:
    """A run and its faults. Times are in seconds, rates per hour.

    ``bug``: after so much work the program fails, each time, for want of memory or otherwise.
    ``log``: how its log shows the steps, a key of LOGS.
    """

    work: float
    limit: float
    save_every: float
    save_cost: float
    start: float
    grace: float
    preempted: float
    node: float
    stall: float
    setup: float = 0.01
    damaged: float = 0.02
    bug: float | None = None
    is_memory: bool = False
    log: str = "step"


@dataclass
class Outcome:
    """The result of a run: seconds of its allocation, and of its work if it is done.

    ``gains``: whether each attempt left a newer whole checkpoint.
    """

    is_done: bool = False
    held: float = 0.0
    useful: float = 0.0
    ends: list[str] = field(default_factory=list)
    gains: list[bool] = field(default_factory=list)
    note: str = ""


STEP_S = 10.0  # of work in each step
# How programs show their steps: lines before the first step, and a line for each one.
LOGS = {
    "step": ("max_steps: 90000", "step {n:,} | loss 2.5"),
    "dictionary": ("", "{{'loss': 2.5, 'global_step': {n}}}"),
    "bar": ("  0%|          | 0/90000 [00:00<?]", " 1%|     | {n}/90000 [00:10<10:00, 2.0it/s]"),
    "epochs": ("steps per epoch: 50", "batch {e}/50 loss 2.5"),
    "none": ("", "loss 2.5"),
}


def read_steps(kind: str, first: int, last: int) -> Steps | None:
    """Read the steps of an attempt from a log as its program would have written it."""
    start, line = LOGS[kind]
    numbers = [first, first + 1, (first + last) // 2, last - 1, last]
    lines = [line.format(n=n, e=n % 50) for n in sorted({*numbers}) if first <= n <= last]
    return steps_in("\n".join([start, *lines]))


def mark_at(work: float) -> str:
    """Return the marker of the checkpoint that contains this much work."""
    return f"/checkpoints/step-{work:.0f} {work}" if work else ""


class History(Attempts):
    """The attempts of a simulated run, whose files are made up: Attempts decides by them."""

    def __init__(self, world: World) -> None:
        super().__init__({"HPCRUN_RUN_DIR": "", "HPCRUN_RESUMES": "1"})
        self.world_of_run = world
        self.marks: list[str | None] = []
        self.shown: list[tuple[int, int] | None] = []
        self.seconds: list[float] = []

    def add(self, begin: float, reached: float, seconds: float, event: Event) -> None:
        """Note an attempt: what it began from, the steps in its log, and how long it lasted."""
        self.current = len(self.marks)
        self.marks.append(None if event == "setup" else mark_at(begin))
        first, last = int(begin // STEP_S) + 1, int(reached // STEP_S)
        shows = event != "setup" and last > first
        self.shown.append((first, last) if shows else None)
        self.seconds.append(seconds)

    def mark(self, attempt: int) -> str | None:
        return self.marks[attempt]

    def steps(self, attempt: int) -> Steps | None:
        shown = self.shown[attempt]
        return None if shown is None else read_steps(self.world_of_run.log, *shown)

    def lasted(self, attempt: int) -> float:
        return self.seconds[attempt]

    def has_begun(self, attempt: int) -> bool:
        return attempt >= 0


def make_world(rng: random.Random, *, has_bug: bool = False) -> World:
    """Create a run of at most a day on a cluster with random failure rates."""
    work = rng.uniform(2, 24) * HOUR
    return World(
        work=work,
        limit=rng.choice([4, 8, 24]) * HOUR,
        save_every=rng.uniform(5, 30) * 60,
        save_cost=rng.uniform(2, 40),
        start=rng.uniform(20, 240),
        grace=rng.choice([0, 30, 90]),
        preempted=rng.choice([0, 0.05, 0.2]),
        node=rng.choice([0, 0.01, 0.05]),
        stall=rng.choice([0, 0.01, 0.05]),
        bug=rng.uniform(0, work) if has_bug else None,
        is_memory=has_bug and rng.random() < 0.5,
        log=rng.choice(list(LOGS)),
    )


def simulate(world: World, seed: int, *, naive: bool = False) -> Outcome:
    """Run all attempts of a run to its end."""
    rng = random.Random(seed)
    found = Outcome()
    checkpoints: list[tuple[float, bool]] = []  # the work in each, and whether it is whole
    begun_from: list[float] = []
    history = History(world)
    is_bad_node = failed_in_setup = False
    while True:
        whole = [work for work, is_whole in checkpoints if is_whole]
        begin = max(whole, default=0.0)
        looks_newest = checkpoints[-1] if checkpoints else (0.0, True)
        event, seconds, reached = _next_event(
            world, rng, begin, is_damaged=naive and not looks_newest[1], is_bad=is_bad_node
        )
        work, saved = _saved(world, event, begin, reached, naive=naive)
        if event == "stall":
            # Without detection it lasts until the time limit.
            seconds = world.limit if naive else min(world.limit, seconds + NOTICED)
        found.held += seconds
        for at in saved:
            checkpoints.append((at, rng.random() >= world.damaged))
        newest = max((at for at, is_whole in checkpoints if is_whole), default=0.0)
        begun_from.append(begin)
        history.add(begin, reached, seconds, event)
        found.gains.append(newest != begin or event == "done")
        attempt = len(begun_from) - 1
        if event == "done":
            found.is_done, found.useful = True, world.work
            found.ends.append("done")
            return found
        if naive:
            found.ends.append(event)
            # The next attempt may get the same node again.
            is_bad_node = event == "node" and rng.random() < 0.3
            if attempt + 1 >= NAIVE_ATTEMPTS:
                found.note = "nobody has stopped it"
                return found
            continue
        why = classify_end(**_evidence(event, has_saved=bool(saved) and saved[-1] == work))
        idle = history.count_idle(mark_at(newest))
        answer = decide_continuation(
            why,
            SURVIVABLE_ENDS,
            attempt=attempt,
            max_attempts=MAX_ATTEMPTS,
            idle=idle,
            failed_in_setup=failed_in_setup,
        )
        failed_in_setup = why == "setup"
        found.ends.append(why)
        if answer != "yes":
            found.note = answer
            return found
        assert pause_before(idle, seconds) <= 4 * 60


def _next_event(
    world: World, rng: random.Random, begin: float, *, is_damaged: bool, is_bad: bool
) -> tuple[Event, float, float]:
    """Draw the event that ends an attempt, its time, and the work done by then."""
    if is_bad:
        return "node", rng.uniform(5, world.start), begin
    if rng.random() < world.setup:
        return "setup", rng.uniform(1, 20), begin
    if is_damaged:
        return "damage", world.start, begin
    # The value of a second of training, including the time for saving.
    speed = world.save_every / (world.save_every + world.save_cost)

    def at(work: float) -> float:
        return world.start + max(0.0, work - begin) / speed

    times: dict[Event, float] = {"done": at(world.work), "limit": world.limit}
    if world.bug is not None:
        times["memory" if world.is_memory else "error"] = at(world.bug)
    rates: dict[Event, float] = {
        "preempted": world.preempted, "node": world.node, "stall": world.stall
    }  # fmt: skip
    for name, rate in rates.items():
        if rate:
            times[name] = rng.expovariate(rate / HOUR)
    if times.get("stall", 0.0) < world.start:
        times.pop("stall", None)
    event = min(times, key=lambda name: times[name])
    reached = begin + max(0.0, times[event] - world.start) * speed
    return event, times[event], min(reached, world.work)


def _saved(
    world: World, event: Event, begin: float, reached: float, *, naive: bool
) -> tuple[float, list[float]]:
    """Return the work at the end of an attempt, and that in each of its checkpoints."""
    first = int(begin // world.save_every) + 1
    last = int(reached // world.save_every)
    saved = [number * world.save_every for number in range(first, last + 1)]
    is_asked = event == "preempted" and world.grace >= world.save_cost
    is_asked = is_asked or (event == "limit" and not naive)  # save_before_end
    if is_asked and reached > begin:
        saved.append(reached)
    return reached, saved


def _evidence(event: Event, *, has_saved: bool) -> dict[str, Any]:
    """Return the evidence of an event: Slurm's state, hpcrun's own marks and the exit code."""
    seen: dict[Event, dict[str, Any]] = {
        "preempted": {"state": "", "preempted": True, "told": "asked", "exit_code": 143},
        "limit": {"state": "", "told": "limit", "exit_code": 143},
        "node": {"state": "NODE_FAIL", "exit_code": 143},
        "stall": {"state": "", "mark": "stalled", "told": "asked", "exit_code": 137},
        "error": {"state": "", "exit_code": 1},
        "memory": {"state": "OUT_OF_MEMORY", "exit_code": 137},
        "setup": {"state": "", "exit_code": 1, "phase": "setup"},
    }
    found = dict(seen[event])
    if has_saved and event in ("preempted", "limit"):
        found["exit_code"] = 0  # a program that saves and ends well
    return found


# ---- the table ---------------------------------------------------------------------------------


def circles(outcome: Outcome) -> bool:
    """Return True if a run continues without making progress."""
    longest = count = 0
    for has_gained in outcome.gains:
        count = 0 if has_gained else count + 1
        longest = max(longest, count)
    return longest > MAX_IDLE_ATTEMPTS or len(outcome.ends) > MAX_ATTEMPTS


def goodput(outcomes: Sequence[Outcome]) -> float:
    """Return the share of the allocated time that contributed to results."""
    return sum(each.useful for each in outcomes) / sum(each.held for each in outcomes)


def main() -> None:
    """Print the results of both policies, with and without programs that contain an error."""
    print(f"{'':24}{'done':>8}{'goodput':>9}{'attempts':>10}{'circling':>10}  ends")
    for share, what in ((0.0, "sound programs"), (0.1, "1 in 10 has an error")):
        rng = random.Random(16)
        worlds = [make_world(rng, has_bug=rng.random() < share) for _ in range(5000)]
        for naive in (False, True):
            found = [simulate(world, seed, naive=naive) for seed, world in enumerate(worlds)]
            ends = Counter(end for each in found for end in each.ends).most_common()
            print(
                f"{what + (', naive' if naive else ', hpcrun'):30}"
                f"{sum(each.is_done for each in found) / len(found):>7.1%}"
                f"{goodput(found):>9.1%}"
                f"{sum(len(each.ends) for each in found) / len(found):>8.1f}"
                f"{sum(map(circles, found)):>8}  "
                + ", ".join(f"{count} {name}" for name, count in ends)
            )


if __name__ == "__main__":
    main()
