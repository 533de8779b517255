"""The client's handling of Slurm's replies, with a transport that returns scripted replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.errors import CommandFailed, HpcrunError, OutOfReach, SchedulerRefused
from hpcrun.remote import Result
from hpcrun.slurm import client
from tests.remote.scripted import ScriptedTransport
from tests.slurm_answers import show_job, squeue_row

RUN_DIR = "/scratch/runs/20261120-081455-train-7k3q"
RUN = [Path(RUN_DIR)]
SILENT = OutOfReach("sbatch did not respond within 60 s", maybe_done=True)
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
LOST_REPLIES = pytest.mark.parametrize("answer", [SILENT, (1, "", TIMED_OUT)], ids=["no", "late"])


def captured(command: str, case: str) -> tuple[int, str, str]:
    file = Path(__file__).parent.parent / "captured" / "22.05.8" / command / f"{case}.json"
    read = json.loads(file.read_text())
    return read["exit_code"], read["stdout"], read["stderr"]


def row(job_id: str, work_dir: str, reason: str = "None") -> str:
    return squeue_row(job_id, r=reason, Z=work_dir)


def queue_of(*rows: str) -> tuple[int, str, str]:
    return 0, "".join(rows), ""


def test_submit_runs_sbatch_once_in_the_run_folder() -> None:
    seen = []

    class Recording(ScriptedTransport):
        def run(self, argv: Sequence[str], **options: object) -> Result:
            seen.append(options)
            return super().run(argv)

    transport = Recording({"sbatch": captured("sbatch", "taken")})
    assert client.submit_script(transport, RUN, {"A": "b"}) == "2"
    assert transport.asked == [["sbatch", "--parsable", "job.sbatch"]]
    assert seen == [{"cwd": RUN_DIR, "env": {"A": "b"}, "timeout": client.TIMEOUT}]


def test_refusal_has_a_fix() -> None:
    transport = ScriptedTransport({"sbatch": captured("sbatch", "refused-invalid-partition")})
    with pytest.raises(SchedulerRefused) as caught:
        client.submit_script(transport, RUN, {})
    assert "invalid partition specified: nowhere" in caught.value.message
    assert "sbatch: error" not in caught.value.message
    assert caught.value.fix == "name a partition of this cluster: sinfo lists them"
    assert transport.asked == [["sbatch", "--parsable", "job.sbatch"]]


def test_refusal_without_message_is_reported() -> None:
    transport = ScriptedTransport({"sbatch": (1, "", "")})
    with pytest.raises(SchedulerRefused, match="sbatch ended with code 1"):
        client.submit_script(transport, RUN, {})


def test_reply_without_job_id_is_not_a_refusal() -> None:
    """If a site's wrapper hides the id, the job may exist, so its folder must be kept."""
    transport = ScriptedTransport({"sbatch": (0, "done\n", ""), "squeue": (0, "", "")})
    with pytest.raises(OutOfReach, match="sbatch printed no job id: 'done'") as caught:
        client.submit_script(transport, RUN, {})
    assert caught.value.maybe_done


@pytest.mark.parametrize("case", ["no-controller", "no-munge"])
def test_unsent_submission_is_not_searched_in_the_queue(case: str) -> None:
    transport = ScriptedTransport({"sbatch": captured("sbatch", case)})
    with pytest.raises(OutOfReach) as caught:
        client.submit_script(transport, RUN, {})
    assert not caught.value.maybe_done
    assert [argv[0] for argv in transport.asked] == ["sbatch"]


@LOST_REPLIES
def test_lost_reply_is_resolved_by_the_run_folder(
    answer: Exception | tuple[int, str, str],
) -> None:
    rows = queue_of(row("6", "/scratch/runs/another"), row("7", "/other/mount/" + RUN_DIR[14:]))
    transport = ScriptedTransport({"sbatch": answer, "squeue": rows})
    assert client.submit_script(transport, RUN, {}) == "7"


