"""Warnings: none for healthy runs, and one with the step for each fault."""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.curve import Curve, Restart, Series, build_series
from hpcrun.curves.report.health import find_warnings
from tests.curves.report.faulty import FAULTS, Fault
from tests.curves.report.healthy import Family, thinned
from tests.curves.report.warning_rates import HEALTHY, alarms, found

STEPS: list[int | None] = [10 * (i + 1) for i in range(60)]


def descent(seed: int = 1, count: int = 60) -> list[float]:
    """Generate a loss that falls from 9.8 to 3.2 with a little noise."""
    rng = Random(seed)
    return [3.2 + 6.6 * math.exp(-i / count * 4) + rng.gauss(0, 0.05) for i in range(count)]


def warnings_of(values: list[float], **others: Series) -> tuple[str, ...]:
    steps = [10 * (i + 1) for i in range(len(values))]
    return find_warnings(Curve({"loss": build_series(list(steps), values), **others}, ()))


# Healthy runs.


@pytest.mark.slow
@pytest.mark.parametrize("family", HEALTHY, ids=lambda family: family.__name__)
def test_healthy_run_has_no_warning(family: Family) -> None:
    # A thinned curve has thousands of points, and takes ten times as long.
    assert alarms(family, 10 if family is thinned else 40) == []


@pytest.mark.thorough
@pytest.mark.parametrize("family", HEALTHY, ids=lambda family: family.__name__)
def test_hundreds_of_healthy_runs_have_almost_no_warnings(family: Family) -> None:
    count = 200 if family is thinned else 600
    assert len(alarms(family, count)) <= count // 200


@pytest.mark.slow
@given(
    st.lists(st.floats(0.9, 1.1), min_size=1, max_size=200),
    st.floats(1e-6, 1e6),
    st.booleans(),
)
def test_noise_of_ten_percent_is_healthy(noise: list[float], scale: float, signed: bool) -> None:
    values = [scale * (each - signed) for each in noise]
    assert [shown for shown in warnings_of(values) if "still" not in shown] == []


@pytest.mark.slow
@given(
    st.lists(st.floats(), max_size=60),
    st.lists(st.none() | st.integers(-5, 500), max_size=60),
    st.lists(st.floats(-1e12, 1e12), max_size=60),
)
def test_any_values_can_be_checked(
    values: list[float], steps: list[int | None], times: list[float]
) -> None:
    count = min(len(values), len(steps), len(times))
    if not count:
        assert find_warnings(Curve({}, ())) == ()
        return
    series = build_series(steps[:count], values[:count], times[:count])
    names = ("loss", "eval_loss", "lr", "epoch", "grad_norm", "loss_scale", "step_seconds")
    curve = Curve(dict.fromkeys((*names, "tokens_per_second", "batch_size"), series), ())
    for shown in find_warnings(curve):
        assert shown.strip() == shown and "\n" not in shown


@pytest.mark.slow
@given(
    st.lists(st.floats(1e-300, 1e300), min_size=8, max_size=80),
    st.lists(st.integers(1, 10**9), min_size=80, max_size=80),
)
def test_any_positions_can_be_checked(values: list[float], gaps: list[int]) -> None:
    steps = list(accumulate(gaps))[: len(values)]
    for shown in find_warnings(Curve({"loss": build_series(list(steps), values)}, ())):
        assert "loss" in shown


# Faulty runs.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "word", "size"),
    [(fault, word, sizes[-1]) for fault, word, sizes in FAULTS if fault.__name__ != "never_learns"],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_large_faults_are_detected(fault: Fault, word: str, size: float) -> None:
    assert found(fault, word, size, 40) >= 0.9


def test_nan_is_reported_with_its_step() -> None:
    values = descent()
    values[20] = math.nan
    assert warnings_of(values) == ("loss is nan at step 210",)
    values[30] = math.inf
    assert warnings_of(values) == ("loss is nan first at step 210; 2 of 60 points are not finite",)
    values[50:] = [math.nan] * 10
    assert warnings_of(values[40:]) == ("loss is nan from step 110 to the end (10 of 20 points)",)


