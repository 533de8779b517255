"""Python environments that tests create."""

from __future__ import annotations

from pathlib import Path


def make_environment(folder: Path, *, kind: str = "venv", torch: bool = True) -> Path:
    """Create an environment whose Python answers whether it has torch."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\necho {int(torch)}\n")
    python.chmod(0o755)
    if kind == "conda":
        (folder / "conda-meta").mkdir()
    else:
        (folder / "pyvenv.cfg").write_text("version = 3.11.7\n")
    if torch:
        (folder / "lib" / "python3.11" / "site-packages" / "torch").mkdir(parents=True)
    return folder
