"""hpcrun parse -f: redrawing, the end of a run, and stopping without affecting it."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcrun.actions.follow_curve import CurveFollower
from hpcrun.context import load_context
from hpcrun.monitor.poll import MAX_QUERY_BURST
from tests.cli.calling import ROOT, Caller, replay
from tests.cli.followed import END, Followed
from tests.cli.slurm_rows import row
from tests.curves.report.runs import trainer_log
from tests.curves.report.window import Window
from tests.slurm_answers import show_job
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

LINES = trainer_log(1, 200).splitlines(keepends=True)


class Watched:
    """hpcrun on a new terminal."""

    def __init__(self, hpcrun: Caller, *argv: str, width: int = 80, height: int = 24) -> None:
        self.keyboard, theirs = pty.openpty()
        self.window = Window(width, height)
        self.resize(width, height)
        self.modes = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.window.write("$ hpcrun\r\n")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hpcrun", *argv],
            cwd=hpcrun.project,
            env=hpcrun.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.set_blocking(self.keyboard, False)
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self) -> None:
        try:
            while data := os.read(self.keyboard, 1 << 16):
                self.window.write(self.decoder.decode(data))
        except BlockingIOError:
            pass

    def see(self, what: str | Callable[[str], bool]) -> str:
        """Wait until the window shows a text."""
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = self.process.poll() is not None
            self.read()
            if what(self.window.text) if callable(what) else what in self.window.text:
                return self.window.text
            assert not ended and time.monotonic() < deadline, self.window.text
            time.sleep(0.02)

    def end(self) -> int:
        code = self.process.wait()
        self.read()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)
        os.close(self.theirs)


@pytest.fixture
def watch(hpcrun: Caller) -> Iterator[Callable[..., Watched]]:
    started: list[Watched] = []

    def start(*argv: str, **size: int) -> Watched:
        started.append(Watched(hpcrun, *argv, **size))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def followed(hpcrun: Caller) -> Iterator[Followed]:
    made = Followed(hpcrun)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.communicate()


def append(path: Path, lines: list[bytes]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(lines))


def test_growing_file_is_redrawn(hpcrun: Caller, watch: Callable[..., Watched]) -> None:
    log = hpcrun.project / "train.log"
    append(log, LINES[:50])
    seen = watch("parse", "-f", "train.log")
    first = seen.see("loss by step")
    assert seen.window.shown == "alternate" and "25" not in seen.window.modes
    assert "1 to 49" in first and "Ctrl-C ends the following" in first.splitlines()[-1]
    # A line written in two pieces is one line.
    append(log, [*LINES[50:100], LINES[100][:20]])
    seen.see("1 to 98")
    append(log, [LINES[100][20:], *LINES[101:150]])
    seen.see("1 to 147")


def test_ctrl_c_restores_the_terminal_and_prints_the_last_report(
    hpcrun: Caller, watch: Callable[..., Watched]
) -> None:
    """The end of a log file is unknown, so Ctrl-C ends with the last report."""
    append(hpcrun.project / "train.log", LINES)
    seen = watch("parse", "-f", "train.log", height=40)
    seen.see("1 to 200")
    seen.process.send_signal(signal.SIGINT)
    assert seen.end() == 0
    assert seen.window.shown == "usual" and "25" in seen.window.modes
    assert termios.tcgetattr(seen.theirs) == seen.modes
    assert "train.log: loss by step" in seen.window.text
    assert "read as: json lines" in seen.window.text


def test_drawing_follows_the_window_size(hpcrun: Caller, watch: Callable[..., Watched]) -> None:
    append(hpcrun.project / "train.log", LINES)
    seen = watch("parse", "-f", "train.log")
    seen.see("1 to 200")
    for width, height in ((120, 40), (40, 12), (25, 5), (80, 24)):
        seen.read()
        rest = seen.window.rest
        seen.window = Window(width, height)
        seen.window.write("\x1b[?1049h" + rest)
        seen.resize(width, height)
        os.kill(seen.process.pid, signal.SIGWINCH)
        text = seen.see(lambda text: text.endswith("the following") and "1 to 200" in text)
        assert ("loss by step" in text) == (height > 5)


def test_truncated_file_is_read_from_its_start(
    hpcrun: Caller, watch: Callable[..., Watched]
) -> None:
    log = hpcrun.project / "train.log"
    append(log, LINES[:100])
    seen = watch("parse", "-f", "train.log")
    seen.see("1 to 98")
    log.write_bytes(b"".join(LINES[:30]))
    seen.see("1 to 29")


def test_run_is_followed_to_its_end(followed: Followed, watch: Callable[..., Watched]) -> None:
    followed.state("PENDING")
    seen = watch("parse", "-f", "7", width=100, height=50)
    seen.see("no metrics yet")
    seen.see("job 7 PENDING")
    followed.state("RUNNING")
    followed.write("logs/0/rank-0.log", b"".join(LINES[:100]).decode())
    seen.see("1 to 98")
    followed.write("logs/0/rank-0.log", b"".join(LINES).decode())
    followed.state("COMPLETED")
    followed.write("attempts/0/end.json", json.dumps(END))
    assert seen.end() == 0
    assert seen.window.shown == "usual" and "25" in seen.window.modes
    assert "job 7: COMPLETED" in seen.window.text
    assert "1 to 200" in seen.window.text
    assert not followed.scancel.exists()


@pytest.mark.parametrize("name", ["node-0.log", "rank-3.log"])
def test_loss_of_any_rank_is_followed(
    followed: Followed, watch: Callable[..., Watched], name: str
) -> None:
    """A bare command has no ranks, and with Megatron the last rank prints the loss."""
    followed.state("RUNNING")
    seen = watch("parse", "-f", "7")
    seen.see("no metrics yet")
    if name == "rank-3.log":
        followed.write("logs/0/rank-0.log", "building the model\n" * 50)
    followed.write(f"logs/0/{name}", b"".join(LINES[:60]).decode())
    seen.see("1 to 58")
    followed.write(f"logs/0/{name}", b"".join(LINES[:120]).decode())
    seen.see("1 to 117")
    if name == "rank-3.log":
        followed.write("logs/0/rank-0.log", "building the model\n" * 50 + "still there\n")
    followed.write(f"logs/0/{name}", b"".join(LINES).decode())
    seen.see("1 to 200")


def test_ctrl_c_does_not_affect_the_run(followed: Followed, watch: Callable[..., Watched]) -> None:
    followed.state("RUNNING")
    followed.write("logs/0/rank-0.log", b"".join(LINES[:100]).decode())
    seen = watch("parse", "-f", "7")
    seen.see("1 to 98")
    seen.process.send_signal(signal.SIGINT)
    assert seen.end() == 130
    assert seen.window.shown == "usual" and "25" in seen.window.modes
    assert termios.tcgetattr(seen.theirs) == seen.modes
    assert "stopped following job 7, which continues" in seen.window.text
    assert not followed.scancel.exists() and not (followed.run / "cancelled.json").exists()


def test_job_not_submitted_by_hpcrun_is_followed(
    hpcrun: Caller, tmp_path: Path, watch: Callable[..., Watched]
) -> None:
    tools, log = hpcrun.tools, tmp_path / "its output"
    append(log, LINES[:100])
    replay(tools, "scontrol", (0, show_job("9", StdOut=str(log), Power=""), ""))
    replay(tools, "squeue", (0, row(tmp_path, "9", "RUNNING"), ""))
    seen = watch("parse", "-f", "9", width=100)
    seen.see("1 to 98")
    seen.see("job 9 RUNNING")
    append(log, LINES[100:])
    seen.see("1 to 200")
    seen.process.send_signal(signal.SIGINT)
    assert seen.end() == 130
    replay(tools, "squeue", (0, row(tmp_path, "9", "COMPLETED"), ""))
    done = hpcrun("parse", "-f", "9")
    assert done.code == 0 and "1 to 200" in done.out and "job 9: COMPLETED" in done.err
    replay(tools, "squeue", (0, row(tmp_path, "9", "FAILED"), ""))
    assert hpcrun("parse", "-f", "9").code == 1


def test_output_of_a_pending_job_is_awaited(
    hpcrun: Caller, tmp_path: Path, watch: Callable[..., Watched]
) -> None:
    tools, log = hpcrun.tools, tmp_path / "9.out"
    replay(tools, "scontrol", (0, show_job("9", StdOut=str(log), Power=""), ""))
    replay(tools, "squeue", (0, row(tmp_path, "9", "PENDING"), ""))
    seen = hpcrun("parse", "9")
    assert seen.code == 2 and "does not exist (yet)" in seen.err and "parse -f 9" in seen.err
    waiting = watch("parse", "-f", "9", width=100)
    waiting.see("job 9 PENDING")
    assert "no metrics yet" in waiting.window.text
    append(log, LINES)
    waiting.see("1 to 200")
    log.unlink()

    replay(tools, "squeue", (0, row(tmp_path, "9", "CANCELLED"), ""))
    never = hpcrun("parse", "-f", "9")
    assert never.code == 1 and "job 9: CANCELLED" in never.err and "no log yet" in never.out


def test_output_file_named_after_its_node_is_found(
    hpcrun: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, pending, running = hpcrun.tools, tmp_path / "%N", tmp_path / "node1"
    monkeypatch.setenv("PATH", hpcrun.environ["PATH"])
    replay(tools, "scontrol", (0, show_job("9", StdOut=str(pending), Power=""), ""))
    follower = CurveFollower(load_context(hpcrun.environ, hpcrun.project), ["9"])
    append(running, LINES)
    replay(tools, "scontrol", (0, show_job("9", StdOut=str(running), Power=""), ""))
    replay(tools, "squeue", (0, row(tmp_path, "9", "RUNNING"), ""))
    for points in (0, 200):
        follower.wait(0.0)
        assert follower.snapshot().runs[0].points == points


def test_unterminated_last_line_counts_after_the_job_has_ended(
    hpcrun: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "9.out"
    monkeypatch.setenv("PATH", hpcrun.environ["PATH"])
    append(log, [b"step 1 loss 3.0\n", b"step 2 loss 2.5\n", b"step 3 loss 2.25 (end)"])
    replay(hpcrun.tools, "scontrol", (0, show_job("9", StdOut=str(log), Power=""), ""))
    replay(hpcrun.tools, "squeue", (0, row(tmp_path, "9", "CANCELLED"), ""))
    follower = CurveFollower(load_context(hpcrun.environ, hpcrun.project), ["9"])
    while not follower.wait(0.0):
        pass
    assert follower.snapshot().runs[0].curve.steps("loss") == [1, 2, 3]


def test_many_short_runs_cause_few_queries(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end of a run causes a query, and a sweep of short runs has many."""
    followed.state("RUNNING")
    monkeypatch.setenv("PATH", followed.hpcrun.environ["PATH"])
    tail = followed.run.name[-3:]
    runs = [
        followed.run.with_name(followed.run.name[:-3] + f"{tail[:-2]}{n}") for n in range(22, 34)
    ]
    for run in runs:
        shutil.copytree(followed.run, run, dirs_exist_ok=True)
        record = (run / "submitted.json").read_text()
        (run / "submitted.json").write_text(record.replace(followed.run.name, run.name))
    context = load_context(followed.hpcrun.environ, followed.hpcrun.project)
    follower = CurveFollower(context, [run.name for run in runs])
    now = time.monotonic()
    # A simulated clock, independent of the load of the machine.
    monkeypatch.setattr(time, "monotonic", lambda: now)
    follower.wait(0.0)
    for run in runs:
        (run / "attempts/0").mkdir(parents=True, exist_ok=True)
        (run / "attempts/0/end.json").write_text(json.dumps(END))
        for _ in range(4):
            now += 0.1
            follower.wait(0.0, lambda: True)
    calls = (followed.tools / "aside" / "squeue.calls").read_text().count("--noheader")
    assert 2 <= calls <= MAX_QUERY_BURST


