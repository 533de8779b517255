"""The model: a GPT with pre-norm, rotary positions, GELU; no biases, no dropout."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Size(NamedTuple):
    """A model's shape, and the peak learning rate that suits it."""

    layers: int
    width: int
    heads: int
    lr: float


# One of the 256 bytes is a token, so nearly all parameters are in the layers: 12 x width^2 each.
SIZES = {
    "tiny": Size(layers=2, width=128, heads=4, lr=3e-3),
    "small": Size(layers=6, width=256, heads=8, lr=1e-3),
    "125m": Size(layers=18, width=768, heads=12, lr=6e-4),
    "350m": Size(layers=28, width=1024, heads=16, lr=3e-4),
    "1b": Size(layers=20, width=2048, heads=16, lr=2e-4),
}
VOCABULARY = 256


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair of features by its position's angle (rotary position embedding)."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Block(nn.Module):
    """One transformer layer: causal self-attention, then an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_output = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_input = nn.Linear(width, 4 * width, bias=False)
        self.mlp_output = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.transpose(1, 3).unbind(dim=2)  # each: batch, heads, tokens, features
        q, k = rotate(q, angles), rotate(k, angles)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_output(mixed.transpose(1, 2).flatten(2))
        mlp: Tensor = self.mlp_output(F.gelu(self.mlp_input(self.mlp_norm(x))))
        return x + mlp


class GPT(nn.Module):
    """Tokens in, mean cross-entropy of each next token out."""

    def __init__(self, size: Size, activation_checkpointing: bool) -> None:
        super().__init__()
        self.features = size.width // size.heads
        self.activation_checkpointing = activation_checkpointing
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.final_norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        # Not a buffer: zero.Init would make it in bf16, too coarse for positions.
        steps = torch.arange(0, 1, 2 / self.features, device=tokens.device)
        positions = torch.arange(inputs.shape[1], dtype=torch.float32, device=tokens.device)
        angles = torch.outer(positions, 10_000.0**-steps)
        x = self.embedding(inputs)
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, angles, use_reentrant=False)
            else:
                x = block(x, angles)
        logits = self.head(self.final_norm(x)).float()
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss


@torch.no_grad()
def initialise(model: GPT, size: Size, seed: int, gather: Any = nullcontext) -> None:
    """Draw each matrix from a generator of its own, on the CPU: the same under every strategy."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if "norm" in name:
            continue  # LayerNorm's ones
        deviation = 0.02
        if name.endswith("_output.weight"):  # these add up in the residual stream
            deviation /= math.sqrt(2 * size.layers)
        generator = torch.Generator().manual_seed(seed * 10_007 + index)
        with gather(parameter):
            parameter.copy_(deviation * torch.randn(parameter.shape, generator=generator))


def parameter_groups(model: GPT, weight_decay: float) -> list[dict[str, Any]]:
    """Decay the matrices, not the gains of the norms."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "norm" not in name], "weight_decay": weight_decay},
        {"params": [p for name, p in named if "norm" in name], "weight_decay": 0.0},
    ]
