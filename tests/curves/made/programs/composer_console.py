"""Composer's Trainer with its ConsoleLogger: a line for the progress, the metrics below it."""

from __future__ import annotations

from typing import Any

import torch
from composer import Callback, ComposerModel, Trainer  # type: ignore[import-not-found]
from torch.utils.data import DataLoader

from tests.curves.made.programs import tiny
from tests.curves.made.truth import note

EVERY = 4


class Model(ComposerModel):
    """The net as Composer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny.model()

    def forward(self, batch: Any) -> Any:
        """Predict."""
        return self.net(batch[0])

    def loss(self, outputs: Any, batch: Any, *rest: Any) -> Any:
        """Return the mean squared error."""
        return torch.nn.functional.mse_loss(outputs, batch[1])


class Told(Callback):
    """Notes the loss of the batches that are printed."""

    def batch_end(self, state: Any, logger: Any) -> None:
        """Note a batch; the first one is printed too."""
        batch = int(state.timestamp.batch)
        if batch % EVERY == 0 or batch == 1:
            note(int(state.timestamp.batch), loss=f"{state.loss.item():.4f}")


def main() -> None:
    """Train."""
    model = Model()
    Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.02),
        train_dataloader=DataLoader(tiny.data(), 4),
        max_duration="3ep",
        progress_bar=False,
        log_to_console=True,
        console_log_interval=f"{EVERY}ba",
        callbacks=[Told()],
        device="cpu",
        seed=7,
    ).fit()


if __name__ == "__main__":
    main()
