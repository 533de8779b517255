"""DeepSpeed's engine, from the JSON that hpcrun wrote."""

from __future__ import annotations

import os
from typing import Any

import deepspeed
import task
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train."""
    deepspeed.init_distributed()
    model, dataset = task.Model(), task.data()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=task.sgd(model), config=os.environ["HPCRUN_DEEPSPEED_CONFIG"]
    )
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=False)
    size = engine.train_micro_batch_size_per_gpu()
    for _ in range(task.STEPS):
        for x, y in DataLoader(dataset, batch_size=size, sampler=sampler):
            engine.backward(engine(x.to(engine.device), y.to(engine.device))["loss"])
            engine.step()
    facts = {"rank": dist.get_rank(), "world": dist.get_world_size()}
    task.tell(model, **facts, steps=engine.global_steps, batch=engine.train_batch_size(),
              stage=engine.zero_optimization_stage())  # fmt: skip
    engine.destroy()
    task.leave()


if __name__ == "__main__":
    main()
