"""torchtune's loggers beside the bar that its recipes draw: stdout, or the file of DiskLogger."""

from __future__ import annotations

import random
import sys
import time

from torchtune.training.metric_logging import (  # type: ignore[import-not-found]
    DiskLogger,
    StdoutLogger,
)
from tqdm import tqdm  # type: ignore[import-untyped]

from tests.curves.made.truth import note

EPOCHS, STEPS = 2, 20


def main() -> None:
    """Log a run as the recipes do: a bar for each epoch, a step that counts through."""
    random.seed(7)
    logger = StdoutLogger() if sys.argv[1] == "stdout" else DiskLogger("logs", "log_1763622900.txt")
    step, loss = 0, 2.6
    for epoch in range(EPOCHS):
        bar = tqdm(total=STEPS)
        for _ in range(STEPS):
            step, loss = step + 1, 1.1 + (loss - 1.1) * 0.95 + random.gauss(0, 0.02)
            lr, speed = 2e-5 * min(1.0, step / 10), 57.8 + random.random()
            bar.update(1)
            bar.set_description(f"{epoch + 1}|{step}|Loss: {loss}")
            shown = {"loss": loss, "lr": lr, "tokens_per_second_per_gpu": speed}
            logger.log_dict({**shown, "peak_memory_active": 17.23, "grad_norm": 1 + loss / 9}, step)
            note(step, loss=loss, lr=lr, grad_norm=1 + loss / 9)
            time.sleep(0.03)
        bar.close()
    logger.close()


if __name__ == "__main__":
    main()