def test_several_runs_are_followed_together(hpcrun: Caller, watch: Callable[..., Watched]) -> None:
    for name in ("a.log", "b.log"):
        append(hpcrun.project / name, LINES[:50])
    seen = watch("parse", "-f", "a.log", "b.log", width=100, height=40)
    seen.see("b.log")
    append(hpcrun.project / "b.log", LINES[50:100])
    seen.see(lambda text: bool(re.search(r"b\.log +98 ", text) and re.search(r"a\.log +49 ", text)))


@pytest.mark.parametrize("as_json", [False, True])
def test_only_the_last_report_is_printed_without_a_terminal(
    followed: Followed, as_json: bool
) -> None:
    followed.state("RUNNING")
    followed.write("logs/0/rank-0.log", b"".join(LINES[:100]).decode())
    process = followed.hpcrun.start("parse", "-f", "7", *(["--json"] if as_json else []))
    followed.process = process
    time.sleep(1.5)
    assert process.stdout is not None and process.poll() is None
    os.set_blocking(process.stdout.fileno(), False)
    assert not process.stdout.read()
    os.set_blocking(process.stdout.fileno(), True)
    followed.write("logs/0/rank-0.log", b"".join(LINES).decode())
    followed.state("FAILED")
    followed.write("attempts/0/end.json", json.dumps({**END, "exit_code": 3}))
    out, err = process.communicate()
    assert process.returncode == 1
    assert b"job 7: FAILED, exit code 3" in err
    if as_json:
        assert json.loads(out)["runs"][0]["points"] == 200
    else:
        assert b"1 to 200" in out and b"\x1b" not in out
