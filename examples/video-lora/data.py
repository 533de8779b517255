"""Synthetic clips: a texture that drifts across the picture in the direction of its prompt.

A texture is a sum of plane waves with random amplitudes, so that every pixel is drawn from
N(0, 1), and a single pixel contains no information about its neighbours. The model can learn the
correlation of pixels within a frame and, from the prompt, between frames.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

PROMPTS = tuple(
    f"a texture that drifts {direction}"
    for direction in ("right", "down right", "down", "down left",
                      "left", "up left", "up", "up right")
)  # fmt: skip
COLOURS = 3
WAVES = ((1, 0), (0, 1), (1, 1), (1, -1))  # periods across the picture: x, y
SPEED = 1 / 16  # picture widths per frame
TEXT_TOKENS, TEXT_DIM = 4, 64


class Clips(Dataset[dict[str, Tensor]]):
    """Clips and noise for training, each sample generated from its number.

    The samples therefore do not depend on the number of GPUs, and a resumed run continues with the
    samples of an uninterrupted one. A sample is a dict of float32 tensors: ``clip`` and ``noise``
    of (colour, frame, y, x), ``time`` in [0, 1) of (), ``text`` of (token, feature).
    """

    def __init__(self, samples: int, frames: int, height: int, width: int, seed: int = 0) -> None:
        self.samples, self.seed = samples, seed
        self.shape = (COLOURS, frames, height, width)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Generate a sample."""
        source = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        prompt = int(torch.randint(len(PROMPTS), (), generator=source))
        amplitudes = torch.randn(COLOURS, len(WAVES), 2, generator=source)
        return {
            "clip": self.draw(prompt, amplitudes),
            "noise": torch.randn(self.shape, generator=source),
            "time": torch.rand((), generator=source),
            "text": encode(prompt),
        }

    def draw(self, prompt: int, amplitudes: Tensor) -> Tensor:
        """Draw a clip from amplitudes of (colour, wave, cosine or sine) that are N(0, 1)."""
        _, frames, height, width = self.shape
        angle = 2 * math.pi * prompt / len(PROMPTS)
        time = SPEED * torch.arange(frames)[:, None, None]
        y = torch.arange(height)[None, :, None] / height - math.sin(angle) * time
        x = torch.arange(width)[None, None, :] / width - math.cos(angle) * time
        phases = 2 * math.pi * torch.stack([across * x + down * y for across, down in WAVES])
        waves = torch.stack([phases.cos(), phases.sin()], dim=1)  # wave, 2, frame, y, x
        return torch.einsum("cws,wsfyx->cfyx", amplitudes, waves) / math.sqrt(len(WAVES))


def encode(prompt: int) -> Tensor:
    """Return fixed random features of (token, feature), in place of a frozen text encoder."""
    source = torch.Generator().manual_seed(prompt)
    return torch.randn(TEXT_TOKENS, TEXT_DIM, generator=source)


def levels(frames: int, height: int, width: int) -> dict[str, float]:
    """Return the loss of the best predictor for clips with the given degrees of freedom.

    The loss is the mean squared error of the flow, noise - clip, at a uniform time. A clip with
    d random numbers and n pixel values, all of variance 1, is Gaussian in a subspace of d
    dimensions with variance s = n / d in each. There the error of the best guess at time t is
    s / ((1 - t)^2 s + t^2) for each dimension, and zero outside; the mean over t is
    (pi / 2) sqrt(s), so over all values (pi / 2) sqrt(d / n). A single pixel has d = n.
    """
    numbers = COLOURS * len(WAVES) * 2
    frame = COLOURS * height * width
    return {
        "nothing": 2.0,
        "single pixels": math.pi / 2,
        "single frames": math.pi / 2 * math.sqrt(numbers / frame),
        "whole clips": math.pi / 2 * math.sqrt(numbers / (frame * frames)),
    }
