"""One small training for the recipes of docs/survive.md: its curve tells whether a step was lost.

With dropout and Adam every step depends on all before it, and on the random numbers that it draws.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

STEPS = int(os.environ.get("TOTAL", "40"))
BATCH = 4
CHECKPOINTS = Path(os.environ["HPCRUN_CHECKPOINT_DIR"])


class Samples(Dataset[dict[str, Tensor]]):
    """As many as two ranks take, each with numbers of its own."""

    def __len__(self) -> int:
        return STEPS * BATCH * 2

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "y": x.sin().sum(0, keepdim=True)}


class Model(nn.Module):
    """A model that gives its own loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error of a batch."""
        return {"loss": nn.functional.mse_loss(self.layers(x), y)}


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def tell(step: int, loss: Tensor) -> None:
    """Print a step's loss, the mean of all ranks; steps take some time."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "loss": (mean / dist.get_world_size()).item()}), flush=True)
    time.sleep(float(os.environ.get("STEP", "0")))


def leave(model: nn.Module, step: int) -> None:
    """Print a hash of the weights where the training is over; leave the other ranks with them."""
    if step == STEPS:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print(json.dumps({"weights": digest.hexdigest()}), flush=True)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
