"""Synthetic driving scenes: several cameras, several frames, and the drivable region.

A scene is a panorama: sky and buildings above, road below their ragged edge, obstacles on the road.
The views of adjacent cameras overlap by half. The car turns slowly, so the panorama drifts from
frame to frame. In the newest frame one camera, which differs between scenes, is covered: its
picture is dark, and its view can be inferred only from its neighbours and from earlier frames.

Every scene is generated from (seed, index), so all processes have the same data without files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

Picture = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Scenes(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """``count`` scenes of ``views`` cameras and ``frames`` frames, pictures ``image_size`` square.

    A sample is (frames, drivable, covered): pictures [frames, views, 3, size, size] in about 0 to
    1, the newest frame last; the mask of that frame [views, size, size], 1 where drivable; and the
    number of the covered camera.
    """

    count: int
    views: int
    frames: int
    image_size: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        rng = np.random.default_rng([self.seed, index])
        size, stride = self.image_size, self.image_size // 2
        drift = int(rng.integers(-(size // 16), size // 16 + 1))  # pixels per frame
        margin = (size // 16) * (self.frames - 1)
        width = size + (self.views - 1) * stride + 2 * margin
        picture, drivable = panorama(rng, size, width)
        shots, masks = [], []
        for moment in range(self.frames):
            start = margin + drift * (moment - (self.frames - 1))
            for view in range(self.views):
                field = slice(start + view * stride, start + view * stride + size)
                shots.append(picture[:, :, field] * rng.uniform(0.8, 1.2))  # camera exposure
                masks.append(drivable[:, field])
        pictures = np.stack(shots).reshape(self.frames, self.views, 3, size, size)
        covered = int(rng.integers(self.views))
        pictures[-1, covered] = 0.0
        pictures = pictures + rng.normal(0.0, 0.05, pictures.shape)
        return (
            torch.from_numpy(pictures.astype(np.float32)),
            torch.from_numpy(np.stack(masks[-self.views :]).astype(np.float32)),
            torch.tensor(covered),
        )


def panorama(rng: np.random.Generator, height: int, width: int) -> tuple[Picture, Mask]:
    """Paint a panorama: the picture [3, height, width] in 0 to 1, and the drivable mask."""
    x, y = np.arange(width) / height, np.arange(height) / height
    edge = np.full(width, rng.uniform(0.3, 0.6))
    for waves in (0.4, 0.9, 1.7):  # periods per camera width
        edge += rng.uniform(0.0, 0.15) * np.sin(2 * np.pi * (waves * x + rng.uniform()))
    drivable = y[:, None] > edge[None, :]
    picture = np.where(drivable, rng.uniform(0.15, 0.3), rng.uniform(0.4, 1.0, (3, 1, 1)))
    for _ in range(max(1, round(width / height))):
        half, foot = rng.uniform(0.08, 0.16), rng.uniform(0.6, 1.0)
        across = np.abs(x - rng.uniform(0.0, width / height)) < half
        obstacle = ((y < foot) & (y > foot - 0.4))[:, None] & across[None, :]
        picture = np.where(obstacle, rng.uniform(0.4, 1.0, (3, 1, 1)), picture)
        drivable &= ~obstacle
    return picture.astype(np.float32), drivable
