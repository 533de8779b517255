"""Recorded runs and sweeps, and the answers of Slurm's commands about them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import ROOT, Caller
from tests.slurm_answers import squeue_row

NOW = time.time()


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for Slurm's commands."""
    return hpcrun.tools


def make_run(
    hpcrun: Caller,
    run_id: str,
    job_id: str | None,
    *,
    ended: float | None = None,
    exit_code: int = 0,
    log: str = "",
    attempts: int = 1,
) -> RunFolder:
    """Write the records of a run as its job would; ``ended`` is its end in epoch seconds."""
    run = RunFolder(hpcrun.runs / run_id)
    run.logs.mkdir(parents=True)
    submitted = {"job_id": job_id, "cluster": "c", "slurm_conf": None, "submitted_at": NOW - 7200}
    submitted |= {"host": "elsewhere", "user": "me", "name": "train", "nodes": 2}
    run.submitted.write_text(json.dumps(submitted | {"gpus_per_node": 4}))
    for index in range(attempts):
        where = run.attempts / str(index)
        where.mkdir(parents=True)
        begin = {"attempt": index, "job_id": job_id or "", "host": "n1", "pid": 1}
        begin |= {"nodes": "n[1-2]", "begun_at": NOW - 3600}
        (where / "begin.json").write_text(json.dumps(begin))
        if ended is not None and index == attempts - 1:
            end = {"attempt": index, "job_id": job_id or "", "exit_code": exit_code}
            end |= {"signal": None, "stopped_by": None, "first_failure": None}
            times = {"begun_at": ended - 1800, "ended_at": ended}
            (where / "end.json").write_text(json.dumps(end | times))
        if log:
            (run.logs / str(index)).mkdir()
            (run.logs / str(index) / "rank-0.log").write_text(log)
    return run


def queued(run: RunFolder, job_id: str, state: str, reason: str = "None", **values: str) -> str:
    known = {"M": "1:00:00", "l": "1-00:00:00", "D": "2", "N": "n[1-2]", "Z": str(run.path)}
    known |= {"q": "high", "a": "proj", "U": "7", "Q": "100", "b": "gres:gpu:4", "j": "train"}
    return squeue_row(job_id, state, r=reason, **known | values)


def answers(tools: Path, name: str, *cases: tuple[str, str], rest: str = "") -> Path:
    """Create a command that answers by a word of its command line; return the log of its calls."""
    calls = tools / f"{name}.calls"
    lines = ["#!/bin/sh", f'echo "$*" >>"{calls}"', 'case "$*" in']
    for number, (word, answer) in enumerate([*cases, ("", rest)]):
        (tools / f"{name}.{number}").write_text(answer)
        lines.append(f'*"{word}"*) exec cat "{tools}/{name}.{number}" ;;')
    (tools / name).write_text("\n".join([*lines, "esac"]) + "\n")
    (tools / name).chmod(0o755)
    return calls


LIMITS = """\
QOS=high(3)
    User Limits
      7
        MaxJobsPU=N(1) MaxSubmitJobsPU=N(2)
        MaxTRESPU=cpu=N(8),mem=N(2000),gres/gpu=8(8)
"""


@pytest.fixture
def several(hpcrun: Caller, tools: Path) -> Caller:
    """Set up a running, two pending, a failed, and an old completed run."""
    log = "step=119 loss=2.5\nstep=120 loss=2.25\nsaving ...\n"
    train = make_run(hpcrun, "20261120-081455-train-7k3q", "15", log=log)
    limit = make_run(hpcrun, "20261120-081454-train-7k3p", "14", attempts=0)
    after = make_run(hpcrun, "20261120-081453-train-7k3n", "13", attempts=0)
    failed = make_run(hpcrun, "20261120-081452-train-7k3m", "12", ended=NOW - 60, exit_code=3)
    make_run(hpcrun, "20261101-081451-train-7k3k", "11", ended=NOW - 200_000, log=log)
    rows = queued(train, "15", "RUNNING") + queued(limit, "14", "PENDING", "QOSMaxGRESPerUser")
    rows += queued(after, "13", "PENDING", "Dependency", E="afterok:12(unfulfilled)")
    rows += queued(failed, "12", "FAILED", M="30:00")
    answers(tools, "squeue", rest=rows)
    answers(tools, "scontrol", rest=LIMITS)
    answers(tools, "sacct")
    return hpcrun


def write_sweep(hpcrun: Caller, tasks: int) -> Path:
    sweep = hpcrun.runs / "20261121-000000-lr-7k3q.array"
    sweep.mkdir(parents=True)
    (sweep / "sweep.json").write_text(json.dumps({"name": "lr", "tasks": tasks, "limit": 4}))
    record = {"job_id": "40", "cluster": "c", "slurm_conf": None, "submitted_at": NOW, "host": "h"}
    (sweep / "submitted.json").write_text(json.dumps(record | {"user": "me"}))
    for index in range(tasks):
        run = RunFolder(hpcrun.runs / f"20261121-000000-lr.{index}-7k3q")
        run.attempts.mkdir(parents=True)
        values = {"sweep_id": "20261121-000000-lr-7k3q", "index": index, "values": {"lr": "1"}}
        run.task.write_text(json.dumps(values))
    return sweep


COUNTER = """\
import os, sys
below, calls = sys.argv[1], []
def note(event, args):
    is_named = event in ("open", "os.scandir") and not isinstance(args[0], (int, type(None)))
    if is_named and os.fsdecode(args[0]).startswith(below):
        calls.append(os.fsdecode(args[0]))
sys.addaudithook(note)
sys.argv = ["hpcrun", *sys.argv[2:]]
from hpcrun.cli.main import main
try:
    main()
finally:
    print("\\n".join(calls), file=sys.stderr)
"""


def opened(hpcrun: Caller, *argv: str) -> list[str]:
    """Return the files and folders of runs that a call opens."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTER, f"{hpcrun.runs}/", *argv],
        cwd=hpcrun.project,
        env=hpcrun.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stderr.splitlines() if line.startswith(str(hpcrun.runs))]
