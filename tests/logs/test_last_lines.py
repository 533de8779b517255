"""Reading the last lines of a log from its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.logs import files
from hpcrun.logs.files import find_last_lines, read_at


@pytest.mark.parametrize("blocks", [(1, 1), (3, 7), (1 << 16, 1 << 22)])
@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\nbb\n\nccc", b"\n\n\na\nb\n"])
def test_last_lines_returns_the_requested_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, blocks: tuple[int, int]
) -> None:
    monkeypatch.setattr(files, "_BLOCKS", blocks)
    path = tmp_path / "log"
    path.write_bytes(text)
    lines = text.splitlines(keepends=True)
    for count in range(len(lines) + 2):
        start = find_last_lines(path, count)
        assert text[start:] == b"".join(lines[max(0, len(lines) - count) :]), count


@pytest.mark.parametrize("blocks", [(1, 1), (3, 7), (1 << 16, 1 << 22)])
def test_last_lines_counts_only_wanted_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int]
) -> None:
    monkeypatch.setattr(files, "_BLOCKS", blocks)
    path = tmp_path / "log"
    path.write_bytes(b"x1\ny\nx2\ny\nx3\ny\n")
    start = find_last_lines(path, 2, lambda line: line.startswith(b"x"))
    assert path.read_bytes()[start:] == b"x2\ny\nx3\ny\n"


def test_last_lines_does_not_read_a_sparse_file_of_two_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.seek(2 << 30)
        file.write(b"\none\ntwo\n")
    limits: list[int] = []

    def counted(path: Path, offset: int, limit: int) -> bytes:
        limits.append(limit)
        return read_at(path, offset, limit)

    monkeypatch.setattr(files, "read_at", counted)
    assert find_last_lines(path, 2) == (2 << 30) + 1
    assert 0 < sum(limits) <= 1 << 16
