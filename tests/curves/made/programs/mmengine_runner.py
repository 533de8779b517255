"""mmengine's Runner, by epochs (the default) or by iterations."""

from __future__ import annotations

import sys
from typing import Any

from mmengine.hooks import Hook  # type: ignore[import-not-found]
from mmengine.model import BaseModel  # type: ignore[import-not-found]
from mmengine.runner import Runner  # type: ignore[import-not-found]
from torch.utils.data import DataLoader

from tests.curves.made.programs import tiny
from tests.curves.made.truth import note

EVERY = 5


class Model(BaseModel):
    """The net as mmengine wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny.model()

    def forward(self, x: Any, y: Any, mode: str = "tensor") -> Any:
        """Return the loss."""
        return {"loss": tiny.loss_of(self.net, x, y)}


class Told(Hook):
    """Notes the mean of the losses that the logger's window holds, when it prints."""

    priority = "VERY_LOW"

    def after_train_iter(self, runner: Any, batch_idx: int, *rest: Any, **more: Any) -> None:
        """Note a line."""
        if (runner.iter + 1) % EVERY:
            return
        window = runner.message_hub.get_scalar("train/loss")
        lr = runner.optim_wrapper.get_lr()["lr"][0]
        note(runner.iter + 1, loss=f"{window.mean(EVERY):.4f}", lr=f"{lr:.4e}")


def main() -> None:
    """Train."""
    by_epoch = sys.argv[1] == "epochs"
    Runner(
        Model(),
        "work",
        train_dataloader=DataLoader(tiny.data(80), 4),
        train_cfg={"by_epoch": by_epoch, **({"max_epochs": 3} if by_epoch else {"max_iters": 60})},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.02}},
        default_hooks={
            "logger": {"type": "LoggerHook", "interval": EVERY, "log_metric_by_epoch": by_epoch},
            "checkpoint": {"type": "CheckpointHook", "interval": 10**6},
        },
        custom_hooks=[Told()],
        log_processor={"window_size": EVERY, "by_epoch": by_epoch},
        randomness={"seed": 7},
        experiment_name="tiny",
    ).train()


if __name__ == "__main__":
    main()
