"""Printing log lines: other output between them starts on a new line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcrun.actions.logs import Lines
from hpcrun.cli import show_logs
from hpcrun.cli.show_logs import LogPrinter, add_prefix
from hpcrun.logs.files import LogFile
from hpcrun.secrets import Masker

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


def shown_on_a_terminal(
    events: list[Lines], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[bytes]
) -> str:
    monkeypatch.setattr(show_logs, "is_terminal", lambda: True)
    monkeypatch.setattr(show_logs, "has_colour", lambda: True)
    LogPrinter(Masker(), folds=True).show_all(events)
    return capsys.readouterr().out.decode()


def rank(number: int) -> LogFile:
    return LogFile(Path(f"r{number}"), 0, node=0, rank=number)


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (dict.fromkeys(range(4), "loading\n"), "loading\n[ranks 1-3: same line]\n"),
        ({0: "a\nb\n", 1: "a\nb\n"}, "a\nb\n[rank 1: same 2 lines]\n"),
        ({0: "a\nb\n", 1: "a\nc\n"}, "a\nb\n[rank 1: same line]\n[rank1]: c\n"),
        ({0: "tick\n", 1: "tick\ntick\n"}, "tick\n[rank 1: same line]\n[rank1]: tick\n"),
        ({0: "[rank0]: E: no\n", 2: "[rank2]: E: no\n"}, "[rank0]: E: no\n[rank 2: same line]\n"),
        ({0: "50%\r", 1: "50%\r"}, "50%\r[rank1]: 50%\r\n"),
        ({0: "loss 1\n", 1: "loss 2\n"}, "loss 1\n[rank1]: loss 2\n"),
    ],
)
def test_lines_that_ranks_print_alike_are_shown_once_on_a_terminal(
    lines: dict[int, str],
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    events = [Lines(rank(number), text.encode()) for number, text in lines.items()]
    found = shown_on_a_terminal(events, monkeypatch, capsysbinary)
    assert re.sub(r"\x1b\[\d*m", "", found) == shown


def test_a_pipe_shows_the_lines_of_all_ranks(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    events = [Lines(rank(number), b"loading\n") for number in range(3)]
    LogPrinter(Masker(), folds=True).show_all(events)
    shown = capsysbinary.readouterr().out
    assert shown == b"loading\n[rank1]: loading\n[rank2]: loading\n"


def test_lines_of_the_harness_are_dimmed(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    batch = LogFile(Path("batch.log"))
    text = b"hpcrun: attempt 0 begins\nsrun: hpcrun: no\n"
    found = shown_on_a_terminal([Lines(batch, text)], monkeypatch, capsysbinary)
    assert "\x1b[2mhpcrun: attempt 0 begins\x1b[0m\nsrun: hpcrun: no\n" in found
