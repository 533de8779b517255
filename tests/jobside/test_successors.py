"""The next attempt of a run: claims, requeues, successor jobs, dependencies and spare nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.jobside.records import IDLE_ATTEMPTS_NOTE
from hpcrun.jobside.successors import (
    SUPERFLUOUS,
    Claim,
    Continuation,
    choose_nodes,
    distrust_rebooted_node,
    next_attempt,
    spare_is_left,
)
from tests.jobside.slurm_commands import StandIns, slurm

__all__ = ["slurm"]

SURVIVES = {"HPCRUN_SURVIVE": "preempted node_fail", "HPCRUN_MAX_ATTEMPTS": "20"}
SILENT = "Unable to contact slurm controller (connect failure)"


def write_attempt(
    slurm: StandIns, number: int, *, end: dict[str, Any] | None = None, **begin: Any
) -> Path:
    folder = slurm.run / f"attempts/{number}"
    folder.mkdir(parents=True, exist_ok=True)
    known = {"attempt": number, "job_id": "7", "host": "n1", "begun_at": 100.5, "restarts": number}
    (folder / "begin.json").write_text(json.dumps({**known, **begin}))
    if end is not None:
        (folder / "end.json").write_text(json.dumps(end))
    return folder


def claim(slurm: StandIns, job: str, before: str = "", **env: str) -> Claim:
    return next_attempt({**slurm.environ, **env}, job, before, None, slurm.said.append)


def test_restarted_job_gets_the_next_attempt(slurm: StandIns) -> None:
    write_attempt(slurm, 0, end={"next": "requeue", "exit_code": 143})
    assert claim(slurm, "7", SLURM_RESTART_COUNT="1", **SURVIVES) == Claim(1)
    # A duplicate of a start that has its attempt already.
    assert claim(slurm, "7", SLURM_RESTART_COUNT="0", **SURVIVES) == Claim(0)


@pytest.mark.parametrize("code", [0, 1])
def test_completed_run_that_slurm_restarts_ends_with_its_code(slurm: StandIns, code: int) -> None:
    """Slurm 24.05 to 25.11 may restart a completed job that was preempted before."""
    folder = write_attempt(slurm, 0, end={"next": None, "exit_code": code})
    env = {"SLURM_RESTART_COUNT": "1", **SURVIVES}
    assert claim(slurm, "7", **env) == Claim(None, code)
    assert slurm.said == ["hpcrun: attempt 0 was the last one of this run: see its end.json"]
    (folder / "again").touch()  # hpcrun requeue
    assert claim(slurm, "7", **env) == Claim(1)


@pytest.mark.parametrize(
    ("end", "cancelled", "state", "wanted"),
    [
        ({"next": "8"}, False, "COMPLETED", True),
        ({"next": "9"}, False, "COMPLETED", False),
        ({"next": "requeue"}, False, "NODE_FAIL", True),
        (None, False, "NODE_FAIL", True),
        (None, False, "PREEMPTED", True),
        (None, False, "CANCELLED", False),
        (None, False, "FAILED", False),
        (None, True, "NODE_FAIL", False),
        (None, False, "", True),  # Slurm has forgotten a job whose node died
    ],
)
def test_successor_runs_if_it_is_needed(
    slurm: StandIns, end: dict[str, Any] | None, cancelled: bool, state: str, wanted: bool
) -> None:
    write_attempt(slurm, 0, end=end)
    if cancelled:
        (slurm.run / "cancelled.json").touch()
    name = "JobName=x JobState=CANCELLED UserId=a(1) "
    slurm.answer(
        "scontrol --oneliner show job 7", f"JobId=7 {name}JobState={state}" if state else ""
    )
    found = claim(slurm, "8", "7", **SURVIVES)
    assert found == (Claim(1) if wanted else Claim(None, SUPERFLUOUS))
    assert wanted or slurm.said == ["hpcrun: job 8 is not needed: attempt 0 of this run is job 7's"]


def test_accounting_answers_for_a_job_that_slurmctld_has_forgotten(slurm: StandIns) -> None:
    write_attempt(slurm, 0)
    slurm.answer("scontrol --oneliner show job 7", "", code=1, error="Invalid job id specified")
    slurm.answer("sacct", "CANCELLED by 1000")
    assert claim(slurm, "8", "7", **SURVIVES) == Claim(None, SUPERFLUOUS)


def test_successor_of_another_run_of_the_job_is_not_needed(slurm: StandIns) -> None:
    write_attempt(slurm, 1, job_id="12")  # continued by job 12 meanwhile
    assert claim(slurm, "8", "7", **SURVIVES) == Claim(None, SUPERFLUOUS)


def test_crash_loop_is_ended_with_a_record(slurm: StandIns) -> None:
    for number in range(3):
        folder = write_attempt(slurm, number)
        (folder / "mark").write_text("\n")
        (folder / "beat").write_text(f"{number}50\n")
    assert claim(slurm, "7", SLURM_RESTART_COUNT="3", **SURVIVES) == Claim(None, 1)
    end = json.loads((folder / "end.json").read_text())
    assert (end["why"], end["next"], end["note"]) == ("node_fail", None, IDLE_ATTEMPTS_NOTE)
    assert (end["ended_at"], end["exit_code"], end["job_id"]) == (250, 1, "7")


def test_rebooted_node_is_recorded_as_bad(slurm: StandIns) -> None:
    write_attempt(slurm, 0)
    env = {**SURVIVES, "HPCRUN_ATTEMPT": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
    slurm.answer("scontrol --oneliner show node n1", "NodeName=n1 BootTime=2026-11-28T10:00:00")
    slurm.answer("scontrol show hostnames", "n1\nn2")
    job = slurm.job(**env)
    assert distrust_rebooted_node(job, 0)
    assert (slurm.run / "attempts/1/bad/n1").read_text() == (
        "it has booted while attempt 0 was running there\n"
    )
    slurm.answer("scontrol show hostnames", "n2\nn3")  # the run is elsewhere
    assert not distrust_rebooted_node(job, 0)


# ---- The next attempt ----------------------------------------------------------------------------

RUNNING = "JobId=7 JobState=RUNNING Requeue=1 Restarts=0 ExcNodeList=(null)"


def test_job_is_requeued_without_its_bad_nodes(slurm: StandIns) -> None:
    slurm.answer("scontrol --oneliner show job", RUNNING.replace("(null)", "n9"))
    bad = slurm.run / "attempts/0/bad"
    bad.mkdir()
    (bad / "n2").write_text("why\n")
    assert Continuation(slurm.job(**SURVIVES)).go_on(0) == "requeue"
    assert slurm.called("scontrol requeue", "scontrol update") == [
        "scontrol requeue 7",
        "scontrol update JobId=7 ExcNodeList=n9,n2",
    ]


def test_requeue_is_repeated_while_slurmctld_is_silent(slurm: StandIns) -> None:
    slurm.answer("scontrol --oneliner show job", RUNNING)
    (slurm.answers / "scontrol_requeue").write_text(
        f'n=$(grep -c requeue "$CALLS"); [ "$n" -gt 3 ] || {{ echo "{SILENT}" >&2; exit 1; }}\n'
    )
    assert Continuation(slurm.job(**SURVIVES)).requeue("")
    assert slurm.called("scontrol requeue") == ["scontrol requeue 7"] * 4


def test_job_that_slurm_restarts_is_not_requeued_again(slurm: StandIns) -> None:
    slurm.answer("scontrol --oneliner show job", RUNNING.replace("Restarts=0", "Restarts=1"))
    assert Continuation(slurm.job(**SURVIVES)).go_on(0) == "requeue"
    assert not slurm.called("scontrol requeue")


@pytest.mark.parametrize("how", ["record", "state"])
def test_cancelled_job_does_not_continue(slurm: StandIns, how: str) -> None:
    state = "COMPLETING Reason=None" if how == "state" else "RUNNING"
    slurm.answer("scontrol --oneliner show job", f"JobId=7 JobState={state} Restarts=0")
    if how == "record":
        (slurm.run / "cancelled.json").touch()
    assert Continuation(slurm.job(**SURVIVES)).go_on(0) is None
    assert not slurm.called("scontrol requeue", "sbatch")


def test_another_job_continues_where_requeueing_is_forbidden(slurm: StandIns) -> None:
    """A site's wrapper prints more than the number, and a note to stderr."""
    slurm.answer("scontrol --oneliner show job", RUNNING)
    slurm.answer("scontrol requeue", "", code=1, error="Job requeue is disabled")
    slurm.answer("scontrol update JobId=7 Requeue", "", code=1, error="Access denied")
    slurm.answer("sbatch", "cost: 3\n42;here", error="sbatch: note: a partition was chosen")
    slurm.answer("squeue", "5 afterok:7(unfulfilled)\n42 afterany:7(unfulfilled)\n6 (null)")
    job = slurm.job(SBATCH_ACCOUNT="lab", SBATCH_ARRAY_INX="1-9", **SURVIVES)
    assert Continuation(job).go_on(0) == "42"
    assert slurm.called("sbatch") == [
        "sbatch --parsable --begin=now+0 --dependency=afterany:7 job.sbatch after 7"
    ]
    changed = {*slurm.called("scontrol update JobId=5", "scontrol update JobId=42")}
    assert changed == {"scontrol update JobId=5 Dependency=afterok:42"}


