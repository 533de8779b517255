"""Stable-Baselines3's logger: the tables that PPO prints, by its own class."""

from __future__ import annotations

import random
import sys

from stable_baselines3.common.logger import (  # type: ignore[import-not-found]
    HumanOutputFormat,
    Logger,
)

from tests.curves.made.truth import note


def main() -> None:
    """Print a table for each iteration."""
    random.seed(7)
    logger = Logger(None, [HumanOutputFormat(sys.stdout)])
    for iteration in range(1, 16):
        steps, value = iteration * 2048, 40.0 / iteration + random.random()
        reward = 20.0 + 10 * iteration + random.gauss(0, 3)
        logger.record("rollout/ep_len_mean", reward)
        logger.record("rollout/ep_rew_mean", reward)
        logger.record("time/fps", 1200 + iteration)
        logger.record("time/iterations", iteration)
        logger.record("time/time_elapsed", iteration * 2)
        logger.record("time/total_timesteps", steps)
        if iteration > 1:
            logger.record("train/approx_kl", 0.008 + random.random() / 1000)
            logger.record("train/entropy_loss", -0.69 + iteration / 100)
            logger.record("train/learning_rate", 3e-4)
            logger.record("train/loss", value)
            logger.record("train/n_updates", (iteration - 1) * 10)
            logger.record("train/value_loss", value * 2)
            note(steps, loss=f"{value:.3g}", lr=3e-4)
        logger.dump(steps)


if __name__ == "__main__":
    main()
