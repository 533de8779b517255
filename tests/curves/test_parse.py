"""From the logs of a run to the data of its report."""

from __future__ import annotations

import math

import pytest

from tests.curves.parsing import parse_chunks


def test_formats_are_listed_most_frequent_first() -> None:
    data = b'step=1 loss=2\n{"step": 2, "loss": 2.0}\n{"step": 3, "loss": 2.0}\n'
    run = parse_chunks("x", [(0, [data])])
    assert run.formats == ("json lines", "key=value")
    assert (run.points, run.files, run.lines, run.bytes) == (3, 1, 3, len(data))


def test_first_file_of_an_attempt_takes_precedence() -> None:
    run = parse_chunks(
        "x",
        [(0, [b"step=1 loss=2\n"]), (0, [b"step=1 loss=9\nstep=1 eval_loss=3\n"])],
    )
    assert run.curve.values("loss") == [2.0]
    assert run.curve.values("eval_loss") == [3.0]
    assert run.curve.restarts == ()


def test_healthy_log_has_no_warning() -> None:
    data = b"".join(b"step=%d loss=2.5 grad_norm=inf\nWARNING: slow\n" % n for n in range(9))
    assert parse_chunks("x", [(0, [data])]).warnings == ()


def test_nan_loss_has_a_warning() -> None:
    data = b"step=1 loss=2\nstep=2 loss=nan\nstep=3 loss=nan\nstep=3 eval_loss=inf\n"
    run = parse_chunks("x", [(0, [data])])
    about_loss, about_eval = run.warnings
    assert about_loss.startswith("loss is nan") and "step 2" in about_loss
    assert about_eval.startswith("eval_loss is inf") and "step 3" in about_eval
    assert math.isnan(run.curve.values("loss")[1])


def test_nan_replaced_by_a_restart_has_no_warning() -> None:
    attempts = [(0, [b"step=1 loss=2\nstep=2 loss=nan\n"]), (1, [b"step=2 loss=1.5\n"])]
    assert parse_chunks("x", attempts).warnings == ()


def test_nan_without_steps_is_reported_by_point() -> None:
    assert parse_chunks("x", [(0, [b"loss: 2.5\nloss: nan\n"])]).warnings == (
        "loss is nan at point 2",
    )


def test_empty_logs_yield_an_empty_curve() -> None:
    nothing: list[list[tuple[int, list[bytes]]]] = [[], [(0, [])], [(0, [b""])]]
    for attempts in nothing:
        run = parse_chunks("x", attempts)
        assert (run.points, len(run.samples), run.formats, run.lines) == (0, 0, (), 0)


def test_losses_with_a_training_runtime_are_points() -> None:
    state = b"""{"global_step": 2, "log_history": [
        {"loss": 3.0, "learning_rate": 1e-4, "train_runtime": 1.5, "step": 1},
        {"loss": 2.0, "learning_rate": 1e-4, "train_runtime": 3.0, "step": 2},
        {"train_loss": 2.5, "train_runtime": 3.1, "step": 2}]}"""
    curve = parse_chunks("x", [(0, [state])]).curve
    assert (curve.steps("loss"), curve.values("loss")) == ([1, 2], [3.0, 2.0])
    assert curve.values("lr") == [1e-4, 1e-4]
    assert curve.values("train_loss") == [2.5]


def test_closing_summary_with_a_runtime_is_no_loss() -> None:
    log = b"""{"step": 1, "loss": 3.0}
{"step": 2, "loss": 2.0}
{"step": 2, "epoch": 1.0, "train_runtime": 9.5, "train_loss": 2.5}
"""
    curve = parse_chunks("x", [(0, [log])]).curve
    assert (curve.steps("loss"), curve.values("loss")) == ([1, 2], [3.0, 2.0])
    assert curve.values("train_loss") == [2.5]


def test_table_after_a_byte_order_mark_is_read() -> None:
    log = b"\xef\xbb\xbfepoch,train_loss\r\n1,3.0\r\n2,2.0\r\n"
    curve = parse_chunks("x", [(0, [log])]).curve
    assert (curve.steps("loss"), curve.values("loss")) == ([1, 2], [3.0, 2.0])