def test_infinite_evaluation_without_steps_is_reported() -> None:
    evaluations = build_series([None] * 3, [2.0, math.inf, 2.0])
    assert find_warnings(Curve({"eval_loss": evaluations}, ())) == ("eval_loss is inf at point 2",)


def test_occasional_gradient_overflows_are_healthy() -> None:
    norms = [math.inf if i % 7 == 0 else 1.0 for i in range(60)]
    assert warnings_of(descent(), grad_norm=build_series(STEPS, norms)) == ()


def test_permanent_gradient_overflow_is_reported() -> None:
    norms = [1.0] * 30 + [math.nan] * 30
    shown = warnings_of(descent()[:30] + [0.0] * 30, grad_norm=build_series(STEPS, norms))
    assert shown[0] == "grad_norm is nan from step 310 to the end (30 of 60 points)"
    assert "stays at 0 from step 310" in shown[1]


def test_spike_warning_names_the_previous_level() -> None:
    values = descent()
    values[40:43] = [9.0, 7.0, 5.0]
    (shown,) = warnings_of(values)
    assert shown.startswith("loss spikes to 9 at step 410, from about 3.")


def test_spike_in_few_points_must_exceed_all_others() -> None:
    values = [2.5, 2.4, 2.3, 2.2, 2.2, 25.0, 2.1, 2.1, 2.0, 2.0]
    assert "spikes to 25 at step 60" in warnings_of(values)[0]
    values[5] = 4.0
    assert warnings_of(values) == ()


def test_loss_rising_with_the_learning_rate_is_healthy() -> None:
    values = descent()
    values[40:43] = [9.0, 7.0, 5.0]
    rates = [1e-5] * 39 + [3e-4] * 21
    assert warnings_of(values, lr=build_series(STEPS, rates)) == ()
    assert len(warnings_of(values, lr=build_series(STEPS, [3e-4] * 60))) == 1


