"""The log reader: chunks, damage, long lines, ranks, unfinished lines."""

from __future__ import annotations

import json
import math
import re
import time
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.make_log import dense_lines
from hpcrun.curves.lines import log_reader
from hpcrun.curves.lines.line import NEEDLES, read_line, split_records
from hpcrun.curves.lines.line_pattern import layout_of
from hpcrun.curves.lines.log_reader import LONGEST_LINE_BYTES, LogReader, fold_block
from hpcrun.curves.row import Frame, Mark, Row, RowLayout

NOISE = [
    b"",
    b"loading checkpoint shards: 100%|####| 2/2",
    b"gpu01:123:456 [0] NCCL INFO Channel 00/08 : 0 1",
    b"the loss is finite at step 3",
    b"\xff\xfe\x80 not text",
    b'{"config": {"loss": 1.0, "step": 3}}',
]
ROWS = [
    b'{"step": %d, "loss": %d.5, "lr": 0.1}',
    b"step=%d loss=%d.5 lr=0.1",
    b"[rank0]: step: %d, loss: %d.5",
    b"\x1b[1mstep=%d\x1b[0m loss=%d.5",
]
ENDS = [b"\n", b"\r\n", b"\r", b"\0\n", b"\n\0\0\0"]


class Told(NamedTuple):
    """One row of a frame."""

    offset: int
    layout: RowLayout
    step: int | None
    values: tuple[str, ...]


line = st.one_of(
    st.sampled_from(NOISE),
    st.builds(lambda row, n: row % (n, n), st.sampled_from(ROWS), st.integers(0, 999)),
)
log = st.lists(st.tuples(line, st.sampled_from(ENDS)), max_size=30).map(
    lambda pairs: b"".join(text + end for text, end in pairs)
)


