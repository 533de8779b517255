"""The tiny network trained by the programs, which learns a line."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def model(width: int = 16) -> nn.Sequential:
    """Create the network, always with the same weights."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def data(number: int = 64, seed: int = 1) -> TensorDataset:
    """Make samples of four features and what is to be learned of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 4, generator=generator)
    y = x @ torch.tensor([[1.5], [-2.0], [0.5], [1.0]]) + 0.3
    return TensorDataset(x, y + 0.1 * torch.randn(number, 1, generator=generator))


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error."""
    return nn.functional.mse_loss(net(x), y)
