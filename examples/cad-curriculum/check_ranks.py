"""Look whether the ranks work together, before an hour is spent on a training that does not."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class SetupError(RuntimeError):
    """What is wrong with the set-up, and on which rank."""


def model_hash(model: nn.Module) -> str:
    """Hash the names and values of all parameters, before ZeRO shards them."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def check_ranks(
    expected: int, device: torch.device, facts: Mapping[str, Any], *, timeout: float = 60
) -> str:
    """Insist that ``expected`` ranks are there, agree on the ``facts`` and can add up.

    Call it on all ranks, after init_process_group. It takes at most ``timeout`` seconds a question,
    where a collective of the training would wait for ten minutes and name nobody. Returns a line
    to print; raises SetupError, which names the rank, on every rank that can still tell.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world != expected:
        # Each rank trains alone and calls itself rank 0 when the launcher's variables are lost.
        raise SetupError(
            f"rank {rank} on {platform.node()}: {world} ranks are connected, not {expected}: was "
            "every rank started by the launcher?"
        )
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    try:
        # With gloo, since NCCL's barrier names nobody.
        dist.monitored_barrier(group, timedelta(seconds=timeout), wait_all_ranks=True)
    except RuntimeError as error:
        raise SetupError(f"rank {rank} on {platform.node()}: {error}") from error
    told: list[dict[str, Any]] = [{} for _ in range(world)]
    mine = {**facts, "host": platform.node(), "device": str(device)}
    dist.all_gather_object(told, mine, group=group)
    _compare(told, shared=facts.keys())
    total = torch.tensor(float(rank), device=device)
    dist.all_reduce(total)  # the training's own backend: NCCL on GPUs
    if total.item() != world * (world - 1) / 2:
        raise SetupError(f"rank {rank}: the ranks' numbers add up to {total.item():g}")
    hosts = len({each["host"] for each in told})
    return f"{world} ranks on {hosts} hosts add up and agree: " + ", ".join(
        f"{name} {value}" for name, value in facts.items()
    )


def _compare(told: Sequence[Mapping[str, Any]], shared: Any) -> None:
    """Hold every rank against rank 0, and the GPUs of one host against each other."""
    wrong = [
        f"rank {rank} on {each['host']}: {name} is {each[name]}, rank 0 has {told[0][name]}"
        for rank, each in enumerate(told)
        for name in shared
        if each[name] != told[0][name]
    ]
    owners: dict[tuple[str, str], int] = {}
    for rank, each in enumerate(told):
        first = owners.setdefault((each["host"], each["device"]), rank)
        if each["device"] != "cpu" and first != rank:
            wrong.append(f"rank {rank} on {each['host']}: {each['device']} is rank {first}'s too")
    if wrong:
        raise SetupError("; ".join(wrong))
