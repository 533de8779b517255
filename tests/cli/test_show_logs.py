"""Lines of logs on their way out: what stands between them has lines of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.actions.logs import Lines
from hpcrun.cli.show_logs import LogPrinter, prefixed
from hpcrun.logs.files import LogFile

ZERO, ONE = LogFile(Path("/0"), 0, rank=0), LogFile(Path("/1"), 0, rank=1)


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        # A piece of a long line, the last bytes of a log that somebody cut off.
        ([Lines(ZERO, b"loss 1"), None], b"loss 1\n|"),
        ([Lines(ZERO, b"loss 1\n"), None], b"loss 1\n|"),
        ([Lines(ZERO, b"lo"), Lines(ZERO, b"ss\n"), None], b"loss\n|"),
        ([Lines(ZERO, b"a"), Lines(ONE, b"b\n")], b"a\n[rank1]: b\n"),
        ([Lines(ZERO, b"a"), Lines(ONE, heading="attempt 1")], b"a\n==> attempt 1 <==\n"),
        # Words would stand in the same row as a bar; bars of two ranks may.
        ([Lines(ZERO, b"1%\r2%\r"), None], b"1%\r2%\r\n|"),
        ([Lines(ZERO, b"1%\r"), Lines(ONE, b"1%\r")], b"1%\r[rank1]: 1%\r"),
    ],
)
def test_nothing_joins_a_line_that_is_open(
    events: list[Lines | None], shown: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """None: words for standard error, shown as |."""
    printer, found = LogPrinter(None), b""
    for event in events:
        if event is None:
            printer.pause()
        else:
            printer.show(event)
        found += capsysbinary.readouterr().out + (b"|" if event is None else b"")
    assert found == shown


def test_the_rank_that_torch_names_stands_once() -> None:
    file = LogFile(Path("x"), 0, node=0, rank=1)
    data = b"[rank1]: Traceback\nplain\n"
    assert prefixed(data, file) == b"[rank1]: Traceback\n[rank1]: plain\n"
    first = LogFile(Path("x"), 0, node=0, rank=0)
    assert prefixed(b"[rank0]: Traceback\n", first) == b"[rank0]: Traceback\n"
