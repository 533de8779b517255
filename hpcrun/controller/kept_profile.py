"""Remembers what a cluster's profile says, so that most calls of hpcrun read no YAML.

PyYAML and the checks of a profile take as long as all else of a submission. What is remembered
holds for this very text, read by this very hpcrun; it is data, read with types, from a file that
nobody but the user can write. Without a cache folder all works, a little slower.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcrun import __version__
from hpcrun.controller.kept import cache_folder, keep, read_kept
from hpcrun.spec.cluster import Cluster

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
    kept = read_kept(file, _Kept)
    if kept is not None and kept.text == text and kept.reader == reader:
        return kept.cluster
    from hpcrun.spec.load import load_cluster  # here: it is what is to be spared

    cluster = load_cluster(text, source=source)
    keep(file, _Kept(reader, text, cluster))
    return cluster


def _reader() -> str:
    """What reads profiles: this version, and the files themselves where somebody works on them."""
    with os.scandir(_SPEC) as files:
        stamps = [(one.name, one.stat().st_mtime_ns) for one in files if one.name.endswith(".py")]
    return f"{__version__} {zlib.crc32(repr(sorted(stamps)).encode()):08x}"
