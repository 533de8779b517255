"""Checkpoints as training frameworks write them."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any


def write(path: Path, content: bytes | None = None) -> Path:
    """Write a file, by default a zip as torch.save writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        path.write_bytes(content)
        return path
    write_record(path, {"epoch": 1})
    return path


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a dictionary in the format of torch.save."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(record, protocol=2))
