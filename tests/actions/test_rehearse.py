"""A resumed run is compared with an undisturbed one, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hpcrun.actions.rehearse import Trial, compare_curves
from hpcrun.cli.verbs_train import describe_trial
from hpcrun.curves.curve import Curve, build_series


def curve(losses: Sequence[float], lr: Sequence[float] = ()) -> Curve:
    """Return a curve of the steps 1, 2, ..."""
    metrics = {"loss": build_series(list(range(1, len(losses) + 1)), list(losses))}
    if lr:
        metrics["lr"] = build_series(list(range(1, len(lr) + 1)), list(lr))
    return Curve(metrics, ())


def judged(mine: Curve, other: Curve, resumed_at: int = 4) -> Trial:
    trial = Trial(fault="preempt", run_dir="", ok=True, resumed_at=resumed_at, replayed=1)
    trial.checkpoint = "step-3"
    compare_curves(trial, mine, other)
    return trial


LOSSES = [3.0, 2.5, 2.2, 2.0, 1.9, 1.85]


@pytest.mark.parametrize(
    ("losses", "ok", "same", "words"),
    [
        (LOSSES[:5], True, True, "the same curve to the last digit (2 values)"),
        ([*LOSSES[:4], 1.9000001], True, True, "the same curve within 5e-08 (2 values)"),
        ([*LOSSES[:4], 1.91], False, False, "the first difference: loss 1.91 at step 5"),
        ([*LOSSES[:4], math.nan], False, False, "loss no number at step 5, undisturbed 1.9"),
        ([3.0, 2.6, *LOSSES[2:]], True, None, "loss 2.6 at step 2, undisturbed 2.5"),
    ],
)
def test_resumed_curve_is_compared_with_the_undisturbed_one(
    losses: list[float], ok: bool, same: bool | None, words: str
) -> None:
    trial = judged(curve(losses), curve(LOSSES))
    assert (trial.ok, trial.same) == (ok, same)
    assert words in describe_trial(trial)


def test_learning_rate_schedule_that_was_not_loaded_is_detected() -> None:
    rates = [5.0, 4.0, 3.0, 2.0, 1.0]
    trial = judged(curve(LOSSES[:5], [5.0, 4.0, 3.0, 5.0, 4.0]), curve(LOSSES, rates))
    assert not trial.ok
    assert "lr 5 at step 4, undisturbed 2" in describe_trial(trial)


def test_curves_without_common_steps_are_not_compared() -> None:
    trial = judged(curve([*LOSSES, 1.8]), curve(LOSSES), resumed_at=7)
    assert (trial.ok, trial.same) == (True, None)
    assert "not compared" in trial.why
