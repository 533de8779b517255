"""Check that the ranks work together before the training starts."""

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

_CALLS = itertools.count()  # each check uses its own keys


def host() -> str:
    """Return the name of this node, as Slurm calls it if there is a Slurm."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def card(device: torch.device) -> str:
    """Return a name of a rank's GPU that is unique on its host, where each rank may use cuda:0."""
    if device.type != "cuda":
        return str(device)
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device))


class SetupError(RuntimeError):
    """An error of the setup, with the rank on which it occurred."""


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
    """Check that ``expected`` ranks exist, agree on the ``facts`` and can run an all-reduce.

    Call this on all ranks after init_process_group, which waits for all ranks to connect. A rank
    that hangs afterwards is reported after ``timeout`` seconds; a collective of the training would
    wait for ten minutes and name no rank. Returns a line to print; raises SetupError, which names
    the rank, on every rank that still responds. If NCCL hangs in the all-reduce, its watchdog ends
    the process after ``timeout``.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world != expected:
        # If the launcher's variables are lost, each rank trains alone, as rank 0.
        raise SetupError(
            f"rank {rank} on {host()}: {world} ranks are connected, not {expected}: was every "
            "rank started by the launcher?"
        )
    told = _roll_call({**facts, "host": host(), "device": card(device)}, timeout)
    _compare(told, shared=facts.keys())
    # Use the backend of the training (NCCL on GPUs), but with a shorter timeout.
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
    """Gather the values of all ranks, in order, through the store, which does not need NCCL."""
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
    """Compare every rank with rank 0, and the GPUs of each host with each other."""
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
