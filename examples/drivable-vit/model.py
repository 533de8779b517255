"""A vision transformer for several cameras over time: spatial, cross-view and temporal layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention among the tokens of a group, then an MLP, both with pre-normalisation.

    The three kinds of layers differ only in the definition of a group.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map [groups, tokens, dim] to the same shape."""
        groups, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(groups, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(groups, tokens, dim))
        return x + self.mlp(self.norm2(x))


class DrivableViT(nn.Module):
    """Maps the pictures of all cameras in all frames to the drivable region in the newest frame."""

    def __init__(
        self, *, image_size: int, patch_size: int, views: int, frames: int, dim: int, heads: int,
        spatial_layers: int, cross_view_layers: int, temporal_layers: int,
        activation_checkpointing: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if image_size % patch_size or dim % heads:
            raise ValueError("patch_size must divide image_size, and heads dim")
        self.patch_size, self.side = patch_size, image_size // patch_size
        self.activation_checkpointing = activation_checkpointing
        self.embed = nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size)
        # Of the same scale as the patch embeddings, so that layers use positions from the start.
        self.where = nn.Parameter(torch.randn(self.side**2, dim) * 0.5)  # position in the picture
        self.which = nn.Parameter(torch.randn(views, 1, dim) * 0.5)  # camera
        self.when = nn.Parameter(torch.randn(frames, 1, 1, dim) * 0.5)

        def blocks(count: int) -> nn.ModuleList:
            return nn.ModuleList(Block(dim, heads) for _ in range(count))

        self.spatial = blocks(spatial_layers)
        self.cross_view = blocks(cross_view_layers)
        self.temporal = blocks(temporal_layers)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, patch_size**2)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of the newest frame, [batch, views, size, size].

        ``pictures`` are [batch, frames, views, 3, size, size].
        """
        batch, frames, views = pictures.shape[:3]
        patches = self.embed(pictures.flatten(0, 2)).flatten(2).transpose(1, 2)
        tokens, dim = patches.shape[1:]
        x = patches.view(batch, frames, views, tokens, dim) + self.where + self.which + self.when
        # Groups: one picture; all pictures of a frame; one position of one camera over time.
        x = self._through(self.spatial, x.flatten(0, 2))
        x = self._through(self.cross_view, x.reshape(batch * frames, views * tokens, dim))
        x = x.reshape(batch, frames, views * tokens, dim).transpose(1, 2).flatten(0, 1)
        x = self._through(self.temporal, x)
        x = self.head(self.norm(x[:, -1]))
        # Each token predicts the pixels of its patch.
        x = x.view(batch, views, self.side, self.side, self.patch_size, self.patch_size)
        size = self.side * self.patch_size
        return x.transpose(3, 4).reshape(batch, views, size, size)

    def _through(self, blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for block in blocks:
            if self.activation_checkpointing and self.training:
                # Store only the input of the block, and recompute the rest in backward.
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x
