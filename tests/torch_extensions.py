"""The cache of DeepSpeed's compiled operators, which is kept between test runs.

A build takes most of a minute on two cores. All tests share it: those whose jobs hpcrun starts, and
those that start torch themselves.
"""

from __future__ import annotations

import contextlib
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
    """Return TORCH_EXTENSIONS_DIR of a job whose cache_dir is CACHE."""
    done = subprocess.run(
        ["bash", "-c", f". '{ROOT}/templates/local.sh'; architecture"],
        capture_output=True,
        text=True,
        check=True,
    )
    kind = f"{zlib.crc32(sys.executable.encode()):08x}"
    return str(CACHE / "torch_extensions" / kind / done.stdout.strip())


def clear_stale_locks(cache: Path = CACHE) -> None:
    """Remove the locks of builds that were killed, for which other builds would wait forever.

    torch creates a lock file, and keeps it open until the build is done.
    """
    for lock in cache.glob("torch_extensions/*/*/*/lock"):
        if not any(_has_open(process, lock) for process in Path("/proc").glob("[0-9]*")):
            lock.unlink(missing_ok=True)


def _has_open(process: Path, path: Path) -> bool:
    opened = []
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        opened = list((process / "fd").iterdir())
    for one in opened:
        with contextlib.suppress(OSError):  # closed meanwhile
            if one.samefile(path):
                return True
    return False
