"""Logs with lines similar to training lines: evaluations, means, repeated values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest

from hpcrun.curves.curve import Curve
from tests.curves.parsing import parse_chunks
from tests.curves.rows import both

# Formats of a batch loss and of the epoch mean.
MEANS = [
    ("Epoch {epoch} - Batch loss: {loss}", "Epoch {epoch} - Average Train Loss: {loss}"),
    ("Epoch {epoch} loss: {loss}", "Epoch {epoch} mean loss: {loss}"),
    ("epoch {epoch} batch_loss {loss}", "epoch {epoch} epoch_loss {loss}"),
    ("Epoch {epoch}, loss {loss}", "End of epoch {epoch}, average loss {loss}, lr 0.1"),
    ("Epoch {epoch} loss {loss}", "Epoch {epoch} | train loss {loss} | val loss 0.7"),
    ("loss: {loss}", "Epoch {epoch} average loss: {loss}"),
    ("Epoch {epoch} step {step} loss {loss}", "Epoch {epoch} average loss {loss}"),
    ("Epoch {epoch} [{step}/{end}] loss {loss}", "====> Epoch: {epoch} Average loss: {loss}"),
    (
        "iters: {step}, epoch: {epoch} | loss: {loss}",
        "Epoch: {epoch}, Steps: 20 | Train Loss: {loss} Vali Loss: 0.7",
    ),
]
# The heads of tables without a step or with an uncommon one, and their rows.
TABLES = [
    ("i,time,loss,similarity", "{step},0.5,{loss},0.1"),
    ("step;loss;lr", "{step};{loss};0.1"),
    ("timestamp,train_loss,val_loss", "0.5,{loss},0.7"),
    ("idx,loss", "{step},{loss}"),
    ("lr,loss", "0.1,{loss}"),
    ("epoch|loss", "{step}|{loss}"),
    ("step,loss,lr,", "{step},{loss},0.1,"),
    ("Epoch, Train loss, Time (s)", "{step}, {loss}, 12.3"),
    ("Frame,Reward,Epsilon,Loss,QValue", "{step},0.5,0.9,{loss},0.1"),
    ("Epochs,Train Loss,Test Loss", "{step},{loss},0.7"),
    ("env_steps,policy_loss,value_loss", "{step},{loss},0.7"),
    ("iter,cost,lr", "{step},{loss},0.7"),
    ("epoch,objective", "{step},{loss}"),
    (
        " Episode    Step   Epsilon     MeanReward     MeanLoss     MeanQValue           Time",
        "       0   {step}     1.000       1293.000     {loss}          0.000 2026-04-23T10:21:42",
    ),
]


def loss_at(place: int) -> float:
    return round(5 / (1 + place / 50), 4)


def curve_of(lines: Iterable[str]) -> Curve:
    text = "\n".join(line for line in lines if line) + "\n"
    return parse_chunks("a.log", [(0, [text.encode()])]).curve


def written(form: str, epoch: int, steps: int, more: float = 0.0) -> list[str]:
    return [
        form.format(epoch=epoch, step=step, end=steps, loss=loss_at(epoch * 100 + step) + more)
        for step in range(1, steps + 1)
    ]


def trained(epochs: Sequence[int], steps: int) -> list[float]:
    return [loss_at(epoch * 100 + step) for epoch in epochs for step in range(1, steps + 1)]


def test_attempts_of_different_lengths_are_no_evaluations() -> None:
    lines = [
        line for steps in (30, 25, 20) for line in written("step {step} loss {loss}", 1, steps)
    ]
    assert "eval_loss" not in curve_of(lines).metrics


@pytest.mark.parametrize(("batch", "mean"), MEANS, ids=[mean for _, mean in MEANS])
def test_epoch_mean_is_not_a_batch_loss(batch: str, mean: str) -> None:
    lines: list[str] = []
    for epoch in (1, 2, 3):
        lines += [*written(batch, epoch, 20), mean.format(epoch=epoch, loss=loss_at(5))]
    assert [*curve_of(lines).values("loss")] == trained((1, 2, 3), 20)


def test_epoch_means_alone_are_the_curve() -> None:
    lines = [f"Epoch {epoch} average loss: {loss_at(epoch)}" for epoch in range(1, 30)]
    assert [*curve_of(lines).values("loss")] == [loss_at(epoch) for epoch in range(1, 30)]


def test_table_with_occasional_evaluations_keeps_all_losses() -> None:
    rows = [f"{epoch},{loss_at(epoch)},{0.7 if epoch % 10 == 0 else ''}" for epoch in range(50)]
    curve = curve_of(["epoch,train_loss,val_loss", *rows])
    assert [*curve.values("loss")] == [loss_at(epoch) for epoch in range(50)]


HEADS_OF_TWO_LINES = {
    "pipes": (
        "|  Epoch  |  Iteration  |  Time Elapsed  |  Mini-batch  |  Validation  |  Learning  |",
        "|         |             |   (hh:mm:ss)   |     Loss     |     Loss     |    Rate    |",
        "|{at:8} |{at:12} |       00:00:10 |{loss:13} |{evaluated:13} |     0.0100 |",
    ),
    "groups": (
        "                        |------- VALID -------|------- TRAIN -------|-----------|",
        "lr       iter     epoch | loss    top-1       | loss    top-1       | time      |",
        "0.0100   {at:<6}   {at:<5} | {evaluated:<6}  82.2        "
        "| {loss:<6}  72.2        |  0 hr 34 min |",
    ),
    "narrow": (
        "        Train | Valid",
        "Epoch |  Loss |  Loss | Time",
        "{at:5} | {loss:5} | {evaluated:5} | 3.5 s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("upper, lower, row", HEADS_OF_TWO_LINES.values(), ids=HEADS_OF_TWO_LINES)
@pytest.mark.parametrize("between", [[], ["Saving the model"] * 5], ids=["one head", "one each"])
def test_table_head_over_two_lines_is_read(
    upper: str, lower: str, row: str, between: list[str]
) -> None:
    lines = [upper, lower, "-" * len(lower)]
    for at in range(1, 30):
        lines.append(row.format(at=at, loss=loss_at(at), evaluated=round(loss_at(at) + 1, 4)))
        lines += [*between, upper, lower] if between else []
    curve = curve_of(lines)
    assert (curve.steps("loss"), [*curve.values("loss")]) == (
        [*range(1, 30)],
        [loss_at(at) for at in range(1, 30)],
    )
    assert [*curve.values("eval_loss")] == [round(loss_at(at) + 1, 4) for at in range(1, 30)]


@pytest.mark.parametrize("words", ["Train | Valid", "|--- Name ---|--- Train ---|"])
def test_words_between_pipes_are_no_table_head(words: str) -> None:
    rows = [f"step: {at}, loss: {loss_at(at)}" for at in range(30)]
    assert [*curve_of([words, *rows]).values("loss")] == [loss_at(at) for at in range(30)]
    numbers = [f"{at} | 2.5" for at in range(30)]
    assert curve_of([words, *numbers]).metrics == {}


TWO = ["epoch  train_loss  val_loss", "1      2.5000      2.6000", "2      2.4000      2.5000"]


@pytest.mark.parametrize(
    "below",
    [
        ["| layer | in | out |", "| 1  | 256.0 | 128.0 |"],
        ["|   7   512   128  |"],
        ["1\t\t\t0.5"],
    ],
)
def test_lines_below_a_table_are_not_part_of_it(below: list[str]) -> None:
    curve = curve_of([*TWO, *below])
    assert both(curve, "loss") == ([1, 2], [2.5, 2.4])
    assert both(curve, "eval_loss") == ([1, 2], [2.6, 2.5])


@pytest.mark.parametrize("mark", [",", "\t", "   "])
@pytest.mark.parametrize("clock", ["2026-01-01 10:{}:01", "2026-01-01T10:{}:01", "10:{}:01"])
@pytest.mark.parametrize("stride", [1, 100])
def test_table_with_a_time_column_is_read(mark: str, clock: str, stride: int) -> None:
    steps = [stride * at for at in range(10, 30)]
    cells = [
        (clock.format(at), str(step), str(loss_at(at)), "9.5")
        for at, step in zip(range(10, 30), steps, strict=True)
    ]
    curve = curve_of(map(mark.join, [("time", "step", "loss", "val_loss"), *cells]))
    assert both(curve, "loss") == (steps, [*map(loss_at, range(10, 30))])
    assert both(curve, "eval_loss") == (steps, [9.5] * 20)


def test_names_between_pipes_without_rows_are_ignored() -> None:
    rows = [f"step: {at}, loss: {loss_at(at)}" for at in range(200)]
    lines = [line for row in rows for line in (row, "validation | epoch done")]
    assert [*curve_of(lines).values("loss")] == [loss_at(at) for at in range(200)]
    # Names are no head either if the rows are not directly below.
    settings = ["| Name | Loss |", "|---|---|", "| Epoch | Size |", "| 10 | 0.5 |", "| 20 | 0.7 |"]
    assert curve_of(settings).metrics == {}
    places = ["epoch:1 | step:5", "loss: 2.5", "epoch:1 | step:6", "loss: 2.4"]
    assert both(curve_of(places), "loss") == ([5, 6], [2.5, 2.4])


@pytest.mark.parametrize(
    "lines",
    [
        [
            "| warmup_steps | lr | loss |",
            "|---|---|---|",
            "| 100 | 0.1 | 0.5 |",
            "| 500 | 0.1 | 0.4 |",
        ],
        ["Step,Description,Cost", "1,Buy wood,25.50", "2,Buy nails,3.50", "3,Paint,7.25"],
        ["frame=100 packet_loss=0.1 fps=25", "frame=200 packet_loss=0.2 fps=25"],
        ["{'lr': 0.1, 'batch_size': 8, 'num_iters': 1000, 'l1_loss': 1.0, 'vgg_loss': 0.1}"],
    ],
)
def test_settings_and_bills_yield_no_curve(lines: list[str]) -> None:
    assert curve_of(lines).metrics == {}


def test_empty_table_cells_are_detected_by_column_position() -> None:
    head = "  epoch    train_loss    valid_acc    valid_loss    cp     dur"
    lines = [head, "-------  ------------  -----------  ------------  ----  ------"]
    for at in range(1, 30):
        best = "+" if at % 3 else " "
        evaluated = f"{loss_at(at) + 1:14.4f}" if at % 4 else " " * 14
        lines.append(f"{at:7}{loss_at(at):14}{0.75:13}{evaluated}     {best}{1.25:8}")
    curve = curve_of(lines)
    assert [*curve.values("loss")] == [loss_at(at) for at in range(1, 30)]
    assert curve.steps("eval_loss") == [at for at in range(1, 30) if at % 4]


@pytest.mark.parametrize(("head", "row"), TABLES, ids=[head for head, _ in TABLES])
def test_unusual_tables_are_read(head: str, row: str) -> None:
    assert [*curve_of([head, *written(row, 0, 50)]).values("loss")] == trained((0,), 50)


def test_logger_name_determines_the_split() -> None:
    form = "2026-01-02 03:04:05,678 - INFO - {side} - Epoch: [{epoch}][{at}/{end}]\tLoss {loss} (2)"
    lines = [
        form.format(side=side, epoch=epoch, at=at, end=end, loss=loss)
        for epoch in range(3)
        for side, end, loss in (("Training", 60, 2.5), ("Validating", 25, 3.5))
        for at in range(0, end, 10)
    ]
    curve = curve_of(lines)
    assert [*curve.values("loss")] == [2.5] * 18
    assert [*curve.values("eval_loss")] == [3.5] * 3


@pytest.mark.parametrize(
    ("batch", "mean"),
    [
        ("Val: [{at}/8] loss: {loss}", "Val loss: {loss}"),
        ("Test {at}/8 loss {loss}", "test loss {loss}"),
    ],
)
def test_evaluation_batches_before_a_summary_are_excluded(batch: str, mean: str) -> None:
    lines, means = [], [0.9, 0.8, 0.7, 0.6]
    for epoch, loss in enumerate(means):
        lines += [f"loss {loss_at(20 * epoch + step)}" for step in range(20)]
        lines += [batch.format(at=at, loss=loss + at / 100) for at in range(1, 9)]
        lines.append(mean.format(loss=loss))
    name = "eval_loss" if mean.startswith("Val") else "test_loss"
    assert [*curve_of(lines).values(name)] == means


def test_evaluation_printed_before_its_epoch_loss_is_placed() -> None:
    lines = []
    for epoch in (1, 2, 3, 4):
        lines += [f"Epoch {epoch}/4", f"val loss {1 / epoch}", f"train loss {loss_at(epoch)}"]
    curve = curve_of(lines)
    assert curve.steps("eval_loss") == [1, 2, 3, 4]
    assert curve.values("eval_loss") == [1 / epoch for epoch in (1, 2, 3, 4)]


def test_evaluation_printed_before_each_training_row_is_placed() -> None:
    lines = []
    for epoch in (1, 2, 3):
        for step in (0, 10, 20):
            lines.append(f"val loss {2 * loss_at(30 * epoch + step)}")
            lines.append(f"Epoch {epoch} [{step}/30] loss {loss_at(30 * epoch + step)}")
    assert curve_of(lines).steps("eval_loss") == [*range(0, 90, 10)]


def test_evaluation_between_regular_steps_belongs_to_the_next() -> None:
    lines = []
    for step in range(0, 200, 10):
        lines.append(f"step {step} loss {loss_at(step)}")
        lines += [f"val loss {1 / (step + 10)}"] if step % 50 == 40 else []
    assert curve_of(lines).steps("eval_loss") == [50, 100, 150, 190]


def test_last_batch_of_a_counted_evaluation_is_used() -> None:
    lines = []
    for epoch in range(3):
        for step in range(0, 30, 10):
            lines.append(f"TRAIN epoch {epoch} iter {step}/30 loss {loss_at(30 * epoch + step)}")
        for step in range(5):
            lines.append(f"VALID epoch {epoch} iter {step}/5 loss {4.5 - epoch - step / 10}")
    curve = curve_of(lines)
    assert curve.steps("loss") == [*range(0, 90, 10)]
    assert curve.values("eval_loss") == [4.1, 3.1, 2.1]


def test_table_repeating_printed_values_counts_once() -> None:
    epochs, lines = range(1, 8), []
    for epoch in epochs:
        lines += [f"Epoch {epoch}/7", f"20/20 - 1s - loss: {loss_at(epoch)} - val_loss: 9.{epoch}"]
    lines += [
        f"Epoch # {n}: loss={loss_at(n)} acc=0.5 | val_loss=9.{n} val_acc=0.4" for n in epochs
    ]
    curve = curve_of(lines)
    assert both(curve, "loss") == ([*epochs], [*map(loss_at, epochs)])
    assert both(curve, "eval_loss") == ([*epochs], [9 + n / 10 for n in epochs])
    assert curve.notes == ()


@pytest.mark.parametrize("times", [2, 4])
def test_epoch_printed_by_several_processes_counts_once(times: int) -> None:
    lines = []
    for epoch in range(1, 8):
        lines.append(f"Epoch {epoch}/7 loss: {loss_at(epoch)} val_loss: 9.5")
        lines += [f"epoch {epoch} -- loss {loss_at(epoch)}, val_loss 9.5"] * (times - 1)
    curve = curve_of(lines)
    assert both(curve, "loss") == ([*range(1, 8)], [*map(loss_at, range(1, 8))])
    assert curve.steps("eval_loss") == [*range(1, 8)]


def test_heading_with_an_equals_sign_needs_more_lines() -> None:
    lines = []
    for epoch in range(5):
        lines += [f"Epoch = {epoch}", f"Training loss = {loss_at(epoch)}", "Validation loss = 9.5"]
    assert both(curve_of(lines), "loss") == ([*range(5)], [*map(loss_at, range(5))])
    lines = ["epoch = 100", "lr = 0.1"]
    for epoch in range(5):
        lines += [f"Epoch {epoch}: training loss {loss_at(epoch)}", f"val loss: {9.5 - epoch}"]
    assert curve_of(lines).steps("eval_loss") == [*range(5)]


def test_runs_with_only_evaluations_are_separated() -> None:
    losses = [9 - epoch - run / 10 for run in range(3) for epoch in range(1, 6)]
    lines = [f"Epoch {1 + n % 5} validation loss: {loss}" for n, loss in enumerate(losses)]
    assert both(curve_of(lines), "eval_loss") == ([1, 2, 3, 4, 5] * 3, losses)


def test_epoch_mean_column_is_no_step_loss() -> None:
    steps, lines = range(10, 210, 10), ["step,train_loss_step,epoch,train_loss,train_acc"]
    for step in steps:
        lines.append(f"{step},{loss_at(step)},0,,")
        lines += [f"{step},,0,{loss_at(step) + 1},0.5"] if step % 50 == 0 else []
    assert both(curve_of(lines), "loss") == ([*steps], [*map(loss_at, steps)])


def test_final_result_is_not_an_epoch_loss() -> None:
    lines = [f"[FT] Ep {n}/7 | Tr Loss={loss_at(n)} | Va Loss=9.{n}" for n in range(1, 8)]
    lines += ["Test set", "Accuracy  : 0.9050", "Recall    : 0.8125", "Loss      : 0.1385"]
    curve = curve_of(lines)
    assert both(curve, "loss") == ([*range(1, 8)], [*map(loss_at, range(1, 8))])


def test_evaluation_on_a_bar_is_a_point_when_it_changes() -> None:
    lines = []
    for epoch in range(3):
        for step in range(0, 101, 5):
            loss, known = loss_at(100 * epoch + step), 9 - (3 * epoch + step // 30) / 10
            bar = (
                f"{step}%|###| {step}/100 [00:10<00:10, 5.0it/s, loss={loss}, val_loss={known:.1f}]"
            )
            lines.append(f"Epoch {epoch}: {bar}")
    curve = curve_of(lines)
    assert curve.steps("eval_loss") == [0, 30, 60, 90, 130, 160, 190, 230, 260, 290]


def test_epoch_counted_from_zero_to_its_total_has_one_more_step() -> None:
    steps = [(epoch, step) for epoch in range(3) for step in range(0, 101, 25)]
    curve = curve_of([f"Epoch: [{e}/3] [{s}/100] loss: {loss_at(100 * e + s)}" for e, s in steps])
    assert curve.steps("loss") == [101 * epoch + step for epoch, step in steps]


def test_text_mixed_into_a_keras_bar_is_separated() -> None:
    lines = []
    for epoch in range(1, 6):
        lines.append(f"Epoch {epoch}/5")
        for batch in range(1, 4):
            mean = f"batch: {batch / 2:.4f} - size: 5.0000 - loss: {loss_at(epoch) + 3 - batch:.4f}"
            lines.append(f" {batch}/3 [=====>........] - ETA: 1s - {mean} - acc: 0.5in the way: 7")
    curve = curve_of(lines)
    assert both(curve, "loss") == ([*range(1, 6)], [loss_at(n) for n in range(1, 6)])
    assert {*curve.metrics} == {"loss", "acc"}


def test_nan_is_not_part_of_a_name() -> None:
    losses = [2.5, 2.0, "nan", "nan"]
    values = curve_of(f"iter {n:05} loss {x} scale 1.0" for n, x in enumerate(losses)).values(
        "loss"
    )
    assert values[:2] == [2.5, 2.0]
    assert math.isnan(values[2]) and math.isnan(values[3])


def test_alternating_bars_separate_training_and_evaluation() -> None:
    """Train and test draw one bar (pytorch-cifar): the test's end is its result."""
    bar = " [==>..]  Step: 59ms | Tot: 1s | Loss: {loss} | Acc: 30.0% (38/128) {step}/{end}"
    lines: list[str] = []
    for epoch in range(4):
        lines += [f"Epoch: {epoch}", *written(bar, epoch, 20), *written(bar, epoch, 8, more=1.0)]
    curve = curve_of(lines)
    assert [*curve.values("loss")] == trained(range(4), 20)
    assert curve.steps("loss")[-1] == 80
    assert [*curve.values("eval_loss")] == [loss_at(epoch * 100 + 8) + 1 for epoch in range(4)]


