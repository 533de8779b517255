"""The parsers on captured output of Slurm: tests/captured/VERSION/COMMAND/CASE.json.

Each file contains the source of the capture, the command line, the output, and the parser's result.
``make test-slurm-versions`` writes the files (tests/versions). The expected results for the
captured jobs are defined here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.slurm.commands import SBATCH, parse_estimate, parse_sbatch, scancel_argv
from hpcrun.slurm.jobs import (
    SlurmJob,
    count_gpus,
    is_task_id,
    parse_sacct,
    parse_show_job,
    parse_squeue,
    sacct_argv,
    show_job_argv,
    squeue_argv,
)
from hpcrun.slurm.reasons import matches_answer, refusal_fix
from hpcrun.slurm.states import UNKNOWN
from tests.versions.book import PARSERS, as_json

CAPTURED = Path(__file__).parent.parent / "captured"
VERSIONS = sorted(folder.name for folder in CAPTURED.iterdir())
FILES = sorted(CAPTURED.glob("*/*/*.json"))
every_version = pytest.mark.parametrize("version", VERSIONS)

# The final state of each job of tests/versions/capture.py, by name.
STATES = {
    "timeout": "TIMEOUT",
    "two words": "RUNNING",
    "ok": "COMPLETED",
    "failed": "FAILED",
    "code 131": "FAILED",
    "killed": "FAILED",
    "oom": "FAILED",
    "waiting": "PENDING",
    "later": "PENDING",
    "preempted": "PREEMPTED",
    "preempting": "RUNNING",
    "requeued": "RUNNING",
    "deaf": "CANCELLED",
}
HELD = 'pipe|and, "quotes"'


def load(version: str, command: str, case: str) -> Any:
    return json.loads((CAPTURED / version / command / f"{case}.json").read_text())


def queue(version: str, case: str) -> list[SlurmJob]:
    return parse_squeue(load(version, "squeue", case)["stdout"])


def accounts(version: str, case: str) -> list[SlurmJob]:
    return parse_sacct(load(version, "sacct", case)["stdout"])


def shown(version: str, case: str) -> list[SlurmJob]:
    return parse_show_job(load(version, "scontrol", case)["stdout"])


def files_of(version: str) -> list[Path]:
    return [file for file in FILES if file.parts[-3] == version]


def ids(file: Path) -> str:
    return "/".join([*file.parts[-3:-1], file.stem])


def task(job_id: str) -> str:
    return job_id.partition("_")[2]


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_captures_cover_all_supported_releases() -> None:
    assert [version[:5] for version in VERSIONS] == ["20.11", "22.05", "24.11", "26.05"]


@every_version
def test_every_version_has_the_same_captures(version: str) -> None:
    asked = {ids(file).partition("/")[2] for file in files_of(version)}
    assert asked == {ids(file).partition("/")[2] for file in FILES}


@every_version
def test_parsers_return_the_recorded_results(version: str) -> None:
    for file in files_of(version):
        captured = json.loads(file.read_text())
        if "parsed" in captured:
            parse = PARSERS[file.parent.name]
            assert as_json(parse(captured["stdout"])) == captured["parsed"], ids(file)


@every_version
def test_failures_are_classified_by_their_messages(version: str) -> None:
    for file in files_of(version):
        command, case, stderr = file.parent.name, file.stem, json.loads(file.read_text())["stderr"]
        silent = ("no-controller", "no-munge", "no-slurm-conf", "no-database")
        assert matches_answer(stderr, "silence") == (case in silent), ids(file)
        unknown = case == "unknown" and command in ("squeue", "scontrol")
        # Slurm reports a word that is not a number in the same way as an unknown job.
        word = case == "not-a-number" and command in ("squeue", "scancel")
        assert matches_answer(stderr, "unknown job") == (unknown or word), ids(file)


@every_version
@pytest.mark.parametrize("case", ["no-controller", "no-munge"])
def test_unsent_submission_is_distinguished_from_a_lost_reply(version: str, case: str) -> None:
    assert matches_answer(load(version, "sbatch", case)["stderr"], "never sent")


@every_version
def test_sbatch_reply_contains_the_job_id(version: str) -> None:
    for case in ("taken", "taken-short", "taken-array", "taken-from-a-folder-with-a-newline"):
        captured = load(version, "sbatch", case)
        assert captured["exit_code"] == 0
        assert captured["stdout"] == f"{parse_sbatch(captured['stdout'])}\n"
    (row,) = queue(version, "one")
    assert row.job_id == parse_sbatch(load(version, "sbatch", "taken")["stdout"])


@every_version
@pytest.mark.parametrize(
    ("case", "fix"),
    [
        ("refused-invalid-partition", "name a partition of this cluster"),
        ("refused-no-such-gres", "no node has what the job asks for, or too few"),
        ("refused-too-many-gpus", "no node has what the job asks for, or too few"),
        ("test-only-refused", "no node has what the job asks for, or too few"),
        ("refused-invalid-account", "name your account"),
        ("refused-invalid-qos", "name a QOS that you may use"),
        ("refused-invalid-time", "write the time as"),
        ("refused-invalid-constraint", "no node has this feature"),
        ("refused-invalid-reservation", "name a reservation"),
        ("refused-unknown-option", ""),
        ("refused-dos-line-ends", ""),
        ("refused-no-file", ""),
    ],
)
def test_refusal_fix_matches_each_refusal(version: str, case: str, fix: str) -> None:
    captured = load(version, "sbatch", case)
    assert captured["exit_code"] != 0 and parse_sbatch(captured["stdout"]) is None
    found = refusal_fix(captured["stderr"])
    assert found.startswith(fix) and bool(found) == bool(fix)


@every_version
def test_refusals_that_depend_on_the_release(version: str) -> None:
    """24.11 refuses too many nodes; 24.11 and later refuse a dependency on an unknown job."""
    many = load(version, "sbatch", "too-many-nodes")
    assert (many["exit_code"] != 0) == version.startswith("24.11.")
    assert many["exit_code"] == 0 or "resources.nodes" in refusal_fix(many["stderr"])
    after = load(version, "sbatch", "dependency-on-unknown")
    assert (after["exit_code"] != 0) == (release(version) >= (24, 11))
    assert after["exit_code"] == 0 or "--after" in refusal_fix(after["stderr"])


@every_version
@pytest.mark.parametrize(
    ("command", "case", "argv"),
    [
        ("squeue", "mine", squeue_argv()),
        ("squeue", "partition", squeue_argv(partition="debug")),
        ("squeue", "unknown", squeue_argv(["999999"])),
        ("sbatch", "taken", [*SBATCH]),
        ("scancel", "unknown", scancel_argv("999999")),
        ("scontrol", "unknown", show_job_argv("999999")),
        ("sacct", "unknown", sacct_argv(["999999"])),
    ],
)
def test_captured_command_is_the_one_that_hpcrun_runs(
    version: str, command: str, case: str, argv: list[str]
) -> None:
    assert load(version, command, case)["argv"] == argv


@every_version
def test_states_of_all_captured_jobs_are_parsed(version: str) -> None:
    rows = {row.name: row for row in queue(version, "all") if row.name != "array"}
    assert {name: row.state for name, row in rows.items()} == {**STATES, HELD: "PENDING"}
    assert rows[HELD].reason == "JobHeldUser"
    assert rows["timeout"].reason == "TimeLimit"
    assert rows["two words"].nodes == "2" and rows["two words"].node_list == "node[1-2]"
    reported = {row.name: row for row in accounts(version, "jobs") if row.name != "array"}
    # sacct replaces quotes by backticks.
    assert {name: row.state for name, row in reported.items()} == {
        **STATES,
        HELD.replace('"', "`"): "PENDING",
    }
    for file in (file for file in FILES if file.parts[-3] == version):
        for row in json.loads(file.read_text()).get("parsed") or []:
            assert not isinstance(row, dict) or row["state"] != UNKNOWN, ids(file)


@every_version
def test_exit_codes_of_the_accounting_are_parsed(version: str) -> None:
    reported = {row.name: row.exit_code for row in accounts(version, "jobs")}
    assert (reported["ok"], reported["failed"], reported["killed"]) == ("0:0", "3:0", "0:9")
    # sacct subtracts 128 before 25.11.
    assert reported["code 131"] == ("131:0" if release(version) >= (25, 11) else "3:0")


@every_version
def test_names_and_folders_with_special_characters_are_parsed(version: str) -> None:
    rows = {row.name: row for row in queue(version, "all")}
    assert rows[HELD].work_dir == "/scratch/runs/new\nline"
    assert rows["two words"].work_dir == "/scratch/runs/20261120-081455-a b-7k3q"
    reported = {row.job_id: row for row in accounts(version, "jobs")}
    assert reported[rows[HELD].job_id].work_dir == "/scratch/runs/new\nline"
    for case, name, folder in (
        ("running", "two words", "20261120-081455-a b-7k3q"),
        ("held", HELD, "new\nline"),
    ):
        (job,) = shown(version, case)
        assert (job.name, job.work_dir) == (name, f"/scratch/runs/{folder}")
        assert job.outputs == [f"/scratch/runs/{folder}/out.log"]
        assert job.command == f"/scratch/runs/{folder}/job.sbatch"


@every_version
def test_stderr_equals_stdout_if_it_is_the_same_file(version: str) -> None:
    for case in ("running", "array-task", "held"):
        (job,) = shown(version, case)
        assert job.stdout == job.stderr != ""


@every_version
def test_squeue_scontrol_and_sacct_agree_on_a_job(version: str) -> None:
    """The commands ran one after the other, so values that change over time are not compared."""
    (queued,), (job,) = queue(version, "one"), shown(version, "running")
    account = next(row for row in accounts(version, "jobs") if row.job_id == queued.job_id)
    for key in ("number", "state", "name", "user", "account", "qos", "partition", "work_dir"):
        assert getattr(queued, key) == getattr(job, key) == getattr(account, key) != "", key
    for key in ("nodes", "node_list", "cpus", "hosts", "limit_seconds", "start"):
        assert getattr(queued, key) == getattr(job, key) == getattr(account, key), key
    assert (queued.uid, queued.priority, queued.end) == (job.uid, job.priority, job.end)
    assert queued.dependency == job.dependency == queued.gres == job.gres == ""


@every_version
def test_gpus_and_slots_are_parsed(version: str) -> None:
    (queued,), (job,) = queue(version, "gpus"), shown(version, "gpus")
    assert count_gpus(queued.gres) == count_gpus(job.gres) == 4
    assert (job.gpus, job.slots) == (4, (4,))
    (account,) = [row for row in accounts(version, "jobs") if row.name == "preempting"]
    assert (account.gpus, account.slots) == (4, (4,))
    (two_nodes,) = shown(version, "running")
    assert (two_nodes.gpus, two_nodes.slots) == (None, (1, 1)), "its tasks"


@every_version
def test_dependencies_and_held_jobs_are_parsed(version: str) -> None:
    waited_for = parse_sbatch(load(version, "sbatch", "taken")["stdout"])
    waiting = {job.name: job for job in queue(version, "partition")}
    (job,) = shown(version, "waits-for-another")
    assert waiting["waiting"].dependency == job.dependency == f"afterok:{waited_for}(unfulfilled)"
    assert waiting[HELD].priority == "0" and waiting["later"].start != ""
    assert {job.state for job in waiting.values()} == {"PENDING"}


@every_version
def test_components_of_a_heterogeneous_job_are_parsed(version: str) -> None:
    for jobs in (queue(version, "parts"), shown(version, "parts")):
        assert len(jobs) == 2 and len({job.number for job in jobs}) == 2
        whole = jobs[0].array
        assert sorted(job.job_id for job in jobs) == [f"{whole}+0", f"{whole}+1"]
        assert {is_task_id(job.job_id) for job in jobs} == {True} and {
            job.task for job in jobs
        } == {""}


@every_version
def test_unknown_jobs_are_omitted_from_answers(version: str) -> None:
    assert [row.name for row in queue(version, "two-one-of-them-unknown")] == ["two words"]
    assert queue(version, "none") == queue(version, "unknown") == []
    assert accounts(version, "unknown") == []


@every_version
def test_completing_job_has_not_ended(version: str) -> None:
    (row,) = queue(version, "completing")
    assert row.state == "COMPLETING"
    # sacct shows a final state although its processes are still running.
    (reported,) = accounts(version, "completing")
    assert reported.state == "CANCELLED"


@every_version
def test_requeued_job_is_pending_then_running(version: str) -> None:
    (row,) = queue(version, "requeued")
    assert (row.state, row.reason) == ("PENDING", "BeginTime")
    (row,) = queue(version, "requeued-running")
    assert row.state == "RUNNING"
    (reported,) = accounts(version, "requeued")
    assert reported.state == "RUNNING"
    starts = accounts(version, "requeued-duplicates")
    assert [start.state for start in starts] == ["REQUEUED", "RUNNING"]
    assert len({start.job_id for start in starts}) == 1


@every_version
def test_lost_node_is_reported_as_node_fail(version: str) -> None:
    (row,) = queue(version, "node-fail")
    (reported,) = accounts(version, "node-fail")
    assert (row.state, row.reason, reported.state) == ("NODE_FAIL", "NodeDown", "NODE_FAIL")


@every_version
def test_array_tasks_are_parsed_from_squeue_and_scontrol(version: str) -> None:
    together = {task(row.job_id): row.state for row in queue(version, "array")}
    running = {"1": "COMPLETED", "2": "FAILED", "3": "RUNNING", "4": "RUNNING"}
    assert together == {**running, "[5-6%2]": "PENDING"}
    each = queue(version, "array-each-task")
    assert {task(row.job_id): row.state for row in each} == {
        **running,
        "5": "PENDING",
        "6": "PENDING",
    }
    (fresh,) = queue(version, "array-fresh")
    assert task(fresh.job_id) == "[1-6%2]"
    for case, state in (("array-fresh-each-task", "PENDING"), ("array-all-cancelled", "CANCELLED")):
        rows = {task(row.job_id): row.state for row in queue(version, case)}
        assert rows == {str(number): state for number in range(1, 7)}
    array = parse_sbatch(load(version, "sbatch", "taken-array")["stdout"])
    for case, number in (("array-one-task", 4), ("array-one-waiting-task", 6)):
        assert [row.job_id for row in queue(version, case)] == [f"{array}_{number}"]
        assert [job.number.isdigit() and job.array == array for job in queue(version, case)] == [
            True
        ]
    assert queue(version, "array-no-such-task") == []
    (one,), (waits, *_) = shown(version, "array-task"), shown(version, "array")
    assert (one.job_id, one.state, waits.state) == (f"{array}_4", "RUNNING", "PENDING")
    assert (waits.job_id, waits.task) == (f"{array}_[5-6%2]", "[5-6%2]")


@every_version
def test_array_tasks_are_parsed_from_sacct(version: str) -> None:
    reported = {task(row.job_id): row.state for row in accounts(version, "array")}
    assert {number: reported[number] for number in ("1", "2")} == {"1": "COMPLETED", "2": "FAILED"}
    # One row represents all pending tasks, and a query for one of them returns nothing.
    assert reported["[5-6%2]"] == "PENDING"
    assert accounts(version, "array-one-waiting-task") == []
    (second,) = accounts(version, "array-one-task")
    assert (task(second.job_id), second.state, second.exit_code) == ("2", "FAILED", "7:0")


@every_version
def test_cancelled_pending_task_may_lose_its_number(version: str) -> None:
    """Task 6 was the last pending one when it was cancelled: Slurm may show it as the array."""
    rows = {task(row.job_id): row.state for row in queue(version, "array-after-scancel")}
    assert rows.pop("6", None) or rows.pop("") == "CANCELLED"
    assert rows == {
        "1": "COMPLETED",
        "2": "FAILED",
        "3": "CANCELLED",
        "4": "RUNNING",
        "5": "RUNNING",
    }
    reported = {task(row.job_id): row.state for row in accounts(version, "array-after-scancel")}
    # The old range may remain, although task 5 is running.
    (shown,) = reported.keys() & {"6", "[6%2]", "[5-6%2]", ""}
    assert reported[shown] == "CANCELLED"


@every_version
def test_array_that_never_started_is_one_row_in_sacct(version: str) -> None:
    """The row of a job that ended immediately after its submission may be incomplete."""
    (row,) = accounts(version, "array-all-cancelled")
    assert row.state == "CANCELLED"
    whole, half = ("[1-6%2]", "/scratch/runs/fresh array"), ("", "")
    assert (task(row.job_id), row.work_dir) in (whole, half)


@every_version
def test_scancel_reply_is_the_same_for_all_jobs(version: str) -> None:
    """The reply is the same for ended, unknown and cancelled jobs; only squeue can tell."""
    for case in ("taken", "ended", "unknown", "array-taken-task", "array-ended-task"):
        captured = load(version, "scancel", case)
        assert (captured["exit_code"], captured["stdout"], captured["stderr"]) == (0, "", "")


@every_version
def test_expected_start_is_parsed(version: str) -> None:
    """26.05 prints a stray letter after the time."""
    captured = load(version, "sbatch", "test-only")
    assert (captured["exit_code"], captured["stdout"]) == (0, "")
    assert (" a using" in captured["stderr"]) == version.startswith("26.05.")
    start = parse_estimate(captured["stderr"])
    assert start is not None
    assert (start.processors, start.nodes, start.partition) == (2, "node[1-2]", "debug")
    assert re.fullmatch(r"[0-9]{4}-[0-9-]{5}T[0-9:]{8}", start.start)
    assert parse_estimate(load(version, "sbatch", "test-only-refused")["stderr"]) is None
