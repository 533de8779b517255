"""Canonical names of metrics, and the words by which logs say where a value stands.

    loss                 training loss
    eval_loss            loss on the evaluation split
    lr                   learning rate
    grad_norm            norm of the gradients before clipping
    tokens_per_second    tokens per second, as the log counts them (of one device or of all)
    samples_per_second   samples per second, as the log counts them
    step_seconds         duration of one optimizer step, seconds
    memory_bytes         device memory, bytes (2**30 to the GiB)
    loss_scale           factor by which mixed precision scales the loss
    epoch                how far the passes over the data have come; with step, where a row stands

How logs spell these is in ``hpcrun.metrics.lines.spellings``. Every other name stays as a log has
it.
"""

from __future__ import annotations

import re
from functools import lru_cache

LOSS = "loss"
EVAL_LOSS = "eval_loss"
TEST_LOSS = "test_loss"
LR = "lr"
GRAD_NORM = "grad_norm"
TOKENS_PER_SECOND = "tokens_per_second"
SAMPLES_PER_SECOND = "samples_per_second"
STEP_SECONDS = "step_seconds"
MEMORY_BYTES = "memory_bytes"
LOSS_SCALE = "loss_scale"
EPOCH = "epoch"

# A line is a measurement only if it measures something: a rate schedule (lr) stands in
# configurations as well, beside words such as step, so lr and epoch alone prove nothing.
MEASURED = frozenset(
    {
        *(LOSS, EVAL_LOSS, TEST_LOSS, GRAD_NORM, TOKENS_PER_SECOND, SAMPLES_PER_SECOND),
        *(STEP_SECONDS, MEMORY_BYTES),
    }
)
LOSSES = frozenset({LOSS, EVAL_LOSS, TEST_LOSS})
# What a run has but once: an evaluation's lr is the run's.
OF_THE_RUN = frozenset({LR, MEMORY_BYTES, LOSS_SCALE, EPOCH})

SPLITS = {
    **dict.fromkeys(("train", "training", "trn", "train_inner"), "train"),
    **dict.fromkeys(("eval", "evaluation", "evaluating", "evaluate"), "eval"),
    **dict.fromkeys(("val", "valid", "validation", "validating", "validate", "dev"), "eval"),
    **dict.fromkeys(("test", "testing"), "test"),
}

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[^\w@+]+|_+")


def words(text: str) -> frozenset[str]:
    """Part a list of words.

    >>> sorted(words("loss lr"))
    ['loss', 'lr']
    """
    return frozenset(text.split())


# All as ``fold`` gives them.
SPLIT_SPELLINGS = words("split phase mode stage")
RANK_SPELLINGS = words("rank global_rank")
TOTAL_SPELLINGS = words("total_steps max_steps total_iters max_iters num_steps")

# Step and epoch with their ranks: the lowest on a line is its place. A counter of the whole run is
# trusted over one that may count within an epoch, and that over one of batches.
_STEPS = (
    "global_step train_global_step trainer_global_step training_global_step global_iteration "
    "global_iter num_updates train_num_updates valid_num_updates step steps train_step "
    "training_step current_steps current_step optimizer_step opt_step _step step_idx step_num "
    "global_steps update_step iteration iter iters iterations it itr niter iter_num train_iter "
    "train_iteration training_iteration total_timesteps timesteps timestep time_total_timesteps "
    "num_timesteps step_i updates batch batches minibatch mini_batch batch_idx "
    "micro_step episode round update"
)
_EPOCHS = (
    "epoch train_epoch epoch_num current_epoch ep trainer_epoch epoch_idx cur_epoch end_of_epoch "
    "epoch_loaded"
)
STEP_RANK = {spelling: rank for rank, spelling in enumerate(_STEPS.split())}
EPOCH_RANK = {spelling: rank for rank, spelling in enumerate(_EPOCHS.split())}


@lru_cache(maxsize=8192)
def fold(spelling: str) -> str:
    """Fold case and all that parts words.

    >>> fold("Grad Norm"), fold("train/loss"), fold("CurrSamplesPerSec")
    ('grad_norm', 'train_loss', 'curr_samples_per_sec')
    """
    parted = _CAMEL.sub("_", spelling).lower()
    return _NOT_WORD.sub("_", parted).strip("_")


def name_in(split: str, name: str) -> str:
    """Return the name of a metric in a split: what an evaluation took is not a training step's.

    >>> name_in("eval", "loss"), name_in("eval", "eval_loss"), name_in("eval", "lr")
    ('eval_loss', 'eval_loss', 'lr')
    >>> name_in("test", "accuracy"), name_in("eval", "val/acc"), name_in("train", "acc")
    ('test_accuracy', 'val/acc', 'acc')
    """
    if split in ("", "train") or name in OF_THE_RUN or split_of(name) in ("eval", "test"):
        return name
    return f"{split}_{name}"


@lru_cache(maxsize=8192)
def split_of(name: str) -> str:
    """Return the split that a name names, "" if none.

    >>> split_of("val/acc"), split_of("accuracy"), split_of("train_runtime")
    ('eval', '', 'train')
    """
    parts = fold(name).split("_")
    return SPLITS.get(parts[0], "") or SPLITS.get(parts[-1], "")


_NO_LOSS = words(
    "scale scaling weight coef coeff fn func function type name mode ratio factor ppl best min max "
    "patience threshold alpha lambda"
)
_SCORES = words(
    "acc accuracy ppl perplexity reward rewards map miou iou f1 bleu rouge wer cer auc dice psnr "
    "ssim return entropy kl precision recall score bpb mae mse rmse fid elbo nll top1 top5 "
    "acc1 acc5 acc@1 acc@5 prec@1 prec@5 hella hellaswag"
)


@lru_cache(maxsize=8192)
def like_a_loss(name: str) -> bool:
    """Tell whether a name is that of some loss.

    >>> like_a_loss("actor/pg_loss"), like_a_loss("loss_scale"), like_a_loss("RPNL1Loss")
    (True, False, True)
    """
    parts = fold(name).split("_")
    return any(part.endswith("loss") for part in parts) and _NO_LOSS.isdisjoint(parts)


@lru_cache(maxsize=8192)
def like_a_score(name: str) -> bool:
    """Tell whether a name is that of something that only a model under training or test has.

    >>> like_a_score("val/acc"), like_a_score("rewards/mean"), like_a_score("batch_size")
    (True, True, False)
    """
    return not _SCORES.isdisjoint(fold(name).split("_"))