def test_evaluation_among_batches_has_their_steps() -> None:
    lines: list[str] = []
    for epoch in range(4):
        for step in range(20):
            lines.append(f"[{epoch}: {step}/20] train loss: {loss_at(epoch * 20 + step)}")
            if step % 10 == 0:
                lines.append(f"[{epoch}: {step}/20] test loss: {loss_at(epoch * 20 + step)}")
    curve = curve_of(lines)
    assert curve.steps("test_loss") == [*range(0, 80, 10)]


def test_epoch_end_line_defines_its_length() -> None:
    lines: list[str] = []
    for epoch in (1, 2, 3, 1, 2, 3):  # two experiments
        lines += written("\titers: {step}, epoch: {epoch} | loss: {loss}", epoch, 20)
        lines.append(f"Epoch: {epoch}, Steps: 25 | Train Loss: 0.5 Vali Loss: {epoch / 8}")
    curve = curve_of(lines)
    assert curve.steps("loss")[20] == 26 and curve.steps("eval_loss") == [25, 50, 75]
    assert [*curve.values("loss")] == trained((1, 2, 3), 20)
    assert curve.trainings == 2


def test_global_counter_next_to_an_epoch_counter_is_used() -> None:
    """A bar of the epoch stands among lines that count through it, and a mean closes it."""
    lines: list[str] = []
    for epoch in range(1, 9):
        lines += [f"Epoch {epoch}/8 |..| 50% (step {step}/33)" for step in (10, 20, 30)]
        passed = [step for step in range(10, 300, 10) if (epoch - 1) * 33 < step <= epoch * 33]
        lines += [f"Epoch {epoch} | step {step}/2000 | loss={loss_at(step)}" for step in passed]
        lines.append(f"Epoch {epoch} completed | train_loss=0.5 | global_step={epoch * 33}")
    curve = curve_of(lines)
    assert curve.steps("loss") == [*range(10, 270, 10)]


