"""DeepSpeed's own engine on gloo: what it says by itself, and what a script prints beside it.

loss       rank 0 prints "Epoch 0, Step 10, Loss: 1.2345" beside the engine's lines
silent     the engine's lines alone, at level info: lr and throughput, no loss
pipeline   the pipeline engine, which prints its loss itself
"""

from __future__ import annotations

import gc
import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.utils import see_memory_usage
from deepspeed.utils.logging import set_log_level_from_string
from torch import nn

from tests.curves.made.programs import tiny
from tests.curves.made.truth import note

STEPS, PRINT = 40, 5
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "steps_per_print": PRINT,
    "wall_clock_breakdown": True,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def plain(how: str) -> None:
    """Train with the engine."""
    if how == "silent":
        set_log_level_from_string("info")
    net = tiny.model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=optimizer, lr_scheduler=schedule, config=CONFIG
    )
    see_memory_usage("After initialize", force=True)
    rank = dist.get_rank()
    if rank == 0 and how == "silent":
        note(0, lr=5e-3)  # it says so when it is set up
    x, y = tiny.data(256).tensors
    for step in range(1, STEPS + 1):
        here = torch.arange(rank, 256, 2)[torch.randperm(128)[:4]]
        loss = tiny.loss_of(engine, x[here], y[here])
        engine.backward(loss)
        engine.step()
        if step % PRINT:
            continue
        if rank == 0 and how == "silent":
            note(step, lr=float(schedule.get_last_lr()[0]))
        elif rank == 0:
            print(f"Epoch 0, Step {step}, Loss: {loss.item():.4f}", flush=True)
            note(step, loss=f"{loss.item():.4f}")
    see_memory_usage("After training", force=True)
    engine.destroy()


def pipeline() -> None:
    """Train with the pipeline engine, a stage on each rank."""
    torch.manual_seed(7)
    layers = [nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1)]
    net = PipelineModule(layers, num_stages=2, loss_fn=nn.MSELoss(), seed_layers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    config = {**CONFIG, "wall_clock_breakdown": False, "zero_optimization": {"stage": 0}}
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    x, y = tiny.data(256).tensors
    batches = iter([(x[i : i + 4], y[i : i + 4]) for i in range(0, 240, 4)])
    for step in range(1, STEPS + 1):
        loss = engine.train_batch(batches)
        if step % PRINT == 0 and dist.get_rank() == 0:
            note(step, loss=f"{loss.item():.4f}")


if __name__ == "__main__":
    deepspeed.init_distributed()
    pipeline() if sys.argv[1] == "pipeline" else plain(sys.argv[1])
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
