"""DistributedDataParallel on gloo, two ranks that both print.

Each rank prints the loss of its own batches; `--mean` has rank 0 alone print the mean of all.
"""

from __future__ import annotations

import gc
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.curves.made.programs import tiny
from tests.curves.made.truth import note

STEPS = 30


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    print(f"[rank {rank}] hello from rank {rank} of {size}", flush=True)
    net = DistributedDataParallel(tiny.model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    x, y = tiny.data(256).tensors
    for step in range(1, STEPS + 1):
        here = torch.arange(rank, 256, size)[torch.randperm(128)[:8]]
        optimizer.zero_grad()
        loss = tiny.loss_of(net, x[here], y[here])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()
        optimizer.step()
        value = loss.detach()
        if "--mean" in sys.argv:
            dist.all_reduce(value)
            if rank == 0:
                mean = value.item() / size
                print(f"step={step} loss={mean:.6f} grad_norm={norm:.4f} lr=2.00e-02", flush=True)
                note(step, loss=f"{mean:.6f}", grad_norm=f"{norm:.4f}", lr="2.00e-02")
            continue
        print(f"[rank {rank}] step {step}/{STEPS} loss {value.item():.4f}", flush=True)
        if rank == 0:
            note(step, loss=f"{value.item():.4f}")
        if "--fail" in sys.argv and rank == 1 and step == 21:
            raise ValueError("Expected more than 1 value per channel when training")
    del net
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
