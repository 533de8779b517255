"""hpcrun status on a terminal: its width, its colours, and --watch."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import ROOT, Caller
from tests.cli.test_status import answers, queued, several, tools, write_sweep

__all__ = ["several", "tools"]  # fixtures


def drawn(hpcrun: Caller, columns: int, *argv: str, **env: str) -> str:
    """What a terminal of so many columns gets."""
    import pty

    main, side = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "rows", "40"], stdin=side, check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", *argv],
        cwd=hpcrun.project,
        env=hpcrun.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"} | env,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    got = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        got += piece
    process.wait(timeout=60)
    os.close(main)
    return got.decode()


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_gets_no_line_that_is_too_long(several: Caller, columns: int) -> None:
    lines = click.unstyle(drawn(several, columns, "status")).splitlines()
    assert all(len(line) <= columns for line in lines), lines
    below = "    your QOS allows 8 GPUs at once; 8 are in use"
    assert (below in lines) == (columns == 80)


@pytest.mark.parametrize("columns", [30, 40])
def test_a_narrow_terminal_loses_no_state_and_no_remark(several: Caller, columns: int) -> None:
    text = click.unstyle(drawn(several, columns, "status"))
    lines = text.splitlines()
    assert all(len(line) <= columns for line in lines), lines
    for state in ("RUNNING", "PENDING", "FAILED", "COMPLETED"):
        assert state in text
    assert "your QOS allows 8 GPUs at once; 8 are in use" in " ".join(text.split())


def test_a_table_on_a_narrow_terminal_keeps_its_last_column(hpcrun: Caller, tools: Path) -> None:
    sweep = RunFolder(write_sweep(hpcrun, 2))
    rows = [queued(sweep, f"40_{index}", "PENDING", "PartitionDown") for index in range(2)]
    answers(tools, "squeue", rest="".join(rows))
    text = click.unstyle(drawn(hpcrun, 40, "status", "40"))
    assert all(len(line) <= 40 for line in text.splitlines()), text
    assert " ".join(text.split()).count("its partition takes jobs but starts none now") == 2, text


def test_a_c_locale_gets_ascii(several: Caller) -> None:
    several.environ["LC_ALL"] = "C"
    for argv in (["status"], ["status", "15"]):
        assert several.process(*argv).out.isascii()


def test_watch_needs_a_terminal(several: Caller) -> None:
    done = several("status", "--watch")
    assert done.code == 2 and "--watch draws on a terminal" in done.err
    assert several("status", "--watch", "--json").code == 2


def test_watch_ends_by_ctrl_c_and_leaves_the_terminal_clean(several: Caller, tools: Path) -> None:
    import pty

    calls = tools / "squeue.calls"
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "status", "--watch"],
        cwd=several.project,
        env=several.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    got = b""
    while b"Ctrl-C ends this" not in got:
        got += os.read(main, 65536)  # ends with an error when the process does
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := os.read(main, 65536):
            got += piece
    os.close(main)
    assert b"Traceback" not in got and got.count(b"\x1b[?25l") == got.count(b"\x1b[?25h")
    assert len(re.findall("--states=all", calls.read_text())) <= 2
