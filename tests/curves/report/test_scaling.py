"""Speed-up and efficiency, for runs with known speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from hpcrun.curves.curve import Series, build_series
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.scaling import Scaling, build_scaling
from tests.curves.report.runs import built

STEPS: list[int | None] = list(range(10, 210, 10))


def constant(value: float) -> Series:
    return build_series(STEPS, [value] * len(STEPS))


def counter(per_step: float) -> Series:
    return build_series(STEPS, [per_step * (step or 0) for step in STEPS])


def run(gpus: int | None, *, batch: float | None = None, **metrics: float) -> ParsedRun:
    """Build a run with constant metrics; names with a leading underscore are counters."""
    series = {
        name.removeprefix("_"): (counter if name.startswith("_") else constant)(value)
        for name, value in metrics.items()
    }
    facts = {} if batch is None else {"effective_batch": f"{batch:.0f}"}
    return built(f"{gpus}.log", {"loss": constant(2.0)} | series, gpus=gpus, facts=facts)


def speedups(scaling: Scaling) -> list[Any]:
    return [None if speed.speedup is None else round(speed.speedup, 3) for speed in scaling.speeds]


def efficiencies(scaling: Scaling) -> list[Any]:
    return [
        None if speed.efficiency is None else round(speed.efficiency, 3) for speed in scaling.speeds
    ]


def test_strong_scaling_is_recognized() -> None:
    """The usual table: the same batch size on 1 to 8 GPUs, by the time of a step."""
    times = {1: 1.0, 2: 0.5556, 4: 0.3125, 8: 0.1887}
    shown = build_scaling([run(n, batch=64, step_seconds=t) for n, t in times.items()])
    assert (shown.unit, shown.kind, shown.baseline, shown.counted) == (
        "samples/s",
        "strong",
        0,
        "GPUs",
    )
    assert speedups(shown) == [1.0, 1.8, 3.2, 5.299]
    assert efficiencies(shown) == [1.0, 0.9, 0.8, 0.662]
    assert shown.speeds[3].work == pytest.approx(64 / 0.1887)


def test_weak_scaling_is_recognized() -> None:
    shown = build_scaling([run(n, batch=8 * n, step_seconds=1 + 0.1 * (n > 1)) for n in (1, 2, 4)])
    assert shown.kind == "weak"
    assert speedups(shown) == [1.0, 1.818, 3.636]
    assert efficiencies(shown) == [1.0, 0.909, 0.909]


def test_other_batch_growth_is_neither_strong_nor_weak() -> None:
    shown = build_scaling([run(1, batch=8, step_seconds=1), run(4, batch=16, step_seconds=0.5)])
    assert shown.kind == "mixed" and speedups(shown) == [1.0, 4.0]


def test_baseline_is_the_run_with_the_fewest_gpus() -> None:
    shown = build_scaling([run(8, batch=8, step_seconds=1), run(2, batch=8, step_seconds=2)])
    assert shown.baseline == 1
    assert speedups(shown) == [2.0, 1.0] and efficiencies(shown) == [0.5, 1.0]


def test_efficiency_needs_gpus() -> None:
    shown = build_scaling([run(None, step_seconds=2.0), run(None, step_seconds=1.0)])
    assert (shown.unit, shown.kind, shown.baseline) == ("steps/s", None, 0)
    assert speedups(shown) == [1.0, 2.0] and efficiencies(shown) == [None, None]
    assert any("batch sizes are not known" in note for note in shown.notes)


def test_equal_numbers_of_gpus_are_not_scaling() -> None:
    shown = build_scaling([run(4, batch=8, step_seconds=2), run(4, batch=8, step_seconds=1)])
    assert shown.kind is None and efficiencies(shown) == [None, None]
    assert speedups(shown) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("metrics", "unit"),
    [
        ({"_num_tokens": 4096.0, "_consumed_samples": 4.0}, "tokens/s"),
        ({"_consumed_samples": 4.0, "tokens_per_second": 1.0}, "samples/s"),
        ({"global batch size": 4.0, "tokens_per_second": 1.0}, "samples/s"),
        ({"samples_per_second": 8.0, "tokens_per_second": 1.0}, "samples/s"),
        ({"tokens_per_second": 8192.0}, "tokens/s"),
        ({}, "steps/s"),
    ],
)
def test_work_uses_the_best_measure_common_to_all_runs(
    metrics: dict[str, float], unit: str
) -> None:
    shown = build_scaling([run(n, step_seconds=0.5, **metrics) for n in (1, 1)])
    assert shown.unit == unit and speedups(shown) == [1.0, 1.0]
    one = built("x.log", {"loss": constant(1.0), "step_seconds": constant(0.5)})
    assert build_scaling([run(1, step_seconds=0.5, **metrics), one]).unit == "steps/s"


def test_run_without_the_common_measure_is_omitted() -> None:
    runs = [run(n, batch=8, step_seconds=1 / n) for n in (1, 2)]
    shown = build_scaling([*runs, built("odd.log", {"step_seconds": constant(1.0)}, gpus=4)])
    assert speedups(shown) == [1.0, 2.0, None]
    assert "no samples/s known for odd.log" in shown.notes


def test_counters_of_the_log_precede_planned_values() -> None:
    shown = build_scaling([run(1, batch=8, step_seconds=1, _consumed_samples=6.0)] * 2)
    assert shown.speeds[0].batch == 6.0 and shown.speeds[0].work == 6.0


def test_per_gpu_rates_are_multiplied_on_request() -> None:
    rates = [run(n, tokens_per_second=5000.0 - 10 * n, step_seconds=1) for n in (1, 8)]
    shown = build_scaling(rates)
    assert speedups(shown) == [1.0, 0.986]
    assert any("--per-gpu" in note for note in shown.notes)
    shown = build_scaling(rates, per_gpu=True)
    assert speedups(shown) == [1.0, 7.888] and efficiencies(shown) == [1.0, 0.986]
    assert not any("--per-gpu" in note for note in shown.notes)


def stamped(gpus: int, seconds: Sequence[float]) -> ParsedRun:
    steps: list[int | None] = list(range(0, 10 * len(seconds), 10))
    series = build_series(steps, [2.0] * len(steps), list(seconds))
    return built(f"{gpus}", {"loss": series}, gpus=gpus)


def test_step_time_from_time_stamps_ignores_pauses() -> None:
    """The wait of a requeue and an evaluation are not part of the training speed."""
    even = [5.0 * n for n in range(40)]
    paused = [2.5 * n + (36_000 if n > 17 else 0) for n in range(40)]
    shown = build_scaling([stamped(1, even), stamped(2, paused)])
    assert [speed.step_seconds for speed in shown.speeds] == [0.5, 0.25]
    assert speedups(shown) == [1.0, 2.0]


def test_all_runs_are_timed_in_the_same_way() -> None:
    """Step times exclude evaluations, so they would be better than times from time stamps."""
    both = built(
        "both",
        {
            "step_seconds": constant(0.1),
            "loss": build_series(STEPS, [1.0] * 20, [5.0 * n for n in range(20)]),
        },
    )
    shown = build_scaling([both, stamped(2, [5.0 * n for n in range(40)])])
    assert [speed.step_seconds for speed in shown.speeds] == [0.5, 0.5]
    assert "by the log's time stamps" in shown.notes[0]


def test_total_time_is_not_used_for_step_time() -> None:
    """A startup of 30 s in a run of a minute would distort the speed-up."""
    runs = [
        structs.replace(run(gpus, batch=64), seconds=seconds)
        for gpus, seconds in ((1, 60.0), (2, 120.0))
    ]
    shown = build_scaling(runs)
    assert (shown.unit, shown.baseline) == (None, None) and speedups(shown) == [None, None]
    assert [(speed.batch, speed.step_seconds) for speed in shown.speeds] == [(64.0, None)] * 2


def test_printed_rates_need_no_time_stamps() -> None:
    runs = [
        structs.replace(run(gpus, batch=64, samples_per_second=rate), seconds=900.0)
        for gpus, rate in ((1, 100.0), (2, 180.0))
    ]
    shown = build_scaling(runs)
    assert efficiencies(shown) == [1.0, 0.9] and shown.kind == "strong"
    assert shown.notes[0] == "samples/s as the logs print them"
    one_has_none = [runs[0], structs.replace(run(2, batch=64), seconds=450.0)]
    assert build_scaling(one_has_none).baseline is None


def test_runs_without_any_measure_have_no_speed() -> None:
    shown = build_scaling([built("a", {"loss": constant(1.0)}), built("b", {})])
    assert (shown.unit, shown.baseline) == (None, None) and speedups(shown) == [None, None]


def test_ranks_are_used_if_there_are_no_gpus() -> None:
    runs = [
        built("a", {"step_seconds": constant(t)}, facts={"world_size": n})
        for n, t in (("1", 2.0), ("2", 1.0))
    ]
    shown = build_scaling(runs)
    assert shown.counted == "ranks" and efficiencies(shown) == [1.0, 1.0]


def test_different_gpu_types_are_reported() -> None:
    runs = [
        built("a", {"step_seconds": constant(1.0)}, gpus=n, facts={"resources.gpu_type": kind})
        for n, kind in ((1, "v100"), (2, "h100"))
    ]
    assert "the runs use different types of GPUs (h100, v100)" in build_scaling(runs).notes


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_zero_step_time_is_ignored(value: float) -> None:
    shown = build_scaling([run(1, step_seconds=value), run(2, step_seconds=1.0)])
    assert speedups(shown) == [None, None]
