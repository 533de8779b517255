"""Runs for reports, generated from log text by formulas, so that every number can be checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from msgspec import structs

from hpcrun.curves.curve import Curve, Restart, Series, build_series
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.parsing import parse_chunks


def trainer_log(first: int, last: int, floor: float = 1.0) -> bytes:
    """Return the output of the reference trainer for steps ``first`` to ``last``."""
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


def built(source: str, metrics: dict[str, Series], **more: Any) -> ParsedRun:
    """Return a run with the given metrics."""
    curve = Curve(metrics, **{"restarts": (), **more.pop("curve", {})})
    nothing = parse_chunks(source, [])
    read = {"formats": ("key=value",), "files": 1, "lines": 900, "bytes": 52_000}
    return structs.replace(nothing, curve=curve, **{**read, **more})


def noise(index: int) -> float:
    """Return a deterministic pseudo-random number between -1 and 1."""
    return math.fmod(math.sin(index * 12.9898) * 43758.5453, 1.0)


@cache
def running() -> list[ParsedRun]:
    """A noisy run in progress that was restarted once, submitted by hpcrun."""
    steps: list[int | None] = list(range(1, 1201))
    begun = 1.79e9
    times = [begun + 2.5 * step + (3600 if step > 500 else 0) for step in range(1, 1201)]
    metrics = {
        "loss": build_series(
            steps,
            [2 + 8 * math.exp(-i / 90) + 0.3 * noise(i) for i in range(1200)],
            times,
        ),
        "eval_loss": build_series([400, 800, 1200], [2.3, 2.1, 2.15]),
        "lr": build_series(steps, [3e-4 * (1 - i / 4000) for i in range(1200)]),
        "grad_norm": build_series(steps, [1.2 + 0.2 * noise(i + 7) for i in range(1200)]),
        "tokens_per_second": build_series(steps, [21000 + 900 * noise(i) for i in range(1200)]),
        "step_seconds": build_series(steps, [2.4 + 0.1 * noise(i) for i in range(1200)]),
        "memory_bytes": build_series([1], [52e9]),
        "epoch": build_series(steps, [i / 1000 for i in range(1, 1201)]),
    }
    restart = Restart(attempt=1, lost_at=540, resumed_at=501, replayed=40)
    return [
        built(
            "20261120-081455-zero2-4gpu-7k3q",
            metrics,
            curve={
                "restarts": (restart,),
                "total_steps": 4000,
                "notes": ("ranks 0 to 3 print the same steps: rank 0 speaks for all",),
            },
            warnings=("loss spike at step 803: 9.1 where 2.0 is usual", "stall at step 1100"),
            gpus=4,
            seconds=6600.0,
        )
    ]


def judged(judge: int, index: int) -> float:
    return math.sin(index / 10 + judge)


@cache
def rewards() -> list[ParsedRun]:
    """Reinforcement learning: no loss, many custom metrics."""
    steps: list[int | None] = list(range(0, 500, 5))
    names: dict[str, Callable[[int], float]] = {
        "reward/mean": lambda i: -1 + i / 40 + 0.3 * noise(i),
        "reward/std": lambda i: 1 / (1 + i / 30),
        "kl": lambda i: 0.001 * i,
        "entropy": lambda i: 2.5 - i / 60,
        "completions/mean_length": lambda i: 180.0 + 2 * i,
        "clip_ratio": lambda i: 0.01,
        "a metric with a very long name that the log has all the same": lambda i: i * 1e-9,
    }
    for judge in range(14):
        names[f"rewards/judge_{judge}"] = partial(judged, judge)
    metrics = {
        name: build_series(steps, [value(i) for i in range(100)]) for name, value in names.items()
    }
    return [built("grpo.log", {"lr": build_series(steps, [1e-6] * 100), **metrics})]


@cache
def decades() -> list[ParsedRun]:
    """A loss that falls by four decades, on a logarithmic axis."""
    steps: list[int | None] = list(range(1, 301))
    values = [10 * math.exp(-i / 30) + 1e-4 for i in range(300)]
    return [built("decades.log", {"loss": build_series(steps, values)})]


@cache
def sweep() -> list[ParsedRun]:
    """More runs than colours, from folders with the same name."""
    return [
        built(
            f"experiments/2026-11/lr-{index:02}/seed-0/train.log",
            {
                "loss": build_series(
                    list(range(1, 101)),
                    [1 + index / 10 + 4 * math.exp(-i / (10 + index)) for i in range(100)],
                )
            },
        )
        for index in range(14)
    ]
