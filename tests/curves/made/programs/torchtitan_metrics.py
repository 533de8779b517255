"""torchtitan's MetricsProcessor: the coloured lines of its own class and logger."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

from torchtitan.components import metrics as titan  # type: ignore[import-not-found]
from torchtitan.tools.logging import init_logger, logger  # type: ignore[import-not-found]

from tests.curves.made.truth import note


class Memory:
    """A GPU's memory where there is none."""

    device_name = "NVIDIA H100"

    def get_peak_stats(self) -> SimpleNamespace:
        """Return what is constant in a run."""
        counts = {"num_alloc_retries": 0, "num_ooms": 0}
        active = {"max_active_gib": 41.2, "max_active_pct": 52.1}
        return SimpleNamespace(**active, **counts, max_reserved_gib=47.96, max_reserved_pct=60.67)

    def reset_peak_stats(self) -> None:
        """Have nothing to forget."""


def main() -> None:
    """Log a run."""
    random.seed(7)
    init_logger()
    logger.info("Starting job: tiny")
    whole = SimpleNamespace(non_data_parallel_size=1)
    titan.build_device_memory_monitor = Memory
    settings = titan.MetricsProcessor.Config(log_freq=10)
    metrics = titan.MetricsProcessor(settings, parallel_dims=whole)
    metrics.num_flops_per_token = 10**9
    logger.info("Training starts at step 1")
    loss = 8.1
    for step in range(1, 201):
        loss = 3.0 + (loss - 3.0) * 0.985 + random.gauss(0, 0.02)
        metrics.ntokens_since_last_log += 4096
        metrics.data_loading_times.append(1e-4)
        if metrics.should_log(step):
            norm = 0.8 + loss / 4
            time.sleep(0.01)
            metrics.log(step, loss, loss + 0.1, norm)
            note(step, loss=f"{loss:8.5f}", grad_norm=f"{norm:7.4f}")
        if step % 100 == 0:
            metrics.ntokens_since_last_log += 4096
            time.sleep(0.01)
            metrics.log_validation(loss + 0.05, step)
            note(step, eval_loss=f"{loss + 0.05:7.4f}")
    logger.info("Training completed")


if __name__ == "__main__":
    main()
