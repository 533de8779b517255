"""Does it learn in context? Episode after episode in rooms whose goals it was never trained on."""

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

    Returns the mean return of each episode, [episodes], the same on all ranks. The weights stay as
    they are: what improves from one episode to the next comes of the context. The control is
    `keep_context=False`, which empties it where an episode begins.

    Every rank must call it: each plays a share of the lives, and the sums are added up. Were the
    main process to evaluate alone, the others would wait for it in their next collective, and
    end the job when that times out (NCCL: 10 minutes).
    """
    lives = np.repeat(goals, repeats, axis=0)
    mine = np.arange(accelerator.process_index, len(lives), accelerator.num_processes)
    # Noise for all lives, so that the number of ranks changes none of them.
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
            # The largest of logits and Gumbel noise is a sample of their softmax.
            noise = rng.gumbel(size=(len(lives), ACTIONS))[mine]
            action = (logits[:, 0].float().cpu().numpy() + noise).argmax(axis=1)
            tokens[:, :2], reward = room.step(tokens[:, :2], action, lives[mine])
            tokens[:, 2], tokens[:, 3] = action, reward
            total[episode] += float(reward.sum())
    summed: Tensor = accelerator.reduce(total, reduction="sum")
    return summed.cpu() / len(lives)
