"""Parametric shapes generated from seeds, as CAD programs, captions, point clouds and pictures.

Every shape is a box or a cylinder with a hole through it. Its program is a sequence of commands in
the style of DeepCAD (Wu et al. 2021, arXiv 2105.09492): outlines of lines and circles, extruded
or cut. The three inputs complement each other:

    caption   the kind of shape and its outline
    points    also the height (points are on the hull, which does not include the hole)
    picture   also the position of the hole (seen from above, without the height)

The lowest loss of each stage of the curriculum is therefore known: see ``floor``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

Item = dict[str, Tensor]

LEVELS = 8  # equally likely values of each parameter
CENTRE = 32  # the sketch plane is 64 x 64
HOLE = 6  # radius of the hole
NUMBERS = [str(number) for number in range(2 * CENTRE + 1)]
COMMANDS = ["SKETCH", "LINE", "CIRCLE", "EXTRUDE", "MOVE", "CUT", "END"]
WORDS = ["a", "box", "cylinder", "by", "across", "with", "hole"]
VOCABULARY = {word: index for index, word in enumerate(["PAD", *COMMANDS, *WORDS, *NUMBERS])}

MAX_TOKENS = 30  # the longest caption and program
POINTS = 64
PIXELS = 16
SIGHT = 44  # width of the part that a picture shows: too small to include an outline
IGNORED = -100  # label of tokens that are not part of the loss


@dataclass(frozen=True)
class Shape:
    """A box, or a cylinder (whose diameter is ``width`` and ``depth``), with a hole.

    The outline begins at its own corner 0 0; the position of the hole is relative to the centre of
    the outline, which is ``CENTRE`` on each axis of its sketch.
    """

    is_box: bool
    width: int
    depth: int
    height: int
    hole: int


def make_shape(rng: np.random.Generator) -> Shape:
    """Draw each parameter from its ``LEVELS`` values; every hole is within every outline."""
    is_box, (width, depth, height, hole) = bool(rng.integers(2)), rng.integers(LEVELS, size=4)
    return Shape(
        is_box=is_box,
        width=48 + 2 * int(width),
        depth=48 + 2 * int(depth if is_box else width),
        height=4 + 4 * int(height),
        hole=CENTRE - 14 + 4 * int(hole),
    )


def caption(shape: Shape) -> list[str]:
    """Describe the outline, but neither the height nor the position of the hole."""
    if shape.is_box:
        return f"a box {shape.width} by {shape.depth} with a hole".split()
    return f"a cylinder {shape.width} across with a hole".split()


def program(shape: Shape) -> list[str]:
    """Return the commands that create the shape: an extruded outline and a cut hole."""
    w, d = shape.width, shape.depth
    outline = f"LINE {w} 0 LINE {w} {d} LINE 0 {d} LINE 0 0" if shape.is_box else f"CIRCLE {w}"
    hole = f"SKETCH CIRCLE {2 * HOLE} MOVE {shape.hole} CUT"
    return f"SKETCH {outline} EXTRUDE {shape.height} {hole} END".split()


def floor(stage: int, shapes: Sequence[Shape]) -> float:
    """Return the lowest possible loss of a stage on these shapes, in nats per token.

    Each unknown parameter has one of ``LEVELS`` equally likely values. Unknown are the height and
    the position of the hole with captions only, the position with points, and nothing with
    pictures.
    """
    untold = 3 - stage
    share = sum(1 / len(program(shape)) for shape in shapes) / len(shapes)
    return untold * math.log(LEVELS) * share


def point_cloud(shape: Shape, rng: np.random.Generator) -> NDArray[np.float32]:
    """Sample (POINTS, 3) on the hull, a quarter each on top and bottom, all within -1 .. 1."""
    angle = rng.uniform(0, 2 * math.pi, POINTS)
    flat = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if shape.is_box:
        flat /= np.abs(flat).max(axis=1, keepdims=True)
    z = rng.uniform(0, 1, POINTS)
    caps = POINTS // 4
    z[:caps], z[caps : 2 * caps] = 1.0, 0.0
    flat[: 2 * caps] *= np.sqrt(rng.uniform(0, 1, (2 * caps, 1)))
    flat *= np.array([shape.width, shape.depth]) / (2 * CENTRE)
    return np.concatenate([flat, 2 * z[:, None] * shape.height / CENTRE - 1], axis=1, dtype="f4")


def picture(shape: Shape) -> NDArray[np.float32]:
    """Draw (1, PIXELS, PIXELS), the middle seen from above: the hole is 1, everything else 0."""
    at = CENTRE + (np.arange(PIXELS) - (PIXELS - 1) / 2) * SIGHT / PIXELS
    away = np.hypot(at[None, :] - shape.hole, at[:, None] - CENTRE)
    return np.clip(HOLE + 0.5 - away, 0, 1).astype(np.float32)[None]


class Shapes(Dataset[Item]):
    """A dataset of shapes, each generated from ``seed`` and its number; ``stage`` is 1 to 3.

    An item holds ``tokens`` and ``labels`` (MAX_TOKENS), from stage 2 on ``points`` (POINTS, 3), in
    stage 3 ``pictures`` (1, PIXELS, PIXELS). The caption is not part of the loss.
    """

    def __init__(self, count: int, seed: int, stage: int) -> None:
        self.count, self.seed, self.stage = count, seed, stage

    def __len__(self) -> int:
        return self.count

    def shape(self, index: int) -> Shape:
        """Generate only the shape of a sample."""
        return make_shape(np.random.default_rng([self.seed, index]))

    def __getitem__(self, index: int) -> Item:
        rng = np.random.default_rng([self.seed, index])
        shape = make_shape(rng)
        given, wanted = caption(shape), program(shape)
        tokens = torch.zeros(MAX_TOKENS, dtype=torch.long)
        words = [VOCABULARY[word] for word in given + wanted]
        tokens[: len(words)] = torch.tensor(words)
        labels = torch.full_like(tokens, IGNORED)
        labels[len(given) : len(words)] = tokens[len(given) : len(words)]
        item = {"tokens": tokens, "labels": labels}
        if self.stage >= 2:
            item["points"] = torch.from_numpy(point_cloud(shape, rng))
        if self.stage >= 3:
            item["pictures"] = torch.from_numpy(picture(shape))
        return item
