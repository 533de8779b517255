"""hpcrun status on a terminal: width, colours, and --watch."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import click
import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller, replay
from tests.cli.status_runs import answers, make_run, queued, several, tools, write_sweep
from tests.cli.watching import Watching
from tests.slurm_answers import squeue_row

pytestmark = pytest.mark.slow

__all__ = ["several", "tools"]  # fixtures


def drawn(hpcrun: Caller, columns: int, *argv: str, **env: str) -> str:
    """Return the output on a terminal with the given number of columns."""
    return hpcrun.drawn(*argv, columns=columns, **{"TERM": "xterm-256color", **env})


@pytest.mark.parametrize("columns", [80, 200])
def test_lines_fit_the_terminal(several: Caller, columns: int) -> None:
    lines = click.unstyle(drawn(several, columns, "status")).splitlines()
    assert all(len(line) <= columns for line in lines), lines
    below = "    your QOS allows 8 GPUs at once; 8 are in use"
    assert (below in lines) == (columns == 80)


@pytest.mark.parametrize("columns", [30, 40])
def test_narrow_terminal_shows_state_and_remarks(several: Caller, columns: int) -> None:
    text = click.unstyle(drawn(several, columns, "status"))
    lines = text.splitlines()
    assert all(len(line) <= columns for line in lines), lines
    for state in ("RUNNING", "PENDING", "FAILED", "COMPLETED"):
        assert state in text
    assert "your QOS allows 8 GPUs at once; 8 are in use" in " ".join(text.split())


def test_narrow_terminal_keeps_the_last_column(hpcrun: Caller, tools: Path) -> None:
    sweep = RunFolder(write_sweep(hpcrun, 2))
    rows = [queued(sweep, f"40_{index}", "PENDING", "PartitionDown") for index in range(2)]
    answers(tools, "squeue", rest="".join(rows))
    text = click.unstyle(drawn(hpcrun, 40, "status", "40"))
    assert all(len(line) <= 40 for line in text.splitlines()), text
    remark = "its partition accepts jobs but does not start any now"
    assert " ".join(text.split()).count(remark) == 2, text


def test_c_locale_gets_ascii(several: Caller) -> None:
    several.environ["LC_ALL"] = "C"
    for argv in (["status"], ["status", "15"]):
        assert several.process(*argv).out.isascii()


def test_no_color_disables_colours(several: Caller) -> None:
    assert "\x1b[" in drawn(several, 80, "status")
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[" not in drawn(several, 80, "status", **env)
        assert "\x1b[" not in drawn(several, 80, "status", "nothing-like-it", **env)


@pytest.mark.parametrize(
    "words",
    [("top",), ("status", "--watch"), ("parse", "-f", "11")],
    ids=lambda words: words[0],
)
def test_dumb_terminal_gets_no_escape_sequences(several: Caller, words: tuple[str, ...]) -> None:
    got = several.drawn(*words, TERM="dumb")
    assert got and "\x1b" not in got, got


def test_pager_gets_the_width_of_its_terminal(several: Caller) -> None:
    rows = "".join(f"step {step} loss {1 + 1 / step:.4f}\n" for step in range(1, 400))
    several.write("done.log", rows)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'hpcrun', *sys.argv[1:]],"
    code += " stdout=open('drawn', 'w'))"
    process, main = several.on_terminal(sys.executable, "-c", code, "parse", "done.log", columns=60)
    assert process.wait() == 0
    os.close(main)
    lines = (several.project / "drawn").read_text().splitlines()
    assert max(map(len, lines)) in range(55, 61), lines


def test_watch_needs_a_terminal(several: Caller) -> None:
    done = several("status", "--watch")
    assert done.code == 2 and "--watch needs a terminal" in done.err
    assert several("status", "--watch", "--json").code == 2


def test_watch_draws_ascii_on_ascii_terminals(several: Caller, tools: Path) -> None:
    several.environ["PYTHONIOENCODING"] = "ascii"
    answers(tools, "squeue", rest=squeue_row("999", "RUNNING", j="2 × Modèle"))
    watching = Watching(several, "999")
    (picture,) = watching.pictures(1)
    watching.end()
    assert "job 999 2 x Mod\\xe8le, not submitted by hpcrun" in picture, picture


def test_multi_line_name_is_shown_on_one_line(several: Caller, tools: Path) -> None:
    answers(tools, "squeue", rest=squeue_row("999", "RUNNING", j="x\n  state     COMPLETED"))
    shown = several("status", "999").out
    assert "job 999 x\\n  state" in shown and "\n  state     COMPLETED" not in shown


@pytest.mark.parametrize("argv", [(), ("14",), ("13",), ("999",)])
def test_watch_queries_slurm_at_most_twice_a_minute(
    several: Caller, tools: Path, argv: tuple[str, ...]
) -> None:
    write_sweep(several, 2)  # so that the number of a job may be that of a task
    external = queued(RunFolder(tools), "999", "PENDING", "Priority")
    answers(tools, "squeue", rest=(tools / "squeue.0").read_text() + external)
    watching = Watching(several, *argv)
    watching.pictures(1)
    calls = [tools / f"{name}.calls" for name in ("squeue", "sacct", "scontrol")]
    asked = [path.read_text() if path.exists() else "" for path in calls]
    assert asked[0]
    last = watching.pictures(4)[-1]
    watching.end()
    assert [path.read_text() if path.exists() else "" for path in calls] == asked
    assert "PENDING" in last, last


def test_watch_survives_missing_responses(several: Caller, tools: Path) -> None:
    row = queued(RunFolder(tools), "999", "PENDING", "Priority")
    answers(tools, "squeue", rest=row)
    watching = Watching(several, "999", slurm=0.4)
    (picture,) = watching.pictures(1)
    assert "no answer" not in picture
    replay(tools, "squeue", (1, "", "slurm_load_jobs error: Unable to contact slurm controller"))
    while "no answer: next refresh in" not in picture:
        (picture,) = watching.pictures(1)
    assert "PENDING" in picture
    answers(tools, "squeue", rest=row.replace("PENDING", "RUNNING"))
    while "RUNNING" not in picture:
        (picture,) = watching.pictures(1)
    assert "no answer" not in picture
    watching.end()


def test_run_newer_than_the_last_answer_is_not_lost(several: Caller, tools: Path) -> None:
    watching = Watching(several)
    watching.pictures(1)
    # Its record is two hours old, as if the watch had not queried for that time.
    make_run(several, "20261120-081459-train-7k3z", "16", attempts=0)
    *_, last = watching.pictures(3)
    watching.end()
    assert re.search(r"16 +train +UNKNOWN .*submitted a moment ago", last), last


def test_watch_queries_less_often_while_no_state_changes(several: Caller, tools: Path) -> None:
    """The elapsed time of a running job is not a change; a new run is."""
    calls = tools / "squeue.calls"
    watching = Watching(several, slurm=0.4)
    watching.pictures(1)

    def until_asked() -> int:
        before, pictures = calls.read_text(), 0
        while calls.read_text() == before:
            watching.pictures(1)
            pictures += 1
        watching.pictures(1)  # the remaining arguments of the query
        return pictures

    asked_at = []
    for _ in range(5):
        until_asked()
        asked_at.append(calls.stat().st_mtime)
    assert asked_at[-1] - asked_at[-2] > 1.2  # 0.4 s, and each time 1.5 times as long
    make_run(several, "20261120-081459-train-7k3z", "16", attempts=0)
    # Not before 0.4 s: four refreshes, and pending ones.
    assert until_asked() <= 8
    watching.end()


def test_ctrl_c_ends_watch_and_restores_the_terminal(several: Caller, tools: Path) -> None:
    calls = tools / "squeue.calls"
    process, main = several.on_terminal("status", "--watch")
    got = b""
    while b"Ctrl-C quits" not in got:
        got += os.read(main, 65536)  # raises an error when the process ends
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := os.read(main, 65536):
            got += piece
    os.close(main)
    assert b"Traceback" not in got and got.count(b"\x1b[?25l") == got.count(b"\x1b[?25h")
    assert len(re.findall("--states=all", calls.read_text())) <= 2
