"""Log files as frames: compressed, piped, and read by several processes."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.curves import read_log
from hpcrun.curves.lines import read as reader
from hpcrun.curves.read_log import LogFileReader, line_at
from hpcrun.curves.row import Frame, Mark
from hpcrun.errors import InputError
from tests.waiting import until

Row = tuple[object, ...]

# As xz -0: the usual effort takes ten times as long.
QUICK_XZ = functools.partial(lzma.compress, preset=0)

LOG = b"".join(b"noise %d\nstep=%d loss=%d.25\n" % (i, i, i) for i in range(500))

CAN_FORK = read_log.can_fork


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


def read(path: Path, processes: int = 1) -> list[Row]:
    return rows([piece for pieces in LogFileReader(path, processes=processes) for piece in pieces])


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_a_compressed_log_is_read_as_what_it_holds(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    plain, compressed = tmp_path / "a.log", tmp_path / f"a.{suffix}"
    plain.write_bytes(LOG)
    compressed.write_bytes(compress(LOG))
    assert len(read(plain)) == 500
    assert read(compressed) == read(plain)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf_16_is_read_as_one_in_utf_8(tmp_path: Path, encoding: str) -> None:
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
def test_of_a_compressed_log_that_was_cut_off_the_begin_is_read(
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
    assert len(reader.notes) == 1 and f"a.{suffix} ends before" in reader.notes[0]
    path.write_bytes(compressed[:12])
    with pytest.raises(InputError, match=rf"a\.{suffix}: "):
        read(path)


def test_a_compression_that_python_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(InputError, match="compressed by zstd"):
        read(path)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(gzip.compress(LOG)))
    writer.start()
    try:
        assert len(read(path, processes=4)) == 500
    finally:
        writer.join()


def test_an_unreadable_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: No such file"):
        read(tmp_path / "none.log")
    with pytest.raises(InputError, match="Is a directory"):
        read(tmp_path)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a log of some kilobytes a long one."""
    for module in (reader, read_log):
        monkeypatch.setattr(module, "RANGE", 1 << 12)
    for module in (reader, read_log):
        monkeypatch.setattr(module, "THOROUGH", 1 << 13)
    monkeypatch.setattr(reader, "BLOCK", 1 << 10)
    monkeypatch.setattr(read_log, "LONG", 1 << 14)
    monkeypatch.setattr(read_log, "can_fork", lambda: True)


def mixed_log(seed: int, size: int) -> bytes:
    rng, lines, step, length = random.Random(seed), [], 0, 0
    while length < size:
        step += 1
        line = rng.choice(
            (
                b"step=%d loss=%d.5 lr=0.1" % (step, step),
                b"2026-11-20 08:%02d:00 - step: %d, loss: 1.5" % (step % 60, step),
                b"[rank%d]: step=%d grad_norm=2.5" % (step % 3, step),
                b"x" * rng.choice((3, 500, 9000)),
                b"nothing to see",
                b"",
                b"eval_loss: 2.5",
            )
        ) + rng.choice((b"\n", b"\r", b"\r\n", b"\0\n"))
        lines.append(line)
        length += len(line)
    return b"".join(lines)


@pytest.mark.slow
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("processes", [2, 3])
def test_side_by_side_gives_what_one_process_gives(
    tmp_path: Path, seed: int, processes: int
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(mixed_log(seed, 100_000))
    alone = read(path)
    assert len(alone) > 50
    assert read(path, processes) == alone


@pytest.mark.usefixtures("small_ranges")
def test_lines_of_a_log_that_says_nothing_are_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"nothing to see here\n" * 9000)
    log = LogFileReader(path, processes=3)
    assert not any(log) and log.lines == 9000


@pytest.mark.usefixtures("small_ranges")
def test_lines_are_counted_up_to_the_first_row_also_where_it_stands_late(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"nothing to see here\n" * 3000 + LOG * 4 + b"Epoch 3/20\n" * 900)
    alone, together = (LogFileReader(path, processes=processes) for processes in (1, 3))
    assert [*map(len, alone)] and [*map(len, together)]
    assert 3000 < alone.lines == together.lines < 3100


@pytest.mark.usefixtures("small_ranges")
def test_a_table_goes_on_across_ranges(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    table = b"".join(b"%d,%d.25,0.1\n" % (i, i) for i in range(4000))
    path.write_bytes(b"nothing\n" * 3000 + b"step,loss,lr\n" + table)
    alone = read(path)
    assert len(alone) == 4000
    assert read(path, 3) == alone


def in_a_pool(path: Path) -> int:
    return len(read(path, 3))


@pytest.mark.usefixtures("small_ranges")
def test_a_worker_of_a_pool_reads_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(mixed_log(3, 100_000))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(read_log, "can_fork", CAN_FORK)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(in_a_pool, (path,)) == len(read(path))


@pytest.mark.usefixtures("small_ranges")
def test_a_worker_that_is_killed_leaves_its_work_to_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(mixed_log(4, 100_000))
    alone = read(path)
    feed = reader.Reader.feed
    parent = os.getpid()

    def die(self: reader.Reader, data: bytes) -> list[Frame | Mark]:
        if os.getpid() != parent and self.offset > 40_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return feed(self, data)

    monkeypatch.setattr(reader.Reader, "feed", die)
    assert read(path, 2) == alone


LEAVING = """
import os, signal, sys
from pathlib import Path
from hpcrun.curves import read_log
from hpcrun.curves.lines import read
signal.signal(signal.SIGTERM, lambda *_: None)
for module in (read, read_log):
    module.RANGE = 1 << 12
read.THOROUGH = read_log.THOROUGH = 1 << 13
read_log.LONG = 1 << 14
pieces = iter(read_log.LogFileReader(Path(sys.argv[1]), processes=2))
for _ in range(10):
    next(pieces)
children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
print(children, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
pieces.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_no_process_outlives_the_reading(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"step=%d loss=2.5 x=%s\n" % (i, b"y" * 30) for i in range(40_000)))
    done = subprocess.run([sys.executable, "-c", LEAVING, str(path), how], stdout=subprocess.PIPE)
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0)
    children = [int(word) for word in done.stdout.split()]
    assert len(children) == 2
    until(lambda: not any(_is_alive(child) for child in children), "the children's end")


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_where_no_process_may_start_one_reads_all(
    tmp_path: Path, small_ranges: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(mixed_log(7, 100_000))
    alone = read(path)

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert read(path, 4) == alone


@pytest.mark.parametrize("offset", range(12))
def test_a_range_begins_with_the_line_that_ends_in_it_first(tmp_path: Path, offset: int) -> None:
    data = b"ab\r\ncd\n\0ef\n"
    path = tmp_path / "a.log"
    path.write_bytes(data)
    with path.open("rb") as file:
        found = line_at(file, offset)
    assert found <= offset
    assert found == 0 or data[found - 1] in b"\r\n\0"
    assert not any(byte in b"\r\n\0" for byte in data[found:offset])
