"""ultralytics' YOLO from nothing on six random images: its table of bars and its results.csv."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ultralytics import YOLO  # type: ignore[import-not-found]

from tests.curves.made.truth import note

EPOCHS = 4


def data_set(folder: Path) -> Path:
    """Write images with a box each and the file that names them."""
    random = np.random.default_rng(7)
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for number in range(6):
            pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{number}.png")
            label = folder / "labels" / split / f"{number}.txt"
            label.write_text("0 0.5 0.5 0.4 0.4\n")
    described = folder / "data.yaml"
    described.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [thing]\n")
    return described


def tell(trainer: Any) -> None:
    """Note the row of the epoch, as the table of bars or results.csv has it."""
    if trainer.epoch >= EPOCHS:  # the validation after training
        return
    if sys.argv[1] == "bars":
        names = ("train/box_loss", "train/cls_loss", "train/dfl_loss")
        losses = zip(names, map(float, trainer.tloss.values()), strict=True)
        note(trainer.epoch + 1, **{name: f"{value:.4g}" for name, value in losses})
        return
    row = Path(trainer.csv).read_text().splitlines()
    values = dict(zip(row[0].split(","), row[-1].split(","), strict=True))
    note(trainer.epoch + 1, **{"train/box_loss": values["train/box_loss"], "lr": values["lr/pg0"]})


def main() -> None:
    """Train."""
    model = YOLO("yolov8n.yaml")
    model.add_callback("on_fit_epoch_end", tell)
    model.train(
        data=data_set(Path("data").resolve()),
        epochs=EPOCHS,
        imgsz=64,
        batch=2,
        workers=0,
        device="cpu",
        plots=False,
        amp=False,
        seed=7,
        project=Path("runs").resolve(),
        name="yolo",
    )


if __name__ == "__main__":
    main()
