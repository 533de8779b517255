"""Lightning's Trainer that saves and ends when it is asked to, as docs/survive.md has it."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import os
import signal

import curve
import lightning
import torch
from torch.utils.data import DataLoader


# doc: lightning
class SaveWhenAsked(lightning.Callback):
    """Save on all ranks at the end of the step in which one of them received SIGTERM."""

    def on_train_start(self, trainer, module):
        self.asked = []  # replaces Lightning's own handler, which ends the ranks
        signal.signal(signal.SIGTERM, lambda *_: self.asked.append(1))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.strategy.reduce_boolean_decision(bool(self.asked), all=False):
            folder = os.environ["HPCRUN_CHECKPOINT_DIR"]
            trainer.save_checkpoint(f"{folder}/step-{trainer.global_step}.ckpt")
            trainer.should_stop = True


class Skipping(DataLoader):
    """Resume within an epoch; Lightning saves the state of this loader in the checkpoint."""

    begin = done = 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for self.done, batch in enumerate(super().__iter__(), 1):
            if self.done > begin:
                yield batch

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.begin = state["done"]


# end


class Module(lightning.LightningModule):
    """The curve's model as a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = curve.Model()

    def on_train_batch_start(self, batch, batch_idx):
        """Draw the same dropout in step N, resumed or not: Lightning saves no random states."""
        torch.manual_seed(1000 * self.global_step + self.global_rank)

    def training_step(self, batch, index):
        """Return the loss of a batch."""
        loss = self.model(**batch)["loss"]
        curve.tell(self.global_step + 1, loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return curve.adam(self)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    args = parser.parse_args()
    module, loader = Module(), Skipping(curve.Samples(), curve.BATCH)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=curve.STEPS,
        callbacks=[SaveWhenAsked()],
        enable_checkpointing=False,
        **options,
    )
    # doc: lightning
    trainer.fit(module, loader, ckpt_path=args.resume)
    # end
    step = trainer.global_step
    del trainer
    curve.leave(module.model, step)


if __name__ == "__main__":
    main()
