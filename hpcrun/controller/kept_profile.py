"""Remembers what a cluster's profile says, so that most calls of hpcrun read no YAML.

Effects: reads the profile; reads and writes the user's cache folder.

PyYAML and the checks of a profile take as long as all else of a submission. What is remembered
holds for this very text, read by this very hpcrun; it is data, read with types, from a file that
nobody but the user can write. Without a cache folder all works, a little slower.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcrun import __version__
from hpcrun.assets import home_dir
from hpcrun.spec.cluster import Cluster
from hpcrun.structs import decodable

_SPEC = Path(__file__).parent.parent / "spec"


class _Kept(msgspec.Struct, frozen=True):
    """A profile as it was read; ``reader`` and ``text`` must be those of now."""

    reader: str
    text: str
    cluster: Cluster


def load_profile(text: str, source: str, environ: Mapping[str, str]) -> Cluster:
    """Read a profile's text, or remember what it said. Raises SpecError with all that is wrong."""
    folder = cache_folder(environ) / "profiles"
    file = folder / f"{zlib.crc32(os.fsencode(source)):08x}.json"
    reader = _reader()
    kept = _read(file)
    if kept is not None and kept.text == text and kept.reader == reader:
        return kept.cluster
    from hpcrun.spec.load import load_cluster  # here: it is what is to be spared

    cluster = load_cluster(text, source=source)
    _keep(file, _Kept(reader, text, cluster))
    return cluster


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Find the user's own cache folder, ``~/.cache/hpcrun`` unless XDG_CACHE_HOME says another."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(home_dir(environ)) / ".cache")
    return Path(base) / "hpcrun"


def _reader() -> str:
    """What reads profiles: this version, and the files themselves where somebody works on them."""
    with os.scandir(_SPEC) as files:
        stamps = [(one.name, one.stat().st_mtime_ns) for one in files if one.name.endswith(".py")]
    return f"{__version__} {zlib.crc32(repr(sorted(stamps)).encode()):08x}"


def _read(file: Path) -> _Kept | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    with open(descriptor, "rb") as opened:  # noqa: PTH123 - it is open already
        try:
            info = os.fstat(descriptor)
            # A profile's commands run in jobs: what others could have written does not count.
            shared = info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if shared or not stat.S_ISREG(info.st_mode):
                return None
            return msgspec.json.decode(opened.read(), type=decodable(_Kept))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


def _keep(file: Path, kept: _Kept) -> None:
    """Write it for the next time, if it can be written and reads back as it is."""
    from hpcrun.errors import HpcrunError
    from hpcrun.runs.store import write_file

    with contextlib.suppress(OSError, HpcrunError, ValueError, TypeError, msgspec.MsgspecError):
        data = msgspec.json.encode(kept)
        if msgspec.json.decode(data, type=decodable(_Kept)) == kept:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(file, data, mode=0o600)
