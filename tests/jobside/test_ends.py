"""Why an attempt ended, and whether its run continues."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcrun.jobside.checkpoints import mark_of
from hpcrun.jobside.ends import Attempts, classify_end, decide, decide_continuation, pause_before
from hpcrun.runs.ends import END_NAMES, END_STATES

ALL = "preempted time_limit node_fail stalled"

# Slurm's state, preempted, told, mark, exit code, phase: why.
ENDS = [
    # Slurm's own state takes precedence over the program's exit.
    (("CANCELLED", False, "asked", "", 143, "ranks"), "cancelled"),
    (("CANCELLED", True, "asked", "", 0, "ranks"), "cancelled"),
    (("TIMEOUT", False, "asked", "", 143, "ranks"), "time_limit"),
    (("DEADLINE", False, "asked", "", 143, "ranks"), "time_limit"),
    (("PREEMPTED", True, "asked", "", 143, "ranks"), "preempted"),
    (("NODE_FAIL", False, "", "", 1, "ranks"), "node_fail"),
    (("BOOT_FAIL", False, "", "", 1, "setup"), "node_fail"),
    (("OUT_OF_MEMORY", False, "", "", 137, "ranks"), "out_of_memory"),
    (("REQUEUED", False, "asked", "", 143, "ranks"), "requeued"),
    # Within the grace of a preemption the job still runs.
    (("RUNNING", True, "asked", "", 0, "ranks"), "preempted"),
    (("RUNNING", True, "asked", "", 143, "ranks"), "preempted"),
    (("RUNNING", True, "limit", "", 0, "ranks"), "preempted"),
    (("RUNNING", True, "", "", 143, "ranks"), "preempted"),
    (("RUNNING", True, "", "", 1, "ranks"), "error"),
    (("RUNNING", True, "", "", 0, "ranks"), "done"),
    # The ranks were signalled to save before the limit, and ended with or without success.
    (("RUNNING", False, "limit", "", 0, "ranks"), "time_limit"),
    (("RUNNING", False, "limit", "", 143, "ranks"), "time_limit"),
    # Causes found by the run itself.
    (("RUNNING", False, "", "stalled", 143, "ranks"), "stalled"),
    # A pruned run does not continue, whatever happened to its job meanwhile.
    (("RUNNING", False, "asked", "pruned", 143, "ranks"), "pruned"),
    (("PREEMPTED", True, "asked", "pruned", 143, "ranks"), "pruned"),
    (("NODE_FAIL", False, "", "pruned", 1, "ranks"), "pruned"),
    (("CANCELLED", False, "asked", "pruned", 143, "ranks"), "cancelled"),
    (("RUNNING", False, "", "node", 1, "ranks"), "node_fail"),
    (("RUNNING", False, "", "node", 1, "setup"), "node_fail"),
    (("RUNNING", False, "", "memory", 137, "ranks"), "out_of_memory"),
    (("RUNNING", False, "", "memory", 1, "setup"), "out_of_memory"),
    (("RUNNING", False, "", "memory", 0, "ranks"), "done"),
    (("RUNNING", False, "limit", "memory", 143, "ranks"), "time_limit"),
    # The sender is unknown.
    (("RUNNING", False, "asked", "", 0, "ranks"), "stopped"),
    (("", False, "asked", "", 143, "ranks"), "stopped"),
    (("COMPLETING", False, "asked", "", 143, "ranks"), "stopped"),
    # The program's own end.
    (("RUNNING", False, "", "", 0, "ranks"), "done"),
    (("", False, "", "", 0, "ranks"), "done"),
    (("RUNNING", False, "", "", 1, "ranks"), "error"),
    (("RUNNING", False, "", "", 137, "ranks"), "error"),
    (("RUNNING", False, "", "", 1, "setup"), "setup"),
]

# Why, when, attempt, maximum, idle, failed in its setup before: whether.
STOPS = "three attempts in a row got no further: the next would not either"
DECISIONS = [
    (("preempted", ALL, 0, 20, 0, False), "yes"),
    (("preempted", ALL, 0, 20, 2, False), "yes"),
    (("preempted", ALL, 5, 20, 3, False), STOPS),
    (("preempted", ALL, 19, 20, 0, False), "it has had its 20 attempts (survive.max_attempts)"),
    (("preempted", "time_limit", 0, 20, 0, False), ""),
    (("preempted", "", 0, 1, 0, False), ""),
    (("time_limit", "preempted time_limit", 0, 20, 0, False), "yes"),
    (("node_fail", "preempted", 0, 20, 0, False), ""),
    (("stalled", ALL, 0, 20, 1, False), "yes"),
    (("pruned", ALL, 0, 20, 0, False), ""),
    (("done", ALL, 0, 20, 0, False), ""),
    (("cancelled", ALL, 0, 20, 0, False), ""),
    (("error", ALL, 0, 20, 0, False), ""),
    (("out_of_memory", ALL, 0, 20, 0, False), ""),
    (("stopped", ALL, 0, 20, 0, False), ""),
    # A manual requeue.
    (("requeued", "", 0, 1, 0, False), "yes"),
    (("requeued", ALL, 19, 20, 3, False), "yes"),
    # The setup, once.
    (("setup", "preempted", 0, 20, 1, False), "yes"),
    (("setup", "preempted", 1, 20, 1, True), ""),
    (("setup", "", 0, 1, 1, False), ""),
]


@pytest.mark.parametrize(("evidence", "why"), ENDS)
def test_cause_of_an_end_follows_from_the_evidence(evidence: tuple[Any, ...], why: str) -> None:
    state, preempted, told, mark, code, phase = evidence
    more = {"preempted": preempted, "told": told, "mark": mark, "phase": phase}
    assert classify_end(state, **more, exit_code=code) == why


@pytest.mark.parametrize(("asked", "answer"), DECISIONS)
def test_restart_decision_follows_from_cause_and_limits(
    asked: tuple[Any, ...], answer: str
) -> None:
    why, when, attempt, most, idle, before = asked
    more = {"attempt": attempt, "max_attempts": most, "idle": idle, "failed_in_setup": before}
    assert decide_continuation(why, when.split(), **more) == answer


def test_pause_before_the_next_attempt_grows() -> None:
    """The pause grows after each attempt shorter than two minutes and without progress."""
    assert [pause_before(idle, 119) for idle in range(4)] == [0, 60, 120, 240]
    assert [pause_before(idle, 120) for idle in range(4)] == [0, 0, 0, 0]


# Of each attempt: what it began from ("": nothing), and its log; what is there now; whether the job
# says that it resumes, and for how long each attempt lasted: how many have gained nothing.
NAMED = ["", "{c}/step-4.pt", "{c}/step-4.pt"]
LATER = ["step 1 | step 70", "step 51 | step 56", "step 57 | step 61"]
AGAIN = ["", "{c}/last.pt 1", "{c}/last.pt 2"]
ROWS = "step 1 | {'global_step': 40, 'loss': 1.0} | Step: 90/1000"
IDLE = [
    # By the checkpoint: nothing new; something new, though a long attempt had come further before.
    ((NAMED, [ROWS] * 3, "{c}/step-4.pt", True, 900), 2),
    ((NAMED, ["step 900", "step 10", "step 20"], "{c}/step-8.pt", True, 900), 0),
    # A newer one of the same name is more, unless the log shows that each begins again: a setting
    # may look like a step.
    ((AGAIN, ["step 1 | step 9"] * 3, "{c}/last.pt", True, 900), 2),
    ((AGAIN, ["step 1 | step 9", "step 6 | step 8", "step 7 | step 9"], "{c}/last.pt", 1, 900), 0),
    ((AGAIN, ["step 1 | step 9 | step 1", "step 1 | step 9", "loss 2"], "{c}/last.pt", 1, 900), 0),
    ((AGAIN, ["log_every_n_steps=50", "max_steps: 50", "step=50"], "{c}/last.pt", True, 900), 0),
    ((AGAIN, ["max_steps: 900 | step 1 | step 9"] * 3, "{c}/last.pt", True, 900), 2),
    ((AGAIN, ["step 1 | step 9 | saved after 1 step"] * 3, "{c}/last.pt", True, 900), 2),
    ((["{c}/last.pt"] * 3, ["step 1 | step 9"] * 3, "{c}/last.pt", True, 900), 3),
    # By the curve, where none is ever seen: each next one begins where the last has saved.
    ((["", "", ""], LATER, "", False, 900), 0),
    ((["", "", ""], LATER, "", True, 900), 1),
    # A program that may save where nobody sees it: what lasted counts, unless its log shows that it
    # begins again and again.
    ((["", "", ""], ["loss 1.5"] * 3, "", False, 900), 0),
    ((["", "", ""], ["loss 1.5"] * 3, "", False, 9), 3),
    ((["", "", ""], ["step 1 | step 7", "step 1 | step 5", "step 1 | step 7"], "", False, 900), 2),
    ((["", "", ""], ["step 50", "steps: 50", "step 50"], "", False, 900), 0),
    ((["", "", ""], ["step 9 | step 5"] * 3, "", False, 900), 0),
    ((["", "", ""], ["step 1 | step 7", "step 1 | step 8", "step 1 | step 9"], "", True, 900), 3),
]  # fmt: skip


@pytest.mark.parametrize(("attempts", "count"), IDLE)
def test_attempts_without_progress_are_counted(
    tmp_path: Path, attempts: tuple[Any, ...], count: int
) -> None:
    begun_from, logs, newest, resumes, lasted = attempts
    saved = tmp_path / "saved"
    saved.mkdir()
    newest = newest.format(c=saved)
    stamp = ""
    if newest:
        Path(newest).write_text("weights")
        stamp = mark_of(newest)
    for number, (name, log) in enumerate(zip(begun_from, logs, strict=True)):
        folder, output = tmp_path / f"attempts/{number}", tmp_path / f"logs/{number}"
        folder.mkdir(parents=True)
        output.mkdir(parents=True)
        mark = name.format(c=saved)
        (folder / "mark").write_text(stamp if mark == newest else f"{mark}\n")
        (folder / "begin.json").touch()
        os.utime(folder / "begin.json", (1_700_000_000, 1_700_000_000))
        (folder / "end.json").touch()
        os.utime(folder / "end.json", (1_700_000_000 + lasted, 1_700_000_000 + lasted))
        (output / "rank-0.log").write_text(log.replace(" | ", "\n") + "\nTraceback\n")
    env = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_ATTEMPT": "2", "HPCRUN_RESUMES": "1" * resumes}
    assert Attempts(env).count_idle(mark_of(newest)) == count


def test_each_log_is_read_once_and_only_if_needed(tmp_path: Path) -> None:
    """A job being stopped has only seconds left for its end record."""
    for number in range(9):
        for folder in (tmp_path / f"attempts/{number}", tmp_path / f"logs/{number}"):
            folder.mkdir(parents=True)
        (tmp_path / f"attempts/{number}/mark").write_text("\n")
        (tmp_path / f"attempts/{number}/begin.json").touch()
        (tmp_path / f"logs/{number}/rank-0.log").write_text("step 1\nstep 7\n")
    env = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_ATTEMPT": "8", "SLURM_JOB_ID": "7"}
    env |= {"HPCRUN_RESUMES": "1", "HPCRUN_MAX_ATTEMPTS": "20", "HPCRUN_SURVIVE": "preempted"}
    assert decide(env, "error", "", 900) == ("", 0)
    assert list(tmp_path.glob("attempts/*/steps")) == []
    assert decide(env, "preempted", "", 900) == (STOPS, 0)
    read = sorted(path.parent.name for path in tmp_path.glob("attempts/*/steps"))
    assert read == ["6", "7", "8"]
    for path in tmp_path.glob("logs/*/rank-0.log"):
        path.write_text("step 9\nstep 99\n")
    assert [Attempts(env).steps(number) for number in (6, 5)] == [(1, 7), (9, 99)]


# A progress bar as tqdm draws it.
BARS = " | ".join(f"{{0}}%|#   |{each}/60 [00:01<00:02]" for each in ("0", "{0}", "{1}", "{2}"))


def test_every_end_has_a_description() -> None:
    told = {why for _, why in ENDS}
    assert told - END_NAMES.keys() == {"done", "error"}
    assert END_STATES.keys() < told


@pytest.mark.parametrize(
    ("attempt", "resume", "logs", "never", "stops"),
    [
        (1, "step-7", ["step 1 | step 7", "step 1 | step 5"], True, True),
        # It resumed all the same, or has printed no step yet.
        (1, "step-7", ["step 1 | step 7", "step 8 | step 9"], True, False),
        (1, "step-7", ["step 1 | step 7", "loading"], True, False),
        # The Trainer of transformers draws its bar at 0 before it resumes.
        (1, "step-45", [BARS.format(1, 2, 45), BARS.format(46, 47, 48)], True, False),
        (1, "step-45", [BARS.format(1, 2, 45), BARS.format(1, 2, 3)], True, True),
        # A setting looks like a step.
        (1, "step-7", ["steps: 90 | step 1 | step 7", "steps: 90 | step 1 | step 5"], True, True),
        # There was nothing to resume from.
        (1, "", ["step 1 | step 7", "step 1 | step 5"], True, False),
        (0, "step-7", ["step 1 | step 7"], True, False),
        # Something has the program resume: its steps may count from each start.
        (1, "step-7", ["step 1 | step 7", "step 1 | step 5"], False, False),
    ],
)
def test_run_that_ignores_its_checkpoint_stops_after_one_attempt(
    tmp_path: Path, attempt: int, resume: str, logs: list[str], never: bool, stops: bool
) -> None:
    for number, log in enumerate(logs):
        for folder in (tmp_path / f"attempts/{number}", tmp_path / f"logs/{number}"):
            folder.mkdir(parents=True)
        (tmp_path / f"attempts/{number}/begin.json").touch()
        (tmp_path / f"attempts/{number}/mark").write_text("\n")
        (tmp_path / f"logs/{number}/rank-0.log").write_text(log.replace(" | ", "\n") + "\n")
    (tmp_path / f"attempts/{attempt}/resume").write_text(resume and f"/c/{resume}")
    env = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_ATTEMPT": str(attempt), "SLURM_JOB_ID": "7"}
    env |= {"HPCRUN_RESUMES": "1", "HPCRUN_MAX_ATTEMPTS": "20", "HPCRUN_SURVIVE": "preempted"}
    env |= {"HPCRUN_NEVER_RESUMES": "1"} if never else {}
    answer = decide(env, "preempted", "", 900).note
    assert (answer != "yes") == stops
    if stops:
        begin = 0 if "%" in logs[0] else 1
        text = f"attempt 1 began at step {begin} again, although there was the checkpoint"
        assert answer.startswith(text)
        assert 'checkpoint.resume, as in "--resume {resume}"' in answer
    assert decide(env, "error", "", 900).note == ""
