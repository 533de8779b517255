"""Look whether the ranks work together, before an hour is spent on a training that does not."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import nn

_CALLS = itertools.count()  # each check has keys of its own


def host() -> str:
    """Name this node: as Slurm does, where there is one."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def card(device: torch.device) -> str:
    """Name a rank's GPU as it is on its host: each rank may call its own cuda:0."""
    if device.type != "cuda":
        return str(device)
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device))


class SetupError(RuntimeError):
    """What is wrong with the set-up, and on which rank."""


def model_hash(model: nn.Module) -> str:
    """Hash the names and values of all parameters, before ZeRO shards them."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def check_ranks(
    expected: int, device: torch.device, facts: Mapping[str, Any], *, timeout: float = 180
) -> str:
    """Insist that ``expected`` ranks are there, agree on the ``facts`` and can add up.

    Call it on all ranks, after init_process_group, which itself waits for all to connect. Who is
    missing since is told after ``timeout`` seconds, where a collective of the training would wait
    for ten minutes and name nobody. Returns a line to print; raises SetupError, which names the
    rank, on every rank that can still tell. Where NCCL hangs while it adds up, its watchdog ends
    the process after ``timeout``.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world != expected:
        # Each rank trains alone and calls itself rank 0 when the launcher's variables are lost.
        raise SetupError(
            f"rank {rank} on {host()}: {world} ranks are connected, not {expected}: was every "
            "rank started by the launcher?"
        )
    told = _roll_call({**facts, "host": host(), "device": card(device)}, timeout)
    _compare(told, shared=facts.keys())
    # Over the training's own backend, NCCL on GPUs, but with less patience.
    group = dist.new_group(timeout=timedelta(seconds=timeout))
    total = torch.tensor(float(rank), device=device)
    dist.all_reduce(total, group=group)
    dist.destroy_process_group(group)
    if total.item() != world * (world - 1) / 2:
        raise SetupError(f"rank {rank}: the ranks' numbers add up to {total.item():g}")
    hosts = len({each["host"] for each in told})
    agreed = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"{world} ranks on {hosts} {'host' if hosts == 1 else 'hosts'} agree: {agreed}"


def _roll_call(mine: Mapping[str, Any], timeout: float) -> list[dict[str, Any]]:
    """Give what each rank says, in their order; by the store, which works where NCCL does not."""
    rank, world = dist.get_rank(), dist.get_world_size()
    store = c10d.PrefixStore(f"check {next(_CALLS)}", c10d._get_default_store())
    store.set(str(rank), json.dumps(mine))
    deadline = time.monotonic() + timeout
    missing = []
    for each in range(world):
        try:
            left = max(0.1, deadline - time.monotonic())
            store.wait([str(each)], timedelta(seconds=left))
        except RuntimeError:
            missing.append(str(each))
    if missing:
        raise SetupError(
            f"rank {rank} on {host()}: nothing heard of rank {', '.join(missing)} for "
            f"{timeout:g} s: its log, or its node, will tell"
        )
    return [json.loads(store.get(str(each))) for each in range(world)]


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