def test_row_number_is_no_table_cell() -> None:
    rows = [f"{row}   {row + 1}  {loss_at(row)}  0.5" for row in range(5)]
    assert [*curve_of(["   epoch  train_loss  val_loss", *rows]).values("loss")] == [
        loss_at(row) for row in range(5)
    ]


def test_table_rows_may_name_their_split() -> None:
    lines: list[str] = []
    for epoch in range(1, 6):
        lines += [f"Epoch [{epoch}/5]  lr=0.01", "| split | loss | miou |", "|---|---|---|"]
        lines += [f"| train | {loss_at(epoch)} | 0.4 |", f"| val | {loss_at(epoch) + 1} | 0.3 |"]
    curve = curve_of(lines)
    assert curve.steps("loss") == curve.steps("eval_loss") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "heading",
    [
        "**** Epoch {} (1/32) ****",
        "🚀 Epoch {}/9",
        "=====第{}轮训练=====",
        "[Epoch {}]\tLearning rate: 0.1",
    ],
)
def test_epoch_headings_are_recognized(heading: str) -> None:
    lines = [text for n in range(1, 6) for text in (heading.format(n), f"train loss: {loss_at(n)}")]
    assert curve_of(lines).steps("loss") == [1, 2, 3, 4, 5]


def test_multiline_dict_is_read() -> None:
    lines = [
        text
        for n in range(1, 6)
        for text in ("{'auc/val': 0.5,", f" 'epoch': {n},", f" 'loss/train': {loss_at(n)}}}")
    ]
    curve = curve_of(lines)
    assert curve.steps("loss") == [1, 2, 3, 4, 5]
    assert [*curve.values("loss")] == [loss_at(n) for n in range(1, 6)]


