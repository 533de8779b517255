"""The dialect's corners that no cluster at hand shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.slurm.answers import is_silence, refusal_fix
from hpcrun.slurm.sacct import parse_sacct
from hpcrun.slurm.sbatch import parse_sbatch
from hpcrun.slurm.scontrol import parse_output_paths
from hpcrun.slurm.squeue import parse_squeue
from hpcrun.slurm.states import ACTIVE, FINAL, UNKNOWN, WAITING, is_final, parse_state


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
def test_sbatch_answers(stdout: str, job_id: str | None) -> None:
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
def test_states(text: str, state: str) -> None:
    assert parse_state(text) == state


def test_each_state_has_one_meaning() -> None:
    assert not WAITING & ACTIVE and not WAITING & FINAL and not ACTIVE & FINAL
    assert all(is_final(state) for state in FINAL)
    assert not any(is_final(state) for state in WAITING | ACTIVE | {UNKNOWN})


@given(st.text())
def test_an_unheard_of_state_is_never_final(text: str) -> None:
    assert parse_state(text) in FINAL or not is_final(parse_state(text))
    assert not is_final(parse_state("X" + text))


def test_an_odd_row_does_not_spoil_the_others() -> None:
    good = "\x1f".join(["7", "RUNNING", *"abcdefgh", "/w", "n"]) + "\x1e\n"
    assert [row.job_id for row in parse_squeue("slurm: note\x1e\n" + good + "1\x1f2\x1e\n")] == [
        "7"
    ]
    row = "\x1f".join(["8", "FAILED", *"abcdefghij", "/w"])
    assert [row.job_id for row in parse_sacct(f"sacct: note\n{row}\n8\n")] == ["8"]


def test_a_line_separator_of_unicode_in_a_name_is_no_end_of_a_row() -> None:
    row = "\x1f".join(["8", "FAILED", *"abcdefghi", "two\u2028\x85lines", "/w"])
    assert parse_sacct(row + "\n")[0].name == "two\u2028\x85lines"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("JobId=7 StdIn=/dev/null StdOut=/a/b.out Power=\n", ["/a/b.out"]),
        ("JobId=7 StdOut=/a/b.out", ["/a/b.out"]),
        ("JobId=7 StdOut=/a/x=1 y.out TresPerNode=gres/gpu:1 ", ["/a/x=1 y.out"]),
        ("JobId=7 StdErr=/a/b.err StdIn=/dev/null StdOut=/a/b.out\n", ["/a/b.out", "/a/b.err"]),
        # As 26.05 writes it where the errors go with the output.
        ("JobId=7 StdErr= StdIn=/dev/null StdOut=/a/b.out\nJobId=8 StdOut=/c\n", ["/a/b.out"]),
        ("JobId=7 StdErr=/a/b.err\n", ["/a/b.err"]),
        ("", []),
    ],
)
def test_the_output_files(text: str, paths: list[str]) -> None:
    assert parse_output_paths(text) == paths


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
def test_silence(text: str) -> None:
    assert is_silence(text)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("Invalid account or account/partition combination specified", "account"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--time"),
        ("Invalid generic resource (gres) specification", "gpus_per_node"),
        ("Node count specification invalid", "resources.nodes"),
        ("Invalid qos specification", "QOS"),
        ("Something else altogether", ""),
    ],
)
def test_fixes(text: str, fix: str) -> None:
    stderr = f"sbatch: error: Batch job submission failed: {text}\n"
    assert not is_silence(stderr)
    assert fix in refusal_fix(stderr) and bool(refusal_fix(stderr)) == bool(fix)
