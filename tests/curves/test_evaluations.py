"""The metrics of evaluations that programs print without a step or an epoch, in their scope."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpcrun.curves.report.facts import main_metric
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.parsing import parse_chunks


def train(
    *below: str, epochs: int = 4, form: str = "epoch {e} step {s} loss {loss:.3f}"
) -> ParsedRun:
    """Parse a training that prints some lines below each epoch: § is a score, ¶ the epoch."""
    lines: list[str] = []
    for e in range(1, epochs + 1):
        for s in range(1, 4):
            lines.append(form.format(e=e, s=(e - 1) * 3 + s, loss=3 - e / 5 - s / 20))
        lines += [each.replace("§", f"0.3{e}").replace("¶", f"{e}") for each in below]
    return parse_text(lines)


def parse_text(lines: Sequence[str]) -> ParsedRun:
    return parse_chunks("a.log", [(0, ["".join(f"{line}\n" for line in lines).encode()])])


SCORES = [
    ("[EVAL] mIoU: §", "eval_mIoU"),
    ("[Val] dice §", "eval_dice"),
    ("validation accuracy: §", "validation accuracy"),
    ("val acc = §", "val acc"),
    ("Testing accuracy §", "Testing accuracy"),
    ("test F1: §", "test F1"),
    ("Accuracy of the network on the 10000 test images: § %", "test Accuracy"),
    ("Test Accuracy of the model on the validation set: §", "validation Test Accuracy"),
    ("accuracy on the validation data is §", "validation accuracy"),
    ("eval point avg class IoU: §", "eval point avg class IoU"),
    ("acc: §", "acc"),
    ("AUC: §", "AUC"),
    ("=> avg_acc: §", "avg_acc"),
    ("mAP@0.5: §", "mAP@0.5"),
    ("BLEU = §", "BLEU"),
    ("WER: §%", "WER"),
    ("Test: PSNR § SSIM 0.91", "test_PSNR"),
    ("validation metrics: accuracy: §, auc: 0.9", "eval_accuracy"),
    ('Eval results: {"f1": §, "precision": 0.8}', "eval_f1"),
    ("  eval_accuracy           =     §", "eval_accuracy"),
    ("Test net output #0: accuracy = §", "eval_accuracy"),
    ("Ep. ¶ : Up. ¶00 : bleu-detok : § : new best", "eval_bleu-detok"),
    ("[valid] Ep. ¶ : Up. ¶00 : chrf : § : stalled 2 times (last best: 7.0)", "eval_chrf"),
    (
        "2026-11-20 08:00:0¶ INFO [valid] Ep. ¶ : Up. ¶00 : cross-entropy : § : new best",
        "eval_cross-entropy",
    ),
    ('{"itr": ¶, "FID": §, "IS_mean": 7.5}', "FID"),
    ("Metrics: {'accuracy': §, 'num_samples': 800}", "accuracy"),
    (
        "Epoch ¶, global step 3¶: 'val_acc' reached § (best §), saving model to 'a' as top 1",
        "val_acc",
    ),
    ("R-Squared: § | RMSE: 9.5", "R-Squared"),
    ("BLEU = §, 60.6/36.4/23.8/16.3 (BP=0.873, ratio=0.880, hyp_len=60, ref_len=67)", "BLEU"),
    ("epoch ¶ Fraction valid molecules: §  Time elapsed: 0.15h", "Fraction valid molecules"),
]


@pytest.mark.parametrize(("line", "name"), SCORES)
def test_scores_without_a_position_are_evaluations(line: str, name: str) -> None:
    found = {key.lower(): value for key, value in train(line).curve.metrics.items()}
    assert name.lower() in found, sorted(found)
    summary = found[name.lower()].summary
    assert (summary.count, summary.first.value, summary.last.value) == (4, 0.31, 0.34)


@pytest.mark.parametrize(
    ("line", "name"),
    [*SCORES[:7], *SCORES[8:10], SCORES[12], *SCORES[16:18], ("Overall ACC: §", "Overall ACC")],
)
def test_evaluation_scores_count_without_a_training(line: str, name: str) -> None:
    metrics = parse_text(["loading", line.replace("§", "0.3"), "done"]).curve.metrics
    assert {key: value.values for key, value in metrics.items()}[name] == [0.3]


@pytest.mark.parametrize(
    "line", ["acc: 0.5", "AUC: 0.5", "WER: 20.5%", "confidence score: 0.5", "Mean Reward: 20.00"]
)
def test_single_bare_scores_without_a_training_are_ignored(line: str) -> None:
    assert parse_text(["loading", line, "done"]).curve.metrics == {}


def test_scores_below_the_heading_of_an_evaluation_count_without_a_training() -> None:
    metrics = parse_text(["***** Eval results *****", "acc: 0.5", "f1: 0.25"]).curve
    assert (metrics.values("eval_acc"), metrics.values("eval_f1")) == ([0.5], [0.25])


def test_scores_that_recur_count_without_a_training() -> None:
    lines = [f"Epoch {e} K-means: NMI = 0.4{e} ARI = 0.25{e} F = 0.3" for e in range(1, 5)]
    curve = parse_text(lines).curve
    assert curve.values("NMI") == [0.41, 0.42, 0.43, 0.44]
    assert "F" in curve.metrics


def test_drawn_table_of_test_results_is_read() -> None:
    table = [
        "┏━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━┓",
        "┃  Test metric   ┃  DataLoader 0   ┃",
        "┡━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━┩",
        "│      acc       │      0.75       │",
        "│   test_loss    │      0.5        │",
        "└────────────────┴─────────────────┘",
    ]
    steps = [f"epoch 1 step {s} loss {3 - s / 20:.3f}" for s in range(1, 4)]
    curve = parse_text([*steps, *table]).curve
    assert (curve.values("test_acc"), curve.values("test_loss")) == ([0.75], [0.5])


def test_errors_in_physical_units_are_read() -> None:
    form = "Epoch {e}: loss={loss}, RMSE_E_per_atom=35.{e} meV, RMSE_F=5.{e} meV / A"
    curve = parse_text([form.format(e=e, loss=2.5 / e) for e in range(1, 4)]).curve
    assert curve.values("RMSE_F") == [5.1, 5.2, 5.3]
    assert curve.values("RMSE_E_per_atom") == [35.1, 35.2, 35.3]


def test_evaluation_beside_its_time_is_read() -> None:
    scores = train("test acc: §%, test adv acc: 0.5%, spent: 206.5 s").curve.values("test acc")
    assert scores == [0.31, 0.32, 0.33, 0.34]


@pytest.mark.parametrize(
    "line", ["acc: 0.9", "map: 0.5", "f1 = 0.5", "  recall: 0.25", "target accuracy: 0.9"]
)
def test_scores_above_the_training_alone_are_settings(line: str) -> None:
    lines = [line, *(f"step {step} loss {3 - step / 9:.3f}" for step in range(1, 20))]
    assert [*parse_text(lines).curve.metrics] == ["loss"]


@pytest.mark.parametrize(
    "line",
    ["best accuracy: §", "target accuracy: §", "accuracy threshold: §", "max f1: §", "min_acc: §"],
)
def test_conditions_and_best_scores_are_no_points(line: str) -> None:
    assert [*train(line, form="step {s} loss {loss:.3f}").curve.metrics] == ["loss"]


@pytest.mark.parametrize("split", ["Test", "Val", "Validation"])
def test_evaluation_meters_show_the_mean(split: str) -> None:
    batches = [
        f"{split}: [{batch}/3] Loss 0.5 (0.6) Acc@1 20.000 (3{batch}.000)" for batch in (1, 2, 3)
    ]
    name = "test_Acc@1" if split == "Test" else "eval_Acc@1"
    assert train(*batches).curve.metrics[name].values == [33.0] * 4
    # The closing line without a split belongs to the evaluation above it.
    closed = train(*batches, " * Acc@1 32.500 Acc@5 90.125").curve.metrics
    assert closed[name].values == [32.5] * 4
    assert closed[name.replace("@1", "@5")].values == [90.125] * 4


@pytest.mark.parametrize(
    "heading",
    [
        "***** Eval results *****",
        "Validation:",
        "Running evaluation",
        "[Evaluation]",
        "=== Validation metrics ===",
        "2026-11-20 08:00:00 INFO evaluating...",
    ],
)
def test_block_of_results_has_the_split_of_its_heading(heading: str) -> None:
    metrics = train(heading, "  accuracy = §", "  loss = §", form="step {s} loss {loss:.3f}").curve
    assert (
        metrics.values("eval_accuracy") == metrics.values("eval_loss") == [0.31, 0.32, 0.33, 0.34]
    )
    assert len(metrics.values("loss")) == 12


def test_loss_with_an_epoch_below_a_heading_stays_that_of_the_training() -> None:
    epochs = ["Validation:\n  accuracy = 0.5\nEpoch {n}: loss 2.{n}"] * 6
    curve = parse_text([each.format(n=n) for n, each in enumerate(epochs)]).curve
    assert curve.values("loss") == [2.0, 2.1, 2.2, 2.3, 2.4, 2.5]


def test_interleaved_blocks_of_several_processes_are_evaluations() -> None:
    lines = [f"step = {n}, loss = {3 - n / 90:.3f}" for n in range(1, 31)]
    saved = "Saving dict for global step 30: accuracy = 0.5, global_step = 30, loss = 0.25"
    block = ["***** Eval results *****", "  accuracy = 0.5", "  loss = 0.25", "  nsp_loss = 0.125"]
    lines += [*block, saved] * 4
    curve = parse_text(lines).curve
    assert (curve.values("loss")[-1], curve.values("eval_loss")) == (2.667, [0.25])
    assert {*curve.values("eval_nsp_loss")} == {0.125}


def test_losses_without_a_position_below_a_heading_stay_those_of_the_training() -> None:
    epoch = ["evaluating...", "  accuracy = 0.5", "loss: 2.5", "loss: 2.25", "loss: 2.125"]
    curve = parse_text(epoch * 5).curve
    assert len(curve.values("loss")) == 15
    assert "eval_loss" not in curve.metrics


@pytest.mark.parametrize("name", ["trian_loss", "Traning loss", "train_loss"])
def test_misspelt_split_is_recognized(name: str) -> None:
    lines = [
        f"epoch {n} {name}: {3 - n / 9:.3f} vaild_loss: {3.5 - n / 9:.3f}" for n in range(1, 9)
    ]
    curve = parse_text(lines).curve
    assert curve.values("loss")[:1] == [2.889] and curve.values("eval_loss")[:1] == [3.389]


def test_second_loss_of_an_evaluation_is_not_one_of_the_training() -> None:
    lines = [f"step {n} loss {3 - n / 90:.3f}" for n in range(1, 31)]
    saved = "Saving dict for global step 30: average_loss = 0.5, global_step = 30, loss = 64.5"
    metrics = parse_text([*lines, saved]).curve.metrics
    assert {"eval_loss", "eval_average_loss"} <= metrics.keys() and "average_loss" not in metrics


def test_mlperf_values_may_be_objects() -> None:
    event = ':::MLLOG {{"key": "{}", "value": {}, "metadata": {{"epoch_num": {}}}}}'
    lines = [event.format("train_loss", 3 - n / 9, n) for n in range(1, 9)]
    lines += [event.format("eval_accuracy", '{"BBOX": 0.13, "SEGM": 0.12}', 8)]
    metrics = parse_text(lines).curve.metrics
    assert {"eval_accuracy/BBOX", "eval_accuracy/SEGM"} <= metrics.keys()


def test_episode_reward_is_the_main_number_of_reinforcement_learning() -> None:
    lines: list[str] = []
    for n in range(1, 9):
        lines += ["-" * 34, f"| rollout/ep_rew_mean | {n}.5      |"]
        lines += [
            f"| total_timesteps     | {n * 100}      |",
            f"| train/loss          | {9 / n:.2f}     |",
        ]
    run = parse_text(lines)
    assert main_metric([run]) == "ep_rew_mean"
    assert run.curve.values("ep_rew_mean") == [n + 0.5 for n in range(1, 9)]


@pytest.mark.parametrize(
    ("form", "axis"),
    [
        ("Epoch {e}, Train Loss: {loss:.3f}, Validate Loss: 0.5{s}", "epoch"),
        ("step {s} loss {loss:.3f}", "step"),
        ("Epoch {e} step {s} loss {loss:.3f}", "step"),
    ],
)
def test_axis_is_named_after_what_the_steps_count(form: str, axis: str) -> None:
    lines = [form.format(e=n, s=n * 10, loss=3 - n / 9) for n in range(1, 12)]
    assert parse_text(lines).curve.axis == axis


@pytest.mark.parametrize("lengths", [(50, 50, 49), (50, 50, 30), (100, 99, 100, 98)])
def test_epochs_of_varying_length_are_added_up(lengths: tuple[int, ...]) -> None:
    lines, steps, done = [], [], 0
    for epoch, length in enumerate(lengths, 1):
        for step in range(10, length + 1, 10):
            lines.append(
                f"Epoch {epoch} iteration {step:04d}/{length:04d} loss {9 / epoch:.2f}{step}"
            )
            steps.append(done + step)
        done += length
    assert parse_text(lines).curve.steps("loss") == steps


@pytest.mark.parametrize("key", ["_type", "stagename", "phase", "mode", "train_stage"])
@pytest.mark.parametrize("names", [("train", "val"), ("training", "validation"), ("train", "eval")])
def test_phase_under_any_key_separates_training_and_evaluation(
    key: str, names: tuple[str, str]
) -> None:
    form = '{{"{key}": "{name}", "step": {step}, "loss": {loss}}}'
    lines = [
        form.format(
            key=key, name=names[step % 4 == 0], step=step, loss=(9 if step % 4 else 8) / step
        )
        for step in range(1, 41)
    ]
    curve = parse_text(lines).curve
    assert len(curve.values("loss")) == 30 and len(curve.values("eval_loss")) == 10


def test_summary_of_a_trainer_adds_no_points() -> None:
    form = "{{'loss': {}, 'reward': 0.{}, 'learning_rate': 1e-05, 'epoch': 0.1}}"
    lines = [form.format(3 - n / 20, 10 + n) for n in range(20)]
    lines.append("{'train_runtime': 912.5, 'reward': 0.61, 'train_loss': 2.1, 'epoch': 1.0}")
    curve = parse_text(lines).curve
    assert curve.values("reward")[-1] == 0.29
    assert curve.values("train_runtime") == [912.5]


def test_block_of_training_metrics_is_no_point_of_the_curve() -> None:
    lines = [f"{{'loss': {3 - n / 20:.3f}, 'epoch': {n / 20}}}" for n in range(1, 21)]
    lines += ["***** train metrics *****", "  train_loss = 2.469", "***** eval metrics *****"]
    curve = parse_text([*lines, "  eval_loss = 1.593", "  perplexity = 4.919"]).curve
    assert (len(curve.values("loss")), curve.values("loss")[-1]) == (20, 2.0)
    assert curve.values("eval_loss") == [1.593]
    assert curve.values("eval_perplexity") == [4.919]


def test_scores_below_headings_of_epochs_alone_are_read() -> None:
    lines = [f"Epoch of: {n} Perf:\nR-Squared: {n}.5 | Aligned RMSE: {9 - n}.25" for n in range(6)]
    curve = parse_text(lines).curve
    assert curve.values("R-Squared") == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert curve.steps("Aligned RMSE") == [0, 1, 2, 3, 4, 5]


def test_scores_below_a_bar_with_losses_are_read() -> None:
    bar = "Epoch 0: {n}%|#  | {n}/100 [00:{n:02d}<00:{n:02d}, 1.0it/s, loss={loss:.3f}, v_num=1]"
    lines = [bar.format(n=n, loss=3 - n / 50) for n in range(1, 41)]
    score = "BLEU = 10.75 40.3/15.9/8.2/4.6 (BP = 0.868 ratio = 0.876 hyp_len = 19 ref_len = 22)"
    curve = parse_text([*lines, score]).curve
    assert curve.values("BLEU") == [10.75] and len(curve.values("loss")) == 40


@pytest.mark.parametrize(
    "form",
    [
        "Epoch {n} | val acc: 0.5{n} | loss: 3.{n} | lr: 0.001",
        "step {n} test_acc=0.5{n} loss=3.{n} lr=0.001 grad_norm=1.2",
        "Epoch {n} val loss: 2.{n} | loss: 3.{n}",
    ],
)
def test_training_loss_behind_a_metric_of_an_evaluation_is_kept(
    form: str,
) -> None:
    curve = parse_text([form.format(n=n) for n in range(1, 6)]).curve
    assert curve.values("loss") == [3.1, 3.2, 3.3, 3.4, 3.5]
    assert not {"test_loss", "test_grad_norm"} & {*curve.metrics}


def test_metrics_behind_the_loss_of_an_evaluation_are_its_own_beside_a_learning_rate() -> None:
    lines = [f"Epoch {n} val loss: 2.{n} acc: 0.{n} lr: 0.001" for n in range(1, 6)]
    curve = parse_text(lines).curve
    assert curve.values("eval_acc") == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert "loss" not in curve.metrics


@pytest.mark.parametrize(
    ("tag", "split"),
    [
        ("val c4", "eval"),
        ("val_1", "eval"),
        ("Valid C4", "eval"),
        ("test2017", "test"),
        ("val.clean", "eval"),
        ("eval/c4", "eval"),
    ],
)
@pytest.mark.parametrize("form", ["step {n} loss 3.{n}", "epoch {n}: loss 3.{n}"])
def test_evaluation_on_named_data_is_recognized(tag: str, split: str, form: str) -> None:
    lines = [f"{form.format(n=n)}\n[{tag}] loss 4.{n} acc 0.{n}" for n in range(1, 6)]
    curve = parse_text(lines).curve
    assert curve.values("loss") == [3.1, 3.2, 3.3, 3.4, 3.5]
    assert curve.values(f"{split}_loss") == [4.1, 4.2, 4.3, 4.4, 4.5]
    assert curve.values(f"{split}_acc") == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize("form", ["[val c4] {}", "[val_1] {}", "[val/c4] step {n} {}"])
def test_evaluations_on_several_data_are_kept_apart(form: str) -> None:
    other = form.replace("c4", "wiki").replace("_1", "_2")
    lines = [
        line
        for n in range(1, 6)
        for line in (
            f"step {n} loss 3.{n}",
            form.format(f"loss 4.{n}", n=n),
            other.format(f"loss 5.{n}", n=n),
        )
    ]
    curve = parse_text(lines).curve
    assert curve.values("loss") == [3.1, 3.2, 3.3, 3.4, 3.5]
    first, second = (name for name in curve.metrics if name.startswith("eval_"))
    assert {first, second} in ({"eval_c4_loss", "eval_wiki_loss"}, {"eval_1_loss", "eval_2_loss"})
    assert curve.values(first) == [4.1, 4.2, 4.3, 4.4, 4.5]
    assert curve.values(second) == [5.1, 5.2, 5.3, 5.4, 5.5]


def test_numbers_of_many_evaluations_are_no_names_of_data() -> None:
    lines = [f"step {n} loss 3.{n}\n[val_{n}] loss 4.{n}" for n in range(1, 31)]
    assert len(parse_text(lines).curve.values("eval_loss")) == 30


def test_tags_of_an_evaluation_count_without_a_training() -> None:
    curve = parse_text(["val/IOU: 0.365, val/dice : 0.475", "Achieve best Dice: 0.475 > 0.4"]).curve
    assert (curve.values("val/IOU"), curve.values("val/dice")) == ([0.365], [0.475])


def test_single_dict_with_a_tagged_loss_is_a_measurement() -> None:
    line = "{'train/loss': 0.5, 'train/dice loss': 0.25, 'train/actor_loss': 0, 'train/lr': 0.0002}"
    curve = parse_text([line]).curve
    assert (curve.values("loss"), curve.values("lr")) == ([0.5], [0.0002])


def test_place_of_the_next_evaluation_is_no_score() -> None:
    form = (
        " {n}: {loss:f}, {loss:f} avg loss, 0.002610 rate, 0.5 seconds, 48 images, 1.0 hours left"
    )
    lines = [
        line
        for n in range(1, 9)
        for line in (
            " (next mAP calculation at 1000 iterations) ",
            form.format(n=n, loss=3 - n / 10),
        )
    ]
    lines.append("mean_average_precision (mAP@0.5) = 0.403355 ")
    metrics = parse_text(lines).curve.metrics
    (name,) = (name for name in metrics if "mAP" in name)
    assert metrics[name].values == [0.403355]


def test_losses_below_lines_with_the_position_are_read() -> None:
    lines = [
        line
        for n in range(1, 9)
        for line in (
            f"epoch: 1, {n}/125 0.8%, 0.31s per iter, lr: 0.0001",
            f"    recon loss: 9.{n}61  ppl:9513.{n}5",
            "",
        )
    ]
    curve = parse_text(lines).curve
    assert curve.values("loss") == [9 + n / 10 + 0.061 for n in range(1, 9)]


def test_complete_evaluations_precede_lines_of_improvements() -> None:
    values = (2.5, 2.25, 2.75)
    lines: list[str] = []
    for e, value in enumerate(values):
        lines += [f"epoch {e} step {4 * e + s} loss {3 - e / 5 - s / 20:.3f}" for s in range(4)]
        lines.append(f"val_loss {value}")
        reached = f"'val_loss' reached {value} (best {value}), saving model to 'a' as top 1"
        shown = reached if value < 2.6 else "'val_loss' was not in top 1"
        lines.append(f"Epoch {e}, global step {4 * e + 3}: {shown}")
    assert parse_text(lines).curve.values("eval_loss") == [*values]
    improved = [line for line in lines if not line.startswith("val_loss")]
    assert parse_text(improved).curve.values("eval_loss") == [2.5, 2.25]


def test_line_that_names_the_training_is_not_scoped_by_a_heading() -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [f"=====Epoch {epoch}", "Training...", "Evaluating...", "Testing..."]
        lines += [f"Train: loss_a={3 / epoch:.3f}, loss_b={2 / epoch:.3f}"]
        lines += [f"Test: loss_a={4 / epoch:.3f}, loss_b={2.5 / epoch:.3f}"]
    curve = parse_chunks("a.log", [(0, ["".join(f"{x}\n" for x in lines).encode()])]).curve
    assert (curve.values("loss")[0], curve.values("test_loss")[0]) == (3.0, 4.0)
    assert curve.steps("loss") == [*range(1, 6)]


def test_repeated_name_has_the_split_before_it() -> None:
    lines = [
        f"Epoch {n}/5 | Train Loss: {3 / n:.4f} Acc: {0.5 + n / 50:.4f} "
        f"| Val Loss: {4 / n:.4f} Acc: {0.25 + n / 50:.4f} | Time: 4.5s"
        for n in range(1, 6)
    ]
    curve = parse_chunks("a.log", [(0, ["\n".join([*lines, ""]).encode()])]).curve
    assert (curve.values("Acc")[0], curve.values("eval_Acc")[0]) == (0.52, 0.27)
    assert (curve.values("loss")[0], curve.values("eval_loss")[0]) == (3.0, 4.0)
    assert (curve.seconds, curve.seconds_from) == (22.5, "sum of epochs")


@pytest.mark.parametrize(
    "form",
    [
        "epoch {n} | valid acc: .4{n} loss: 2.2{n} | acc: .5{n} loss: 2.0{n}",
        "epoch {n} | val loss: 2.2{n} acc: .4{n}; loss: 2.0{n} acc: .5{n}",
    ],
)
def test_values_behind_those_of_an_evaluation_are_those_of_the_training(form: str) -> None:
    curve = parse_text([form.format(n=n) for n in range(1, 6)]).curve
    assert curve.values("loss") == [2 + n / 100 for n in range(1, 6)]
    assert curve.values("eval_loss") == [2.2 + n / 100 for n in range(1, 6)]
    assert curve.values("acc") == [0.5 + n / 100 for n in range(1, 6)]


def test_score_in_parentheses_has_the_split_of_the_value_before_it() -> None:
    lines = [
        f"Epoch {e}/5 | Train Loss: {4 - e / 4} (PPL: {50 - e}) | "
        f"Val Loss: {5 - e / 4} (PPL: {90 - e}) | Val Acc: 0.{e}5 (best: 0.95) (acc: 0.75)"
        for e in range(1, 6)
    ]
    curve = parse_text(lines).curve
    assert curve.values("PPL") == [49, 48, 47, 46, 45]
    assert curve.values("eval_PPL") == [89, 88, 87, 86, 85]
    assert curve.values("Val Acc") == [0.15, 0.25, 0.35, 0.45, 0.55]
    assert curve.metrics.keys().isdisjoint({"best", "acc", "eval_acc"})


def test_scores_of_text_recognition_are_read_below_their_step() -> None:
    run = train("Current_accuracy : 6§, Current_norm_ED  : §")
    assert run.curve.values("Current_accuracy")[-1] == 60.34
    assert run.curve.values("Current_norm_ED") == [0.31, 0.32, 0.33, 0.34]