@LOST_REPLIES
def test_lost_reply_without_a_job_remains_unknown(
    answer: Exception | tuple[int, str, str],
) -> None:
    # The row of a refused job does not count.
    rows = queue_of(row("6", "/scratch/runs/another"), row("7", RUN_DIR, "BadConstraints"))
    transport = ScriptedTransport({"sbatch": answer, "squeue": rows})
    with pytest.raises(OutOfReach) as caught:
        client.submit_script(transport, RUN, {})
    assert caught.value.maybe_done
    assert [argv[0] for argv in transport.asked] == ["sbatch", "squeue"]


@LOST_REPLIES
def test_lost_reply_and_silent_queue_remain_unknown(
    answer: Exception | tuple[int, str, str],
) -> None:
    queue = captured("squeue", "no-controller")
    transport = ScriptedTransport({"sbatch": answer, "squeue": queue})
    with pytest.raises(OutOfReach, match="sbatch") as caught:
        client.submit_script(transport, RUN, {})
    assert caught.value.maybe_done


def test_queue_lists_jobs_of_all_partitions() -> None:
    transport = ScriptedTransport({"squeue": captured("squeue", "all")})
    assert len(client.query_queue(transport)) == captured("squeue", "all")[1].count("\x1e") > 9
    # Jobs in hidden partitions belong to the user as well.
    assert transport.asked[0][-2:] == ["--all", "--me"]


def test_job_unknown_to_squeue_is_omitted() -> None:
    transport = ScriptedTransport({"squeue": captured("squeue", "unknown")})
    assert client.query_queue(transport, ["999999"]) == []


@pytest.mark.parametrize("case", ["no-controller", "no-munge", "no-slurm-conf"])
def test_unreadable_queue_is_not_an_empty_queue(case: str) -> None:
    transport = ScriptedTransport({"squeue": captured("squeue", case)})
    with pytest.raises(OutOfReach, match="squeue"):
        client.query_queue(transport)


def test_failure_before_the_first_job_is_an_error() -> None:
    for text in (
        "squeue: error: a cluster is missing!",
        "Unable to reach the controller",
        "<html>",
    ):
        answer = (0, f"{text}\n" + row("7", RUN_DIR), "")
        with pytest.raises(OutOfReach, match="other than a list of jobs"):
            client.query_queue(ScriptedTransport({"squeue": answer}), ["7"])


def test_banner_of_a_wrapper_is_ignored() -> None:
    jobs = row("7", RUN_DIR) + row("8", RUN_DIR)
    for answer in (f"Welcome to the cluster!\n{jobs}", f"{jobs}Welcome!\n", f"\nHi\n\n{jobs}\nBye"):
        found = client.query_queue(ScriptedTransport({"squeue": (0, answer, "")}), ["7", "8"])
        assert [job.job_id for job in found] == ["7", "8"]


def test_strict_queue_verifies_an_empty_answer() -> None:
    """squeue prints its column names even if there are no jobs; a broken wrapper prints nothing."""
    mute = ScriptedTransport({"squeue": (0, "", "")})
    assert client.query_queue(mute, ["7"]) == []
    with pytest.raises(OutOfReach, match="squeue prints nothing"):
        client.query_queue(mute, ["7"], strict=True)

    def squeue(argv: Sequence[str]) -> Result:
        return Result(list(argv), 0, "" if "--noheader" in argv else "JOBID\n", "")

    assert client.query_queue(ScriptedTransport({"squeue": squeue}), ["7"], strict=True) == []
    forgotten = ScriptedTransport({"squeue": captured("squeue", "unknown")})
    assert client.query_queue(forgotten, ["999999"], strict=True) == []
    assert len(forgotten.asked) == 1, "the answer that the job is unknown is reliable"


def test_accounting_queries_jobs_by_id() -> None:
    transport = ScriptedTransport({"sacct": captured("sacct", "jobs")})
    rows = client.query_accounting(transport, ["1", "2"])
    assert rows is not None and len({row.job_id for row in rows}) > 9
    assert transport.asked[0][-1] == "--jobs=1,2"
    assert client.query_accounting(ScriptedTransport({}), []) == []


@pytest.mark.parametrize(
    "answer",
    [captured("sacct", "no-accounting"), OutOfReach("sacct: command not found")],
    ids=["disabled", "absent"],
)
def test_missing_accounting_returns_none(answer: Exception | tuple[int, str, str]) -> None:
    assert client.query_accounting(ScriptedTransport({"sacct": answer}), ["1"]) is None


