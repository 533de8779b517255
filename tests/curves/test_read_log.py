"""Log files: plain, compressed, piped, damaged."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.curves.lines import log_reader
from hpcrun.curves.read_log import LogFileReader, find_line_start
from hpcrun.curves.row import Frame, Mark
from hpcrun.errors import InputError

Row = tuple[object, ...]

# Like xz -0, because the default preset takes ten times as long.
QUICK_XZ = functools.partial(lzma.compress, preset=0)

LOG = b"".join(b"noise %d\nstep=%d loss=%d.25\n" % (i, i, i) for i in range(500))


def rows(pieces: list[Frame | Mark]) -> list[Row]:
    """Every row with its offset, in the order of the log."""
    shown: list[Row] = []
    for piece in pieces:
        if isinstance(piece, Mark):
            shown.append((piece.offset, piece))
            continue
        for index, offset in enumerate(piece.offsets):
            step = None if piece.steps is None else piece.steps[index]
            time = None if piece.times is None else piece.times[index]
            values = tuple(column[index] for column in piece.columns)
            shown.append((offset, piece.layout, step, time, values))
    return sorted(shown, key=lambda row: (row[0], str(row[1])))


def read(path: Path) -> list[Row]:
    return rows([piece for pieces in LogFileReader(path) for piece in pieces])


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_compressed_log_is_read_like_a_plain_one(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    plain, compressed = tmp_path / "a.log", tmp_path / f"a.{suffix}"
    plain.write_bytes(LOG)
    compressed.write_bytes(compress(LOG))
    assert len(read(plain)) == 500
    assert read(compressed) == read(plain)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_log_is_read_like_utf_8(tmp_path: Path, encoding: str) -> None:
    """PowerShell writes so what it is told to put into a file."""
    text = "".join(f"step: {n} | loss: {9 - n / 500} ▁█\r\n" for n in range(30_000))
    plain, wide = tmp_path / "a.log", tmp_path / "b.log"
    plain.write_text(text, encoding="utf-8", newline="")
    wide.write_bytes(("\ufeff" + text).encode(encoding))
    assert len(read(plain)) == 30_000
    assert read(wide) == read(plain)
    wide.write_bytes(wide.read_bytes()[:-3])  # cut within a letter
    assert read(wide) == read(plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", QUICK_XZ)]
)
def test_truncated_compressed_log_is_read_up_to_its_end(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    rng = random.Random(1)
    # More than two of bzip2's blocks, of 900,000 bytes each.
    log = b"".join(b"step=%d loss=%.9f\n" % (i, rng.random()) for i in range(90_000))
    compressed = compress(log)
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(compressed)
    whole = read(path)
    path.write_bytes(compressed[: len(compressed) // 2])
    reader = LogFileReader(path)
    found = rows([piece for pieces in reader for piece in pieces])
    assert 10_000 < len(found) < 90_000
    assert found[:-1] == whole[: len(found) - 1]  # of the last line the last word may be gone
    assert (
        len(reader.notes) == 1 and f"a.{suffix}: the compressed data is cut off" in reader.notes[0]
    )
    path.write_bytes(compressed[:12])
    with pytest.raises(InputError, match=rf"a\.{suffix}: "):
        read(path)


def test_unsupported_compression_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(InputError, match="compressed by zstd"):
        read(path)


def test_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(gzip.compress(LOG)))
    writer.start()
    try:
        assert len(read(path)) == 500
    finally:
        writer.join()


def test_unreadable_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: No such file"):
        read(tmp_path / "none.log")
    with pytest.raises(InputError, match="Is a directory"):
        read(tmp_path)


def test_all_lines_without_metrics_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"nothing to see here\n" * 9000)
    log = LogFileReader(path)
    assert not any(log) and log.lines == 9000


def test_lines_are_counted_up_to_a_late_first_row(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 999 + b"\n" + b"nothing to see here\n" * 30_000 + LOG * 4)
    log = LogFileReader(path)
    assert [*map(len, log)]
    assert 30_000 < log.lines < 50_000


def test_table_continues_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(log_reader, "FULL_SEARCH_BYTES", 1 << 17)
    path = tmp_path / "a.csv"
    table = b"".join(b"%d,%d.25,0.1\n" % (i, i) for i in range(4000))
    path.write_bytes(b"nothing\n" * 3000 + b"step,loss,lr\n" + table)
    assert len(read(path)) == 4000


@pytest.mark.parametrize("offset", range(12))
def test_line_start_at_an_offset_is_found(tmp_path: Path, offset: int) -> None:
    data = b"ab\r\ncd\n\0ef\n"
    path = tmp_path / "a.log"
    path.write_bytes(data)
    with path.open("rb") as file:
        found = find_line_start(file, offset)
    assert found <= offset
    assert found == 0 or data[found - 1] in b"\r\n\0"
    assert not any(byte in b"\r\n\0" for byte in data[found:offset])
