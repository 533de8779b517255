"""keras' fit() with verbose=2 (a line for each epoch) or verbose=1 (a bar)."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras  # type: ignore[import-not-found]
import numpy as np

from tests.curves.made.truth import note


class Told(keras.callbacks.Callback):
    """Notes the line of an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note it."""
        printed = {name: f"{logs[name]:.4f}" for name in ("loss", "val_loss")}
        note(epoch + 1, loss=printed["loss"], eval_loss=printed["val_loss"])


def main() -> None:
    """Train."""
    keras.utils.set_random_seed(7)
    x = np.random.randn(256, 4)
    y = x @ np.array([[1.5], [-2.0], [0.5], [1.0]]) + 0.3
    model = keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    verbose = int(sys.argv[1])
    model.fit(x, y, 16, 8, verbose=verbose, validation_split=0.25, callbacks=[Told()])


if __name__ == "__main__":
    main()
