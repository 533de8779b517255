"""One small training task for all frameworks: each optimizer step takes the whole data set.

Whatever the number of ranks, of micro batches and of accumulation steps, plain gradient descent on
the mean loss then gives one and the same curve: a sum where a mean should be, a rank that trains
alone, or a batch that is counted twice gives another. Scripts import nothing else of the tests.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SAMPLES = 16
STEPS = 4
LEARNING_RATE = 0.05


def data() -> TensorDataset:
    """Make 16 samples of three features, and what is to be learned of them."""
    x = torch.linspace(-1.0, 1.0, SAMPLES * 3).reshape(SAMPLES, 3).sin()
    y = x @ torch.tensor([[0.5], [-0.25], [0.125]]) + 0.1
    return TensorDataset(x, y)


class Model(nn.Module):
    """A linear model that gives its own loss, as models for the Trainer do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.samples = 0

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error of a micro batch, and count its samples."""
        self.samples += len(x)
        # Under DeepSpeed the parameters may be of 16 bits.
        found = self.layer(x.to(self.layer.weight.dtype))
        return {"loss": nn.functional.mse_loss(found.float(), y)}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer: plain gradient descent, which shows every wrong scale."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def number(name: str) -> int:
    """Read one of hpcrun's variables, as in MICRO_BATCH_PER_GPU."""
    return int(os.environ[f"HPCRUN_{name}"])


def expected() -> list[float]:
    """Train in this process alone: the loss before each step, and after the last."""
    model, (x, y) = Model(), data().tensors
    optimizer, losses = sgd(model), []
    for _ in range(STEPS):
        loss = model(x, y)["loss"]
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*losses, model(x, y)["loss"].item()]


def tell(model: Model, **facts: Any) -> None:
    """Print what this rank found: samples that it saw, and the loss on all data in the end.

    Also the names of the variables with which its process was started.
    """
    seen = model.samples
    x, y = data().tensors
    with torch.no_grad():
        parameter = next(model.parameters())
        final = model(x.to(parameter.device), y.to(parameter.device))["loss"].item()
    started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    names = [each.partition(b"=")[0].decode() for each in started_with if each]
    told = {"samples": seen, "final": final, "variables": names, **facts}
    print("told " + json.dumps(told), flush=True)


def leave() -> None:
    """End the process group when all ranks are done: gloo may abort while a peer still talks."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print(json.dumps(expected()))
