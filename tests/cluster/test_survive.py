"""Automatic restarts on a real Slurm."""

from __future__ import annotations

import functools
import json

import pytest

from tests.cluster.site import Site
from tests.cluster.survive_job import (
    SLOWLY,
    insist_on_the_whole_curve,
    preempt,
    preempting,
    step_in,
    steps_of,
    submit,
)
from tests.waiting import until


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("GraceTime=0 PreemptMode=REQUEUE", marks=pytest.mark.thorough),
        "GraceTime=30 PreemptMode=REQUEUE",
        "GraceTime=0 PreemptMode=CANCEL",
        pytest.param("GraceTime=30 PreemptMode=CANCEL", marks=pytest.mark.thorough),
    ],
)
def test_preempted_run_restarts(site: Site, mode: str) -> None:
    with preempting(site, mode):
        run = submit(site, "when: [preempted]", nodes=2, steps=100)
        until(lambda: len(steps_of(run, 0)) >= 6, "some steps")
        preempt(site)
        site.wait_for(run, "attempts/0/end.json")
        end = run.record("end.json")
        assert (end["why"], end["next"]) == ("preempted", "requeue"), run.log()
        until(lambda: site.status(run)["state"] == "PENDING", "the queue")
        waits = " ".join(site.hpcrun("status", run.run_id).stdout.split())
        whole = end["checkpoint"].rpartition("/")[2].strip()
        assert f"restarts after preemption, from {whole}" in waits
        site.start_again(run.job_id)
        shown = insist_on_the_whole_curve(site, run, 100)
    last, saved = steps_of(run, 0)[-1], step_in(end["checkpoint"])
    # Without a grace time, srun also gets SIGTERM, and may kill the step before the ranks save.
    assert saved == last or (saved < last and "GraceTime=0" in mode), "saved as it was asked"
    assert steps_of(run, 1)[0] == saved + 1, "and no more was done twice than was not saved"
    assert len(shown["attempts"]) == 2
    text = " ".join(site.hpcrun("status", run.run_id).stdout.split())
    assert f"by preemption; resumes from step-{saved}.pt" in text
    assert f"steps 1 to {last} " in text and f"steps {saved + 1} to 100 " in text
    assert shown["cost"]["replayed_steps"] == last - saved
    assert shown["cost"]["goodput"] > 0
    (restart,) = json.loads(site.hpcrun("parse", "--json", run.run_id).stdout)["runs"][0]["resumed"]
    assert (restart["attempt"], restart["cause"]) == (1, "preemption")
    assert "attempt 0 was ended by preemption" in site.hpcrun("logs", run.run_id).stdout


def test_preempted_run_without_restart_is_not_completed(site: Site) -> None:
    """The program saves within the grace time and exits with 0, but is not finished."""
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        run = submit(site, "when: []", nodes=2, steps=100)
        until(lambda: len(steps_of(run, 0)) >= 3, "some steps")
        preempt(site)
        done = site.hpcrun("wait", run.run_id)
    assert done.returncode != 0
    assert site.status(run)["state"] == "PREEMPTED"


# The warning comes up to a minute early.
STOP = "$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/stop"
SETUP_UNTIL_WARNED = f"setup.commands=['until [ -e {STOP} ]; do sleep 0.2; done']"


def test_run_restarts_after_its_time_limit(site: Site) -> None:
    """Some runs have a minute less than they need; two of them are signalled before the limit.

    One is still in its setup when Slurm's signal arrives. Another has no `survive`, so that the
    limit ends it.
    """
    saves = "when: [time_limit], save_before_end: 30s"
    asked = submit(site, saves, *SLOWLY, limit="1", steps=150)
    late = submit(site, saves, "--set", SETUP_UNTIL_WARNED, limit="1", steps=150)
    plain = submit(site, "when: [time_limit]", *SLOWLY, limit="1", steps=150)
    over = submit(site, "when: []", limit="1", steps=400)  # Slurm checks twice a minute
    for run in (asked, plain):
        site.wait_for(run, "attempts/0/end.json")
        end = run.record("end.json")
        assert (end["why"], end["next"]) == ("time_limit", "requeue"), run.log()
        last, saved = steps_of(run, 0)[-1], step_in(end["checkpoint"])
        # The ranks of the other one have KillWait, and may save once more.
        assert saved == last if run is asked else saved <= last, (saved, last, run.log())
        assert run is plain or "asked 1 True\n" in run.log(), "once, and the file is there"
        site.start_again(run.job_id)
    site.wait_for(late, "attempts/0/end.json")
    assert late.record("end.json")["next"] == "requeue", late.log()
    assert steps_of(late, 0)[-1] == step_in(late.record("end.json")["checkpoint"]), late.log()
    assert "asked 1 True\n" in late.log(), late.log()
    assert site.hpcrun("cancel", late.run_id).returncode == 0  # it would run for minutes
    for run in (asked, plain):
        site.wait_for(run, "logs/1/rank-0.log")
        until(functools.partial(steps_of, run, 1), "the next attempt")
        # The run without signal may save when Slurm ends its first attempt.
        begun = step_in((run.folder / "attempts/1/resume").read_text())
        assert steps_of(run, 1)[0] == begun + 1 <= steps_of(run, 0)[-1] + 1
        assert site.hpcrun("cancel", run.run_id).returncode == 0
        assert site.hpcrun("wait", run.run_id).returncode == 1
        assert site.status(run)["state"] == "CANCELLED"
    assert site.follow(over).returncode == 1
    assert site.status(over)["state"] == "TIMEOUT"


def test_surviving_run_can_be_requeued_manually(site: Site) -> None:
    """This works while it runs and after it has ended."""
    run = submit(site, "when: [preempted]", "--set", "env.STEP='3'", steps=40)
    until(lambda: steps_of(run, 0), "a step")
    assert site.hpcrun("requeue", run.run_id).returncode == 0
    site.wait_for(run, "attempts/0/end.json")
    until(lambda: run.record("end.json").get("next"), "the end's record")
    assert (run.record("end.json")["why"], run.record("end.json")["next"]) == (
        "requeued",
        "requeue",
    )
    site.start_again(run.job_id)
    assert site.hpcrun("wait", run.run_id).returncode == 0
    # Immediately, because this Slurm forgets a job ten seconds after its end.
    assert site.hpcrun("requeue", run.run_id).returncode == 0
    site.start_again(run.job_id)
    site.wait_for(run, "attempts/2/end.json")
    insist_on_the_whole_curve(site, run, 40)
