"""Where the scores of evaluations are drawn on the curve of their training."""

from __future__ import annotations

import pytest

from hpcrun.actions.evaluation_scores import _add_stage, _Evaluation
from hpcrun.curves import Curve, build_series


def add(names: str, *, axis: str = "step", is_newest: bool = True) -> tuple[list[int | None], str]:
    """Add the scores 0, 1, ... of checkpoints; return their steps, and the notes.

    The loss of the training is logged at 100, 200 ... 500.
    """
    loss = build_series([100, 200, 300, 400, 500], [5.0, 4.0, 3.0, 2.0, 1.0])
    evaluations = [
        _Evaluation(
            stage="eval", checkpoint=f"/runs/a/checkpoints/{name}", scores={"acc": n}, repeated=[]
        )
        for n, name in enumerate(names.split())
    ]
    curve = Curve({"loss": loss}, (), axis=axis)
    curve = _add_stage(curve, "eval", evaluations, is_newest=is_newest)
    return curve.steps("eval.acc"), " ".join(curve.notes)


def test_scores_are_drawn_at_the_number_in_the_name() -> None:
    assert add("step-300.pt iter_0000100 epoch=1-step=550.ckpt") == ([100, 300, 550], "")
    assert add("epoch_200 model_epoch300.pt", axis="epoch") == ([200, 300], "")


def test_names_that_do_not_tell_what_they_count_are_noted() -> None:
    steps, note = add("checkpoint-100 checkpoint-200")
    assert (steps, note) == ([100, 200], "eval: checkpoint-100 is drawn at step 100")


@pytest.mark.parametrize(
    ("names", "axis", "reason"),
    [
        (
            "epoch-1.pt",
            "step",
            "the name of epoch-1.pt counts epochs, and the training's log steps",
        ),
        ("step-100 step-200", "epoch", "the name of step-100 counts steps, and the"),
        ("step-100", "point", "the training's log has neither steps nor epochs"),
        ("tokens5b", "step", "the name of tokens5b has no number of a step or an epoch"),
        ("batch-100", "step", "the name of batch-100 has no number of a step or an epoch"),
        ("epoch_1.5", "epoch", "the name of epoch_1.5 has no number of a step or an epoch"),
        (
            "epoch0-step100 epoch1-step100",
            "step",
            "epoch0-step100 and epoch1-step100 have the same",
        ),
    ],
)
def test_scores_of_checkpoints_without_a_place_on_the_axis_are_not_drawn(
    names: str, axis: str, reason: str
) -> None:
    steps, note = add(names, axis=axis)
    assert steps == [] and note.startswith(f"eval: the scores are not drawn: {reason}"), note


def test_scores_beyond_the_log_are_not_drawn() -> None:
    assert add("step-500 step-700") == (
        [500],
        "eval: step 700 is beyond the training's log: not drawn",
    )
    # The checkpoints after the end of an earlier training are those of its successor.
    assert add("step-500 step-550", is_newest=False) == ([500], "")


def test_evaluations_without_scores_are_noted() -> None:
    silent = _Evaluation(stage="eval", checkpoint="/a/step-1", scores={}, repeated=[])
    curve = _add_stage(
        Curve({"loss": build_series([1], [5.0])}, ()), "eval", [silent], is_newest=True
    )
    assert [*curve.metrics] == ["loss"]
    assert curve.notes == ("eval: 1 of 1 evaluations logged no score that hpcrun reads",)


def test_scores_are_not_drawn_if_the_log_contains_several_trainings() -> None:
    one = _Evaluation(stage="eval", checkpoint="/a/step-1", scores={"acc": 0.5}, repeated=[])
    twice = Curve({"loss": build_series([1], [5.0])}, (), trainings=2)
    curve = _add_stage(twice, "eval", [one], is_newest=True)
    assert [*curve.metrics] == ["loss"]
    assert curve.notes == ("eval: the scores are not drawn: the log contains 2 trainings",)
