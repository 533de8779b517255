"""Windows of a log: lines at an offset, before it, at a match; masked, and fast in a long log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.secrets import Masker
from hpcrun.ui.log_window import MAX_LINES, find_text, read_window

NO_SECRETS = Masker()


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """A log with the lines 0 to 999."""
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    return path


def test_windows_cover_a_log_without_gaps(numbered: Path) -> None:
    at, forward = 0, []
    while at < numbered.stat().st_size:
        window = read_window(numbered, NO_SECRETS, at)
        assert window.begin == at and 0 < len(window.lines) <= MAX_LINES
        forward += window.lines
        at = window.end
    backward: list[str] = []
    while at > 0:
        window = read_window(numbered, NO_SECRETS, at, before=True)
        assert window.end == at
        backward = window.lines + backward
        at = window.begin
    assert forward == backward == numbered.read_text().splitlines()


def test_offset_within_a_line_means_its_begin(numbered: Path) -> None:
    assert read_window(numbered, NO_SECRETS, 3).begin == 0
    assert read_window(numbered, NO_SECRETS, 10).lines[0] == "line 1"
    assert read_window(numbered, NO_SECRETS, -1, before=True).lines[-1] == "line 999"


def test_search_finds_next_and_previous_occurrence(numbered: Path) -> None:
    text = numbered.read_text()
    first = find_text(numbered, "line 50", 0)
    assert first == text.index("line 50")
    assert find_text(numbered, "line 50", first + 1) == text.index("line 500")
    assert find_text(numbered, "line 50", first, backward=True) is None
    assert find_text(numbered, "line 50", -1, backward=True) == text.index("line 509")
    assert find_text(numbered, "LINE 50", 0) is None  # capital letters are exact
    assert find_text(numbered, "absent", 0) is None


def test_empty_and_missing_logs(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.touch()
    assert read_window(path, NO_SECRETS, -1, before=True).lines == []
    assert find_text(path, "a", 0) is None
    with pytest.raises(OSError, match="No such file"):
        read_window(tmp_path / "b.log", NO_SECRETS, 0)


def test_secrets_are_masked(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\nthe value is abcdef123456\nafter\n")
    window = read_window(path, Masker(values=[b"abcdef123456"]), 0)
    assert window.lines == ["before", "the value is ***", "after"]


def test_only_the_last_state_of_a_progress_bar_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"10%\r50%\r100%\r\nlong " + b"x" * 20_000 + b"\n\xff\n")
    bar, long, broken = read_window(path, NO_SECRETS, 0).lines
    assert bar == "100%" and len(long) < 9000 and long.endswith("(20,005 bytes)")
    assert broken == "\ufffd"


@pytest.mark.slow
def test_log_of_five_million_lines_opens_and_is_searched_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1234567\n" * 4_999_999 + b"the end\n")
    begun = time.process_time()
    assert read_window(path, NO_SECRETS, -1, before=True).lines[-1] == "the end"
    middle = read_window(path, NO_SECRETS, 20_000_003)
    assert middle.begin == 20_000_000 and len(middle.lines) == MAX_LINES
    assert find_text(path, "the end", 0) == 8 * 4_999_999
    assert time.process_time() - begun < 2
