"""Cached samples of a long log: an unchanged log is not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hpcrun import files
from hpcrun.curves import read_log
from hpcrun.curves.lines import log_reader
from hpcrun.curves.lines.formats import own_format
from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.read_log import LogFileReader
from hpcrun.curves.store import Store
from tests.curves.mixed_logs import mixed_log
from tests.source import ROOT

LOGS = sorted((ROOT / "tests" / "curves" / "logs").glob("*.log"))
PLAIN = b"".join(b"noise %d\nstep=%d loss=%d.25\n" % (i, i, i) for i in range(500))


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Make a log of some kilobytes a long one."""
    patch = pytest.MonkeyPatch()
    for module, name, size in (
        (log_reader, "BLOCK_BYTES", 1 << 8),
        (log_reader, "FULL_SEARCH_BYTES", 1 << 10),
        (read_log, "KEEP_SAMPLES_ABOVE_BYTES", 1 << 10),
    ):
        patch.setattr(module, name, size)
    yield
    patch.undo()


def stored(path: Path, kept: Path | None = None, **options: Any) -> tuple[str, int, int]:
    """Return all data read from a log, and how much of it was parsed."""
    log, store = LogFileReader(path, kept=kept, **options), Store()
    store.begin(0)
    for pieces in log:
        store.add(pieces)
    return repr(store.logs), log.lines, log.bytes


class Feeds:
    """Counts the bytes that are read line by line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, feed = 0, log_reader.LogReader.feed

        def counted(own: log_reader.LogReader, data: bytes) -> object:
            self.bytes += len(data)
            return feed(own, data)

        monkeypatch.setattr(log_reader.LogReader, "feed", counted)


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> Feeds:
    return Feeds(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.log"
    path.write_bytes(PLAIN)
    return path


@pytest.mark.slow
@settings(max_examples=20)
@given(data=some.data())
def test_growing_log_with_cache_yields_the_same_data(
    tmp_path_factory: pytest.TempPathFactory, data: some.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    path, kept = folder / "rank-0.log", folder / "samples"
    parts = [
        each.read_bytes() for each in data.draw(some.lists(some.sampled_from(LOGS), max_size=4))
    ]
    parts.append(mixed_log(data.draw(some.integers(0, 99)), 9000))
    text = b"begin\n" + b"".join(data.draw(some.permutations(parts)))
    cuts = sorted(data.draw(some.lists(some.integers(0, len(text)), max_size=4)))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        with path.open("ab") as file:
            file.write(text[start:end])
        assert stored(path, kept) == stored(path)
    assert kept.exists()


def test_large_cache_is_used(log: Path, feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a record may have."""
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    kept = log.with_name("samples")
    expected = stored(log, kept)
    assert kept.stat().st_size > 100
    feeds.bytes = 0
    assert stored(log, kept) == expected and feeds.bytes == 0


def test_cached_samples_are_not_read_again(log: Path, feeds: Feeds) -> None:
    kept = log.with_name("samples")
    expected = stored(log, kept)
    assert feeds.bytes == len(PLAIN)
    assert kept.stat().st_mode & 0o777 == 0o600
    feeds.bytes = 0
    assert stored(log, kept) == expected
    assert feeds.bytes == 0
    with log.open("ab") as file:
        file.write(b"step=500 loss=500.25\nstep=501 lo")
    assert stored(log, kept) == stored(log)
    with log.open("ab") as file:
        file.write(b"ss=501.25\n")
    assert stored(log, kept) == stored(log)
    feeds.bytes = 0
    stored(log, kept)
    assert feeds.bytes == 0


OTHERS: dict[str, Callable[[bytes], bytes]] = {
    "shorter": lambda text: text[:3000],
    "empty": lambda text: b"",
    "changed at its begin": lambda text: b"step=9 loss=9.25\n" + text[17:],
    "changed between": lambda text: text[:4096] + b"loss=77.25" + text[4106:],
    "changed at its end": lambda text: text[:-6] + b"77.25\n",
}


@pytest.mark.parametrize("how", OTHERS)
def test_changed_log_is_read_completely(log: Path, how: str) -> None:
    kept = log.with_name("samples")
    stored(log, kept)
    text = OTHERS[how](PLAIN)
    assert text != PLAIN
    log.write_bytes(text)  # the same inode
    assert stored(log, kept) == stored(log)


def test_replaced_log_is_read_completely(log: Path, feeds: Feeds) -> None:
    kept = log.with_name("samples")
    stored(log, kept)
    log.rename(log.with_name("rank-0.log.1"))
    log.write_bytes(PLAIN)
    feeds.bytes = 0
    stored(log, kept)
    assert feeds.bytes == len(PLAIN)


@pytest.mark.parametrize("place", [0, 3, 4, 60, 3000, -1])
def test_corrupt_cache_is_ignored(log: Path, place: int) -> None:
    kept = log.with_name("samples")
    expected = stored(log, kept)
    data = bytearray(kept.read_bytes())
    data[place] ^= 1
    for damaged in (bytes(data), bytes(data[: len(data) // 2]), b"", bytes(data) * 2):
        kept.write_bytes(damaged)
        assert stored(log, kept) == expected
    kept.unlink()
    kept.mkdir()
    assert stored(log, kept) == expected


def test_other_formats_ignore_the_cache(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = log.with_name("samples")
    stored(log, kept)
    own = (own_format("mine", r"noise (?P<noise>\d+)"), *FORMATS)
    assert stored(log, kept, formats=own) == stored(log, formats=own) != stored(log)
    assert stored(log, kept) == stored(log)
    monkeypatch.setattr(read_log, "__version__", "0.0.1")
    feeds = Feeds(monkeypatch)
    stored(log, kept)
    assert feeds.bytes == len(PLAIN)


def test_unwritable_cache_does_not_prevent_reading(tmp_path: Path, log: Path) -> None:
    kept = tmp_path / "gone" / "samples"
    assert stored(log, kept) == stored(log)
    assert not kept.parent.exists()
