"""Where DeepSpeed's compiled operators stay, from one test run to the next.

A build takes the better part of a minute of two cores: one does for all tests, those whose jobs
hpcrun starts and those that start torch themselves.
Effects: starts bash.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path

from tests.source import ROOT

# The cache_dir of the tests' cluster profiles.
CACHE = Path.home() / ".cache" / "hpcrun-tests"


@cache
def extensions() -> str:
    """Name the folder (TORCH_EXTENSIONS_DIR) that a job has whose cache_dir is CACHE."""
    done = subprocess.run(
        ["bash", "-c", f". '{ROOT}/templates/local.sh'; architecture"],
        capture_output=True,
        text=True,
        check=True,
    )
    kind = f"{zlib.crc32(sys.executable.encode()):08x}"
    return str(CACHE / "torch_extensions" / kind / done.stdout.strip())
