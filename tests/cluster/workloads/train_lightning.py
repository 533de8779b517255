"""Lightning's Trainer, with hpcrun's shape as its arguments."""

from __future__ import annotations

from typing import Any

import lightning
import task
import torch
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    """The task as a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = task.Model()

    def training_step(self, batch: Any, index: int) -> Any:
        """Return the loss of a micro batch."""
        return self.model(*batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return task.sgd(self)


def main() -> None:
    """Train."""
    module = Module()
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=task.number("RANKS_PER_NODE"),
        num_nodes=task.number("NODES"),
        strategy="ddp",
        max_epochs=task.STEPS,
        accumulate_grad_batches=task.number("GRADIENT_ACCUMULATION_STEPS"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(task.data(), batch_size=task.number("MICRO_BATCH_PER_GPU")))
    strategy: Any = trainer.strategy
    environment = type(strategy.cluster_environment).__name__
    task.tell(module.model, rank=trainer.global_rank, world=trainer.world_size,
              steps=trainer.global_step, kind=environment)  # fmt: skip
    del trainer
    task.leave()


if __name__ == "__main__":
    main()
