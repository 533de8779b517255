"""The reader: pieces, damage, long lines, ranks, unfinished lines."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.metrics import read
from hpcrun.metrics.read import LONGEST_LINE, Reader, read_samples
from hpcrun.metrics.sample import Sample

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

line = st.one_of(
    st.sampled_from(NOISE),
    st.builds(lambda row, n: row % (n, n), st.sampled_from(ROWS), st.integers(0, 999)),
)
log = st.lists(st.tuples(line, st.sampled_from(ENDS)), max_size=30).map(
    lambda pairs: b"".join(text + end for text, end in pairs)
)


def in_pieces(data: bytes, sizes: list[int]) -> list[Sample]:
    reader, samples, start = Reader(), [], 0
    for size in sizes:
        samples += reader.feed(data[start : start + size])
        start += size
    samples += reader.feed(data[start:])
    assert reader.bytes_read == len(data)
    return samples + reader.finish()


@given(log, st.lists(st.integers(0, 40), max_size=60))
def test_pieces_do_not_matter(data: bytes, sizes: list[int]) -> None:
    assert in_pieces(data, sizes) == read_samples([data])


@given(log)
@settings(max_examples=50)
def test_small_blocks_do_not_matter(data: bytes) -> None:
    whole = read_samples([data])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "BLOCK", 7)
        assert read_samples([data]) == whole


@given(log)
def test_offsets_point_at_the_line(data: bytes) -> None:
    for sample in read_samples([data]):
        assert sample.offset == 0 or data[sample.offset - 1] in b"\r\n\0"
        again = read_samples([data[sample.offset :].replace(b"\r", b"\n").split(b"\n")[0], b"\n"])
        assert sample.value in {other.value for other in again if other.name == sample.name}


@given(log, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=20))
def test_damage_neither_crashes_nor_invents(data: bytes, damage: list[tuple[int, int]]) -> None:
    """Lines that the damage did not reach give what they gave; no step comes from elsewhere."""
    damaged = bytearray(data)
    for place, byte in damage:
        if place < len(damaged):
            damaged[place] = byte
    found = read_samples([bytes(damaged)])
    for sample in found:
        text = bytes(damaged)[sample.offset :].splitlines()[0]
        if sample.step is not None:
            assert str(sample.step).encode() in text.replace(b"+", b"") or b"e" in text.lower()
    sane = {s for s in read_samples([data]) if s.value == s.value}
    touched = {place for place, _ in damage}
    for sample in sane:
        end = sample.offset
        while end < len(data) and data[end] not in b"\r\n\0":
            end += 1
        if not touched & set(range(sample.offset - 1, end + 1)):
            assert sample in found


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(data: bytes) -> None:
    assert in_pieces(data, [1] * len(data)) == read_samples([data])


@given(st.text(alphabet="steploss=: ,.0123456789nainf{}\"'\r\n-|", max_size=80))
def test_texts_made_of_metric_letters_are_survived(text: str) -> None:
    for sample in read_samples([text.encode(), b"\n"]):
        assert "loss" in text
        assert sample.name


class TestUnfinishedLine:
    def test_is_kept_until_the_rest_comes(self) -> None:
        reader = Reader(attempt=2)
        assert reader.feed(b"hello\nstep=10 loss=2.") == []
        (sample,) = reader.feed(b"25\n")
        assert sample == Sample(2, 6, None, 10, "train", "loss", 2.25)
        assert reader.finish() == []

    def test_a_number_that_may_be_cut_is_not_read(self) -> None:
        assert read_samples([b"step=10 loss=2.2"]) == []
        assert [s.name for s in read_samples([b"step=10 loss=2.2 lr=0.0001"])] == ["loss"]

    def test_a_whole_json_object_is_read(self) -> None:
        assert [s.value for s in read_samples([b'{"step": 1, "loss": 2.5}'])] == [2.5]
        assert read_samples([b'{"step": 1, "loss": 2.5, "lr": 0.1']) == []

    def test_reading_goes_on_from_an_offset(self) -> None:
        data = b"step=1 loss=2.5\nstep=2 loss=2.25\n"
        assert Reader(offset=16).feed(data[16:]) == read_samples([data])[1:]


class TestLongLines:
    @pytest.mark.parametrize("piece", [1 << 10, 1 << 16, 1 << 22])
    def test_a_line_too_long_is_passed_over(self, piece: int) -> None:
        long = b"step=1 loss=2 x=" + b"y" * LONGEST_LINE + b"\n"
        data = b"step=0 loss=1\n" + long + b"step=2 loss=3\n" + long[:-1]
        samples = in_pieces(data, [piece] * (len(data) // piece))
        assert [sample.step for sample in samples] == [0, 2]
        assert samples[1].offset == 14 + len(long)

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
        ],
        ids=lambda text: repr(text[:24]),
    )
    def test_time_is_linear(self, text: bytes) -> None:
        started = time.process_time()
        read_samples([text, b"\n"])
        assert time.process_time() - started < 0.5

    def test_memory_is_bounded(self) -> None:
        reader = Reader()
        tracemalloc.start()
        try:
            for _ in range(64):
                reader.feed(b"x" * (1 << 18))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20


class TestRanks:
    def test_one_rank_speaks_for_all(self) -> None:
        data = b"[rank1]: step=1 loss=2.5\n[rank0]: step=1 loss=9\n[rank1]: step=2 loss=2\n"
        assert [(s.step, s.value) for s in read_samples([data])] == [(1, 2.5), (2, 2.0)]

    def test_each_metric_has_its_own_speaker(self) -> None:
        data = b"[rank3]: step=1 loss=2.5\n[rank0]: step=1 eval_loss=2\n"
        assert [s.name for s in read_samples([data])] == ["loss", "eval_loss"]

    def test_labels_of_srun_are_ranks_beside_a_step(self) -> None:
        data = b"0: step=1 loss=2.5\n1: step=1 loss=9\n"
        assert [s.value for s in read_samples([data])] == [2.5]

    def test_labels_without_a_step_may_be_the_step(self) -> None:
        data = b"0: loss=2.5\n1: loss=2.25\n"
        assert [s.value for s in read_samples([data])] == [2.5, 2.25]

    def test_rank_key(self) -> None:
        data = "".join(json.dumps({"step": 1, "loss": 2.5, "rank": r}) + "\n" for r in range(4))
        assert [s.name for s in read_samples([data.encode()])] == ["loss"]