def test_environment_of_the_next_job_is_that_of_a_new_submission(slurm: StandIns) -> None:
    (slurm.answers / "sbatch").write_text(
        'env >"$ANSWERS/../env"; pwd >>"$ANSWERS/../env"; echo 42\n'
    )
    given = {"SBATCH_ACCOUNT": "lab", "SLURM_NTASKS": "8", "HPCRUN_ATTEMPT": "0", "HOME": "/h"}
    assert Continuation(slurm.job(SBATCH_TIMELIMIT="5", **given)).chain(60, "n1", 1) == "42"
    env = (slurm.answers.parent / "env").read_text().splitlines()
    assert {"SBATCH_ACCOUNT=lab", "HOME=/h", f"HPCRUN_RUN_DIR={slurm.run}"} <= {*env}
    assert env[-1] == str(slurm.run)
    names = {line.partition("=")[0] for line in env}
    assert not names & {"SBATCH_TIMELIMIT", "SLURM_NTASKS", "SLURM_JOB_ID", "HPCRUN_ATTEMPT"}


def test_exclusion_is_repeated_if_scontrol_is_terminated(slurm: StandIns) -> None:
    """The SIGTERM to a requeued job also reaches scontrol."""
    (slurm.answers / "scontrol_update").write_text('[ "$(wc -l <"$CALLS")" -gt 1 ] || kill $$\n')
    Continuation(slurm.job()).exclude("node4")
    assert slurm.called() == ["scontrol update JobId=7 ExcNodeList=node4"] * 2