@pytest.fixture
def read_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that are read one by one, not by a pattern."""
    lines: list[str] = []
    read_text = LogReader._read_text

    def note(self: LogReader, text: str) -> object:
        lines.append(text)
        return read_text(self, text)

    monkeypatch.setattr(LogReader, "_read_text", note)
    return lines


def rows(pieces: list[Frame | Mark]) -> list[Told]:
    """Return every row in log order, with values as text so that nan equals nan."""
    shown = []
    for piece in pieces:
        if isinstance(piece, Mark):
            continue
        for index, offset in enumerate(piece.offsets):
            step = None if piece.steps is None else piece.steps[index]
            values = tuple(repr(column[index]) for column in piece.columns)
            shown.append(Told(offset, piece.layout, step, values))
    return in_order(shown)


def in_order(shown: list[Told]) -> list[Told]:
    """Sort rows by their place; of one line several may come, of one rank each."""
    return sorted(shown, key=lambda row: (row.offset, str(row.layout), row.step))


def in_pieces(data: bytes, sizes: list[int]) -> list[Told]:
    reader, pieces, start = LogReader(), [], 0
    for size in sizes:
        pieces += reader.feed(data[start : start + size])
        start += size
    pieces += reader.feed(data[start:])
    return rows(pieces + reader.finish())


def in_one(data: bytes) -> list[Told]:
    return in_pieces(data, [])


def line_by_line(data: bytes) -> list[Told]:
    """What the reader of lines says of each line by itself; no line here begins a table."""
    shown = []
    for found in re.finditer(rb"[^\n\r\0]+", data):
        start = found.start()
        for record in split_records(found.group()):
            read = read_line(record.decode("utf-8", "replace"))
            if read is not None and isinstance(row := read[1], Row):
                layout = layout_of(read[0], row)
                values = tuple(repr(value) for _, value in row.values)
                shown.append(Told(start, layout, row.step, values))
            start += len(record)
    return in_order(shown)


@pytest.mark.slow
@given(log, st.lists(st.integers(0, 40), max_size=60))
def test_rows_do_not_depend_on_chunks(data: bytes, sizes: list[int]) -> None:
    assert in_pieces(data, sizes) == in_one(data)


@pytest.mark.slow
@given(log)
@settings(max_examples=50)
def test_rows_do_not_depend_on_small_blocks(data: bytes) -> None:
    whole = in_one(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "BLOCK_BYTES", 7)
        assert in_one(data) == whole


@pytest.mark.slow
@given(log)
def test_patterns_give_the_rows_that_read_line_gives(data: bytes) -> None:
    assert in_one(data) == line_by_line(data)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "logs").glob("*.*")), ids=str)
def test_patterns_give_the_rows_that_read_line_gives_in_a_real_log(path: Path) -> None:
    data = path.read_bytes()
    alone = line_by_line(data)
    in_tables = {row.offset for row in in_one(data) if row.layout.format.startswith("table")}
    found = [row for row in in_one(data + b"\n") if row.offset not in in_tables]
    assert found == [row for row in alone if row.offset not in in_tables]


@pytest.mark.slow
def test_no_rows_are_lost_when_patterns_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_PATTERNS", 8)
    words = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(60)]
    log = "".join(
        f"step={n} loss={n}.5\n" + f"the loss of {words[n // 9]} is large\n" * 2 for n in range(500)
    ).encode()
    assert in_one(log) == line_by_line(log) and len(in_one(log)) == 500


@pytest.mark.slow
@given(log)
def test_offsets_point_at_the_line(data: bytes) -> None:
    for row in in_one(data):
        assert row.offset == 0 or data[row.offset - 1] in b"\r\n\0"


@pytest.mark.slow
@given(log, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=20))
def test_damage_neither_crashes_nor_adds_values(data: bytes, damage: list[tuple[int, int]]) -> None:
    """Lines that the damage did not reach give what they gave; no number comes from elsewhere."""
    damaged = bytearray(data)
    for place, byte in damage:
        if place < len(damaged):
            damaged[place] = byte
    found = in_one(bytes(damaged))
    for row in found:
        text = re.match(rb"[^\n\r\0]*", bytes(damaged)[row.offset :])
        assert text is not None
        if row.step is not None:
            assert str(row.step).encode() in re.sub(rb"[,_]|\x1b\[[\d;]*m", b"", text.group())
    touched = {place for place, _ in damage}
    for row in in_one(data):
        end = row.offset
        while end < len(data) and data[end] not in b"\r\n\0":
            end += 1
        if not touched & set(range(row.offset - 1, end + 1)):
            assert row in found


@given(st.binary(max_size=300))
def test_random_bytes_do_not_crash(data: bytes) -> None:
    assert in_pieces(data, [1] * len(data)) == in_one(data)


@given(st.text(alphabet="steploss=: ,.0123456789nainf{}\"'\r\n-|", max_size=80))
def test_texts_of_metric_letters_do_not_crash(text: str) -> None:
    assert all(row.layout.names for row in in_one(text.encode() + b"\n"))


PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"step=", b"loss: ", b"epoch ", b"{'loss': ", b'{"step": 1, "loss": ', b"it/s]"]
    ),
    st.sampled_from([b"12/100 [00:10<01:20, ", b"[2026-11-20 08:04:09] ", b"[rank3]: ", b"\x1b[A"]),
    st.sampled_from(
        [b"epoch,train_loss,val_loss\n", b"| step | loss |\n", b"1,2.5,3\n", b"\r", b"\n"]
    ),
    st.sampled_from(
        [b"(", b"[", b"{", b"'", b'"', b",", b" ", b"|", b"\0", b"1e400", b"nan", b"9" * 30]
    ),
)


@pytest.mark.slow
@given(st.lists(PIECES, max_size=40).map(b"".join), st.integers(1, 3000))
@settings(max_examples=25, deadline=None)
def test_repeated_random_bytes_are_read_in_linear_time(piece: bytes, times: int) -> None:
    """Any bytes again and again: read in linear time, and in memory that what they say explains."""
    log = (piece * times)[: 1 << 20]
    reader = LogReader()
    tracemalloc.start()
    try:
        began = time.process_time()
        kept = 0
        for start in range(0, len(log), 1 << 16):
            for found in reader.feed(log[start : start + (1 << 16)]):
                kept += 1000 + 8 * len(found) * 50 if isinstance(found, Frame) else 1000
        reader.finish()
        seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < 60 + 120 * len(log) / (1 << 20)
    assert peak < (64 << 20) + kept


class TestUnfinishedLine:
    def test_unfinished_line_is_kept_until_complete(self) -> None:
        reader = LogReader()
        assert reader.feed(b"hello\nstep=10 loss=2.") == []
        (row,) = rows(reader.feed(b"25\n"))
        assert (row.offset, row.step, row.values) == (6, 10, ("2.25",))
        assert reader.finish() == []

    def test_possibly_truncated_number_is_not_read(self) -> None:
        assert in_one(b"step=10 loss=2.2") == []
        (row,) = in_one(b"step=10 loss=2.2 lr=0.0001")
        assert row.layout.names == ("loss",)

    def test_last_number_with_the_usual_decimals_is_complete(self) -> None:
        lines = [b"epoch: %d, loss: 2.%04d\n" % (epoch, epoch) for epoch in range(10)]
        for size in (1, 7, 1000):
            log = b"".join(lines) + b"epoch: 10, loss: 1.5000"
            pieces = [log[at : at + size] for at in range(0, len(log), size)]
            told = rows([*chain.from_iterable(LogReader().read(pieces))])
            assert [row.values for row in told][-1] == ("1.5",) and len(told) == 11
        assert len(in_one(log[:-1])) == len(in_one(log[: -len(b"1.5000")])) == 10
        assert len(in_one(b"".join(lines[:5]) + b"epoch: 10, loss: 1.5000")) == 5
        uneven = log.replace(b"2.0003", b"2.3")
        assert len(in_one(uneven)) == 10
        constant = b"step: 1, loss: 2.5, lr: 0.001\n" * 20 + b"step: 1, loss: 2.5, lr: 0.000"
        assert in_one(constant)[-1].layout.names == ("loss",)

    def test_possibly_truncated_number_adds_no_metric(self) -> None:
        line = b"31/31 [=====] - 3s 9ms/step - loss: 2.5 - val_loss: 2.25 - val_acc: 0.5"
        (frame,) = chain.from_iterable(LogReader().read([line]))
        assert isinstance(frame, Frame)
        assert frame.layout.names[1:] == ("loss", "eval_loss") and frame.layout.is_sure

    def test_complete_json_object_is_read(self) -> None:
        (row,) = in_one(b'{"step": 1, "loss": 2.5}')
        assert row.values == ("2.5",)
        assert in_one(b'{"step": 1, "loss": 2.5, "lr": 0.1') == []

    def test_reading_continues_from_an_offset(self) -> None:
        data = b"step=1 loss=2.5\nstep=2 loss=2.25\n"
        assert rows(LogReader(offset=16).feed(data[16:])) == in_one(data)[1:]


class TestLongLines:
    @pytest.mark.parametrize("piece", [1 << 10, 1 << 16, 1 << 22])
    def test_too_long_line_is_skipped(self, piece: int) -> None:
        long = b"step=1 loss=2 x=" + b"y" * LONGEST_LINE_BYTES + b"\n"
        data = b"step=0 loss=1\n" + long + b"step=2 loss=3\n" + long[:-1]
        found = in_pieces(data, [piece] * (len(data) // piece))
        assert [row.step for row in found] == [0, 2]
        assert found[1].offset == 14 + len(long)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "text",
        [
            b"loss=" + b"1" * 60_000,
            b"step=1 loss=" + b"1" * 60_000 + b"!",
            b"step=1 loss=" + b" " * 60_000 + b"!",
            b"step=1 loss=" + b"a" * 60_000 + b"(",
            b"loss:" * 13_000,
            b"step=1 " * 9_000 + b"!",
            b"a b " * 15_000 + b"loss=1",
            b"[" * 60_000 + b"loss=1",
            b"[a]" * 20_000 + b"loss=1",
            b"\x1b[" * 30_000 + b"loss=1",
            b"\x1b]" + b"0" * 60_000 + b"loss=1",
            b"2026-11-20 08:04:09 " * 3_000 + b"loss=1 (",
            b'{"loss":' * 8_000,
            b"epoch,train_loss\n1,[" + b"1" * 60_000,
        ],
        ids=lambda text: repr(text[:24]),
    )
    def test_time_is_linear(self, text: bytes) -> None:
        started = time.process_time()
        in_one(text + b"\n")
        assert time.process_time() - started < 3

    def test_memory_is_bounded(self) -> None:
        reader = LogReader()
        tracemalloc.start()
        try:
            for _ in range(64):
                reader.feed(b"x" * (1 << 18))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20


class TestRareForms:
    """Beyond the thorough part only what lines were found by is looked for in every block."""

    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_reader, "BLOCK_BYTES", 1 << 10)
        monkeypatch.setattr(log_reader, "FULL_SEARCH_BYTES", 1 << 14)

    def test_first_loss_is_found_at_any_position(self) -> None:
        data = b"x" * 99 + b"\n"
        for begin in (0, 20_000, 50_000):
            log = data * (begin // 100) + b"step=1 loss=2.5\n" + data * 99
            assert len(in_one(log)) == 1

    def test_early_format_is_found_everywhere(self) -> None:
        log = b"".join(b"epoch=%d accuracy=0.5\n%s\n" % (i, b"x" * 300) for i in range(500))
        assert len(in_one(log)) == 500

    def test_late_format_is_found_soon(self) -> None:
        metric = b"".join(b"epoch=%d accuracy=0.5\n%s\n" % (i, b"x" * 90) for i in range(2000))
        found = in_one(b"y" * 99 + b"\n" + b"z\n" * 12_000 + metric)
        assert len(found) > 100


def test_needles_are_in_lower_case() -> None:
    assert all(needle == fold_block(needle) for needle in NEEDLES)


class TestDrawnOver:
    """A bar's drawing without a line end, the cursor up, and then a logger's own line."""

    @pytest.mark.parametrize("head", ["", "[2026-11-20 08:04:09] ", "INFO:root:"])
    @pytest.mark.parametrize(
        "drawn", ["  0%|          | 0/10 [00:00<?, ?it/s]", "0it [00:00, ?it/s]"]
    )
    def test_logger_line_after_a_bar_is_read(self, drawn: str, head: str) -> None:
        log = "".join(f"{drawn}\x1b[A{head}step: {i} loss: {i}.5\n" for i in range(1, 9))
        found = [row for row in in_one(log.encode()) if row.values]
        assert [(row.step, row.values) for row in found] == [(i, (f"{i}.5",)) for i in range(1, 9)]
        assert all(row.layout.bar is None for row in found)

    def test_cursor_up_after_a_bar_is_ignored(self) -> None:
        log = "".join(f"  0%|   | {i}/10 [00:00<?, ?it/s, loss={i}.5]\x1b[A\r" for i in range(9))
        assert [row.step for row in in_one(log.encode())] == [*range(9)]


class TestDense:
    """A log in which every line measures something, some of them in padded columns."""

    LOG = "".join(dense_lines(1800)).encode()

    @pytest.mark.slow
    def test_each_line_is_read_independently(self) -> None:
        found = in_one(self.LOG)
        assert found == line_by_line(self.LOG) and len(found) == 1800

    @pytest.mark.slow
    @pytest.mark.parametrize("size", [1, 97, 4096])
    def test_rows_do_not_depend_on_chunks(self, size: int) -> None:
        log = self.LOG[:30_000]
        assert in_pieces(log, [size] * (len(log) // size)) == in_one(log)

    def test_rows_do_not_depend_on_the_block_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = in_one(self.LOG)
        monkeypatch.setattr(log_reader, "BLOCK_BYTES", 1 << 10)
        monkeypatch.setattr(log_reader, "FULL_SEARCH_BYTES", 1 << 14)
        assert in_one(self.LOG) == whole

    @pytest.mark.slow
    def test_most_lines_are_read_by_patterns(self, read_lines: list[str]) -> None:
        """What makes it fast: bars, dictionaries, Megatron's columns and others are learned."""
        in_one(self.LOG)
        short = len(read_lines)
        read_lines.clear()
        in_one(self.LOG * 5)
        assert len(read_lines) < short + 200

    def test_lines_of_many_numbers_are_read_by_patterns(self, read_lines: list[str]) -> None:
        names = [f"actor/{chr(97 + n % 26) * (1 + n // 26)}/loss" for n in range(80)]
        small = [f"{name}:{n}.5e-05" for n, name in enumerate(names)]
        large = [f"{name}:{n}.25" for n, name in enumerate(names)]
        log = ""
        for step in range(30):  # of ten shapes
            values = small[: step % 10] + large[step % 10 :]
            log += f"step:{step} - " + " - ".join(values) + "\n"
        assert len(rows(LogReader().feed(log.encode()))) == 30
        assert len(read_lines) < 5 * 30


