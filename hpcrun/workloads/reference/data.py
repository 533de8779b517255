"""Bytes are tokens; the global sample index says which bytes."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from arguments import World, refuse


def built_in_text() -> bytes:
    """Make 1.2 MB of text, always the same, with something to learn at every range.

    Spelling and grammar are learned first, then who holds what through the sentence, and last
    (by larger models) the sums.
    """
    draw = random.Random(2026)
    names = ["Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "John", "Leslie"]
    things = ["apple", "book", "candle", "drum", "kettle", "lantern", "ribbon", "stone"]
    places = ["in the garden", "at the harbour", "on the hill", "under the bridge"]
    lines = []
    for _ in range(12_000):
        giver, taker = draw.sample(names, 2)
        thing, place = draw.choice(things), draw.choice(places)
        some, more = draw.randrange(2, 50), draw.randrange(2, 50)
        lines.append(
            f"{giver} meets {taker} {place}. {taker} has {some} {thing}s and {giver} brings "
            f"{more} {thing}s, so {taker} has {some + more} {thing}s.\n"
        )
    return "".join(lines).encode()


def load_tokens(path: Path | None, seq_len: int) -> tuple[Tensor, Tensor]:
    """Return the bytes to train on and, the last tenth of the text, those to evaluate on."""
    if path is None:
        tokens = torch.frombuffer(bytearray(built_in_text()), dtype=torch.uint8)
    else:
        try:
            # Mapped, not read: a file may be larger than memory.
            size = path.stat().st_size
            tokens = torch.from_file(str(path), size=max(1, size), dtype=torch.uint8)[:size]
        except (OSError, RuntimeError) as error:
            refuse(f"--data {path}: {error}")
    window = seq_len + 1  # the inputs, and the target of the last of them
    if len(tokens) < 2 * window:
        least = f"{2 * window} bytes of data (a sample to train on, one to evaluate on)"
        refuse(f"--seq-len {seq_len} needs {least}, but there are {len(tokens)}")
    held_out = max(window, len(tokens) // 10)
    return tokens[:-held_out], tokens[-held_out:]


@lru_cache(maxsize=4)
def order_of_samples(count: int, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch goes through all samples."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 10_007 + epoch))


def sample(tokens: Tensor, seq_len: int, seed: int, index: int) -> Tensor:
    """Return the seq_len + 1 tokens of the sample with this global index."""
    count = (len(tokens) - 1) // seq_len
    epoch, place = divmod(index, count)
    start = int(order_of_samples(count, seed, epoch)[place]) * seq_len
    return tokens[start : start + seq_len + 1]


def micro_batches(
    tokens: Tensor, first_sample: int, arguments: argparse.Namespace, world: World
) -> Iterator[Tensor]:
    """Yield this rank's micro batches of the effective batch that begins at first_sample."""
    per_gpu = arguments.micro_batch_per_gpu
    for micro in range(arguments.gradient_accumulation_steps):
        first = first_sample + (micro * world.size + world.rank) * per_gpu
        indices = range(first, first + per_gpu)
        batch = [sample(tokens, arguments.seq_len, arguments.seed, index) for index in indices]
        yield torch.stack(batch).long().to(world.device)
