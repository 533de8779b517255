"""A log with several trainings shows one of them, with its own time and axis."""

from __future__ import annotations

import pytest

from hpcrun.curves.curve import Curve
from hpcrun.curves.lines.log_reader import LogReader
from hpcrun.curves.report.parsed import parse_stored
from hpcrun.curves.store import Store


def read(lines: list[str], training: int | None = None) -> Curve:
    store, reader = Store(), LogReader()
    store.begin(0)
    text = "".join(f"{line}\n" for line in lines).encode()
    store.add([*reader.feed(text), *reader.finish()])
    return parse_stored("a.log", store, training=training).curve


def epochs(hour: int, count: int, loss: float) -> list[str]:
    """Return the lines of a training that logs an epoch and an evaluation each minute."""
    lines = [f"2026-11-20 {hour:02d}:00:00 INFO model: small"]
    for epoch in range(1, count + 1):
        stamp = f"2026-11-20 {hour:02d}:{epoch:02d}:00 INFO"
        lines += [f"{stamp} epoch: {epoch}, train loss: {loss / epoch:.4f}"]
        lines += [f"{stamp} epoch: {epoch}, val acc: {0.5 + epoch / 100 + loss / 1000:.4f}"]
    return lines


THREE = [*epochs(8, 7, 3.0), *epochs(11, 9, 5.0), *epochs(14, 5, 4.0)]


@pytest.mark.parametrize(
    ("training", "points", "first", "score", "note"),
    [
        (None, 5, 4.0, 0.554, "the last one is shown"),
        (3, 5, 4.0, 0.554, "the last one is shown"),
        (2, 9, 5.0, 0.595, "number 2 is shown"),
        (1, 7, 3.0, 0.573, "number 1 is shown"),
    ],
)
def test_one_of_several_trainings_is_shown(
    training: int | None, points: int, first: float, score: float, note: str
) -> None:
    curve = read(THREE, training)
    assert curve.steps("loss") == [*range(1, points + 1)]
    assert curve.values("loss")[0] == first
    assert curve.values("val acc")[-1] == score
    assert (curve.axis, curve.trainings) == ("epoch", 3)
    assert curve.seconds == pytest.approx(60 * points, abs=60)
    (text,) = curve.notes
    assert text.startswith(f"the file contains 3 trainings, one after the other: {note}")


def test_stated_end_separates_trainings_without_epochs() -> None:
    def steps(loss: float) -> list[str]:
        return [f"step {step} loss {loss / step:.4f}" for step in range(10, 110, 10)]

    curve = read([*steps(9.0), "Training finished.", *steps(5.0)])
    assert (curve.steps("loss"), curve.values("loss")[0]) == ([*range(10, 110, 10)], 0.5)
    # Without it, the counter may count within epochs that the log does not show.
    joined = read([*steps(9.0), *steps(5.0)])
    assert (len(joined.steps("loss")), joined.trainings) == (20, 1)


def test_heading_above_the_first_line_belongs_to_the_next_training() -> None:
    lines = []
    for loss in (3.0, 2.0):
        for epoch in range(1, 6):
            lines.append(f"Epoch {epoch}/5")
            lines += [f"[{step}/20] loss: {loss / epoch:.3f}" for step in (5, 10, 15, 20)]
    curve = read(lines)
    assert (curve.steps("loss")[0], curve.values("loss")[0], curve.trainings) == (5, 2.0, 2)
    assert len(curve.steps("loss")) == 20


def test_resumed_training_is_one_training() -> None:
    lines = [f"epoch: {epoch}, loss: {3 / epoch:.3f}" for epoch in (*range(1, 9), *range(5, 12))]
    curve = read(lines)
    assert (curve.trainings, curve.steps("loss")) == (1, [*range(1, 12)])


def test_epochs_with_many_evaluations_each_separate_trainings() -> None:
    lines = [
        f"EPOCH[{epoch}/50] metrics PSNR={20 + run + epoch + n / 100:.4f} SSIM=0.{5 + run}{n:02d}"
        for run in (0, 1)
        for epoch in range(9)
        for n in range(40)
    ]
    curve = read(lines)
    assert (curve.trainings, curve.values("metrics PSNR")[0], len(curve.values("SSIM"))) == (
        2,
        21.0,
        360,
    )


