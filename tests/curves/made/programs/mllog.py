"""MLPerf's logging of a run, by mlperf_logging itself."""

from __future__ import annotations

import random

from mlperf_logging import mllog  # type: ignore[import-not-found]

from tests.curves.made.truth import note

BATCH = 64


def main() -> None:
    """Log a run: the step is the number of samples seen."""
    random.seed(7)
    logger = mllog.get_mllogger()
    logger.event("cache_clear", True)
    logger.start("init_start")
    logger.event("submission_benchmark", "llama2_70b_lora")
    logger.event("global_batch_size", BATCH)
    logger.event("opt_base_learning_rate", 4e-4)
    logger.end("init_stop")
    logger.start("run_start")
    loss = 4.0
    for step in range(1, 41):
        loss = 1.2 + (loss - 1.2) * 0.93 + random.gauss(0, 0.02)
        seen = step * BATCH
        if step % 4 == 0:
            logger.event("train_loss", loss, {"samples_count": seen, "lr": 4e-4})
            note(seen, loss=loss)
        if step % 20 == 0:
            logger.start("eval_start", metadata={"samples_count": seen})
            logger.event("eval_loss", loss + 0.05, {"samples_count": seen})
            logger.end("eval_stop", metadata={"samples_count": seen})
            note(seen, eval_loss=loss + 0.05)
    logger.end("run_stop", metadata={"samples_count": seen, "status": "success"})


if __name__ == "__main__":
    main()