def test_csv_of_both_splits_is_read() -> None:
    head = "Model version,Images trained,Time [s],Loss (Training),Loss (Validation)"
    rows = [f"{row},{64 * row},720.5,{loss_at(row)},{loss_at(row) + 1}" for row in range(1, 6)]
    curve = curve_of([head, *rows])
    assert [*curve.values("loss")] == [loss_at(row) for row in range(1, 6)]
    assert [*curve.values("eval_loss")] == [loss_at(row) + 1 for row in range(1, 6)]
    assert (
        "loss" not in curve_of(["day,shop,loss", *(f"{row},3,{row}.5" for row in range(5))]).metrics
    )


def test_evaluation_bars_have_no_own_steps() -> None:
    """Only the ends are drawn, and a line closes each epoch (segmentation_models.pytorch)."""
    lines: list[str] = []
    for epoch in range(1, 9):
        loss, other = loss_at(epoch), loss_at(epoch) + 1
        lines += [f"Epoch [{epoch}/8]", f"100%|####| 30/30 [09:37<00:00, 19.26s/it, loss={loss}]"]
        lines += [f"100%|####| 8/8 [00:50<00:00, 6.2s/it, loss={other}]"]
        lines += [f"loss {loss} - iou 0.5 - val_loss {other} - val_iou 0.25"]
    curve = curve_of(lines)
    assert curve.steps("loss") == curve.steps("eval_loss") == [*range(1, 9)]


