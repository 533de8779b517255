"""Random histories of a run's jobs: each attempt has one job, and a run that is over stays over."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hpcrun.jobside import successors
from hpcrun.jobside.records import MAX_IDLE_ATTEMPTS, make_record, write_json
from hpcrun.jobside.slurm import Answer
from hpcrun.jobside.successors import SUPERFLUOUS, Claim, next_attempt

pytestmark = pytest.mark.slow

RUNS = 200
MAX_ATTEMPTS = 8
ENVIRON = {"HPCRUN_SURVIVE": "preempted node_fail", "HPCRUN_MAX_ATTEMPTS": str(MAX_ATTEMPTS)}


class History:
    """A run whose jobs start as Slurm starts them: restarted, continued, twice, or too late."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.run = folder
        (folder / "attempts").mkdir(parents=True)
        self.owners: list[tuple[str, int]] = []
        self.gains: list[bool] = []
        self.states: dict[str, str] = {}  # of jobs that have ended, in Slurm

    def path(self, attempt: int, name: str) -> Path:
        return self.run / "attempts" / str(attempt) / name

    def run_slurm(self, argv: list[str], seconds: float) -> Answer:
        job = next((word for word in argv if word in self.states), "")
        text = f"JobId={job} JobState={self.states[job]}" if job else ""
        return Answer(text, "")

    def start(self, job: str, before: str, restarts: int) -> Claim:
        """Start a job, as next_attempt in batch.sh does."""
        environ = {
            "HPCRUN_RUN_DIR": str(self.run),
            "SLURM_JOB_ID": job,
            "SLURM_RESTART_COUNT": str(restarts),
            "HPCRUN_RESUMES": "1",
            **ENVIRON,
        }
        known = None
        if not restarts and not before:
            if not self.owners:
                return self.begin(Claim(0), job, restarts)
            known = 0
        claim = next_attempt(environ, job, before, known, lambda line: None)
        if claim.attempt is None or claim.attempt < len(self.owners):
            return claim  # not wanted, or a duplicate
        return self.begin(claim, job, restarts)

    def begin(self, claim: Claim, job: str, restarts: int) -> Claim:
        assert claim.attempt == len(self.owners)
        (self.run / "attempts" / str(claim.attempt)).mkdir()
        record = {"attempt": claim.attempt, "job_id": job, "host": "n1", "begun_at": 100.5}
        path = str(self.path(claim.attempt, "begin.json"))
        write_json(path, "begin", {**record, "pid": 1, "nodes": "n1", "restarts": restarts})
        has_gained = self.random.random() < 0.5
        self.path(claim.attempt, "mark").write_text("/c/step-1 5\n" if has_gained else "\n")
        self.path(claim.attempt, "beat").write_text("150\n")
        self.owners.append((job, restarts))
        self.gains.append(has_gained)
        return claim

    def end(self, following: str | None, code: int) -> None:
        """Write the end record of the last attempt."""
        last = len(self.owners) - 1
        record = {"attempt": last, "job_id": self.owners[-1][0], "exit_code": code}
        write_json(str(self.path(last, "end.json")), "end", {**record, "next": following})

    def read_end(self) -> dict[str, Any]:
        path = self.path(len(self.owners) - 1, "end.json")
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        assert list(found) == list(make_record("end", found)) if found else True
        return found

    def disturb(self, job: str, before: str, restarts: int) -> None:
        """Start the same job twice, and jobs that are of no use any more."""
        count = len(self.owners)
        owner = self.owners[-1]
        if owner == (job, restarts):
            claim = self.start(job, before if restarts == 0 else "", restarts)
            # At the run's last attempt a restart is told the code of the run instead.
            assert claim.attempt in (None, count - 1)
        late = self.start("999", self.random.choice(["1", "998"]), 0)
        assert late == Claim(None, SUPERFLUOUS) or late.attempt is None
        assert len(self.owners) == count, "a job that nobody wants has an attempt"


@pytest.mark.parametrize("part", range(4))
def test_each_attempt_has_one_job_in_random_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    endings = set()
    for seed in range(part * RUNS, (part + 1) * RUNS):
        run = History(tmp_path / str(seed), seed)
        monkeypatch.setattr(successors, "run_slurm", run.run_slurm)
        job, before, restarts = 7, "", 0
        while True:
            claim = run.start(str(job), before, restarts)
            if claim.attempt is None:
                # Only a run that is over, by its own record, gets no further attempt.
                end = run.read_end()
                assert end["next"] is None
                endings.add("note" if end.get("note") else "stopped")
                break
            assert run.owners[claim.attempt] == (str(job), restarts)
            if run.random.random() < 0.3:
                run.disturb(str(job), before, restarts)
            event = run.random.choice(["done", "error", *["requeue", "heir", "dead", "lost"] * 2])
            if event in ("done", "error"):
                run.end(None, int(event == "error"))
                for again in range(1, 3):  # 24.05 to 25.11 may restart a completed job
                    claim = run.start(str(job), "", restarts + again)
                    assert claim == Claim(None, int(event == "error"))
                endings.add(event)
                break
            if event == "requeue":
                run.end("requeue", 143)
            elif event == "heir":
                run.end(str(job + 1), 143)
                run.states[str(job)] = "COMPLETED"
            elif event == "lost":  # its node died, and Slurm may not requeue it
                run.states[str(job)] = "NODE_FAIL"
            if event in ("heir", "lost"):
                before, job, restarts = str(job), job + 1, 0
                if event == "lost" and not _may_continue(run):
                    assert run.start(str(job), before, 0).attempt is None
                    endings.add("lost")
                    break
            else:
                before, restarts = "", restarts + 1
                if len(run.owners) > 2 * MAX_ATTEMPTS:
                    pytest.fail("it restarts forever")
    assert {"done", "error", "note"} <= endings


def _may_continue(run: History) -> bool:
    idle = run.gains[-MAX_IDLE_ATTEMPTS:] == [False] * MAX_IDLE_ATTEMPTS
    return len(run.owners) < MAX_ATTEMPTS and not idle
