"""What the runs of a sweep are told apart by, in few words.

It imports nothing, for what lists runs must be quick.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def label(values: Mapping[str, str]) -> str:
    """Say a run's values in a few words.

    >>> label({"lr": "1e-4", "deepspeed.zero_stage": "2"})
    'lr=1e-4 zero_stage=2'
    """
    heads = column_names(values)
    return " ".join(f"{head}={value}" for head, value in zip(heads, values.values(), strict=True))


def column_names(keys: Collection[str]) -> list[str]:
    """Shorten a sweep's keys to their last part where that tells them apart.

    >>> column_names(["lr", "deepspeed.zero_stage"]), column_names(["env.a", "nccl.env.a"])
    (['lr', 'zero_stage'], ['env.a', 'nccl.env.a'])
    """
    last = [key.rpartition(".")[2] for key in keys]
    return [end if last.count(end) == 1 else key for key, end in zip(keys, last, strict=True)]