def test_missing_response_raises_out_of_reach_for_every_query() -> None:
    silent = OutOfReach("no response within 60 s", maybe_done=True)
    transport = ScriptedTransport(dict.fromkeys(("squeue", "sacct", "scontrol"), silent))
    for question in (
        lambda: client.query_queue(transport),
        lambda: client.query_accounting(transport, ["1"]),
        lambda: client.show_jobs(transport, "1"),
        lambda: client.query_pending(transport, "gpu"),
        lambda: client.run_query(transport, ["scontrol", "show", "assoc_mgr"]),
    ):
        with pytest.raises(OutOfReach):
            question()


def test_show_jobs_returns_state_and_output_files() -> None:
    transport = ScriptedTransport({"scontrol": captured("scontrol", "running")})
    (job,) = client.show_jobs(transport, "2")
    assert (job.state, job.restarts, job.exit_code) == ("RUNNING", 0, "0:0")
    assert job.stdout == job.stderr == "/scratch/runs/20261120-081455-a b-7k3q/out.log"
    array = ScriptedTransport({"scontrol": captured("scontrol", "array")})
    tasks = {job.task: job.state for job in client.show_jobs(array, "17")}
    assert tasks["4"] == "RUNNING" and tasks["[5-6%2]"] == "PENDING" and tasks["2"] == "FAILED"
    forgotten = ScriptedTransport({"scontrol": captured("scontrol", "unknown")})
    assert client.show_jobs(forgotten, "999999") == []
    silent = ScriptedTransport({"scontrol": captured("scontrol", "no-controller")})
    with pytest.raises(OutOfReach):
        client.show_jobs(silent, "2")


def test_outputs_lists_stderr_only_if_it_is_a_separate_file() -> None:
    transport = ScriptedTransport({"scontrol": captured("scontrol", "running")})
    (both,) = client.show_jobs(transport, "2")
    assert both.outputs == ["/scratch/runs/20261120-081455-a b-7k3q/out.log"]
    text = show_job("7", StdErr="/a/7.err", StdIn="/dev/null", StdOut="/a/7.out", Power="")
    (two,) = client.show_jobs(ScriptedTransport({"scontrol": (0, text, "")}), "7")
    assert two.outputs == ["/a/7.out", "/a/7.err"]


OVER = "scancel: error: Kill job error on job id 7: Job/step already completing or completed\n"
DENIED = "scancel: error: Kill job error on job id 7: Access/permission denied\n"
UNKNOWN = "scancel: error: Kill job error on job id 7: Invalid job id specified\n"


@pytest.mark.parametrize("answer", [captured("scancel", "taken"), (1, "", OVER), (1, "", UNKNOWN)])
def test_cancel_all_cancels_jobs_in_one_call(answer: tuple[int, str, str]) -> None:
    transport = ScriptedTransport({"scancel": answer})
    client.cancel_jobs(transport, ["7", "8_3"])
    client.cancel_jobs(transport, ["9"], pending=True)
    client.cancel_jobs(transport, [])
    assert transport.asked == [["scancel", "7", "8_3"], ["scancel", "--state=PENDING", "9"]]


def test_lost_cancellation_says_whether_it_may_have_happened() -> None:
    asked = {"no-controller": captured("scancel", "no-controller"), "late": (1, "", TIMED_OUT)}
    for case, answer in asked.items():
        with pytest.raises(OutOfReach) as caught:
            client.cancel_jobs(ScriptedTransport({"scancel": answer}), ["7"])
        assert caught.value.maybe_done == ("it may have happened" in caught.value.message)
        assert caught.value.maybe_done == (case == "late")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((1, "", DENIED), SchedulerRefused),
        (captured("scancel", "no-controller"), OutOfReach),
        ((1, "", "scancel: error: no idea\n"), CommandFailed),
    ],
)
def test_failed_cancellation_raises_the_matching_error(
    answer: tuple[int, str, str], error: type[HpcrunError]
) -> None:
    with pytest.raises(error):
        client.cancel_jobs(ScriptedTransport({"scancel": answer}), ["7"])
