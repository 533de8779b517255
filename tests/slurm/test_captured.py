"""The parsers on what Slurm really printed: tests/captured/COMMAND/VERSION-CASE.json.

Each file holds where it was captured, the command line, all that came back, and what it means.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcrun.slurm.answers import is_silence, is_unknown_job, refusal_fix
from hpcrun.slurm.sacct import parse_sacct, sacct_argv
from hpcrun.slurm.sbatch import parse_sbatch, sbatch_argv
from hpcrun.slurm.scancel import scancel_argv
from hpcrun.slurm.scontrol import parse_stdout_path, show_job_argv
from hpcrun.slurm.squeue import parse_squeue, squeue_argv

CAPTURED = Path(__file__).parent.parent / "captured"
FILES = sorted(CAPTURED.glob("*/*.json"))

PARSERS: dict[str, Callable[[str], Any]] = {
    "sacct": parse_sacct,
    "sbatch": parse_sbatch,
    "scontrol": parse_stdout_path,
    "squeue": parse_squeue,
}


def load(command: str, case: str) -> Any:
    return json.loads((CAPTURED / command / f"22.05.8-{case}.json").read_text())


def ids(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def test_every_command_is_captured() -> None:
    assert {file.parent.name for file in FILES} == {*PARSERS, "scancel"}


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_parser(file: Path) -> None:
    captured = json.loads(file.read_text())
    parse = PARSERS.get(file.parent.name)
    if parse is not None:
        assert msgspec.to_builtins(parse(captured["stdout"])) == captured["parsed"]


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_what_a_failure_means(file: Path) -> None:
    captured = json.loads(file.read_text())
    case = file.stem.partition("-")[2]
    stderr = captured["stderr"]
    assert is_silence(stderr) == case.startswith(("no-controller", "no-munge", "no-slurm-conf"))
    unknown_to_slurm = captured["exit_code"] != 0 and case in ("unknown", "one-forgotten")
    # scancel calls a word that is no number by the same name as an unknown job.
    word = ids(file) == "scancel/22.05.8-not-a-number"
    assert is_unknown_job(stderr) == (unknown_to_slurm or word)


@pytest.mark.parametrize(
    ("case", "fix"),
    [
        ("refused-invalid-partition", "name a partition of this cluster"),
        ("refused-no-such-gres", "no node has what the job asks for"),
        ("refused-dos-line-ends", ""),
    ],
)
def test_a_refusal_has_its_fix(case: str, fix: str) -> None:
    found = refusal_fix(load("sbatch", case)["stderr"])
    assert found.startswith(fix) and bool(found) == bool(fix)


@pytest.mark.parametrize(
    ("command", "case", "argv"),
    [
        ("squeue", "tasks", squeue_argv()),
        ("squeue", "tasks-one-struck", squeue_argv(["10"])),
        ("sbatch", "taken", sbatch_argv()),
        ("scancel", "unknown", scancel_argv("999999")),
        ("scontrol", "unknown", show_job_argv("999999")),
        ("sacct", "six-jobs", sacct_argv(["1", "2", "3", "4", "5", "6"])),
    ],
)
def test_the_captured_command_is_the_one_that_hpcrun_types(
    command: str, case: str, argv: list[str]
) -> None:
    assert load(command, case)["argv"] == argv


def test_names_and_folders_come_through_whole() -> None:
    rows = {row.job_id: row for row in parse_squeue(load("squeue", "mine")["stdout"])}
    assert rows["5947791"].name == 'pipe|and, "quotes"'
    assert rows["5947791"].work_dir == "/scratch/runs/new\nline"
    assert rows["5947790"].work_dir == "/scratch/runs/20261120-081455-a b-7k3q"
    assert rows["5947790"].name == "two words"
    # A job that sbatch refused with "Requested node configuration is not available".
    assert rows["5947794"].reason == "BadConstraints"


def test_accounting_states() -> None:
    rows = {row.job_id: row for row in parse_sacct(load("sacct", "six-jobs")["stdout"])}
    assert [rows[str(job)].state for job in range(1, 7)] == [
        *("RUNNING", "COMPLETED", "FAILED", "FAILED", "CANCELLED", "PENDING"),
    ]
    assert rows["4"].exit_code == "0:9"
    assert rows["1"].name == "two | words"