class TestTotals:
    def test_epoch_length_is_stored_per_frame(self) -> None:
        log = "".join(
            f"Epoch: [{epoch}/9]  [{step:4d}/{total}]  eta: 0:12:33  loss: 2.5 (2.6)\n"
            for epoch in range(9)
            for total in (1562, 782)
            for step in range(0, total, 50)
        )
        rows: dict[int | None, int] = {}
        for piece in LogReader().feed(log.encode()):
            assert isinstance(piece, Frame)
            rows[piece.total] = rows.get(piece.total, 0) + len(piece)
        assert rows == {1562: 9 * 32, 782: 9 * 16}


class TestRanks:
    def test_rank_is_read_from_the_line_prefix(self) -> None:
        data = b"".join(b"[rank%d]: step=%d loss=2.5\n" % (i % 3, i // 3) for i in range(30))
        assert [row.layout.rank for row in in_one(data)] == [0, 1, 2] * 10
        assert in_one(data) == line_by_line(data)

    def test_rank_is_read_from_a_json_key(self) -> None:
        data = "".join(json.dumps({"step": 1, "loss": 2.5, "rank": r}) + "\n" for r in range(4))
        assert [row.layout.rank for row in in_one(data.encode())] == [0, 1, 2, 3]


class TestTimes:
    @pytest.mark.parametrize(
        ("stamp", "seconds"),
        [
            ("2026-11-20 08:04:%02d,500", 1795161840.5),
            ("2026-11-20T08:04:%02d+02:00", 1795154640.0),
            ("2026-11-20T08:04:%02d+05:30", 1795142040.0),
        ],
    )
    def test_time_stamps_are_converted_to_seconds(self, stamp: str, seconds: float) -> None:
        lines = [f"{stamp % i} - INFO - step={i} loss=2.5\n".encode() for i in range(50)]
        times: list[float] = []
        for piece in LogReader().feed(b"".join(lines))[1:]:
            assert isinstance(piece, Frame) and piece.times is not None
            times += piece.times
        assert all(
            math.isclose(time, seconds + i, abs_tol=1e-3) for i, time in enumerate(sorted(times))
        )
