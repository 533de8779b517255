"""Plain DDP, as the PyTorch tutorial writes it."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import task
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train."""
    dist.init_process_group(os.environ["HPCRUN_BACKEND"])
    model = task.Model()
    wrapped = DistributedDataParallel(model)
    dataset, accumulate = task.data(), task.number("GRADIENT_ACCUMULATION_STEPS")
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=task.number("MICRO_BATCH_PER_GPU"), sampler=sampler)
    optimizer = task.sgd(model)
    for _ in range(task.STEPS):
        for index, (x, y) in enumerate(loader, 1):
            last = index % accumulate == 0
            with contextlib.nullcontext() if last else wrapped.no_sync():
                (wrapped(x, y)["loss"] / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    task.tell(model, rank=dist.get_rank(), world=dist.get_world_size())
    del wrapped
    task.leave()


if __name__ == "__main__":
    main()
