"""The environment of a user without settings."""

from __future__ import annotations

import os
from pathlib import Path


def make_environ(folder: Path) -> dict[str, str]:
    """Return an environment with an empty home in a folder, without a cluster or a sandbox."""
    home = folder / "home"
    home.mkdir()
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        # Nothing is there; and not below the folder, whose path is too long for a sandbox.
        "HPCRUN_SANDBOX_DIR": f"/tmp/hpcrun-none-{os.getpid()}",
    }
