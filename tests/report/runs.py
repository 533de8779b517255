"""Runs to report on: made of log text, by formulas, so that every number can be checked."""

from __future__ import annotations

import json
import math
from functools import cache

from hpcrun.metrics.parse import ParsedRun, parse_chunks


def trainer_log(first: int, last: int, floor: float = 1.0) -> bytes:
    """Return what the reference trainer prints for steps ``first`` to ``last``."""
    lines = [json.dumps({"config": {"steps": last, "loss": 0.0}})]
    for step in range(first, last + 1):
        lines.append(
            json.dumps(
                {
                    "step": step,
                    "loss": floor + 4.5 * math.exp(-step / 60) + 0.05 * (step % 7),
                    "lr": 3e-4 * (1 - step / 400),
                    "grad_norm": 1.0 + 1 / step,
                    "tokens_per_second": 21000.0 + step,
                    "step_seconds": 0.19 + 0.001 * (step % 10),
                    "memory_allocated_bytes": 13_000_000_000 + step,
                }
            )
        )
        if step % 50 == 0:
            lines.append(json.dumps({"step": step, "eval_loss": floor + 1 / step}))
    return ("\n".join(lines) + "\n").encode()


@cache
def one() -> list[ParsedRun]:
    return [parse_chunks("train.log", [(0, [trainer_log(1, 200)])])]


@cache
def restarted() -> ParsedRun:
    attempts = [(0, [trainer_log(1, 120)]), (1, [trainer_log(101, 300, 1.1)])]
    return parse_chunks("20261120-081455-zero2-4gpu-7k3q", attempts)


@cache
def several() -> list[ParsedRun]:
    broken = trainer_log(1, 90, 1.5) + b'{"step": 91, "loss": NaN}\n'
    empty = parse_chunks("slurm-17.out", [(0, [b"srun: job 17 queued\nhello\n"])])
    return [*one(), restarted(), parse_chunks("runs/[b]/diverged.log", [(0, [broken])]), empty]


def without_steps() -> list[ParsedRun]:
    return [parse_chunks("bare.log", [(0, [b"loss: 3.5\n", b"loss: 2.5\n", b"loss: 3\n"])])]


def nothing() -> list[ParsedRun]:
    return [parse_chunks("empty.log", [(0, [b"hello\n", b"no metric here\n"])])]
