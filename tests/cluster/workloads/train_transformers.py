"""The Trainer of transformers, with and without DeepSpeed: the script does not say which."""

from __future__ import annotations

import os
from typing import Any

import task
from torch import Tensor, stack
from transformers import Trainer, TrainingArguments


def collate(samples: list[Any]) -> dict[str, Tensor]:
    """Make a batch of the model's two arguments."""
    return {"x": stack([x for x, _ in samples]), "y": stack([y for _, y in samples])}


def main() -> None:
    """Train."""
    arguments = TrainingArguments(
        output_dir=f"{os.environ['HPCRUN_CHECKPOINT_DIR']}/trainer",
        ddp_backend=os.environ["HPCRUN_BACKEND"],
        per_device_train_batch_size=task.number("MICRO_BATCH_PER_GPU"),
        gradient_accumulation_steps=task.number("GRADIENT_ACCUMULATION_STEPS"),
        optim="sgd",
        learning_rate=task.LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=task.STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    )
    model = task.Model()
    trainer = Trainer(model, arguments, collate, train_dataset=task.data())
    trainer.train()
    task.tell(
        model,
        rank=arguments.process_index,
        world=arguments.world_size,
        precision=trainer.accelerator.mixed_precision,
        kind=trainer.accelerator.distributed_type.value,
        losses=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    )
    del trainer
    task.leave()


if __name__ == "__main__":
    main()
