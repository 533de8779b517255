"""Canonical names of metrics, and the spellings under which logs print them.

Pure.

    loss                 training loss
    eval_loss            loss on the evaluation split
    lr                   learning rate
    grad_norm            norm of the gradients before clipping
    tokens_per_second    tokens per second, as the log counts them
    samples_per_second   samples per second, as the log counts them
    step_seconds         duration of one optimizer step, seconds
    memory_bytes         device memory, bytes (2**30 to the GiB)
    epoch, step          not metrics of their own: they say where a sample stands
"""

from __future__ import annotations

from functools import lru_cache

LOSS = "loss"
EVAL_LOSS = "eval_loss"
LR = "lr"
GRAD_NORM = "grad_norm"
TOKENS_PER_SECOND = "tokens_per_second"
SAMPLES_PER_SECOND = "samples_per_second"
STEP_SECONDS = "step_seconds"
MEMORY_BYTES = "memory_bytes"

# Spelling (lower case, blanks and dashes as underscores) -> canonical name, factor to its unit.
# A spelling that leaves the unit open (step_time, memory) is absent: see UNIT_SPELLINGS.
SPELLINGS: dict[str, tuple[str, float]] = {
    spelling: (name, factor)
    for name, factor, spellings in (
        (LOSS, 1.0, "loss train_loss training_loss lm_loss total_loss train/loss"),
        (
            EVAL_LOSS,
            1.0,
            "eval_loss evaluation_loss val_loss valid_loss validation_loss "
            "eval/loss val/loss valid/loss validation/loss",
        ),
        (LR, 1.0, "lr learning_rate learningrate train/lr train/learning_rate"),
        (GRAD_NORM, 1.0, "grad_norm gradient_norm gnorm gradnorm train/grad_norm"),
        (
            TOKENS_PER_SECOND,
            1.0,
            "tokens_per_second tokens_per_sec tokens/s tokens/sec tok/s tok/sec",
        ),
        (
            SAMPLES_PER_SECOND,
            1.0,
            "samples_per_second samples_per_sec samples/s samples/sec",
        ),
        (
            STEP_SECONDS,
            1.0,
            "step_seconds step_time_seconds step_time_s seconds_per_step sec_per_step s/step",
        ),
        (STEP_SECONDS, 1e-3, "step_time_ms ms_per_step ms/step"),
        (
            MEMORY_BYTES,
            1.0,
            "memory_bytes memory_allocated_bytes max_memory_allocated_bytes peak_memory_bytes",
        ),
    )
    for spelling in spellings.split()
}

# Spellings that say nothing of the unit: known only where the value carries one ("312ms", "48GiB").
UNIT_SPELLINGS: dict[str, str] = {
    "step_time": STEP_SECONDS,
    "iter_time": STEP_SECONDS,
    "time_per_step": STEP_SECONDS,
    "memory": MEMORY_BYTES,
    "mem": MEMORY_BYTES,
    "max_memory": MEMORY_BYTES,
    "peak_memory": MEMORY_BYTES,
    "memory_allocated": MEMORY_BYTES,
    "max_memory_allocated": MEMORY_BYTES,
}

# Unit as printed -> metric whose unit it scales to, factor. GB is 10**9 bytes and GiB 2**30: many
# programs print GB for GiB, and nothing in the log tells; the text is taken at its word.
UNITS: dict[str, tuple[str, float]] = {
    "s": (STEP_SECONDS, 1.0),
    "sec": (STEP_SECONDS, 1.0),
    "ms": (STEP_SECONDS, 1e-3),
    "us": (STEP_SECONDS, 1e-6),
    "B": (MEMORY_BYTES, 1.0),
    **{f"{p}B": (MEMORY_BYTES, 1e3 ** (i + 1)) for i, p in enumerate("KMGT")},
    **{f"{p}iB": (MEMORY_BYTES, 1024.0 ** (i + 1)) for i, p in enumerate("KMGT")},
}

# The first one found in a line is its step; a counter named global is trusted over a plain one.
STEP_SPELLINGS = (
    *("global_step", "train/global_step", "step", "train_step", "training_step"),
    *("current_steps", "iteration", "iter", "global_iteration"),
)
EPOCH_SPELLINGS = ("epoch", "train/epoch")
RANK_SPELLINGS = ("rank", "global_rank")
SPLIT_SPELLINGS = ("split", "phase", "mode")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("eval", "evaluation", "val", "valid", "validation"), "eval"),
    **dict.fromkeys(("test", "testing"), "test"),
}

# A line is a measurement only if it measures something: a rate schedule (lr) stands in
# configurations as well, beside words such as step, so lr and epoch alone prove nothing.
MEASURED = frozenset(
    {
        *(LOSS, EVAL_LOSS, GRAD_NORM, TOKENS_PER_SECOND, SAMPLES_PER_SECOND),
        *(STEP_SECONDS, MEMORY_BYTES),
    }
)
LOSSES = frozenset({LOSS, EVAL_LOSS})


@lru_cache(maxsize=4096)
def fold(spelling: str) -> str:
    """Fold case, blanks and dashes, which logs vary freely.

    >>> fold("Grad Norm"), fold("eval-loss")
    ('grad_norm', 'eval_loss')
    """
    return spelling.lower().replace(" ", "_").replace("-", "_")


@lru_cache(maxsize=4096)
def canonical(spelling: str) -> tuple[str, float]:
    """Return the canonical name of a spelling and the factor that brings it to its unit.

    An unknown spelling stays as it is.

    >>> canonical("val_loss"), canonical("step_time_ms"), canonical("reward/mean")
    (('eval_loss', 1.0), ('step_seconds', 0.001), ('reward/mean', 1.0))
    """
    return SPELLINGS.get(fold(spelling), (spelling, 1.0))


def with_unit(spelling: str, unit: str) -> tuple[str, float] | None:
    """Return name and factor for a value printed with a unit; None if the two do not go together.

    >>> with_unit("step_time", "ms"), with_unit("memory", "GiB"), with_unit("loss", "ms")
    (('step_seconds', 0.001), ('memory_bytes', 1073741824.0), None)
    """
    folded = fold(spelling)
    name = UNIT_SPELLINGS.get(folded) or SPELLINGS.get(folded, ("", 1.0))[0]
    measured, factor = UNITS.get(unit, ("", 1.0))
    return (name, factor) if name and name == measured else None
