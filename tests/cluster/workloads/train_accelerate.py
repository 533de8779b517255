"""Accelerate, with and without DeepSpeed: the script does not say which."""

from __future__ import annotations

import os

import task
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch.utils.data import DataLoader


def main() -> None:
    """Train."""
    # On CPUs Accelerate finds no backend for DeepSpeed by itself; on GPUs this says nccl.
    backend = InitProcessGroupKwargs(backend=os.environ["HPCRUN_BACKEND"])
    accelerator = Accelerator(kwargs_handlers=[backend])
    model = task.Model()
    loader = DataLoader(task.data(), batch_size=task.number("MICRO_BATCH_PER_GPU"))
    prepared, optimizer, loader = accelerator.prepare(model, task.sgd(model), loader)
    for _ in range(task.STEPS):
        for x, y in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(x, y)["loss"])
                optimizer.step()
                optimizer.zero_grad()
    task.tell(
        model,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        accumulate=accelerator.gradient_accumulation_steps,
        precision=accelerator.mixed_precision,
        kind=accelerator.distributed_type.value,
    )
    del prepared, optimizer
    task.leave()


if __name__ == "__main__":
    main()
