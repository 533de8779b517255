"""The Pythons of this machine that the job side must run with."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def pythons() -> list[str]:
    """List the oldest Python from 3.6 on of this machine, and the one that runs the tests."""
    found = [sys.executable]
    roots = [Path(folder) for folder in os.environ["PATH"].split(":")]
    roots += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    for minor in range(6, 10):
        for root in roots:
            if (path := root / f"python3.{minor}").exists() and "shims" not in path.parts:
                return [*found, str(path)]
    return found