def test_unknown_node_does_not_prevent_the_exclusion_of_others(slurm: StandIns) -> None:
    """A node of an earlier attempt may have been removed from the cluster."""
    (slurm.answers / "scontrol_update").write_text(
        'case "$*" in *gone*) echo "Invalid node name specified" >&2; exit 1 ;; esac\n'
    )
    bad = slurm.run / "attempts/0/bad"
    bad.mkdir()
    (bad / "n2").write_text("why\n")
    Continuation(slurm.job()).exclude("gone,n2")
    assert slurm.called()[-1] == "scontrol update JobId=7 ExcNodeList=n2"


def test_run_is_secured_by_a_waiting_job(slurm: StandIns) -> None:
    folder = write_attempt(slurm, 0)
    slurm.answer("scontrol --oneliner show job", RUNNING.replace("Requeue=1", "Requeue=0"))
    slurm.answer("scontrol update JobId=7 Requeue", "", code=1, error="Access denied")
    slurm.answer("sbatch", "42")
    slurm.answer(
        "squeue",
        "5 afterok:7(unfulfilled)\n6 afterok:7(unfulfilled),afterok:4(unfulfilled)\n"
        "42 afterany:7(unfulfilled)\n8 afternotok:7(unfulfilled)\n9 afterany:7(unfulfilled)",
    )
    job = slurm.job(**SURVIVES)
    assert Continuation(job).secure("")
    assert job.successor() == "42"
    assert json.loads((folder / "begin.json").read_text())["host"] == "n1"
    assert not (folder / "chaining").exists()
    assert slurm.called("scontrol update")[1:] == [
        "scontrol update JobId=5 Dependency=afterok:7?afterok:42",
        "scontrol update JobId=8 Dependency=afternotok:7,afternotok:42",
        "scontrol update JobId=9 Dependency=afterany:7,afterany:42",
    ]


