"""Printing log lines: other output between them starts on a new line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.actions.logs import Lines
from hpcrun.cli.show_logs import LogPrinter, add_prefix
from hpcrun.logs.files import LogFile

ZERO, ONE = LogFile(Path("/0"), 0, rank=0), LogFile(Path("/1"), 0, rank=1)


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        # A piece of a long line, the end of a truncated log.
        ([Lines(ZERO, b"loss 1"), None], b"loss 1\n|"),
        ([Lines(ZERO, b"loss 1\n"), None], b"loss 1\n|"),
        ([Lines(ZERO, b"lo"), Lines(ZERO, b"ss\n"), None], b"loss\n|"),
        ([Lines(ZERO, b"a"), Lines(ONE, b"b\n")], b"a\n[rank1]: b\n"),
        ([Lines(ZERO, b"a"), Lines(ONE, heading="attempt 1")], b"a\n==> attempt 1 <==\n"),
        # Text must not share a row with a progress bar; bars of two ranks may.
        ([Lines(ZERO, b"1%\r2%\r"), None], b"1%\r2%\r\n|"),
        ([Lines(ZERO, b"1%\r"), Lines(ONE, b"1%\r")], b"1%\r[rank1]: 1%\r"),
    ],
)
def test_other_output_does_not_join_an_open_line(
    events: list[Lines | None], shown: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """None represents text on stderr, shown as |."""
    printer, found = LogPrinter(None), b""
    for event in events:
        if event is None:
            printer.end_open_line()
        else:
            printer.show(event)
        found += capsysbinary.readouterr().out + (b"|" if event is None else b"")
    assert found == shown


def test_rank_prefix_of_torch_is_not_duplicated() -> None:
    file = LogFile(Path("x"), 0, node=0, rank=1)
    data = b"[rank1]: Traceback\nplain\n"
    assert add_prefix(data, file) == b"[rank1]: Traceback\n[rank1]: plain\n"
    first = LogFile(Path("x"), 0, node=0, rank=0)
    assert add_prefix(b"[rank0]: Traceback\n", first) == b"[rank0]: Traceback\n"
