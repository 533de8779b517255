"""Darkroom, and the Q-learning agents whose learning histories are distilled.

The agent moves in a square room with an invisible goal. It observes its own position, and gets a
reward of 1 for each step that ends on the goal. An episode begins in the middle and lasts a fixed
number of steps, so the optimal policy walks to the goal directly and stays there (Laskin et al.
2022, "Dark Room"). All agents of a batch step together, as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

Ints = NDArray[Any]

# Changes of (x, y): stay, right, left, up, down.
MOVES: Ints = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
ACTIONS = len(MOVES)
# Previous action and reward in the first token of an episode, which has no previous step.
NO_ACTION, NO_REWARD = ACTIONS, 2


@dataclass(frozen=True)
class Room:
    """A room of `size` x `size` cells, and episodes of `horizon` steps in it."""

    size: int
    horizon: int

    def cells(self) -> Ints:
        """Every cell as (x, y): [size * size, 2]."""
        return np.stack(np.divmod(np.arange(self.size**2), self.size), axis=1)

    def start(self, agents: int) -> Ints:
        """The start position of each agent: [agents, 2]."""
        return np.full((agents, 2), self.size // 2)

    def step(self, places: Ints, actions: Ints, goals: Ints) -> tuple[Ints, Ints]:
        """Move each agent, up to the walls; return places [agents, 2], rewards [agents], 0 or 1."""
        places = np.clip(places + MOVES[actions], 0, self.size - 1)
        return places, (places == goals).all(axis=1).astype(np.int64)

    def best_return(self, goals: Ints) -> Ints:
        """The return of an agent that knows the goal: [agents]."""
        steps_to_it = np.abs(goals - self.size // 2).sum(axis=1)
        best: Ints = self.horizon + 1 - np.maximum(steps_to_it, 1)
        return best


@dataclass(frozen=True)
class Histories:
    """Actions and rewards of agents while they learned, from the first episode to the last."""

    places: Ints  # [agents, episodes, horizon, 2]: where each step begins
    actions: Ints  # [agents, episodes, horizon]
    rewards: Ints  # [agents, episodes, horizon]: 0 or 1


def q_learning(
    room: Room, goals: Ints, *, episodes: int, rng: np.random.Generator,
    rate: float = 0.5, discount: float = 0.9,
) -> Histories:  # fmt: skip
    """Train one tabular Q-learner from scratch for each of the goals [agents, 2].

    Exploration is epsilon-greedy; epsilon falls from 1 to 0 in the first half of the episodes.
    """
    agents = np.arange(len(goals))
    values = np.zeros((len(goals), room.size**2, ACTIONS))
    shape = (len(goals), episodes, room.horizon)
    places = np.empty((*shape, 2), np.int8)
    actions, rewards = np.empty(shape, np.int8), np.empty(shape, np.int8)
    for episode in range(episodes):
        epsilon = max(0.0, 1 - 2 * episode / episodes)
        here = room.start(len(goals))
        for t in range(room.horizon):
            state = here @ [room.size, 1]
            # Ties are broken at random: an agent that has not found the goal yet walks randomly.
            noise = 1e-6 * rng.random((len(goals), ACTIONS))
            greedy = (values[agents, state] + noise).argmax(axis=1)
            explores = rng.random(len(goals)) < epsilon
            action = np.where(explores, rng.integers(ACTIONS, size=len(goals)), greedy)
            there, reward = room.step(here, action, goals)
            target = reward + discount * values[agents, there @ [room.size, 1]].max(axis=1)
            values[agents, state, action] += rate * (target - values[agents, state, action])
            places[:, episode, t], actions[:, episode, t] = here, action
            rewards[:, episode, t] = reward
            here = there
    return Histories(places, actions, rewards)


class Contexts(Dataset[tuple[Tensor, Tensor]]):
    """Training contexts: some episodes of one agent, from early to late ones.

    Sample i depends only on the seed and on i. N ranks that share the samples therefore see the
    same samples in each step as one rank with N times the batch size, and a resumed training sees
    the same samples as an uninterrupted one.
    """

    def __init__(self, histories: Histories, *, episodes: int, samples: int, seed: int) -> None:
        """Create `samples` samples of `episodes` episodes each."""
        self.histories, self.episodes = histories, episodes
        self.samples, self.seed = samples, seed

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return tokens [episodes * horizon, 4] and actions [episodes * horizon].

        A token describes one step: x, y, previous action, previous reward.
        """
        rng = np.random.default_rng([self.seed, index])
        agents, total, horizon = self.histories.actions.shape
        # Evenly spaced episodes, so that a context with few episodes covers all of the learning.
        agent, stride = rng.integers(agents), total // self.episodes
        taken = rng.integers(stride) + stride * np.arange(self.episodes)
        actions = self.histories.actions[agent, taken].astype(np.int64)
        tokens = np.empty((self.episodes, horizon, 4), np.int64)
        tokens[:, :, :2] = self.histories.places[agent, taken]
        tokens[:, 0, 2:] = NO_ACTION, NO_REWARD
        tokens[:, 1:, 2] = actions[:, :-1]
        tokens[:, 1:, 3] = self.histories.rewards[agent, taken, :-1]
        return torch.from_numpy(tokens.reshape(-1, 4)), torch.from_numpy(actions.reshape(-1))
