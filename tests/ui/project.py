"""A project with many recorded runs, and hpcrun ui that serves it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.calling import ROOT, Caller
from tests.cli.status_runs import NOW, answers, make_run, queued, write_sweep
from tests.waiting import PATIENCE

HOSTILE = "<img src=x onerror=alert(1)>"
RUNNING, FAILED, FINISHED = (
    "20261120-081455-train-7k3q",
    "20261120-081452-train-7k3m",
    "20261101-081451-base-7k3k",
)
SWEEP = "20261121-000000-lr-7k3q"


def training_log(steps: int, *, level: float = 2.0, restart: int = 0) -> str:
    lines = ["\x1b[32mepoch 1\x1b[0m begins", f"tag {HOSTILE} \x1b[1;31mred\x1b[0m"]
    for step in range(1, steps + 1):
        loss = level + 2 * math.exp(-step / 200) + 0.1 * math.sin(step * step)
        lines.append(
            f"step={step} loss={loss:.4f} lr={1e-4 * (1 - step / steps / 1.1):.3e} "
            f"grad_norm={1 + loss / 9:.3f}"
        )
        if step % 100 == 0:
            lines.append(f"step={step} eval_loss={loss + 0.2:.4f}")
    return "\n".join(lines) + "\n"


def node_use() -> str:
    """The record of a node with two GPUs, of which the second one is idle."""
    gib = 1 << 30
    lines = [f"hpcrun-usage 1 n1 15 job 16 job {64 * gib} nvidia:GPU-a:81920 nvidia:GPU-b:81920"]
    busy = 0
    for number in range(1, 200):
        busy, at = busy + int(90 + 8 * math.sin(number)), NOW - 3600 + 15 * number
        gpu = f"{busy} 60000 60000 {400 * number}"
        lines.append(
            f"{at:.0f} {15 * number} {60_000_000_000 * number} {20 * gib} {24 * gib} {number} "
            f"{gpu} 0 500 500 {60 * number}"
        )
    return "\n".join(lines) + "\n"


def fill(caller: Caller, count: int) -> None:
    """Write a running and a failed run, a sweep, and ``count`` older runs."""
    running = make_run(caller, RUNNING, "15", log=training_log(1500))
    (running.usage / "0").mkdir(parents=True)
    (running.usage / "0/node-0").write_text(node_use())
    pending = make_run(caller, "20261120-081454-big-7k3p", "14", attempts=0)
    trace = (
        'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a "
        "total capacity of 79.11 GiB of which 1.00 GiB is free.\n"
    )
    failed = make_run(
        caller, FAILED, "12", ended=NOW - 60, exit_code=1, log=training_log(300) + trace
    )
    make_run(caller, FINISHED, "11", ended=NOW - 200_000, log=training_log(1200, level=2.2))
    for number in range(count):
        run_id = f"202610{number // 1000 + 1:02d}-{number % 1000:06d}-old{number}-{number:04d}"
        log = f"step={number} loss={2 + number / count:.3f}\n"
        make_run(caller, run_id, str(20_000 + number), ended=NOW - 300_000 - 60 * number, log=log)
    write_sweep(caller, 6)
    for index in range(6):
        name = f"20261121-000000-lr.{index}-7k3q"
        values = {"lr": f"{10 ** -(1 + index % 3)}", "width": str(256 * (1 + index // 3))}
        task = {"sweep_id": SWEEP, "index": index, "values": values}
        (caller.runs / name / "task.json").write_text(json.dumps(task))
        attempt = caller.runs / name / "attempts/0"
        attempt.mkdir()
        end = {"attempt": 0, "job_id": f"40_{index}", "exit_code": 0, "signal": None}
        end |= {"stopped_by": None, "first_failure": None}
        end |= {"begun_at": NOW - 4000, "ended_at": NOW - 3000 - index}
        begin = {"attempt": 0, "job_id": f"40_{index}", "host": "n1", "pid": 1, "nodes": "n1"}
        (attempt / "begin.json").write_text(json.dumps(begin | {"begun_at": NOW - 4000}))
        (attempt / "end.json").write_text(json.dumps(end))
        logs = caller.runs / name / "logs/0"
        logs.mkdir(parents=True)
        (logs / "rank-0.log").write_text(training_log(200, level=2 + index / 10))
    rows = queued(running, "15", "RUNNING") + queued(pending, "14", "PENDING", "Priority")
    rows += queued(failed, "12", "FAILED", M="30:00")
    answers(caller.tools, "squeue", rest=rows)
    answers(caller.tools, "sacct")
    answers(caller.tools, "scontrol")


@contextmanager
def served(caller: Caller, *words: str) -> Iterator[str]:
    """Run hpcrun ui in the project; yield the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "ui", *words],
        cwd=caller.project,
        env=caller.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert re.match(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", line), line + process.stderr.read()
        yield line.strip()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def queries(caller: Caller) -> int:
    """Count the calls of squeue."""
    path = caller.tools / "squeue.calls"
    return len(path.read_text().splitlines()) if path.exists() else 0