def rounded_log(steps: range) -> bytes:
    """A log whose steps have a letter for thousands."""
    return "".join(
        f"INFO 2026-11-20 08:04:{index % 60:02d} train.py:433 "
        f"step:{step if step < 1000 else f'{step / 1000:.0f}K'} smpl:{step}K ep:1 "
        f"epch:{step / 400:.2f} loss:{9 - index / 10:.3f} grdn:3.5 lr:1.0e-05 updt_s:0.502\n"
        for index, step in enumerate(steps)
    ).encode()


def test_rounded_steps_are_derived_from_the_first_stride() -> None:
    for steps in (range(200, 80_000, 200), range(500, 9_000, 500)):
        curve = parse_chunks("a.log", [(0, [rounded_log(steps)])]).curve
        assert curve.steps("loss") == [*steps]


def test_box_with_three_digit_steps_gets_derived_steps() -> None:
    log = ""
    for place in range(300):
        cells = {
            "grad_norm": 0.5,
            "loss": 9 - place / 50,
            "samples": 64.0 * place,
            "step": 25 * place,
        }
        rows = [f"| {name:<9} | {f'{value:.3g}':<8} |\n" for name, value in cells.items()]
        log += "".join(["-" * 24 + "\n", *rows, "-" * 24 + "\n"])
    curve = parse_chunks("a.log", [(0, [log.encode()])]).curve
    for name in ("loss", "grad_norm"):
        assert curve.steps(name) == [*range(0, 7500, 25)]
    assert curve.values("loss")[50] == 8.0


def test_rounded_steps_without_exact_ones_are_unknown() -> None:
    curve = parse_chunks("a.log", [(0, [rounded_log(range(1200, 9_000, 200))])]).curve
    assert set(curve.steps("loss")) == {None} and len(curve.values("loss")) == 39


def test_step_and_epoch_loss_columns_are_separated() -> None:
    """Lightning's CSV: a row fills one or the other."""
    rows = [b"epoch,step,train_loss_epoch,train_loss_step,val_loss_epoch,val_loss_step"]
    for epoch in range(3):
        rows += [b"%d,%d,,%d.5,," % (epoch, 10 * epoch + step, step) for step in (4, 9)]
        rows.append(b"%d,%d,7.5,,3.25,2.0" % (epoch, 10 * epoch + 9))
    curve = parse_chunks("x", [(0, [b"\n".join(rows) + b"\n"])]).curve
    assert curve.steps("loss") == [4, 9, 14, 19, 24, 29]
    assert curve.values("loss") == [4.5, 9.5] * 3
    assert curve.values("train_loss_epoch") == [7.5] * 3
    assert curve.values("eval_loss") == [3.25] * 3
    assert curve.values("val_loss_step") == [2.0] * 3


