"""Lightning's Trainer: its tqdm bar, its rich bar, or what its CSVLogger writes."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tests.curves.made.programs import tiny
from tests.curves.made.truth import note

EPOCHS, BATCH = 3, 4


class Module(lightning.LightningModule):
    """The net as a LightningModule, which notes what it logs where `how` shows it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = tiny.model(), how

    def training_step(self, batch: Any, index: int) -> Any:
        """Return the loss of a batch."""
        loss = tiny.loss_of(self.net, *batch)
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(0.02)
        value = loss.item()
        if self.how == "tqdm":
            note(self.global_step + 1, loss=f"{value:.3g}")
        elif self.how == "csv" and (self.global_step + 1) % 4 == 0:
            note(self.global_step, loss=value)
        elif self.how == "rich" and self.current_epoch == EPOCHS - 1 and index == 15:
            note(index + 1, loss=f"{value:.3f}")
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        """Log the loss of the samples kept back."""
        self.log("val_loss", tiny.loss_of(self.net, *batch), prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        """Note the mean that is shown; the sanity check is not."""
        if self.trainer.sanity_checking:
            return
        value = self.trainer.callback_metrics["val_loss"].item()
        if self.how == "tqdm":
            note(self.global_step, eval_loss=f"{value:.3g}")
        elif self.how == "csv":
            note(self.global_step - 1, eval_loss=value)
        elif self.current_epoch == EPOCHS - 1:
            note(16, eval_loss=f"{value:.3f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.02)


def main() -> None:
    """Train."""
    how = sys.argv[1]
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=CSVLogger("logs", name="run") if how != "rich" else False,
        callbacks=[RichProgressBar() if how == "rich" else TQDMProgressBar()],
        enable_checkpointing=False,
        log_every_n_steps=4,
    )
    train, kept = DataLoader(tiny.data(), BATCH), DataLoader(tiny.data(16, 2), BATCH)
    trainer.fit(Module(how), train, kept)


if __name__ == "__main__":
    main()
