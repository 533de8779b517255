"""Names: spellings of the metrics, and look-alikes."""

from __future__ import annotations

import pytest

from hpcrun.curves.names import fold, metric_of, name_in

SPELLED = {
    "loss": "loss|Loss|LOSS|train_loss|train/loss|Training Loss|lm loss|loss/train|avg_loss|"
    "Average loss|running_loss|loss_step|step_loss|batch_loss|total_loss|reduced_train_loss|"
    "train_loss_step|TrainLoss|tr_loss|avr_loss|loss_accum|cur_loss|mean loss|gpt_loss",
    "lr": "lr|LR|learning_rate|Learning Rate|learning-rate|lr/pg0|lr-AdamW|train/lr|optim/lr|"
    "last_lr|current_lr|LearningRate|optimizer/lr|lr_0",
    "grad_norm": "grad_norm|grad norm|Grad Norm|gnorm|grad-norm|gradient_norm|train/grad_norm|"
    "GradNorm|global_grad_norm|optim/total_grad_norm|norm",
    "tokens_per_second": "tokens_per_second|tokens/s|tok/s|tok/sec|tokens/sec|tps|tgs|wps|"
    "tokens_per_second_per_gpu|Tokens/s/device|tokens per gpu per second (tgs)",
    "samples_per_second": "samples_per_second|samples/s|samples/sec|img/s|images/sec|examples/s|"
    "CurrSamplesPerSec|CurSamplesPerSec|RunningAvgSamplesPerSec|samples per second",
    "step_seconds": "step_time_ms|iter time (s)|elapsed time per iteration (ms)|it/s|s/it|sec/iter|"
    "ms/step|steps/sec|steps_per_second|train_step_timing in s|train_speed(iter/s)",
    "memory_bytes": "memory_gb|mem_gb|memory(GiB)|peak_memory_gib|max_mem_mb|gpu_mem (GB)",
    "loss_scale": "loss_scale|loss scale|Loss Scale",
}
NOTHING = (
    "loss_weight|loss_fn|lm loss PPL|loss_cls|loss_bbox|min_lr|max_lr|base_lr|warmup_lr|param_norm|"
    "weight_norm|value_loss|best_loss|kl_loss|eta|v_num|weight_decay|max_grad_norm|batch_size|"
    "num_tokens|consumed samples|step_time|memory|lrs|closs|tokens|samples|eval_train_loss|"
    "training cost|time|loss_1|moe_aux_loss"
)


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for name, keys in SPELLED.items() for key in keys.split("|")]
)
def test_spelling_names_its_metric(key: str, name: str) -> None:
    known = metric_of(key)
    assert known is not None and (known.name, known.split) in ((name, ""), (name, "train"))


@pytest.mark.parametrize("key", NOTHING.split("|"))
def test_spelling_names_nothing(key: str) -> None:
    assert metric_of(key) is None


@pytest.mark.parametrize(
    ("key", "split"),
    [
        *((key, "eval") for key in ("val_loss", "eval/loss", "Validation Loss", "loss_val")),
        *((key, "eval") for key in ("valid loss", "dev_loss", "avg_val_loss", "ValLoss")),
        *((key, "test") for key in ("test_loss", "Test Loss", "loss/test")),
    ],
)
def test_spelling_names_its_split(key: str, split: str) -> None:
    known = metric_of(key)
    assert known is not None and (known.name, known.split) == ("loss", split)


@pytest.mark.parametrize(
    ("key", "unit", "value", "seconds_or_bytes"),
    [
        ("step_time", "ms", 250.0, 0.25),
        ("dt", "s", 0.5, 0.5),
        ("time", "ms", 250.0, 0.25),
        ("iter_time", "us", 500.0, 0.0005),
        ("speed", "it/s", 4.0, 0.25),
        ("speed", "s/it", 4.0, 4.0),
        ("steps/sec", "", 4.0, 0.25),
        ("memory", "GiB", 2.0, 2.0**31),
        ("mem", "GB", 2.0, 2e9),
        ("gpu_mem", "G", 2.0, 2e9),
        ("max_mem", "M", 2345.0, 2345e6),
    ],
)
def test_units_are_converted(key: str, unit: str, value: float, seconds_or_bytes: float) -> None:
    known = metric_of(key, unit)
    assert known is not None
    assert known.scale(value) == pytest.approx(seconds_or_bytes, rel=1e-12)


@pytest.mark.parametrize(
    ("key", "unit"), [("loss", "ms"), ("lr", "GB"), ("time", "s"), ("memory", "ms"), ("eta", "s")]
)
def test_units_unsuitable_for_the_key_are_refused(key: str, unit: str) -> None:
    assert metric_of(key, unit) is None


def test_rate_of_zero_is_infinite() -> None:
    known = metric_of("it/s")
    assert known is not None and known.scale(0.0) == float("inf")


def test_plainer_spelling_has_precedence() -> None:
    ranks = [metric_of(key) for key in ("loss", "train_loss", "avg_loss", "epoch_loss", "ce_loss")]
    assert [known.rank for known in ranks if known] == sorted(
        known.rank for known in ranks if known
    )


def test_names_are_folded_and_prefixed_with_their_split() -> None:
    assert fold("  Grad-Norm ") == fold("grad.norm") == fold("GradNorm") == "grad_norm"
    assert name_in("test", "loss") == "test_loss"