def test_first_mean_of_an_epoch_is_not_a_spike() -> None:
    values = descent()
    values[40] = 9.0
    epochs = [float(i // 20) for i in range(60)]
    assert warnings_of(values, epoch=build_series(STEPS, epochs)) == ()
    assert len(warnings_of(values, epoch=build_series(STEPS, [0.0] * 60))) == 1


def test_divergence_is_reported() -> None:
    values = [value + max(0, i - 29) * 0.15 for i, value in enumerate(descent())]
    (shown,) = warnings_of(values)
    assert shown.startswith("loss diverges: 7.") and "at the end (step 600)" in shown


def test_loss_that_recovered_has_not_diverged() -> None:
    values = descent(count=100)
    values[50:80] = [value + 4 for value in values[50:80]]
    assert [shown for shown in warnings_of(values) if "diverges" in shown] == []


def test_adversarial_losses_may_rise() -> None:
    values = [value + max(0, i - 29) * 0.15 for i, value in enumerate(descent())]
    rewards = build_series(STEPS, [i / 60 for i in range(60)])
    assert warnings_of(values, **{"reward/mean": rewards}) == ()


def test_loss_that_never_falls_is_a_plateau() -> None:
    rng = Random(1)
    values = [round(math.log(10) + rng.gauss(0, 0.002), 4) for _ in range(200)]
    (shown,) = warnings_of(values)
    assert shown == "loss stays at 2.303 from step 10 to the end (step 2000)"


def test_frozen_loss_is_reported() -> None:
    (shown,) = warnings_of([*descent()[:25], *[5.1037] * 35])
    assert shown == "loss stays at 5.104 from step 260 to the end (step 600)"


@pytest.mark.parametrize("last", [0.0, 0.001, 0.5])
def test_converged_loss_with_few_digits_is_not_a_plateau(last: float) -> None:
    values = [round(last + 5 * math.exp(-i / 4), 3) for i in range(100)]
    assert warnings_of(values) == ()


def test_collapsed_loss_scale_is_reported() -> None:
    scales = [65536.0] * 30 + [65536.0 / 2 ** min(16, i) for i in range(30)]
    (shown,) = warnings_of(descent(), loss_scale=build_series(STEPS, scales))
    assert shown.startswith("loss_scale falls to 1 at step 470, from 65536 at step 310")


def test_loss_scale_is_checked_despite_nan() -> None:
    scales = [65536.0] * 30 + [65536.0 / 2**i for i in range(17)] + [math.nan] * 3 + [2.0] * 10
    (shown,) = warnings_of(descent(), loss_scale=build_series(STEPS, scales))
    assert shown.startswith("loss_scale falls to 1 at step 470, from 65536 at step 310")


def test_search_for_the_initial_loss_scale_is_healthy() -> None:
    scales = [2.0 ** max(16, 32 - i) for i in range(60)]
    scales[40] = 2.0**15
    assert warnings_of(descent(), loss_scale=build_series(STEPS, scales)) == ()


def test_constant_loss_scale_of_one_is_healthy() -> None:
    assert warnings_of(descent(), **{"loss scale": build_series(STEPS, [1.0] * 60)}) == ()


def stalled(at: int, seconds: float, **others: Series) -> Curve:
    times = [1.7e9 + 12 * i + (seconds if i >= at else 0) for i in range(60)]
    return Curve({"loss": build_series(STEPS, descent(), times), **others}, ())


def test_stall_is_reported() -> None:
    (shown,) = find_warnings(stalled(43, 3000))
    assert shown == "no progress for 50.2 min after step 430, where 12 s are usual"


def test_regular_pauses_are_not_stalls() -> None:
    assert find_warnings(stalled(3, 3000)) == ()  # the first steps compile
    assert find_warnings(stalled(40, 400)) == ()  # step 400: a checkpoint
    evaluated = build_series([430], [3.0])
    assert find_warnings(stalled(43, 3000, eval_loss=evaluated)) == ()
    curve = stalled(43, 90_000)
    assert find_warnings(Curve(curve.metrics, (Restart(1, 430, 440, 0),))) == ()


def test_loss_that_jumps_after_a_restart_is_reported() -> None:
    values = descent()[:40]
    restarts = (Restart(1, 400, 410, 0),)
    lost = build_series(STEPS, [*values, *(13.8 - n / 9 for n in range(20))])
    (first, *_) = find_warnings(Curve({"loss": lost}, restarts))
    assert first.startswith("loss jumps from 3.7") and "after the restart at step 410" in first
    kept = build_series(STEPS, [*values, 9.5, *descent()[41:]])
    assert find_warnings(Curve({"loss": kept}, restarts)) == ()


def test_permanent_throughput_drop_is_reported() -> None:
    speeds = build_series(STEPS, [41000.0] * 39 + [13700.0] * 21)
    (shown,) = warnings_of(descent(), tokens_per_second=speeds)
    assert shown == (
        "tokens_per_second drops to 1.37e+04 at step 400, from 4.1e+04 before it, and stays there"
    )


def test_throughput_is_not_checked_if_sequences_grow() -> None:
    speeds = build_series(STEPS, [410.0] * 39 + [137.0] * 21)
    lengths = build_series(STEPS, [512.0] * 39 + [2048.0] * 21)
    assert warnings_of(descent(), samples_per_second=speeds, seq_len=lengths) == ()


def test_most_serious_warning_comes_first() -> None:
    values = descent()
    values[40] = 9.0
    values[50] = math.nan
    speeds = build_series(STEPS, [41000.0] * 39 + [13700.0] * 21)
    shown = warnings_of(values, tokens_per_second=speeds)
    assert [sentence.split()[1] for sentence in shown] == ["is", "spikes", "drops"]
