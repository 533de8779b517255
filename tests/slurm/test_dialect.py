"""Rare forms of Slurm's output that the captured clusters do not produce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.slurm.commands import parse_sbatch
from hpcrun.slurm.jobs import (
    _SQUEUE,
    is_squeue_garbled,
    parse_sacct,
    parse_show_job,
    parse_squeue,
)
from hpcrun.slurm.reasons import matches_answer, refusal_fix
from hpcrun.slurm.states import ACTIVE, FINAL, UNKNOWN, WAITING, is_final, parse_state
from tests.slurm_answers import sacct_row, squeue_row


@pytest.mark.parametrize(
    ("stdout", "job_id"),
    [
        ("630114\n", "630114"),
        ("630114", "630114"),
        ("630114;mpp2\n", "630114"),
        ("  630114  \n", "630114"),
        ("Welcome to the cluster\n 12 nodes are down\n630114;mpp2\n", "630114"),
        ("630114\nYour quota: 99 %\n", "630114"),
        ("Submitted batch job 630114\n", "630114"),
        ("Submitted batch job 630114 on cluster mpp2\n", "630114"),
        ("Submitted batch job\n", None),
        ("", None),
        ("\n\n", None),
        ("-1\n", None),
        ("12 34\n", None),
    ],
)
def test_job_id_is_parsed_from_all_forms_of_sbatch_replies(stdout: str, job_id: str | None) -> None:
    assert parse_sbatch(stdout) == job_id


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", "RUNNING"),
        ("running", "RUNNING"),
        ("CANCELLED by 4242", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("", UNKNOWN),
        ("+", UNKNOWN),
        ("DONE", UNKNOWN),
    ],
)
def test_every_state_of_slurm_is_parsed(text: str, state: str) -> None:
    assert parse_state(text) == state


def test_every_state_is_either_active_or_final() -> None:
    assert not WAITING & ACTIVE and not WAITING & FINAL and not ACTIVE & FINAL
    assert all(is_final(state) for state in FINAL)
    assert not any(is_final(state) for state in WAITING | ACTIVE | {UNKNOWN})


@pytest.mark.slow
@given(st.text())
def test_unknown_state_is_never_final(text: str) -> None:
    assert parse_state(text) in FINAL or not is_final(parse_state(text))
    assert not is_final(parse_state("X" + text))


def test_malformed_row_does_not_affect_other_rows() -> None:
    answer = "slurm: note\x1e\n" + squeue_row("7") + "1\x1f2\x1e\n"
    assert [job.job_id for job in parse_squeue(answer)] == ["7"]
    answer = f"sacct: note\n{sacct_row('8')}8\n"
    assert [job.job_id for job in parse_sacct(answer)] == ["8"]


def test_unicode_line_separator_does_not_end_a_row() -> None:
    name = "two\u2028\x85lines"
    assert parse_sacct(sacct_row("8", JobName=name))[0].name == name


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("StdIn=/dev/null\n   StdOut=/a/b.out\n   Power=\n", ["/a/b.out"]),
        ("StdOut=/a/b.out", ["/a/b.out"]),
        ("StdOut=/a/X=1 Y=2.out\n   TresPerNode=gres/gpu:1\n", ["/a/X=1 Y=2.out"]),
        ("StdErr=/b.err\n   StdIn=/dev/null\n   StdOut=/b.out\n", ["/b.out", "/b.err"]),
        # As 26.05 prints it if stderr goes to the same file as stdout.
        ("StdErr=\n   StdIn=/dev/null\n   StdOut=/b.out\n\nJobId=8\n   StdOut=/c\n", ["/b.out"]),
        ("StdErr=/a/b.err\n", ["/a/b.err"]),
        ("StdOut=/a\n b\n/c.out\n\n", ["/a\n b\n/c.out"]),
        ("StdOut=(null)", []),  # an salloc
    ],
)
def test_output_files_are_parsed(text: str, paths: list[str]) -> None:
    assert parse_show_job(f"JobId=7 JobName=a StdOut=/b\n   {text}")[0].outputs == paths


@pytest.mark.parametrize(
    "text",
    [
        "squeue: error: slurm_receive_msg: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller",
        "sacct: error: Problem talking to the database: Connection refused",
        "slurm_load_jobs error: slurmctld is in standby mode",
    ],
)
def test_missing_responses_are_recognized(text: str) -> None:
    assert matches_answer(text, "silence")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("Invalid account or account/partition combination specified", "account"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--time"),
        ("Invalid generic resource (gres) specification", "gpus_per_node"),
        ("Node count specification invalid", "resources.nodes"),
        ("Invalid qos specification", "QOS that you may use"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "wait, or ask for less: sacctmgr",
        ),
        ("Something else altogether", ""),
    ],
)
def test_refusals_have_fixes(text: str, fix: str) -> None:
    stderr = f"sbatch: error: Batch job submission failed: {text}\n"
    assert not matches_answer(stderr, "silence")
    assert fix in refusal_fix(stderr) and bool(refusal_fix(stderr)) == bool(fix)


@pytest.mark.parametrize("name", ["x\x1ey", "x\x1fy", "\x1e", "a\x1e\x1fb\x1e", "x y"])
def test_separators_in_the_names_of_jobs_hide_no_job(name: str) -> None:
    row = ["7", "7", "RUNNING", *[""] * (len(_SQUEUE) - 5), "/w", name]
    other = [*row[:-1], "other"]
    other[0] = other[1] = "8"
    answer = "".join("\x1f".join(each) + "\x1e\n" for each in (row, other))
    assert not is_squeue_garbled(answer)
    assert [(job.job_id, job.name) for job in parse_squeue(answer)] == [("7", name), ("8", "other")]
