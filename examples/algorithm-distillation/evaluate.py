"""Evaluate in-context learning: several episodes in rooms with goals not used in training."""

from __future__ import annotations

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from darkroom import ACTIONS, NO_ACTION, NO_REWARD, Ints, Room
from model import Distiller, Past


@torch.no_grad()
def in_context_returns(
    accelerator: Accelerator, policy: Distiller, room: Room, goals: Ints,
    *, episodes: int, repeats: int, seed: int, keep_context: bool,
) -> Tensor:  # fmt: skip
    """Play `repeats` lives of `episodes` episodes for each of the goals [n, 2].

    Returns the mean return of each episode, [episodes], the same on all ranks. The weights do not
    change, so any improvement from one episode to the next is due to the context. The control is
    `keep_context=False`, which clears the context at the start of each episode.

    Every rank must call this function: each plays a share of the lives, and the sums are reduced.
    If only the main process evaluated, the others would wait for it in their next collective, and
    fail when that times out (NCCL: 10 minutes).
    """
    lives = np.repeat(goals, repeats, axis=0)
    mine = np.arange(accelerator.process_index, len(lives), accelerator.num_processes)
    # Draw the noise of all lives on every rank, so that the result does not depend on their number.
    rng = np.random.default_rng(seed)
    total = torch.zeros(episodes, device=accelerator.device)
    past: list[Past] | None = None
    tokens = np.empty((len(mine), 4), np.int64)
    for episode in range(episodes):
        if not keep_context:
            past = None
        tokens[:, :2] = room.start(len(mine))
        tokens[:, 2:] = NO_ACTION, NO_REWARD
        for _ in range(room.horizon):
            with accelerator.autocast():
                step = torch.from_numpy(tokens[:, None]).to(accelerator.device)
                logits, past = policy.extend(step, past)
            # The argmax of logits plus Gumbel noise is a sample of their softmax.
            noise = rng.gumbel(size=(len(lives), ACTIONS))[mine]
            action = (logits[:, 0].float().cpu().numpy() + noise).argmax(axis=1)
            tokens[:, :2], reward = room.step(tokens[:, :2], action, lives[mine])
            tokens[:, 2], tokens[:, 3] = action, reward
            total[episode] += float(reward.sum())
    summed: Tensor = accelerator.reduce(total, reduction="sum")
    return summed.cpu() / len(lives)