def test_unfinished_last_line_loses_only_its_last_pair() -> None:
    text = "epoch 1 loss 2.5 lr 0.1\nepoch 2 loss 2.25 lr 0.1\nepoch 3 loss 2.125 lr 0."
    curve = parse_chunks("a.log", [(0, [text.encode()])]).curve
    assert curve.values("loss") == [2.5, 2.25, 2.125] and curve.values("lr") == [0.1, 0.1]


@pytest.mark.parametrize(
    "form", ["lr=0.1\niter {step}/{end} loss {loss}", "Epoch {epoch} [{step}/{end}] loss {loss}"]
)
def test_alternating_trainings_of_two_lengths_are_no_evaluations(form: str) -> None:
    lines = [line for epoch in range(1, 7) for line in written(form, epoch, 6 if epoch % 2 else 5)]
    assert "eval_loss" not in curve_of(lines).metrics


@pytest.mark.parametrize(
    "text",
    [
        "    epoch  train_loss\n0       1    2.5\n1       2    2.25\n2       3    2.125",
        "epoch;loss\n1;2,5\n2;2,25\n3;2,125",
        "epoch 1 loss 2.5 lr 1\nepoch 2 loss 2.25 lr 1\nepoch 3 loss 2.125 lr 1",
    ],
)
def test_log_truncated_anywhere_yields_no_other_values(text: str) -> None:
    for end in range(len(text)):
        curve = parse_chunks("a.log", [(0, [text[:end].encode()])]).curve
        assert {*curve.values("loss")} <= {2.5, 2.25, 2.125}, text[:end]


@pytest.mark.timeout(20)
def test_unfinished_last_line_is_read_quickly() -> None:
    for line in ("a/b/" * 5000 + ";1,5" * 500, "loss " + "it/s" * 5000 + " a 1", "a " * 20000):
        parse_chunks("a.log", [(0, [line.encode()])])


def test_error_numbers_are_no_loss() -> None:
    lines = [line for n in range(5) for line in (f"Epoch {n} accuracy 0.{n}", "step 3: error 404")]
    assert "loss" not in curve_of(lines).metrics


def test_last_smaller_batch_of_an_epoch_is_its_end() -> None:
    """PyTorch's examples print the number of batches times the size of the present batch."""
    lines = [
        f"Train Epoch: {epoch} [{step}/1000 ({batch}%)]\tLoss: {4 - epoch - batch / 9:.6f}"
        for epoch in (1, 2, 3)
        for batch, step in enumerate((0, 320, 640, 120))
    ]
    curve = parse_chunks("a.log", [(0, ["\n".join(lines).encode() + b"\n"])]).curve
    assert curve.steps("loss")[:5] == [0, 320, 640, 999, 1000]
    assert (curve.steps("loss")[-1], curve.values("loss")[-1]) == (2999, 0.666667)