def test_inner_loop_is_one_training() -> None:
    lines = [f"epoch: {epoch}, loss: {3 / (n + 1):.3f}" for n in range(9) for epoch in (1, 2, 3, 4)]
    curve = read(lines)
    assert (curve.trainings, len(curve.steps("loss"))) == (1, 36)


def test_time_of_repeated_trainings_is_that_of_the_shown_one() -> None:
    lines = []
    for runtime in (33.5, 15.25):
        for part in range(1, 11):
            lines.append(f"{{'loss': {3 / part:.3f}, 'learning_rate': 1e-4, 'epoch': {part / 10}}}")
        lines.append(f"{{'train_runtime': {runtime}, 'train_loss': 1.5, 'epoch': 1.0}}")
    curve = read(lines)
    assert (curve.seconds, curve.seconds_from, curve.trainings) == (15.25, "stated", 2)
    assert len(curve.steps("loss")) == 10


@pytest.mark.parametrize(("hour", "trainings"), [(9, 1), (16, 2)])
def test_long_pause_separates_trainings_without_epochs(hour: int, trainings: int) -> None:
    lines = []
    for start in (8, hour):
        for step in range(10):
            stamp = f"2026-11-20 {start:02d}:{step * 5 + 4 * (start == 8):02d}:00"
            lines.append(
                f"{stamp} | INFO | iter={step:04d} reward={step / 8:.4f} loss={9 - step / 8}"
            )
    curve = read(lines)
    assert (curve.trainings, curve.total_steps) == (trainings, None)
    assert len(curve.steps("loss")) == 20 // trainings


def test_bar_that_vanishes_before_its_end_begins_the_next_epoch() -> None:
    lines = []
    for epoch in (1, 2, 3):
        for step in (*range(0, 650, 50), 658):
            bar = f"Training: {step * 100 // 665:3d}%|#    | {step}/665 [00:{step // 50:02d}<00:05]"
            lines.append(f"{bar[:-1]}, 5.18it/s, loss={3 / epoch - step / 1000:.3f}]")
        lines.append(f"Epoch {epoch}/3 | Train Loss: {2.5 / epoch:.4f} | Time: 14.5s")
    curve = read(lines)
    assert curve.restarts == ()
    assert (curve.values("loss")[0], len(curve.values("loss"))) == (3.0, 42)
    assert any("read as the next epoch" in note for note in curve.notes)
    assert (curve.seconds, curve.seconds_from) == (43.5, "sum of epochs")


def steps(loss: float, *, ends_with_score: bool = True) -> list[str]:
    """Return the lines of a training that evaluates every ten steps, and before the first."""
    lines = ["val loss: 3.1"]
    for step in range(1, 31):
        lines.append(f"step {step} loss {loss / step:.4f}")
        if step % 10 == 0 and (step < 30 or ends_with_score):
            lines.append(f"val loss: {1.5 - step / 120:.3f}")
    return lines


@pytest.mark.parametrize("between", [[], ["Training finished."]])
def test_values_before_the_first_step_belong_to_the_next_training(between: list[str]) -> None:
    lines = [f"epoch {n // 10} {x}" if x[:4] == "step" else x for n, x in enumerate(steps(3.0))]
    again = [f"epoch {n // 10} {x}" if x[:4] == "step" else x for n, x in enumerate(steps(2.0))]
    for training in (1, 2):
        values = read([*lines, *between, *again], training).values("eval_loss")
        assert (values[0], values[-1], len(values)) == (3.1, 1.25, 4)


def test_value_that_may_be_that_of_either_training_belongs_to_none() -> None:
    lines = steps(3.0, ends_with_score=False)
    lines = [f"epoch {n // 10} {x}" if x[:4] == "step" else x for n, x in enumerate(lines)]
    first, second = (read([*lines, *lines], number).values("eval_loss") for number in (1, 2))
    assert (first[-1], second[0]) == (1.333, 1.417)


def test_test_after_early_stopping_belongs_to_the_training_before_it() -> None:
    lines = [*steps(3.0), "Early stopping", "test acc: 0.91"]
    curve = read([*lines, *steps(2.0)], 1)
    assert (curve.values("test acc"), curve.values("eval_loss")[-1]) == ([0.91], 1.25)
    assert "test acc" not in read([*lines, *steps(2.0)], 2).metrics
