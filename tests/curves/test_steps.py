"""Rows whose step is elsewhere in the log, and the evidence for it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from hpcrun.curves import store
from hpcrun.curves.curve import Curve
from hpcrun.curves.own_steps import restore_rounded_steps
from hpcrun.curves.row import Mark
from hpcrun.curves.rows import OWN_STEP, Rows, join_steps
from tests.curves.parsing import parse_chunks
from tests.curves.rows import Line, at, both, build

_RATE = (("step_seconds", 0.5),)


def bar(step: int, total: int, name: str = "", **more: Any) -> Line:
    return Line(_RATE, step, bar=name, total=total, form="bar", **more)


def curve_of(lines: Iterable[str]) -> Curve:
    text = "\n".join(lines) + "\n"
    return parse_chunks("a.log", [(0, [text.encode()])]).curve


def loss_at(step: int) -> float:
    return round(5 / (1 + step / 50), 4)


@pytest.mark.parametrize("digits", [4, 15])
def test_constantly_lagging_bar_is_corrected_by_epochs(digits: int) -> None:
    """The dictionary is printed before the bar moves on; its epoch shows the step."""
    lines = []
    for step in range(25, 2001, 25):
        lines += [bar(step - 1, 2000), at(0, None, loss_at(step), epoch=round(step / 200, digits))]
    # A displaced dictionary, because two streams were merged.
    lines[9], lines[13] = lines[13], lines[9]
    assert build(lines).steps("loss") == [*range(25, 2001, 25)]


def test_bar_step_is_kept_if_epochs_are_too_coarse() -> None:
    lines = []
    for step in range(10, 1000, 10):
        lines += [bar(step, 9000), at(0, None, loss_at(step), epoch=round(step / 3000, 2))]
    assert build(lines).steps("loss") == [*range(10, 1000, 10)]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("--------Iteration: {step}--------", "Loss: {loss} Loss_u: {other}"),
        ("Step {step}", "train loss: {loss}"),
    ],
)
def test_step_in_the_heading_above_is_used(head: str, row: str) -> None:
    lines = []
    for step in range(1, 40):
        lines.append(head.format(step=1000 * step))
        lines.append(row.format(loss=loss_at(step), other=step / 1000))
    curve = curve_of(lines)
    assert both(curve, "loss") == (
        [*range(1000, 40_000, 1000)],
        [loss_at(step) for step in range(1, 40)],
    )


def test_step_on_the_line_below_is_used() -> None:
    lines = [
        line
        for step in range(10, 400, 10)
        for line in (f"train loss: {loss_at(step)}", f"Step {step}")
    ]
    assert curve_of(lines).steps("loss") == [*range(10, 400, 10)]


def test_evaluation_without_a_counter_belongs_to_the_epoch_above() -> None:
    lines = []
    for epoch in range(1, 51):
        lines.append(at(0, None, loss_at(epoch), epoch=float(epoch)))
        if epoch % 5 == 0:
            lines.append(at(0, None, 2 * loss_at(epoch), name="eval_loss"))
    curve = build(lines)
    assert curve.steps("loss") == [*range(1, 51)]
    assert curve.steps("eval_loss") == [*range(5, 55, 5)]


def test_evaluations_alone_have_steps() -> None:
    lines = []
    for step in range(100, 600, 100):
        lines += [bar(n, 500) for n in range(step - 99, step + 1)]
        lines.append(at(0, None, loss_at(step), name="eval_loss"))
    assert build(lines).steps("eval_loss") == [*range(100, 600, 100)]


def test_epoch_on_the_line_is_not_replaced_by_a_batch_bar() -> None:
    lines = []
    for epoch in (1, 2, 3):
        for step in range(5 - epoch):
            values = (("loss", loss_at(3 * epoch + step)), *_RATE)
            lines.append(Line(values, step, bar="", total=3, form="bar"))
        lines += [bar(0, 1), bar(1, 1)]
        lines.append(at(0, None, 1.0 / epoch, name="eval_loss", epoch=float(epoch)))
    assert build(lines).steps("eval_loss") == [1, 2, 3]


@pytest.mark.parametrize(("shows", "points"), [("means", 4), ("losses", 160)])
def test_running_mean_on_a_bar_belongs_to_its_epoch_line(shows: str, points: int) -> None:
    """The losses of the batches are worth more than the lines, even if the last one is theirs."""
    dice, lines = random.Random(1), []
    for epoch in range(1, 5):
        losses = [loss_at(40 * epoch + step) * dice.uniform(0.5, 1.5) for step in range(40)]
        means = np.cumsum(losses) / np.arange(1, 41)
        shown = means if shows == "means" else losses
        for step, loss in enumerate(shown, 1):
            lines.append(
                f"Train: {step / 40:.0%}|# | {step}/40 [00:01<00:01, 9it/s, loss={loss:.4f}]"
            )
        lines.append(f"Epoch [{epoch}/4] train_loss: {shown[-1]:.4f}, val_loss: {1 / epoch:.4f}")
    curve = curve_of(lines)
    assert len(curve.values("loss")) == points and curve.values("loss")[-1] == round(shown[-1], 4)
    assert curve.steps("eval_loss") == [1, 2, 3, 4]


@pytest.mark.parametrize("last", [20, 13])
def test_epoch_value_repeated_on_a_bar_is_one_point(last: int) -> None:
    lines, shown = [], ""
    for epoch in range(5):
        for step in range(21 if epoch < 4 else last + 1):
            if step == 20:
                shown = f", train_loss={loss_at(epoch)}, val_loss={2 * loss_at(epoch)}"
            drawn = f"{step / 20:.0%}|# | {step}/20 [00:01<00:01, 9it/s, v_num=4{shown}]"
            lines.append(f"Epoch {epoch}: {drawn}")
    curve = curve_of(lines)
    epochs = range(5 if last == 20 else 4)
    for name, times in (("loss", 1), ("eval_loss", 2)):
        steps, values = both(curve, name)
        assert values == [times * loss_at(epoch) for epoch in epochs]
        assert steps == [20 * epoch + 20 for epoch in epochs]


def test_epoch_heading_may_contain_a_learning_rate() -> None:
    lines = []
    for epoch in range(3):
        lines.append(f"Epoch: {epoch}/100 | Learning Rate: 2.000e-04")
        lines += [f"[{step:04}/0200]| loss: {loss_at(step)}" for step in range(0, 200, 50)]
    assert curve_of(lines).steps("loss") == [*range(0, 600, 50)]


def test_last_of_trainings_with_different_epoch_lengths_is_shown() -> None:
    lines = []
    for length in (44, 55):
        for epoch in range(3):
            lines.append(f"Epoch {epoch + 1}/3")
            lines += [f"step {step}/{length} loss {loss_at(step)}" for step in range(10, 44, 10)]
    steps = [55 * epoch + step for epoch in range(3) for step in range(10, 44, 10)]
    assert curve_of(lines).steps("loss") == steps


def test_total_changing_on_each_line_separates_no_trainings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_MAX_LAYOUTS", 150)
    assert curve_of(f"step {n}/{n} loss {loss_at(n)}" for n in range(400)).steps("loss") == [
        *range(400)
    ]


def test_trainings_with_separate_bars_are_concatenated() -> None:
    lines = [bar(n, 50, "Tokenizing") for n in range(51)]
    for total in (300, 200):
        for step in range(10, total + 1, 10):
            lines += [bar(step, total), at(0, None, loss_at(step))]
        lines += [bar(n, 4) for n in range(5)]
    assert build(lines).steps("loss") == [*range(10, 301, 10), *range(10, 201, 10)]


def test_batch_bar_within_an_epoch_bar_is_used() -> None:
    def drawn(step: int, total: int, loss: float) -> Line:
        return Line((("loss", loss),), step, bar="", total=total, form="bar")

    lines = []
    for epoch in range(1, 6):
        lines += [drawn(step, 40, loss_at(40 * epoch + step)) for step in range(1, 41)]
        lines += [Line(mark=Mark(epoch=float(epoch))), at(0, None, 1.0 / epoch, name="eval_loss")]
        lines.append(drawn(epoch, 5, 99.0))
    curve = build(lines)
    assert both(curve, "loss") == (
        [*range(1, 201)],
        [loss_at(40 + step) for step in range(1, 201)],
    )
    assert curve.steps("eval_loss") == [40, 80, 120, 160, 200]
    assert (curve.total_steps, curve.restarts) == (None, ())


@pytest.mark.parametrize("epoch", [1e300, -1e300, math.inf, math.nan, 1e17])
@pytest.mark.parametrize("total", [2000, 10**17])
def test_infinite_numbers_are_no_steps(epoch: float, total: int) -> None:
    lines = []
    for step in range(25, 2001, 25):
        lines += [bar(step - 1, total), at(0, None, loss_at(step), epoch=step / 200)]
    odd = [at(0, None, 1.0, name="eval_loss", epoch=epoch), at(0, None, 1.0, epoch=epoch)]
    for some in (odd[:1], odd[1:]):
        assert len(build([*lines, *some, bar(2000, total)]).steps("loss")) >= 80
    wide = [Line((("loss", 1.0),), n, bar="", total=t) for t in (9, 10**18) for n in (5, 10**17)]
    assert len(build([*wide, *wide]).steps("loss")) > 1


@pytest.mark.parametrize("resumed_at", [600, 1000, 1400, 3400])
def test_rounded_steps_after_a_resumption_are_derived(resumed_at: int) -> None:
    def printed(step: int) -> int:
        return step if step < 1000 else round(step / 1000 + 1e-9) * 1000

    steps = [*range(200, 5001, 200), *range(resumed_at, 6001, 200)]
    exact = restore_rounded_steps(np.array([*map(printed, steps)]))
    found = [] if exact is None else exact.tolist()
    assert found[:25] == steps[:25]
    assert [*map(printed, found)] == [*map(printed, steps)]
    assert all(b - a == 200 for a, b in itertools.pairwise(found[25:]))


def test_formats_are_merged_in_log_order() -> None:
    random.seed(0)
    whose = random.choices(range(3), weights=(80, 15, 5), k=300_000)
    rows = [
        Rows((), (), places, places, None, None, OWN_STEP, 1, None, None, None)
        for places in (np.flatnonzero(np.array(whose) == each) for each in range(3))
    ]
    counted = join_steps(rows)
    assert counted.offsets.tolist() == counted.steps.tolist() == [*range(len(whose))]


def test_rows_without_epochs_are_placed_among_others() -> None:
    log = "Epoch: [0][0/0] loss 0\n" + "{'loss': 0, 'epoch': 0}\n" * 2
    log += "{'loss': 0, 'epoch': nan}\n{'loss': 0, 'epoch': 0}\n"
    assert parse_chunks("x", [(0, [log.encode()])]).points


def test_batch_size_is_no_step() -> None:
    steps = range(500, 10_001, 500)
    lines = [
        f"[{step:06}/50000] SETA  | loss {loss_at(step):.4f} | GPU {step % 97}% | batch 16"
        for step in steps
    ]
    assert curve_of(lines).steps("loss") == [*steps]


def test_evaluations_next_to_a_restarting_bar_keep_their_order() -> None:
    lines = []
    for epoch in range(1, 41):
        at_batch = 6 + epoch % 7
        lines += [f" 40%|####      | {n}/29 [00:00<00:02, 10.1it/s]" for n in (1, at_batch)]
        lines += [f"[ Valid | {epoch:03}/040 ] loss = {loss_at(epoch):.5f}, acc = 0.5"]
        lines += ["100%|##########| 29/29 [00:02<00:00, 10.1it/s]"]
    assert len(curve_of(lines).values("eval_loss")) == 40


def test_values_without_separators_must_recur() -> None:
    lines = [
        f"S real T sketch Train Ep: {step} lr0.0{9900 - step} \t Loss Class: {loss_at(step):.5f} "
        f"Loss T {loss_at(step) / 9:.5f} Method ABC"
        for step in range(100, 2001, 100)
    ]
    curve = curve_of(lines)
    assert curve.steps("Loss Class") == [*range(100, 2001, 100)]
    assert len(curve.values("lr")) == 20


@pytest.mark.parametrize("sign", [":", " ", "="])
def test_steps_in_thousands_are_read_on_any_line(sign: str) -> None:
    steps = range(200, 20_001, 200)
    lines = [
        f"step{sign}{step if step < 1000 else f'{step / 1000:.0f}K'} | loss: {loss_at(step)}"
        for step in steps
    ]
    assert curve_of(lines).steps("loss") == [*steps]


def test_steps_only_in_thousands_are_unknown() -> None:
    curve = curve_of(f"step {step}k | loss: {loss_at(step)}" for step in range(3, 30))
    assert len(curve.values("loss")) == 27 and set(curve.steps("loss")) == {None}


def test_evaluation_with_its_batches_is_one_point() -> None:
    lines = []
    for step in range(100, 600, 100):
        lines.append(f"step {step} | loss: {loss_at(step)}")
        for batch in range(3):
            lines.append(f"Val: [{10 * batch}/30]  loss: {0.5 - step / 2000 - batch / 100:.4f}")
    curve = curve_of(lines)
    assert curve.steps("eval_loss") == [*range(100, 600, 100)]
    assert curve.values("eval_loss") == [0.43, 0.38, 0.33, 0.28, 0.23]


@pytest.mark.parametrize("first", [True, False])
def test_loss_printed_twice_is_placed_at_its_epoch(first: bool) -> None:
    lines = []
    for epoch in range(1, 6):
        named = f"Ep. {epoch}: train loss {loss_at(epoch):.3f} | val loss {1 + loss_at(epoch):.3f}"
        alone = [f"mean loss {loss_at(epoch)}", f"validation loss {1 + loss_at(epoch)}"]
        lines += [named, *alone] if first else [*alone, named]
    curve = curve_of(lines)
    for name in ("loss", "eval_loss"):
        assert curve.steps(name) == [1, 2, 3, 4, 5]
    assert curve.values("loss") == pytest.approx([*map(loss_at, range(1, 6))], abs=0.001)


def test_buffered_losses_get_steps_from_four_digit_epochs() -> None:
    """So the HF Trainer prints them since version 5."""
    drawn, losses, lines = 0, [], []
    for step in range(10, 1501, 10):
        losses.append(f"{{'loss': '{loss_at(step):.4g}', 'epoch': '{step / 512:.4g}'}}")
        if step % 300 == 0:
            lines += [
                f"{at * 100 // 1536}%|#| {at}/1536 [00:10<00:10, 2.0it/s]"
                for at in range(drawn, step + 1, 5)
            ]
            lines += losses
            drawn, losses = step, []
    assert curve_of(lines).steps("loss") == [*range(10, 1501, 10)]


def test_evaluation_at_the_end_of_an_epoch_has_its_exact_step() -> None:
    lines, losses = [], []
    for step in range(1, 1666):
        if step % 10 == 0:
            losses.append(f"{{'loss': {loss_at(step)}, 'epoch': {step / 555:.2f}}}")
        if step % 5 == 0:
            lines.append(f"{step // 17}%|#| {step}/1665 [00:10<00:10, 2.0it/s]")
        if step % 555 == 0:
            lines += [*losses, f"{{'eval_loss': 2.5, 'epoch': {step // 555}.0}}"]
            losses = []
    curve = curve_of(lines)
    assert curve.steps("loss") == [*range(10, 1666, 10)]
    assert curve.steps("eval_loss") == [555, 1110, 1665]


def test_ambiguous_headings_count_if_they_increase() -> None:
    lines = []
    for step in range(50, 500, 50):
        lines += [f"step = {step}", f"\tloss = {loss_at(step)}, entropy = 0.5"]
    assert curve_of(lines).steps("loss") == [*range(50, 500, 50)]
    settings = [line if "loss" in line else "batch = 8" for line in lines]
    assert curve_of(settings).steps("loss") == [None] * 9


def test_text_after_a_bar_is_a_separate_line() -> None:
    lines = [
        f"ppo: {step}%|#   | {step}/100 [00:10<01:00, 1.5it/s][it={step + 1}] loss={loss_at(step)}"
        for step in range(20)
    ]
    assert curve_of(lines).steps("loss") == [*range(1, 21)]


def test_keras_epoch_without_its_heading_has_one_row() -> None:
    lines = []
    for epoch in range(1, 4):
        lines += [f"Epoch {epoch}/3"] if epoch > 1 else []
        for more in ("ETA: 0s", "12s 5ms/step"):
            lines.append(f"90/90 [=====] - {more} - loss: {loss_at(epoch)} - acc: 0.5")
    assert curve_of(lines).values("loss") == [loss_at(epoch) for epoch in range(1, 4)]


def test_evaluation_belongs_to_the_training_epoch_above() -> None:
    """Also where nothing there is called the loss."""
    lines = []
    for epoch in range(3, 7):
        lines.append(f"Train Ep: {epoch} \t Loss P: {loss_at(epoch)} Loss Q: 0.25 by Adam")
        lines.append(f"Val set: Average loss: {1 + loss_at(epoch)}, Accuracy: 5/9 F1 (0.55%)")
    assert curve_of(lines).steps("eval_loss") == [3, 4, 5, 6]


@pytest.mark.parametrize("heading", ["[Epoch {}/9]", "(epoch {})", "---<Epoch {}>---"])
def test_headings_in_brackets_are_read(heading: str) -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [heading.format(epoch), f"Train Loss: {loss_at(epoch)}, Train Acc: 0.5"]
    assert curve_of(lines).steps("loss") == [1, 2, 3, 4, 5]


def test_quoted_csv_cells_may_contain_commas() -> None:
    lines = ["epoch,kinds,train_loss,note"]
    lines += [f"{n},\"{{'a', 'b' {'x' * 90}}}\",{loss_at(n)},\"1,2\"" for n in range(1, 6)]
    assert curve_of(lines).steps("loss") == [1, 2, 3, 4, 5]


def test_evaluation_bar_is_one_point_at_its_end() -> None:
    lines = []
    for _ in range(3):
        for name, count, more in (("Epoch 1", 8, 0.0), ("evaluating...", 3, 0.5)):
            lines += [
                f"{name}: {at}%|# | {at}/{count} [00:0{at}<00:02, 1.5it/s, loss:{at + more}]"
                for at in range(1, count + 1)
            ]
    curve = curve_of(lines)
    assert both(curve, "eval_loss") == ([8, 8, 8], [3.5, 3.5, 3.5])
    assert len(curve.values("loss")) == 24


def test_alternating_shorter_bar_is_an_evaluation() -> None:
    lines = []
    for epoch in range(3):
        for count, more in ((8, 0.0), (3, 0.5)):
            lines += [
                f"Pass {epoch}: {at}%|# | {at}/{count} [00:0{at}<00:02, 1.5it/s, loss={at + more}]"
                for at in range(1, count + 1)
            ]
    curve = curve_of(lines)
    assert both(curve, "eval_loss") == ([8, 8, 8], [3.5, 3.5, 3.5])
    assert curve.values("loss") == [*range(1, 9)] * 3


def test_training_loss_of_evaluations_is_used_without_another() -> None:
    lines = [f"step {n}: train loss {loss_at(n)}, val loss 4.5" for n in range(0, 500, 100)]
    assert both(curve_of(lines), "loss") == (
        [*range(0, 500, 100)],
        [*map(loss_at, range(0, 500, 100))],
    )
    lines.insert(1, "iter 0: loss 5.5, time 12.5ms, mfu 10.5%")
    assert both(curve_of(lines), "loss") == ([0], [5.5])


def test_names_adjacent_to_their_numbers_are_read() -> None:
    lines = [f"L_rec:0.5,L_total:{loss_at(n)},gan_loss{n / 8}" for n in range(1, 6)]
    curve = curve_of(lines)
    assert curve.values("loss") == [*map(loss_at, range(1, 6))]
    assert curve.values("gan_loss") == [n / 8 for n in range(1, 6)]


def test_log_starting_within_the_first_epoch_is_numbered() -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [f"Epoch number: {epoch}"] if epoch > 1 else []
        lines += [f"train loss: {loss_at(epoch)}", f"dev loss: {1 + loss_at(epoch)}"]
    curve = curve_of(lines)
    assert curve.steps("loss") == curve.steps("eval_loss") == [1, 2, 3, 4, 5]


def test_plural_column_names_are_read() -> None:
    lines = [",train_losses,val_losses,train_F1"]
    lines += [f"{n},{loss_at(n)},{1 + loss_at(n)},0.5" for n in range(5)]
    curve = curve_of(lines)
    assert both(curve, "loss") == ([0, 1, 2, 3, 4], [*map(loss_at, range(5))])
    assert curve.steps("eval_loss") == [0, 1, 2, 3, 4]


def test_bars_drawn_only_at_their_end_are_lines() -> None:
    lines = [f"100%|####| 90/90 [00:12<00:00, 7.5it/s, loss={loss_at(n)}]" for n in range(1, 6)]
    assert curve_of(lines).values("loss") == [*map(loss_at, range(1, 6))]


@pytest.mark.parametrize(
    "form", ['{{"kind": "{}", "step": {}, "loss": {}}}', "{}: epoch {}, loss: {}, acc 0.5"]
)
def test_leading_word_or_kind_names_the_split(form: str) -> None:
    lines = []
    for step in range(1, 6):
        lines += [form.format("train", step, loss_at(step)), form.format("val", step, 9.5)]
    curve = curve_of(lines)
    assert both(curve, "loss") == ([1, 2, 3, 4, 5], [*map(loss_at, range(1, 6))])
    assert both(curve, "eval_loss") == ([1, 2, 3, 4, 5], [9.5] * 5)


def test_evaluation_is_matched_to_the_first_of_several_losses() -> None:
    lines = [
        f"Epoch {n}: cls_loss {loss_at(n)}, box_loss 1.5, val_box_loss 7.5, val_cls_loss 9.5"
        for n in range(5)
    ]
    curve = curve_of(lines)
    assert curve.values("loss") == curve.values("cls_loss") == [*map(loss_at, range(5))]
    assert curve.values("eval_loss") == [9.5] * 5


def test_only_evaluation_loss_is_named_eval_loss() -> None:
    lines = [f"[{n}]\ttrain-logloss:{loss_at(n)}\tvalid-logloss:9.5" for n in range(5)]
    curve = curve_of(lines)
    assert curve.values("loss") == [*map(loss_at, range(5))]
    assert curve.values("eval_loss") == [9.5] * 5


@pytest.mark.parametrize(
    "line",
    [
        "epoch {at:04} | loss {loss} (train), 9.5 (dev) | error 0.37 (train), 0.38 (dev) | 0.3min",
        "epoch {at} loss: {loss} (train) / loss: 9.5 (val)",
    ],
)
def test_splits_after_their_values_are_read(line: str) -> None:
    curve = curve_of([line.format(at=at, loss=loss_at(at)) for at in range(1, 6)])
    assert both(curve, "loss") == ([1, 2, 3, 4, 5], [*map(loss_at, range(1, 6))])
    assert both(curve, "eval_loss") == ([1, 2, 3, 4, 5], [9.5] * 5)


def test_alternating_numbers_are_no_steps() -> None:
    steps = [1602400, 1603500, 1602000, 1602600, 1602500, 1602800, 1603200, 1603000, 1602800]
    steps += [1603800, 1602700, 1603800, 1602200]
    rows = [f"{at}.5,{loss_at(at)},{step}" for at, step in enumerate(steps)]
    curve = curve_of(["time,loss,steps", *rows])
    assert both(curve, "loss") == ([None] * 13, [*map(loss_at, range(13))])
    # Rows of several workers that arrive out of order share one counter.
    late = [100, 300, 200, 500, 400, 700, 600, 900, 800, 1000]
    shuffled = [7000, 2000, 11000, 4000, 9000, 1000, 12000, 3000, 8000, 5000, 10000, 6000]
    for steps in (late, shuffled):
        rows = [f"{at}.5,{loss_at(at)},{step}" for at, step in enumerate(steps)]
        assert {*curve_of(["time,loss,steps", *rows]).steps("loss")} == {*steps}


@pytest.mark.parametrize(
    "form",
    [
        '{{"metric": "train_loss", "step": {0}, "value": {1}}}\n'
        '{{"metric": "val_loss", "step": {0}, "value": 9.5}}',
        "Epoch {0} train: {{'loss': {1}, 'acc': 0.5}}\nEpoch {0} val: {{'loss': 9.5, 'acc': 0.5}}",
        "#epoch loss val_loss\n{0} {1} 9.5",
    ],
)
def test_objects_with_leading_value_or_split_names_are_read(form: str) -> None:
    lines = "\n".join(form.format(step, loss_at(step)) for step in range(1, 6)).split("\n")
    curve = curve_of(dict.fromkeys(lines))
    assert both(curve, "loss") == ([1, 2, 3, 4, 5], [*map(loss_at, range(1, 6))])
    assert both(curve, "eval_loss") == ([1, 2, 3, 4, 5], [9.5] * 5)


def test_bar_of_an_initial_evaluation_is_no_training_bar() -> None:
    drawn, evaluated = " {}% {}/600 [00:09<00:03, 2.1it/s]", " {}% {}/25 [00:02<00:00, 9.0it/s]"
    lines = [evaluated.format(share, share // 4) for share in range(0, 101, 20)]
    for epoch in range(1, 4):
        dicts = [{"loss": 3 / step, "epoch": step / 200} for step in range(20, 201, 20)]
        lines += [str({**each, "epoch": each["epoch"] + epoch - 1}) for each in dicts]
        lines.append(drawn.format(33 * epoch, 200 * epoch))
        lines += [evaluated.format(share, share // 4) for share in range(0, 101, 20)]
    curve = curve_of(lines)
    assert curve.steps("loss") == [*range(20, 601, 20)]


def test_first_of_buffered_losses_is_placed_by_all_of_them() -> None:
    lines = [f" 9%|#   | {step}/9000 [00:09<00:03, 2.1it/s]" for step in range(1, 661)]
    lines += [str({"loss": 2.5, "epoch": round(step / 3000, 2)}) for step in range(16, 649, 16)]
    lines += [f" 9%|#   | {step}/9000 [00:09<00:03, 2.1it/s]" for step in range(661, 700)]
    assert curve_of(lines).steps("loss") == [*range(16, 649, 16)]


def test_bracketed_name_may_contain_the_split() -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [
            f"09:12:13 - INFO - [Train] Epoch {epoch:03}: loss = {loss_at(epoch)}",
            f"09:12:14 - INFO - [Noise-Eval (clean)] Epoch {epoch:03}: loss = 9.5",
        ]
    curve = curve_of(lines)
    assert both(curve, "loss") == ([1, 2, 3, 4, 5], [*map(loss_at, range(1, 6))])
    assert curve.values("eval_loss") == [9.5] * 5


def test_first_batch_of_each_epoch_is_not_several_processes() -> None:
    lines = [f"[fit] epoch:{epoch} iter:0/40 loss:{loss_at(epoch)}" for epoch in range(30)]
    curve = curve_of(lines)
    assert (curve.steps("loss"), curve.notes) == ([*range(30)], ())


def test_count_between_dashes_is_a_step_heading() -> None:
    lines = []
    for step in range(20, 100, 20):
        lines += [f" -- {step:03d} / 080 --", f"mean loss: {loss_at(step)}", "accuracy: 0.5"]
    assert both(curve_of(lines), "loss") == ([20, 40, 60, 80], [*map(loss_at, range(20, 100, 20))])


def test_total_autoencoder_loss_is_the_loss() -> None:
    form = "ITER {0} (phase 1). loss_vae: {1}; loss_recon: 0.5; loss_kl: 9.5"
    lines = [form.format(step, loss_at(step)) for step in range(0, 500, 100)]
    assert curve_of(lines).values("loss") == [*map(loss_at, range(0, 500, 100))]


@pytest.mark.parametrize(
    "form", ["epoch {e}: loss {loss}", "epoch {e}: train_loss {loss}", "Epoch {e}/5 loss: {loss}"]
)
@pytest.mark.parametrize(
    "other", ["[worker-3] loss {}", "[imagenet-v2] loss: {} acc: 0.5", "ema loss: {}"]
)
@pytest.mark.parametrize("repeats", [1, 2])
def test_other_loss_does_not_replace_the_loss_of_an_epoch(
    form: str, other: str, repeats: int
) -> None:
    lines = []
    for epoch in range(5):
        lines.append(form.format(e=epoch, loss=3.5 - epoch / 10))
        lines += [other.format(4.5 - epoch / 10 + more) for more in range(repeats)]
    assert both(curve_of(lines), "loss") == ([*range(5)], [3.5, 3.4, 3.3, 3.2, 3.1])


def test_scores_beside_another_loss_get_the_epoch_above() -> None:
    lines = []
    for epoch in range(5):
        lines += [
            f"epoch {epoch}: loss {3 - epoch / 10}",
            f"[imagenet-v2] loss: 4.5 acc: 0.{epoch}",
        ]
    assert both(curve_of(lines), "acc") == ([*range(5)], [0.0, 0.1, 0.2, 0.3, 0.4])


def test_losses_of_batches_are_kept_beside_means_of_epochs() -> None:
    lines = []
    for epoch in range(4):
        lines += [f"loss: {4.5 - epoch / 10 - batch / 1000:.3f}" for batch in range(30)]
        lines.append(f"epoch {epoch}: loss {3.5 - epoch / 10}")
    assert len(curve_of(lines).values("loss")) >= 120