def test_run_that_slurm_may_requeue_needs_no_other_job(slurm: StandIns) -> None:
    slurm.answer("scontrol --oneliner show job", RUNNING)
    assert Continuation(slurm.job(**SURVIVES)).secure("")
    slurm.answer("scontrol --oneliner show job", "", code=1, error=SILENT)
    assert not Continuation(slurm.job(**SURVIVES)).secure(""), "it is repeated later"
    assert not slurm.called("sbatch")


def test_dependency_on_an_array_names_its_other_tasks(slurm: StandIns) -> None:
    (slurm.answers / "squeue_--noheader_--user").write_text(
        'grep -q update "$CALLS" || echo "12_[0-3%2] afterok:7_*(unfulfilled)"\n'
    )
    slurm.answer("squeue --noheader --array", "7_0 COMPLETED\n7_1 RUNNING\n7_2 PENDING\n7_3 FAILED")
    Continuation(slurm.job()).move_dependencies("7_1", "42")
    assert slurm.called("scontrol") == ["scontrol update JobId=12 Dependency=afterok:42:7_2:7_3"]


def test_one_failure_of_an_array_that_continues_is_enough(slurm: StandIns) -> None:
    (slurm.answers / "squeue_--noheader_--user").write_text(
        'grep -q update "$CALLS" || echo "12 afternotok:7_*(unfulfilled)?afternotok:5(failed)"\n'
        'echo "13 afternotok:7_*(unfulfilled),singleton(unfulfilled)"\n'
        'echo "14 afternotok:17_*(unfulfilled)"\n'
    )
    slurm.answer("squeue --noheader --array", "7_0 COMPLETED\n7_1 RUNNING\n7_2 PENDING")
    Continuation(slurm.job()).move_dependencies("7_1", "42")
    assert slurm.called("scontrol") == [
        "scontrol update JobId=12 Dependency=afternotok:42?afternotok:7_2?afternotok:5"
    ]
    (message,) = {*slurm.said}
    assert message.startswith("hpcrun: a job that waits for afternotok:7_*,singleton may start")


def test_task_that_starts_after_one_task_of_an_array_follows_it_alone(slurm: StandIns) -> None:
    (slurm.answers / "squeue_--noheader_--user").write_text(
        'echo "12_[0,2-3] aftercorr:7_*(unfulfilled)"\n'
        'if grep -q update "$CALLS"; then echo "12_1 afterok:42(unfulfilled)";\n'
        'else echo "12_1 aftercorr:7_*(unfulfilled)"; fi\n'
    )
    slurm.answer("squeue --noheader --array", "7_0 COMPLETED\n7_1 RUNNING")
    Continuation(slurm.job()).move_dependencies("7_1", "42")
    assert slurm.called("scontrol") == ["scontrol update JobId=12_1 Dependency=afterok:42"]


# ---- Spare nodes ---------------------------------------------------------------------------------


def test_healthy_nodes_are_chosen_first(slurm: StandIns) -> None:
    (slurm.run / "attempts/0/bad").mkdir()
    (slurm.run / "attempts/0/bad/n1").write_text("why\n")
    (slurm.run / "attempts/0/bad/n2.part").write_text("why\n")
    slurm.answer("scontrol --oneliner show job", "JobId=7 JobState=RUNNING NodeList=n[1-3]")
    slurm.answer("scontrol show hostnames", "n1\nn2\nn3")
    slurm.answer(
        "scontrol --oneliner show node", "\n".join(f"NodeName=n{i} State=IDLE" for i in "123")
    )
    job = slurm.job(HPCRUN_ALLOCATED="n[1-3]", SLURM_JOB_NUM_NODES="2", HPCRUN_ATTEMPT="1")
    assert choose_nodes(job, 2) == ["n2", "n3"]
    assert choose_nodes(job, 3) == ["n2", "n3", "n1"]
    job.node_list = "n2,n3"
    assert spare_is_left(job, "node_fail")
    assert not spare_is_left(job, "error")
    (slurm.run / "attempts/1").mkdir(exist_ok=True)
    (slurm.run / "attempts/1/stop").write_text("time_limit")
    assert not spare_is_left(job, "node_fail"), "the warning is sent once"
