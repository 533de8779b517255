"""A loop with Accelerate and tqdm, as people write them.

steps    one bar over all steps, set_postfix after update
epochs   a bar for each epoch around the loader, set_postfix in the loop's body
text     a bar for each epoch that leaves no trace, and a print
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from tests.curves.made.programs import tiny
from tests.curves.made.truth import note

EPOCHS, BATCH, PER_EPOCH = 3, 4, 16


class Loop:
    """The training, an optimizer step for each batch."""

    def __init__(self) -> None:
        self.accelerator = Accelerator(cpu=True)
        net = tiny.model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, EPOCHS * PER_EPOCH)
        loader = DataLoader(tiny.data(), BATCH)
        self.net, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            net, optimizer, loader, schedule
        )

    def step(self, batch: Any) -> tuple[float, float]:
        """Train on a batch; return its loss and the rate of the next."""
        loss = tiny.loss_of(self.net, *batch)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        time.sleep(0.03)
        return loss.item(), self.schedule.get_last_lr()[0]

    def batches(self) -> Iterator[Any]:
        """Return the batches of all epochs."""
        for _ in range(EPOCHS):
            yield from self.loader


def steps(loop: Loop) -> None:
    """One bar."""
    bar = tqdm(range(EPOCHS * PER_EPOCH), desc="Steps")
    for number, batch in enumerate(loop.batches(), 1):
        loss, lr = loop.step(batch)
        bar.update(1)
        bar.set_postfix(step_loss=loss, lr=lr)
        note(number, loss=f"{loss:.3g}", lr=f"{lr:.3g}")


def epochs(loop: Loop) -> None:
    """A bar for each epoch; at the time of set_postfix it still counts the batches before."""
    for epoch in range(EPOCHS):
        bar = tqdm(loop.loader, desc=f"Epoch {epoch + 1}/{EPOCHS}")
        for number, batch in enumerate(bar):
            loss, lr = loop.step(batch)
            bar.set_postfix({"loss": f"{loss:.4f}", "lr": f"{lr:.2e}"})
            note(number, loss=f"{loss:.4f}", lr=f"{lr:.2e}")


def text(loop: Loop) -> None:
    """The mean loss of each epoch in words."""
    for epoch in range(1, EPOCHS + 1):
        shown = [loop.step(batch) for batch in tqdm(loop.loader, f"Epoch {epoch}", leave=False)]
        mean, lr = sum(loss for loss, _ in shown) / len(shown), shown[-1][1]
        print(f"Epoch [{epoch}/{EPOCHS}] Train Loss: {mean:.4f}, LR: {lr:.6f}")
        note(epoch, loss=f"{mean:.4f}", lr=f"{lr:.6f}")


if __name__ == "__main__":
    {"steps": steps, "epochs": epochs, "text": text}[sys.argv[1]](Loop())