@pytest.mark.parametrize("trainings", [1, 2])
def test_last_bar_of_a_keras_epoch_is_its_mean(
    trainings: int,
) -> None:
    lines = []
    for epoch in [1, 2, 3] * trainings:
        lines.append(f"Epoch {epoch}/3\n")
        for batch in (20, 40, 60):
            drawn = ("=" * (batch // 4)).ljust(30, ".")
            lines.append(
                f" {batch}/90 [{drawn}] - ETA: 5s - loss: {9 - epoch}.{batch} - acc: 0.5\n"
            )
        closing = f"loss: {9 - epoch}.0125 - acc: 0.5 - val_loss: {8 - epoch}.5 - val_acc: 0.6"
        lines.append(f"90/90 [{'=' * 30}] - 6s 22ms/step - {closing}\n")
    curve = parse_chunks("x", [(0, ["".join(lines).encode()])]).curve
    for name, values in (("loss", [8.0125, 7.0125, 6.0125]), ("eval_loss", [7.5, 6.5, 5.5])):
        assert curve.steps(name) == [1, 2, 3]
        assert curve.values(name) == values
    assert curve.trainings == trainings


@pytest.mark.parametrize(
    ("validation", "metric"), [(" - val_loss: 7.5", "test_loss"), ("", "eval_loss")]
)
def test_keras_evaluate_after_fit_is_no_epoch_of_the_training(validation: str, metric: str) -> None:
    lines = []
    for epoch in (1, 2, 3):
        lines.append(f"Epoch {epoch}/3\n89/90 ━━━ 0s 2ms/step - loss: 9.5\n")
        lines.append(f"90/90 ━━━ 6s 22ms/step - loss: {9 - epoch}.25{validation}\n")
    for batch, loss in ((1, 0.25), (7, 0.5)):
        lines.append(f"{batch}/7 ━━━ 0s 23ms/step - accuracy: 0.98 - loss: {loss}\n")
    curve = parse_chunks("x", [(0, ["".join(lines).encode()])]).curve
    assert curve.values("loss") == [8.25, 7.25, 6.25]
    assert curve.values(metric) == [0.5]
    assert curve.values("eval_loss") == ([7.5] * 3 if validation else [0.5])


def test_step_heading_applies_to_lines_below() -> None:
    log = "".join(
        f"-----Iteration: {n}-----\nLoss: {9 - n / 1000}\n" for n in range(1000, 6000, 1000)
    )
    curve = parse_chunks("x", [(0, [log.encode()])]).curve
    assert curve.steps("loss") == [1000, 2000, 3000, 4000, 5000]


def test_losses_below_an_evaluation_heading_are_evaluation_losses() -> None:
    lines = []
    for epoch in range(1, 7):
        lines.append(
            f"[11.20.26|08:04:{epoch:02d}] Training epoch: {epoch}\n\tmean_loss: {9 - epoch}.5\n"
        )
        if epoch % 2 == 0:
            lines.append(f"[11.20.26|08:05:{epoch:02d}] Eval epoch: {epoch}\n")
            lines.append(f"[11.20.26|08:05:{epoch:02d}] \tmean_loss: {9 - epoch}.75\n")
    log = "".join(lines).replace("\n\tmean", "\n[11.20.26|08:04:30] \tmean")
    curve = parse_chunks("x", [(0, [log.encode()])]).curve
    assert (curve.steps("loss"), curve.values("loss")[-1]) == ([1, 2, 3, 4, 5, 6], 3.5)
    assert (curve.steps("eval_loss"), curve.values("eval_loss")) == ([2, 4, 6], [7.75, 5.75, 3.75])


def _drawing(step: int) -> str:
    return f"\r{step:3d}%|####      | {step}/100 [00:{step % 60:02d}<01:00,  1.00s/it]"


def _dictionary(step: int) -> str:
    return f"{{'loss': {3 - step / 100:.3f}, 'epoch': {step / 100}}}\n"


def test_buffered_dictionaries_are_separated_from_bars() -> None:
    log = ""
    for end in (50, 100):
        waited = [_dictionary(step) for step in range(end - 40, end + 1, 10)]
        log += "".join(map(_drawing, range(end - 49, end + 1))) + "".join(waited)
    curve = parse_chunks("x", [(0, [log.encode()])]).curve
    assert curve.steps("loss") == [*range(10, 101, 10)]
    assert curve.values("loss")[:2] == [2.9, 2.8]
    assert len(curve.values("step_seconds")) == 100


def test_dictionary_after_each_bar_has_its_step() -> None:
    log = "".join(_drawing(step) + f"{{'loss': {3 - step / 100:.3f}}}\n" for step in range(1, 101))
    curve = parse_chunks("x", [(0, [log.encode()])]).curve
    assert curve.steps("loss") == [*range(1, 101)]
    assert curve.values("loss")[0] == 2.99


@pytest.mark.parametrize("count", ["32/32", "40/64", "99/99", "12/31", "00/32"])
def test_counter_of_a_rich_bar_is_not_a_date(count: str) -> None:
    line = f"Epoch 1/1  \u2501\u2501 {count} 0:00:01 \u2022 0:00:00 35.91it/s loss: 0.5\n"
    run = parse_chunks("a.log", [(0, [line.encode()] * 3)])
    assert run.files == 1
