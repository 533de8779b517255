"""How the job reads Slurm's answers: records, messages, times, nodes and dependencies."""

from __future__ import annotations

import socket
import time

import pytest

from hpcrun.jobside.slurm import (
    Answer,
    command_environment,
    is_node_lost,
    is_unreachable,
    names_memory,
    parse_record,
    parse_submitted,
    parse_time,
    parse_waiting,
    read_slurmstepd,
    replace_dependency,
)
from tests.jobside.slurm_commands import StandIns
from tests.jobside.slurm_commands import slurm as slurm

JOB = (
    "JobId=7 JobName={name} UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A JobState={state}"
    " Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1"
    " EndTime=2026-11-28T12:00:00 PreemptTime={preempted} ExcNodeList=(null) NodeList=n[1-2]"
    " Comment=Restarts=9 JobState=FAILED"
)


def shown(state: str, reason: str = "None", *, restarts: int = 0, preempted: str = "None") -> str:
    return JOB.format(
        name="a JobState=FAILED Restarts=7 PreemptTime=2026",
        state=state,
        reason=reason,
        restarts=restarts,
        preempted=preempted,
    )


def test_fields_are_not_read_from_free_text() -> None:
    record = parse_record(shown("RUNNING"))
    assert (record["JobState"], record["Restarts"], record["PreemptTime"]) == (
        "RUNNING",
        "0",
        "None",
    )
    assert record["NodeList"] == "n[1-2]" and "JobName" not in record
    assert parse_record("") == {}


@pytest.mark.parametrize(
    ("shows", "log", "state"),
    [
        (shown("RUNNING"), "", ""),
        (shown("RUNNING", restarts=1), "", "NODE_FAIL"),  # on other nodes, at the same time
        (shown("COMPLETING", "TimeLimit"), "", "TIMEOUT"),
        (shown("COMPLETING", "NodeDown"), "", "NODE_FAIL"),
        (shown("COMPLETING"), "", "CANCELLED"),
        (shown("COMPLETING", preempted="2026-11-28T11:00:00"), "", "PREEMPTED"),
        # The owner cancels it during the grace time.
        (
            shown("COMPLETING", preempted="2026-11-28T11:00:00"),
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-28T11:00:01 ***",
            "CANCELLED",
        ),
        (shown("PENDING", restarts=1), "", "REQUEUED"),
        (
            shown("COMPLETING", restarts=1),
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 1 DUE TO PREEMPTION ***",
            "PREEMPTED",
        ),
        (
            "",
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 1 DUE TO TIME LIMIT ***",
            "TIMEOUT",
        ),
        # A message about another job, about another step, and about the attempt before.
        ("", "slurmstepd: error: *** JOB 71 ON n1 CANCELLED AT 1 DUE TO TIME LIMIT ***", ""),
        ("", "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 1 ***", ""),
        (
            "",
            "*** JOB 7 ON n CANCELLED AT 1 DUE TO TIME LIMIT ***\nhpcrun: attempt 0 of job 7 ",
            "",
        ),
        (shown("FAILED"), "", "FAILED"),
    ],
)
def test_state_of_the_job_follows_from_its_record_and_messages(
    slurm: StandIns, shows: str, log: str, state: str
) -> None:
    slurm.answer("scontrol --oneliner show job", shows, code=0 if shows else 1)
    (slurm.run / "logs/batch.log").write_text(f"{log}\n")
    job = slurm.job()
    assert job.state(job.show()) == state


def test_settings_of_the_user_do_not_change_the_form_of_answers(slurm: StandIns) -> None:
    names = {"SLURM_TIME_FORMAT": "relative", "SQUEUE_FORMAT": "%j", "SACCT_FEDERATION": "1"}
    assert command_environment({**names, "SLURM_CONF": "/etc/slurm.conf"}) == {
        "SLURM_CONF": "/etc/slurm.conf"
    }
    (slurm.answers / "scontrol_--oneliner_show_job").write_text(
        'echo "JobId=7 JobState=RUNNING EndTime=${SLURM_TIME_FORMAT:-2026-11-28T12:00:00}"\n'
    )
    found = slurm.job(**names).show()["EndTime"]
    assert time.strftime("%H:%M", time.localtime(parse_time(found))) == "12:00"


@pytest.mark.parametrize(
    ("error", "is_silence"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("slurm_load_jobs error: Slurm backup controller in standby mode", True),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", True),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", True),
        ("slurm_load_jobs error: Protocol authentication error", True),
        ("scontrol: error: Munge encode failed: Failed to connect to munged", True),
        ("scontrol: error: slurm_msg_sendto: Transport endpoint is not connected", True),
        ("", True),
        ("slurm_load_jobs error: Invalid job id specified", False),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not", False),
    ],
)
def test_silence_of_slurmctld_is_told_from_a_refusal(error: str, is_silence: bool) -> None:
    assert Answer(None, error, 1).is_silence is is_silence
    assert not Answer("done").is_silence


def test_query_is_repeated_while_slurmctld_is_silent(slurm: StandIns) -> None:
    """The end record is written at the first silence, since Slurm may kill this process soon."""
    slurm.answer(
        "scontrol --oneliner show job", "", code=1, error="Unable to contact slurm controller"
    )
    silences: list[str] = []
    assert slurm.job().show(4, lambda: silences.append("silent")) == {}
    assert len(slurm.called("scontrol")) == 4 and silences == ["silent"]
    slurm.answer("scontrol --oneliner show job", "", code=1, error="Invalid job id specified")
    assert slurm.job().show(4) == {}
    assert len(slurm.called("scontrol")) == 5


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("42\n", "42"),
        ("42;cluster2\n", "42"),
        ("Your balance is 100 hours\n42\nThank you\n", "42"),
        ("42\nsbatch: note: partition gpu is chosen\n", "42"),
        ("Submitted batch job 42\n", ""),
        ("", ""),
    ],
)
def test_number_of_a_submitted_job_is_found(text: str, job: str) -> None:
    assert parse_submitted(text) == job


