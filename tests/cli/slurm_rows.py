"""Rows of squeue, sacct and sacctmgr, and the calls of Slurm's commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.calling import Caller, Done
from tests.slurm_answers import sacct_row, squeue_row

CAPTURED = Path(__file__).parent.parent / "captured"


def captured(command: str, case: str) -> tuple[int, str, str]:
    read = json.loads((CAPTURED / "22.05.8" / command / f"{case}.json").read_text())
    return read["exit_code"], read["stdout"], read["stderr"]


def submit(hpcrun: Caller, *options: str) -> Done:
    return hpcrun("submit", "job.yaml", *options)


def row(run: Path, job_id: str, state: str, reason: str = "None") -> str:
    return squeue_row(job_id, state, r=reason, Z=str(run))


def account_row(run: Path, job_id: str, state: str) -> str:
    return sacct_row(job_id, state, ExitCode="1:0", WorkDir=str(run))


def calls(file: Path) -> list[str]:
    return file.read_text().split("\n")[:-1] if file.exists() else []


def state(hpcrun: Caller, *argv: str) -> tuple[int, Any]:
    done = hpcrun("status", "--json", *argv)
    return done.code, done.json["runs"]
