"""Health: what should worry in a curve, one sentence each, gravest first.

What each rule asks for, and how often it was right, is in docs/warnings.md.

A warning on a healthy log is an error: what can be the run's design (a learning rate that rises,
an evaluation, losses that fight each other) is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from hpcrun.metrics.curve import Curve, Series
from hpcrun.metrics.health.divergence import find_divergence, find_plateau
from hpcrun.metrics.health.losses import Losses, last_losses
from hpcrun.metrics.health.pace import drop_warnings, stall_warnings
from hpcrun.metrics.health.spikes import find_spikes
from hpcrun.metrics.names import EVAL_LOSS, GRAD_NORM, LOSS


def find_warnings(curve: Curve) -> tuple[str, ...]:
    """Return what should worry in a curve, gravest first; nothing for a healthy one.

    >>> from hpcrun.metrics.curve import build_series
    >>> losses = build_series([1, 2, 3], [2.5, 2.4, float("nan")])
    >>> find_warnings(Curve({"loss": losses}, ()))
    ('loss is nan at step 3',)
    """
    found = [*_not_finite(curve), *_lost_gradients(curve)]
    judged = not is_contest(curve)
    losses = last_losses(curve) if judged else None
    if losses:
        found += [*_off_course(losses)]
    found += [*_loss_scale(curve)]
    if losses:
        found += [*_spikes(losses)]
    found += [*stall_warnings(curve)]
    if judged:
        found += [*drop_warnings(curve)]
    return tuple(found)


def _where(series: Series, index: int) -> str:
    step = series.steps[index]
    return f"point {index + 1}" if step is None else f"step {step}"


def _not_finite(curve: Curve) -> Iterator[str]:
    """fp16 scales gradients until they overflow: their norm may be inf, but not to the end."""
    names = [name for name in curve.metrics if name in (LOSS, EVAL_LOSS)]
    for name in names or [name for name in curve.metrics if name.lower().endswith("loss")]:
        series = curve.metrics[name]
        broken = [i for i, value in enumerate(series.values) if not math.isfinite(value)]
        if not broken:
            continue
        what, where = f"{name} is {series.values[broken[0]]}", _where(series, broken[0])
        share = f"{len(broken)} of {len(series.values)} points"
        if len(broken) == 1:
            yield f"{what} at {where}"
        elif len(broken) == len(series.values) - broken[0]:
            yield f"{what} from {where} to the end ({share})"
        else:
            yield f"{what} first at {where}; {share} are not finite"


# The gradients of so many steps in a row up to the end are not finite: no loss scale is found.
_LOST_GRADIENTS = 20


def _lost_gradients(curve: Curve) -> Iterator[str]:
    series = curve.metrics.get(GRAD_NORM)
    if series is None:
        return
    last = len(series.values)
    while last and not math.isfinite(series.values[last - 1]):
        last -= 1
    lost = len(series.values) - last
    if lost >= _LOST_GRADIENTS:
        yield (
            f"{GRAD_NORM} is {series.values[last]} from {_where(series, last)} to the end "
            f"({lost} of {len(series.values)} points)"
        )


# Words in the names of metrics of a run whose losses fight each other or follow what the model
# does: reinforcement learning, adversaries, annealed divergences. There a loss may rise for good.
_CONTEST = frozenset(
    [
        "reward",
        "rew",
        "return",
        "returns",
        "advantage",
        "advantages",
        "episode",
        "ep",
        "rollout",
        "policy",
        "critic",
        "actor",
        "act",
        "cri",
        "vf",
        "pg",
        "ppo",
        "grpo",
        "kl",
        "kld",
        "disc",
        "discriminator",
        "generator",
        "gan",
        "adv",
        "adversarial",
        "fake",
        "td",
        "q",
        "qf",
    ]
)
_CONTEST_LOSSES = frozenset({"d", "g", "gen", "value"})


def is_contest(curve: Curve) -> bool:
    """Tell by the metrics' names whether a loss that rises may be this run's design.

    >>> is_contest(Curve({"loss": None, "reward/mean": None}, ()))
    True
    >>> is_contest(Curve({"loss": None, "eval_loss": None, "rewards/chosen": None}, ()))
    False
    """
    for name in curve.metrics:
        words = set(re.findall("[a-z]+", name.lower()))
        if words & _CONTEST or ("loss" in words and words & _CONTEST_LOSSES):
            return True
    return False


def _number(value: float) -> str:
    return f"{value:.4g}"


def _off_course(losses: Losses) -> Iterator[str]:
    end = losses.where(len(losses.values) - 1)
    if found := find_divergence(losses):
        yield (
            f"loss diverges: {_number(found.end)} at the end ({end}), after a best of "
            f"{_number(found.best)} around {losses.where(found.best_index)}"
        )
    elif still := find_plateau(losses):
        yield (
            f"loss stands still at {_number(still.level)} from {losses.where(still.index)} to "
            f"the end ({end})"
        )


def _spikes(losses: Losses) -> Iterator[str]:
    spikes = find_spikes(losses)
    if not spikes:
        return
    worst = spikes[0]
    others = f" ({len(spikes)} spikes in all)" if len(spikes) > 1 else ""
    yield (
        f"loss spikes to {_number(worst.value)} at {losses.where(worst.index)}, from about "
        f"{_number(worst.level)} before it{others}"
    )


# A scale that was of use and ends here leaves fp16 gradients nothing between overflow and zero.
_LEAST_SCALE = 1.0
_USEFUL_SCALE = 32.0
# Halvings without a doubling between; the search for the first scale is in the first points.
_HALVINGS = 8
_SEARCH = 10


def _loss_scale(curve: Curve) -> Iterator[str]:
    for name, series in curve.metrics.items():
        values = series.values
        if not re.search(r"(loss|grad|amp).?scale|^scaler?$", name.lower()) or not values:
            continue
        top = bottom = 0  # of the last fall
        for index, value in enumerate(values):
            if value > values[bottom] or value == values[top]:
                top = bottom = index
            elif value < values[bottom]:
                bottom = index
            fall = values[top] / max(values[bottom], 1e-9)
            searched = top >= _SEARCH and fall >= 2**_HALVINGS
            ended = values[bottom] <= _LEAST_SCALE and fall >= _USEFUL_SCALE
            is_last = index + 1 == len(values) or values[index + 1] > values[bottom]
            if (searched or ended) and is_last:
                yield (
                    f"{name} falls to {values[bottom]:.6g} at {_where(series, bottom)}, from "
                    f"{values[top]:.6g} at {_where(series, top)}: the gradients keep overflowing"
                )
                break
