"""Incremental reading of growing files: complete lines, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.logs import files as module
from hpcrun.logs.files import LogFile, Tail, list_log_files
from hpcrun.runs.layout import create_run_folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use chunks small enough that a few words span several of them."""
    monkeypatch.setattr(module, "_CHUNK", 4)
    yield


class Log:
    """A log and its reader."""

    def __init__(self, path: Path) -> None:
        self.file = LogFile(path)
        self.tail = Tail()
        self.is_rewritten = False

    def add(self, data: bytes) -> None:
        with self.file.path.open("ab") as file:
            file.write(data)

    def poll(self) -> bytes:
        found = list(self.tail.lines(self.file))
        self.is_rewritten = None in found
        return b"".join(data for data in found if data is not None)

    def finish(self) -> bytes:
        found = self.tail.lines(self.file, is_last=True)
        return b"".join(filter(None, found)) + self.tail.rest(self.file)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "node-0.log")


def test_tail_reads_a_file_that_appears_later(log: Log) -> None:
    assert log.poll() == b""
    log.add(b"")
    assert log.poll() == b""
    log.add(b"one\n")
    assert log.poll() == b"one\n"
    assert log.poll() == b""


def test_tail_holds_back_a_line_until_its_end(log: Log) -> None:
    log.add(b"one\ntw")
    assert log.poll() == b"one\n"
    log.add(b"o")
    assert log.poll() == b""
    log.add(b"\nthree\nf")
    assert log.poll() == b"two\nthree\n"
    assert log.finish() == b"f\n"
    assert log.finish() == b""


def test_tail_joins_a_line_of_many_chunks(log: Log) -> None:
    log.add(b"x" * 1001)
    assert log.poll() == b""
    log.add(b"\ny")
    assert log.poll() == b"x" * 1001 + b"\n"


def test_carriage_return_does_not_end_a_line(log: Log) -> None:
    log.add(b"10%\r20%\r")
    assert log.poll() == b""
    log.add(b"30%\r\nnext\n")
    assert log.poll() == b"10%\r20%\r30%\r\nnext\n"


def test_truncated_file_is_read_again(log: Log) -> None:
    log.add(b"first attempt\nhalf a li")
    assert log.poll() == b"first attempt\n"
    log.file.path.write_bytes(b"second\n")
    assert log.poll() == b"second\n"
    log.add(b"third\n")
    assert log.poll() == b"third\n"


def test_emptied_file_is_read_from_its_start(log: Log) -> None:
    log.add(b"one\n")
    log.poll()
    log.file.path.write_bytes(b"")
    assert log.poll() == b""
    log.add(b"two\n")
    assert log.poll() == b"two\n"


def test_file_that_vanishes_and_returns_is_not_repeated(log: Log) -> None:
    log.add(b"one\n")
    assert log.poll() == b"one\n"
    log.file.path.rename(log.file.path.with_name("away"))
    assert log.poll() == b""
    log.file.path.with_name("away").rename(log.file.path)
    log.add(b"two\n")
    assert log.poll() == b"two\n"


def test_tail_keeps_partial_lines_of_several_files_apart(tmp_path: Path) -> None:
    logs = [Log(tmp_path / str(number)) for number in range(3)]
    files = [log.file for log in logs]
    tail = Tail()
    for log in logs:
        log.add(b"a" + log.file.path.name.encode())
    assert [data for file in files for data in tail.lines(file)] == []
    for log in logs:
        log.add(b"b\nc")
    found = [data for file in files for data in tail.lines(file)]
    assert found == [b"a0b\n", b"a1b\n", b"a2b\n"]
    assert [tail.rest(file) for file in files] == [b"c\n"] * 3


@pytest.mark.slow
@given(st.lists(st.binary(max_size=12), max_size=8))
def test_tail_returns_every_byte_once_and_in_order(pieces: list[bytes]) -> None:
    found = b""
    with TemporaryDirectory() as folder:
        log = Log(Path(folder) / "log")
        for piece in pieces:
            log.add(piece)
            data = log.poll()
            assert not data or data.endswith((b"\n", b"\r"))
            found += data
        found += log.finish()
    whole = b"".join(pieces)
    assert found == (whole if whole.endswith(b"\n") or not whole else whole + b"\n")


# ---- which files


def test_log_files_lists_ranks_then_nodes_then_the_batch_script(
    tmp_path: Path,
) -> None:
    run = create_run_folder(tmp_path / "r")
    assert list_log_files(run) == []
    names = "0/node-0 0/node-10 0/node-2 10/node-0 2/rank-0 0/rank-11 0/rank-0 0/rank-2"
    for name in (f"{name}.log" for name in names.split()):
        (run.logs / name).parent.mkdir(exist_ok=True)
        (run.logs / name).touch()
    for name in ("0/notes.txt", "x.log", "0/node-.log"):
        (run.logs / name).touch()
    run.batch_log.touch()
    files = list_log_files(run)
    assert [str(file.path.relative_to(run.logs)) for file in files] == [
        "0/rank-0.log",
        "0/rank-2.log",
        "0/rank-11.log",
        "0/node-0.log",
        "0/node-2.log",
        "0/node-10.log",
        "2/rank-0.log",
        "10/node-0.log",
        "batch.log",
    ]
    ranks, nodes = ["", "[rank2]: ", "[rank11]: "], ["", "node2: ", "node10: "]
    assert [file.prefix for file in files] == [*ranks, *nodes, "", "", ""]


# ---- replaced and rewritten files


def test_rewritten_longer_file_is_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1 << 20)
    log.add(b"first\n")
    assert log.poll() == b"first\n"
    assert not log.is_rewritten
    log.file.path.unlink()
    log.add(b"another beginning\nand more\n")
    assert log.poll() == b"another beginning\nand more\n"
    assert log.is_rewritten


def test_trailing_zeros_are_treated_as_missing_bytes(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1 << 20)
    log.add(b"one\ntw\0\0\0\0")
    assert log.poll() == b"one\n"
    with log.file.path.open("r+b") as file:
        file.seek(6)
        file.write(b"o\nx\n")
    assert log.poll() == b"two\nx\n"
    assert not log.is_rewritten


def test_very_long_line_is_split_between_words(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1 << 20)
    monkeypatch.setattr(module, "_LONGEST", 50)
    log.add(b"word " * 11 + b"hf_token")
    assert log.poll() == b"word " * 11
    log.add(b"_goes_on\n")
    assert log.poll() == b"hf_token_goes_on\n"


def test_tail_can_start_at_an_offset(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1 << 20)
    log.add(b"one\ntwo\n")
    log.tail.start(log.file, 4)
    assert log.poll() == b"two\n"
    log.file.path.write_bytes(b"anew\nother\n")
    assert log.poll() == b"anew\nother\n"
