"""Comparisons of runs, with generated curves whose true differences are known."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from hpcrun.curves.curve import Restart, build_series
from hpcrun.curves.report.comparison import Comparison, compare_runs
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.parsing import parse_chunks
from tests.curves.report.compared import loss, run, timed
from tests.curves.report.runs import built


def shown_at(shown: Comparison, by: str) -> Any:
    return next((equal for equal in shown.equal if equal.by == by), None)


# ---- at equal places


def test_loss_is_compared_at_an_equal_step() -> None:
    runs = [run("a", loss(1000, 2.0)), run("b", loss(500, 1.8, seed=1))]
    equal = shown_at(compare_runs(runs), "step")
    assert (equal.window.begin, equal.window.end, equal.best) == (pytest.approx(450, abs=1), 500, 1)
    truth = [2.0 + 4 * math.exp(-4.75), 1.8 + 4 * math.exp(-4.75)]
    assert equal.levels == pytest.approx(truth, abs=0.03)
    assert equal.behind[0].value == pytest.approx(0.2, abs=0.03)
    assert equal.behind[0].is_clear and equal.behind[1] is None


def test_difference_within_noise_is_not_reported() -> None:
    runs = [run("a", loss(1000, 2.0)), run("b", loss(1000, 2.0, seed=1))]
    equal = shown_at(compare_runs(runs), "step")
    assert not any(gap.is_clear for gap in equal.behind if gap)


def test_faster_run_is_ahead_at_an_equal_time() -> None:
    runs = [
        run("slow", timed(loss(1000, 2.0), 2.0)),
        run("fast", timed(loss(1000, 2.0, seed=1), 0.5)),
    ]
    shown = compare_runs(runs)
    equal = shown_at(shown, "time")
    assert equal.window.end == pytest.approx(499.5) and equal.best == 1
    assert equal.behind[0].is_clear
    assert not any(gap.is_clear for gap in shown_at(shown, "step").behind if gap)


def test_equal_samples_are_compared_for_different_batch_sizes() -> None:
    def batch(size: int) -> dict[str, str]:
        return {"effective_batch": str(size)}

    runs = [
        run("a", loss(1000, 2.0), facts=batch(8)),
        run("b", loss(1000, 1.9, seed=1, speed=80.0), facts=batch(32)),
    ]
    shown = compare_runs(runs)
    assert shown_at(shown, "step").best == 1
    samples = shown_at(shown, "samples")
    assert samples.window.end == 8000 and samples.best == 0 and samples.behind[1].is_clear
    same = compare_runs([run("a", loss(100, 2.0), facts=batch(8))] * 2)
    assert shown_at(same, "samples") is None and shown_at(same, "tokens") is None


def test_tokens_come_from_the_counter_of_the_log() -> None:
    def with_tokens(floor: float, per_step: int, seed: int) -> ParsedRun:
        series = loss(1000, floor, seed=seed)
        tokens = build_series(series.steps, [per_step * float(step or 0) for step in series.steps])
        return built(f"{per_step}", {"loss": series, "num_tokens": tokens})

    shown = compare_runs([with_tokens(2.0, 100, 0), with_tokens(2.0, 400, 1)])
    equal = shown_at(shown, "tokens")
    assert equal.window.end == 100_000 and equal.best == 0
    assert shown.target is not None
    reached = shown.target.reached
    assert reached[1] is not None and reached[1].tokens == pytest.approx(
        400 * (reached[1].step or 0)
    )


def test_early_crash_does_not_hide_other_runs() -> None:
    runs = [run(name, loss(1000, 2.0, seed=n)) for n, name in enumerate("ab")]
    shown = compare_runs([*runs, run("crashed", loss(20, 2.0))])
    equal = shown_at(shown, "step")
    assert equal.window.end == 1000 and equal.levels[2] is None
    assert "not compared at equal steps (too short): crashed" in shown.notes
    alone = compare_runs([runs[0], run("crashed", loss(20, 2.0))])
    assert shown_at(alone, "step").window.end == 20


def test_log_without_steps_is_not_compared_by_step() -> None:
    bare = build_series([None] * 50, [3.0 - 0.01 * n for n in range(50)])
    shown = compare_runs([run("a", loss(100, 2.0)), run("b", loss(100, 2.0)), run("bare", bare)])
    assert shown_at(shown, "step").levels[2] is None
    assert "not compared at equal steps (not in the log): bare" in shown.notes
    assert compare_runs([run("a", loss(100, 2.0)), run("bare", bare)]).equal == ()


def test_highest_value_is_ahead_if_higher_is_better() -> None:
    def reward(slope: float) -> ParsedRun:
        steps: list[int | None] = list(range(100))
        values = [slope * n + 0.1 * (n % 2) for n in range(100)]
        return built(f"{slope}", {"reward": build_series(steps, values)})

    shown = compare_runs([reward(1.0), reward(2.0)])
    assert (shown.metric, shown.falls) == ("reward", False)
    equal = shown_at(shown, "step")
    assert equal.best == 1 and equal.levels[1] > equal.levels[0]
    assert equal.behind[0].value > 0 and shown.target is not None
    assert [each and each.step for each in shown.target.reached] == pytest.approx([95, 48], abs=3)
    assert "0.5" not in shown.notes


def long_log(source: str, seed: int, steps: int = 30_000) -> ParsedRun:
    """A thinned log with skewed noise and occasional pauses between steps."""
    chance = random.Random(seed)
    lines = [
        f"step={step} loss={2 + 4 * math.exp(-step / 5000) + chance.expovariate(10):.4f} "
        f"step_seconds={5.0 if chance.random() < 0.01 else 0.1}\n"
        for step in range(1, steps + 1)
    ]
    return parse_chunks(source, [(0, ["".join(lines).encode()])], limit=1000)


@pytest.mark.slow
def test_means_of_a_thinned_log_ignore_its_extremes() -> None:
    runs = [long_log("a", 1), long_log("b", 2)]
    assert runs[0].curve.metrics["loss"].thinned
    shown = compare_runs(runs)
    step, time = shown_at(shown, "step"), shown_at(shown, "time")
    assert step.window.end == 30_000
    truth = 2.1 + 4 * math.exp(-28_500 / 5000)
    assert step.levels == pytest.approx([truth, truth], abs=0.03)
    assert not any(gap.is_clear for gap in step.behind if gap)
    # About 300 pauses of 5 seconds, and 29,700 steps of a tenth.
    assert time.window.end == pytest.approx(4470, rel=0.3)
    assert shown.notes == ()


@pytest.mark.slow
def test_thinned_log_with_falling_steps_has_a_note() -> None:
    lines = [f"step={n % 3000} loss={2 + n % 7}\n" for n in range(1, 10_000)]
    uneven = parse_chunks("uneven", [(0, ["".join(lines).encode()])], limit=1000)
    shown = compare_runs([uneven, long_log("even", 1)])
    assert "of uneven only lows and highs are kept, and its means may be off" in shown.notes


# ---- time to a common loss


def test_time_to_a_common_loss_is_compared() -> None:
    runs = [
        run("a", timed(loss(1000, 2.0, speed=200.0), 1.0)),
        run("b", timed(loss(1000, 1.5, speed=200.0, seed=1), 2.0)),
    ]
    target = compare_runs(runs).target
    assert target is not None and target.level == pytest.approx(2.04, abs=0.03)
    first, second = target.reached
    assert first and second and first.step and second.step and first.time and second.time
    assert first.step > 600
    assert second.step == pytest.approx(-200 * math.log((target.level - 1.5) / 4), abs=15)
    assert second.time == pytest.approx(2 * (second.step - 1), abs=1)


def test_target_level_can_be_requested() -> None:
    runs = [run("a", loss(1000, 2.0)), run("b", loss(1000, 3.0))]
    target = compare_runs(runs, target=2.5).target
    assert target is not None and target.level == 2.5 and target.reached[1] is None
    assert target.reached[0] is not None
    assert target.reached[0].step == pytest.approx(-100 * math.log(0.5 / 4), abs=15)


def test_nan_gap_does_not_shift_the_reached_step() -> None:
    steps: list[int | None] = list(range(0, 1000, 10))
    values = [math.nan if 20 < n < 60 else 10 - n / 10 for n in range(100)]
    target = compare_runs([run("a", build_series(steps, values))] * 2, target=2.0).target
    assert target is not None and target.reached[0] is not None
    assert target.reached[0].step == pytest.approx(800, abs=10)


# ---- differing and unknown settings


def test_only_differing_settings_are_shown() -> None:
    facts = {"precision": "bf16", "resources.nodes": "1"}
    runs = [
        run("a", loss(10, 2.0), facts=facts | {"args.--lr": "1e-4"}),
        run("b", loss(10, 2.0), facts=facts | {"args.--lr": "3e-4", "args.-v": ""}),
        run("plain.log", loss(10, 2.0)),
    ]
    shown = compare_runs(runs)
    assert shown.settings == {"args.--lr": ("1e-4", "3e-4", None), "args.-v": (None, "", None)}


def test_waits_and_different_clocks_are_reported() -> None:
    series = timed(loss(100, 2.0), 1.0)
    waited = run("waited", series, curve={"restarts": (Restart(1, 50, 40, 11),)})
    summed = built(
        "summed", {"loss": loss(100, 2.0), "step_seconds": build_series([1, 100], [1.0, 1.0])}
    )
    shown = compare_runs([waited, summed])
    assert "time includes what passed between the attempts of waited" in shown.notes
    assert "time is by time stamps in waited, else the sum of the step times" in shown.notes


def test_runs_without_a_common_loss_are_not_compared() -> None:
    other = built("other", {"eval_loss": loss(100, 2.0)})
    shown = compare_runs([run("a", loss(100, 2.0)), other])
    assert shown.metric == "loss" and shown.equal == () and shown.target is None
    assert "no loss in other" in shown.notes
    both = built("both", {"loss": loss(9, 2.0), "eval_loss": loss(100, 2.0)})
    assert compare_runs([both, other]).metric == "eval_loss"
    nothing = compare_runs([built("a", {}), built("b", {})])
    assert nothing.metric is None and nothing.scaling.baseline is None
