"""A small causal transformer that predicts an agent's next action from its history."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from darkroom import ACTIONS, NO_ACTION, NO_REWARD

# Keys and values of one layer for all steps so far: [batch, heads, steps, width / heads].
Past = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Attention and a feed-forward layer, each with pre-normalisation and a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        """Create a layer with `width` features and `heads` attention heads."""
        super().__init__()
        self.heads = heads
        self.norm_in, self.norm_mid = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        """Map [batch, steps, width] to the same shape. With a past, `steps` must be 1."""
        q, k, v = self.qkv(self.norm_in(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_mid(x)), (k, v)


class Distiller(nn.Module):
    """The policy: maps a context of steps to the logits of the next action."""

    def __init__(self, *, size: int, context: int, width: int, layers: int, heads: int) -> None:
        """Create a policy for rooms of `size` x `size` cells and at most `context` steps."""
        super().__init__()
        # Embed x and y separately: cells that were never goals in training have known parts.
        counts = (size, size, NO_ACTION + 1, NO_REWARD + 1)
        self.parts = nn.ModuleList(nn.Embedding(count, width) for count in counts)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, ACTIONS)
        for embedding in (*self.parts, self.position):
            nn.init.normal_(embedding.weight, std=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [batch, steps, 4] to logits [batch, steps, ACTIONS]."""
        return self.extend(tokens, None)[0]

    def extend(self, tokens: Tensor, past: list[Past] | None) -> tuple[Tensor, list[Past]]:
        """Map tokens that follow a past; return their logits and the extended past."""
        seen = past[0][0].shape[2] if past else 0
        steps = torch.arange(seen, seen + tokens.shape[1], device=tokens.device)
        x = self.position(steps)
        for part, values in zip(self.parts, tokens.unbind(dim=2), strict=True):
            x = x + part(values)
        pasts = []
        for i, block in enumerate(self.blocks):
            x, new = block(x, past[i] if past else None)
            pasts.append(new)
        return self.head(self.norm(x)), pasts
