"""Sanitizing of logs for terminals: only colours and progress bars are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.logs.files import sanitize_for_terminal


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m 10%\r20%\x1b[K\b\n", b"\x1b[1;31mred\x1b[0m 10%\r20%\x1b[K\b\n"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\n", b"alink\n"),
        (b"\x1b[2J\x1b[H\x1bca\x1b(0b\x1b[?1049hc\x1b[6n\n", b"abc\n"),
        (b"\x1bP1;2q data \x1b\\a\x1b_x\x1b\\b\n", b"ab\n"),
        (b"\x07\x0e\x00a\x7f\n", b"a\n"),
        ("é \x9b2J ✓\n".encode(), "é 2J ✓\n".encode()),
        (b"\xff\xfe\n", "��\n".encode()),
        (b"\x1b]never ends\nnext\n", b"\nnext\n"),
    ],
)
def test_safe_text_and_colours_pass_unchanged(data: bytes, shown: bytes) -> None:
    assert sanitize_for_terminal(data) == shown


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([b"\x1b", b"[", b"]", b"0", b";", b"m", b"J", b"\x07", b"a", b"\n"]))
)
def test_only_colour_sequences_remain(pieces: list[bytes]) -> None:
    shown = sanitize_for_terminal(b"".join(pieces), colours=False)
    assert b"\x1b" not in shown and b"\x07" not in shown
    assert shown.count(b"\n") == b"".join(pieces).count(b"\n")
