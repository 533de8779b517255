"""Two corpora of audio tokens generated from seeds, and their mixture for training.

A recording is one token that names its corpus, followed by frames of four codes, one of each
codebook, like those of a neural audio codec. Each code is derived from the previous one by a step
that depends on the corpus, plus noise; the loss of a perfect model is therefore known: ``floor``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset, interleave_datasets

PAD = 0
FIRST_NAME = 1  # the token of the first corpus; that of the second one is the next
FIRST_CODE = 3
CODEBOOKS = 4


@dataclass(frozen=True)
class Corpus:
    """A source of recordings.

    ``steps``: distance of a code from the previous one, for each codebook. ``noise``: probability
    of a random code instead. ``length`` and ``spread``: median of the lengths (relative to the
    requested one), and standard deviation of their logarithm.
    """

    name: str
    token: int
    steps: tuple[int, ...]
    noise: float
    length: float
    spread: float


CORPORA = (
    Corpus("read", FIRST_NAME, (1, 2, 3, 5), noise=0.05, length=1.0, spread=0.4),
    Corpus("talk", FIRST_NAME + 1, (4, 1, 6, 3), noise=0.15, length=1.5, spread=0.8),
)


def codes_of(vocabulary: int) -> int:
    """Return the number of codes per codebook for a vocabulary size."""
    return (vocabulary - FIRST_CODE) // CODEBOOKS


def record(corpus: Corpus, count: int, median: int, vocabulary: int, seed: int) -> Dataset:
    """Generate recordings: ``input_ids`` of (tokens,), ``length`` in tokens, and ``corpus``.

    The longest have 16 times as many tokens as the median.
    """
    random = np.random.default_rng([seed, corpus.token])
    codes = codes_of(vocabulary)
    typical = median * corpus.length
    lengths = typical * np.exp(corpus.spread * random.standard_normal(count))
    frames = np.clip(lengths / CODEBOOKS, 1, 16 * median / CODEBOOKS).astype(int)
    recordings = []
    for size in frames * CODEBOOKS:
        codebook = np.arange(size) % CODEBOOKS
        steps = np.asarray(corpus.steps)[codebook]
        noisy = random.random(size) < corpus.noise
        noisy[0] = True  # the first code is random
        steps[noisy] = random.integers(codes, size=noisy.sum())
        tokens = FIRST_CODE + codebook * codes + np.cumsum(steps) % codes
        recordings.append(np.concatenate([[corpus.token], tokens]).astype(np.int32))
    return Dataset.from_dict(
        {
            "input_ids": recordings,
            "length": [len(tokens) for tokens in recordings],
            "corpus": [corpus.name] * count,
        }
    )


def keep_short(dataset: Dataset, longest: int) -> Dataset:
    """Drop recordings of more than ``longest`` tokens."""
    return dataset.filter(lambda length: length <= longest, input_columns="length")


def with_lengths(dataset: Dataset) -> Dataset:
    """Add the ``length`` in tokens to the recordings of a user's dataset."""
    lengths = [len(ids) for ids in dataset["input_ids"]]
    return dataset.select_columns("input_ids").add_column("length", lengths)


def mix(datasets: Sequence[Dataset], weights: Sequence[float], seed: int) -> Dataset:
    """Draw from each corpus by its weight until one is exhausted; no recording is repeated."""
    total = sum(weights)
    return interleave_datasets(list(datasets), [weight / total for weight in weights], seed=seed)


def floor(dataset: Dataset, vocabulary: int) -> float:
    """Return the loss, in nats per token, of a perfect model of the corpora."""
    codes = codes_of(vocabulary)
    entropies = {}
    for corpus in CORPORA:
        other = corpus.noise / codes
        right = 1 - corpus.noise + other
        entropies[corpus.name] = -right * math.log(right) - (codes - 1) * other * math.log(other)
    nats, tokens = 0.0, 0
    for name, length in zip(dataset["corpus"], dataset["length"], strict=True):
        nats += math.log(codes) + (length - 2) * entropies[name]
        tokens += length - 1
    return nats / tokens


def collate(recordings: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad recordings to the longest one: (recordings, tokens) each."""
    rows = [torch.as_tensor(recording["input_ids"], dtype=torch.long) for recording in recordings]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    return {
        "input_ids": ids,
        "attention_mask": real.long(),
        "labels": ids.masked_fill(~real, -100),  # ignored by the loss
    }