@pytest.mark.parametrize(
    ("record", "is_lost"),
    [
        ("State=IDLE BootTime=2026-11-28T10:00:00", False),
        ("State=ALLOCATED+DRAIN BootTime=2026-11-28T10:00:00", False),
        ("State=DOWN* BootTime=2026-11-28T10:00:00", True),
        ("State=IDLE+NOT_RESPONDING BootTime=2026-11-28T10:00:00", True),
        ("State=MIXED BootTime=2026-11-28T13:00:00", True),
        ("State=MIXED BootTime=None", False),
        ("State=MIXED BootTime=Unknown", False),
    ],
)
def test_lost_node_is_recognised_by_state_and_boot_time(record: str, is_lost: bool) -> None:
    began = time.mktime((2026, 11, 28, 12, 0, 0, 0, 0, -1))
    assert is_node_lost(parse_record(record), began) is is_lost


def test_partial_records_of_bad_nodes_are_ignored(slurm: StandIns) -> None:
    bad = slurm.run / "attempts/0/bad"
    bad.mkdir()
    for name in ("n1", "n2.part", ".n3.part", "n 4"):
        (bad / name).write_text("why\n")
    assert slurm.job().bad_nodes() == ["n1"]


def test_node_that_was_removed_from_a_job_with_spare_nodes_is_lost(slurm: StandIns) -> None:
    (slurm.run / "attempts/0/begin.json").write_text('{"begun_at": 1764000000.5}')
    slurm.answer("scontrol --oneliner show job", "JobId=7 JobState=RUNNING NodeList=kept")
    slurm.answer("scontrol show hostnames", "n1\nn3")
    nodes = [f"NodeName=n{number} State=MIXED BootTime=2020-01-01T00:00:00" for number in (1, 2, 3)]
    slurm.answer("scontrol --oneliner show node", "\n".join(nodes))
    env = {"HPCRUN_ALLOCATED": "n[1-3]", "SLURM_JOB_NODELIST": "n1,n2", "SLURM_JOB_NUM_NODES": "2"}
    assert slurm.job(**env).lost_nodes() == ["n2"]


def test_memory_messages_are_those_of_slurm() -> None:
    assert names_memory("ok\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    assert names_memory("srun: error: n1: task 3: Out Of Memory\n") is True
    assert not names_memory("RuntimeError: CUDA error: out of memory\n")


def test_node_failure_is_recognised_in_messages() -> None:
    text = "*** JOB 7 ON n1 CANCELLED AT 1 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
    assert read_slurmstepd(text, "7") == "NODE_FAIL"
    assert read_slurmstepd(text.replace("NODE FAILURE", "NODE n1 FAILURE"), "7") == "NODE_FAIL"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("afterok:7", "afterok:9"),
        ("afterany:7", "afterany:9"),
        ("afterok:71", "afterok:71"),
        ("afterok:7,afterok:8", "afterok:9,afterok:8"),
        ("afterok:8?afterok:7", "afterok:8?afterok:9"),
        ("afterok:7?afterok:9", "afterok:9"),
        ("afterok:6:7", "afterok:6:9"),
        ("afternotok:6?afternotok:7", "afternotok:6?afternotok:9"),
        ("after:7", "after:7"),
        ("singleton,afterok:7", "singleton,afterok:9"),
    ],
)
def test_dependency_follows_the_run_to_its_next_job(before: str, after: str) -> None:
    assert replace_dependency(before, "7", "9") == after


def test_pending_jobs_are_read_with_their_dependencies() -> None:
    text = (
        "8 afterok:7(unfulfilled)\n12_[0-3%2] afterok:7_*(unfulfilled)\n"
        "9 (null)\n10_4 afterok:7(unfulfilled)?afterok:6(failed)\n"
    )
    assert [tuple(row) for row in parse_waiting(text)] == [
        ("8", "afterok:7"),
        ("12", "afterok:7_*"),
        ("10_4", "afterok:7?afterok:6"),
    ]


@pytest.mark.parametrize(
    ("config", "partition", "qos", "seconds"),
    [
        ("KillWait  = 90 sec", "GraceTime=0", "", 90),
        ("", "GraceTime=120", "", 120),
        ("", "", "", 30),
        # Slurm preempts by QOS: its grace time counts, and in no other case.
        (
            "KillWait = 30 sec\nPreemptType             = preempt/qos",
            "GraceTime=0",
            "00:05:00",
            300,
        ),
        ("PreemptType             = preempt/partition_prio", "GraceTime=0", "00:05:00", 30),
    ],
)
def test_time_for_saving_follows_from_slurm_grace_times(
    slurm: StandIns, config: str, partition: str, qos: str, seconds: int
) -> None:
    slurm.answer("scontrol show config", config)
    slurm.answer("scontrol --oneliner show partition", partition)
    slurm.answer("sacctmgr", qos)
    env = {"SLURM_JOB_PARTITION": "debug", "SLURM_JOB_QOS": "normal"}
    assert slurm.job(**env).grace() == seconds


def test_host_that_refuses_a_connection_is_reachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not is_unreachable("127.0.0.1", unused.getsockname()[1])
    assert not is_unreachable("no-such-host.invalid", 1)
