"""How status shows the attempts of a restarted run, and their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.monitor.progress import steps_of
from hpcrun.runs.ends import Stall
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Attempt, Begin, CachedState, Cancelled, End, Failure, History
from hpcrun.runs.status import JobStatus, compute_cost, compute_elapsed, compute_trained_share
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.text.table import Display
from hpcrun.views.attempts import describe_common_facts, format_attempts, format_cost
from hpcrun.views.status import format_listing, format_run, run_json
from hpcrun.views.top import format_top
from tests.json_schemas import check_json

PLAIN = Display(width=200)
HOUR = 3600.0
RUN = RunFolder(Path("/runs/20261120-081455-a-7k3q"))


def attempt(
    index: int, begun: float, ended: float | None, steps: tuple[int, int] | None, **more: float
) -> Attempt:
    """Build an attempt, with times in hours; ``moved`` is the time of its first step."""
    at = begun * HOUR
    end = None
    if ended is not None:
        end = End(
            attempt=index,
            job_id="7",
            exit_code=143,
            signal=15,
            stopped_by="TERM",
            first_failure=None,
            begun_at=at,
            ended_at=ended * HOUR,
            why="preempted",
            next="requeue",
            checkpoint="/runs/a/checkpoints/step-80.pt",
        )
    return Attempt(
        index=index,
        begin=Begin(attempt=index, job_id="7", host="n1", pid=1, nodes="n1", begun_at=at),
        end=end,
        moved=more["moved"] * HOUR if "moved" in more else None,
        first_step=steps[0] if steps else None,
        last_step=steps[1] if steps else None,
    )


# Two hours and 100 steps; half an hour later a restart, which reaches step 81 after 15 minutes.
FIRST = attempt(0, 0.0, 2.0, (1, 100), moved=0.0)
SECOND = attempt(1, 2.5, 4.75, (81, 180), moved=2.75)


def test_cost_includes_replayed_steps_restarts_and_waiting() -> None:
    cost = compute_cost([FIRST, SECOND], 8, None)
    assert cost is not None
    assert (cost.hours, cost.replayed_steps) == (8 * 4.25, 20)
    assert cost.replayed == pytest.approx(8 * 2.0 * 20 / 100)
    assert (cost.restarting, cost.waited) == (8 * 0.25, 0.5 * HOUR)
    assert cost.goodput == pytest.approx(1 - (0.4 + 0.25) / 4.25)


def test_cost_of_an_attempt_uses_its_number_of_nodes() -> None:
    assert SECOND.begin is not None
    more = structs.replace(SECOND, begin=structs.replace(SECOND.begin, nodes="n[1-3]"))
    cost = compute_cost([FIRST, more], 8, None)
    assert (cost.hours, cost.restarting) == (8 * (2.0 + 3 * 2.25), 8 * 3 * 0.25)
    assert compute_cost([FIRST, more], 8, None, spare=1).hours == cost.hours + 8 * 4.25
    assert compute_cost([FIRST, more], 0, None).hours == 2.0 + 3 * 2.25, (
        "without GPUs, those of nodes"
    )


def test_cost_includes_stalled_time() -> None:
    """The second attempt was stalled for 1.5 of the two hours after its startup."""
    stall = Stall(since=3.25 * HOUR, silent_seconds=60.0, threshold=60.0)
    hung = structs.replace(SECOND, stall=stall)
    cost = compute_cost([FIRST, hung], 1, None)
    assert (cost.stalled, cost.replayed) == (1.5, 0.5 * 20 / 100)
    assert cost.goodput == pytest.approx(1 - (1.5 + 0.1 + 0.25) / 4.25)
    assert "0.10 for 20 steps repeated, 1.50 stalled, " in format_cost(cost, has_gpus=True)
    status = structs.replace(
        between(), cost=cost, history=History(run_id=RUN.run_id, attempts=[FIRST, hung])
    )
    assert compute_trained_share(status) == pytest.approx(cost.goodput)
    assert hung.end is not None
    well = structs.replace(hung, end=structs.replace(hung.end, exit_code=0))
    assert compute_cost([FIRST, well], 1, None).stalled == 0, "it moved on before it ended"


def over(attempt: Attempt, job: SlurmJob | None = None, **known: Any) -> JobStatus:
    """Build the status of an ended run with two attempts, from a Slurm job or from records."""
    history = History(run_id=RUN.run_id, attempts=[FIRST, attempt], **known)
    verdict = Verdict(state="FAILED", source="squeue", final=True)
    status = JobStatus(verdict=verdict, history=history, run=RUN, job_id="7", job=job)
    elapsed = compute_elapsed(history, job)
    cost = compute_cost(history.attempts, 1, None, elapsed=elapsed)
    return structs.replace(status, elapsed=elapsed, cost=cost)


def test_elapsed_time_includes_what_slurm_counts_after_the_last_heartbeat() -> None:
    """The script was killed, or ranks ignored the signal that asked them to stop."""
    killed = structs.replace(SECOND, end=None, beat=3.0 * HOUR)
    job = SlurmJob(job_id="7", source="squeue", state="FAILED", elapsed="03:00:00")
    seen = CachedState(state="FAILED", reason="", attempts=2, elapsed=3 * HOUR)
    for last in (killed, SECOND):
        for status in (over(last, job), over(last, seen=seen)):
            assert (status.elapsed, status.elapsed_by_slurm) == (3 * HOUR, 3 * HOUR)
            assert status.cost is not None and status.cost.hours == 5.0
            assert compute_trained_share(status) == pytest.approx(status.cost.goodput)
    assert "ended after 3:00:00 by" in format_attempts(over(SECOND, job), str)[1]
    assert "last heartbeat after 30:00" in format_attempts(over(killed, job), str)[1]
    # Slurm's time is ignored for an earlier attempt, several attempts in a job, or a pending job.
    assert over(SECOND, seen=structs.replace(seen, attempts=1)).elapsed == 2.25 * HOUR
    assert FIRST.end is not None
    again = structs.replace(FIRST, end=structs.replace(FIRST.end, next="relaunch"))
    assert compute_elapsed(History(run_id="a", attempts=[again, SECOND]), job) == 2.25 * HOUR
    waits = structs.replace(job, state="PENDING")
    assert compute_elapsed(History(run_id="a", attempts=[FIRST, killed]), waits) == 0.5 * HOUR


def test_cost_of_pending_runs_and_of_attempts_without_steps() -> None:
    idle = attempt(1, 2.5, 3.0, None)
    cost = compute_cost([FIRST, idle], 1, 4 * HOUR)
    assert cost is not None
    assert (cost.restarting, cost.waited) == (0.5, 1.5 * HOUR), "it only started; and waits again"
    # It ended with its first steps, or the job cannot parse steps in logs of this format.
    late = attempt(1, 2.5, 3.0, (101, 102))
    assert compute_cost([FIRST, late], 1, None).restarting == 0.5
    assert compute_cost([structs.replace(FIRST, moved=None), late], 1, None).restarting == 0
    # Without steps in the log, the number of replayed steps is unknown.
    blind = structs.replace(SECOND, first_step=None, last_step=None)
    unknown = compute_cost([FIRST, blind], 1, None)
    assert unknown is not None and (unknown.replayed_steps, unknown.goodput) == (None, None)
    # The same if no log numbers its steps, like that of the Trainer without a progress bar.
    unnumbered = [structs.replace(each, first_step=None, moved=None) for each in (FIRST, SECOND)]
    cost = compute_cost(unnumbered, 1, None)
    assert cost is not None and cost.replayed_steps is None
    assert "unknown for repeated steps" in format_cost(cost, has_gpus=True)


def between(state: str = "PENDING") -> JobStatus:
    """Build a pending run whose second attempt was preempted."""
    attempts = [FIRST, SECOND]
    return JobStatus(
        verdict=Verdict(state=state, source="squeue", reason="BeginTime"),
        history=History(run_id=RUN.run_id, attempts=attempts),
        run=RUN,
        job_id="7",
        name="a",
        gpu_hours=34.0,
        cost=compute_cost(attempts, 8, 5 * HOUR),
    )


def test_run_between_attempts_shows_when_it_restarts() -> None:
    lines = format_run(between(), PLAIN, local_time=str, has_checkpoints=False)
    text = " ".join(" ".join(lines).split())
    assert "restarts after preemption, from step-80.pt" in text
    cost = "34.00 GPU hours, 3.20 for 20 steps repeated, 2.00 restart overhead, goodput 85%"
    assert f"{cost}; 45:00 between attempts" in text
    assert "steps 81 to 180" in text
    assert "restarts after preemption, from step-80.pt" in "\n".join(
        format_listing([between()], 0, PLAIN)
    )
    assert "\n  restarts after preemption, from step-80.pt" in "\n".join(
        line for block in format_top([between()], PLAIN) for line in block
    )
    found = run_json(between())
    check_json("status", {"runs": [found]})
    assert (found["cost"]["replayed_steps"], found["attempts"][1]["last_step"]) == (20, 180)


def test_run_cancelled_between_attempts_does_not_restart() -> None:
    over = Verdict(state="CANCELLED", source="sacct", final=True)
    status = structs.replace(between(), verdict=over)
    first, second = format_attempts(status, str)
    assert first.endswith("resumes from step-80.pt") and second.endswith("by preemption")
    by = Cancelled(cancelled_at=5 * HOUR, user="me")
    for cancelled, ended in ((by, "; ended 18000.0"), (None, "")):
        status = structs.replace(
            status, history=structs.replace(status.history, cancelled=cancelled)
        )
        lines = format_run(status, PLAIN, local_time=str, has_checkpoints=False)
        assert f"  time      not known{ended}; 34.00 GPU hours" in lines
        assert not any("exit code" in line for line in lines)


def test_attempt_text_names_the_checkpoint_that_the_next_attempt_resumed() -> None:
    """A rank may save after the end record was written, and an attempt may leave no record."""
    lost = structs.replace(FIRST, end=None)
    for first in (FIRST, lost):
        status = structs.replace(
            between(),
            history=History(
                run_id=RUN.run_id,
                attempts=[first, structs.replace(SECOND, resumed="/runs/a/step-81.pt")],
            ),
        )
        first_text, second_text = format_attempts(status, str)
        assert first_text.endswith("; resumes from step-81.pt")
        assert second_text.endswith("by preemption; resumes from step-80.pt")


def test_attempt_text_reports_an_interrupted_save() -> None:
    assert FIRST.end is not None
    asked = structs.replace(FIRST, end=structs.replace(FIRST.end, checkpoint=None))
    failed = structs.replace(asked, end=structs.replace(FIRST.end, checkpoint="", stopped_by=None))
    begun = structs.replace(SECOND, resumed="")
    texts = []
    for attempts in ([asked], [asked, begun], [failed]):
        history = History(run_id=RUN.run_id, attempts=attempts)
        texts.append(format_attempts(structs.replace(between(), history=history), str)[0])
    cut_off = "resumes from the beginning: no complete checkpoint existed when it was killed"
    assert texts[0].endswith(cut_off) and texts[1].endswith(cut_off)
    assert texts[2].endswith("resumes from the beginning")


def test_common_text_names_what_failed_attempts_share() -> None:
    one, two = (attempt(index, index, index + 0.1, (1, 2)) for index in (0, 1))
    assert describe_common_facts([one, two]) == "preemption, on n1, last at step 2"
    assert one.begin is not None and one.end is not None
    failure = Failure(rank=3, node=0, host="n1", exit_code=1, signal=None, at=1.0)
    end = structs.replace(one.end, why="error", exit_code=1, stopped_by=None, first_failure=failure)
    never = structs.replace(one, end=end, first_step=None, last_step=None, resumed="")
    elsewhere = structs.replace(never, begin=structs.replace(one.begin, nodes="n2"))
    assert describe_common_facts([never, elsewhere]) == (
        "exit code 1, rank 3 on n1 failed first, before the first step, started from the beginning"
    )
    assert describe_common_facts([one, never]) == "on n1"
    # It has moved on, and no line of its log has a step.
    silent = structs.replace(never, moved=1.0)
    assert "with no step in its log" in describe_common_facts([silent, silent])
    assert describe_common_facts([one, elsewhere]) == ""


def test_steps_of_reads_first_and_last_step_of_a_log(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    (run.logs / "3").mkdir(parents=True)
    log = run.logs / "3" / "rank-0.log"
    middle = "x" * 79 + "\n"
    log.write_text("step=41 loss=2.5\n" + middle * 5000 + "step=90 loss=1.5\nbye\n")
    assert steps_of(run, 3) == (41, 90)
    log.write_text("epoch=1 step=41 loss=2.5\n" + middle * 5000 + "epoch=2 step=3 loss=1.5\n")
    assert steps_of(run, 3) == (None, None), "it counts in each epoch"
    assert steps_of(run, 4) == (None, None)
