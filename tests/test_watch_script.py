"""When watch.sh takes a run for stalled, by times made up, and what it finds of the ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from hpcrun.assets import shipped
from hpcrun.render.quoting import quote_bash
from hpcrun.runs.ends import Stall, Suspect
from hpcrun.runs.flight import judged, place_in
from tests.waiting import until

pytestmark = pytest.mark.slow

TEMPLATES = shipped("templates")

# What the harness has, and no step beside the job's.
STUBS = """
say() { printf 'say: %s\\n' "$*"; }
error() { printf 'error: %s\\n' "$*"; }
json_text() { local text=${1//\\\\/\\\\\\\\}; printf '"%s"\\n' "${text//\\"/\\\\\\"}"; }
slurm_job() { echo 7_3; }
write_record() { printf '%s\\n' "$2" >"$1"; }
take_stacks() { echo took; }
scancel() { echo "scancel $*"; }
squeue() { [[ $* != *--job=7_3* ]] || printf '%s\\n' 7.batch 7.extern 7.0 7.1; }
"""


def bash(folder: Path, script: str, **env: str) -> str:
    """Run a script that has the functions of watch.sh, in a run's folder."""
    for name in ("attempts/0/stacks", "logs/0"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["bash", "-c", f"set -u\n. {quote_bash(str(TEMPLATES))}/watch.sh\n{STUBS}\n{script}"],
        env={
            "PATH": os.environ["PATH"],
            "HPCRUN_RUN_DIR": str(folder),
            "HPCRUN_ATTEMPT": "0",
            "attempt_dir": str(folder / "attempts" / "0"),
            **env,
        },
        cwd=folder / "logs" / "0",
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


class Watched:
    """A run whose beat looks at it each 30 s of a time that the test makes up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.now = 1_700_000_000
        self.began = self.now

    def look(self, text: str | None = None, *, rank: int = 0, after: int = 30) -> None:
        self.now += after
        if text is not None:
            self.lines.append(f"printf '%s\\n' {quote_bash(text)} >>rank-{rank}.log")
        self.lines.append(
            f"watch_look {self.now}; echo {self.now - self.began} ${{watch_stalled:-0}}"
        )

    def silence(self, seconds: int) -> None:
        for _ in range(seconds // 30):
            self.look()

    def steps(self, count: int, every: int = 30, first: int = 1) -> None:
        for step in range(first, first + count):
            self.silence(every - 30)
            self.look(f"step {step} loss 2.5")

    def stalls(self, **env: str) -> list[int]:
        """The times, since the begin, at which a stall was found."""
        out = bash(self.folder, "\n".join(self.lines), **env)
        self.out = out
        found, before = [], "0"
        for line in out.splitlines():
            at, _, state = line.partition(" ")
            if at.lstrip("-").isdigit():
                if state == "1" and before == "0":
                    found.append(int(at))
                before = state
        return found

    @property
    def record(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / "attempts/0/stall.json").read_text())
        return read


@pytest.fixture
def run(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "it's a run $(x)")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("step 40 loss 2.5", "step=40"),
        ("[2026-11-20 10:00:00] Step: 40/1000 | loss 2.5", "step=40"),
        ("{'loss': 2.5, 'step': 40}", "step=40"),
        ('{"global_step": 40, "loss": 2.5}', "step=40"),
        ("global_step=39 x\nglobal_step=40", "step=40"),
        (" iteration       40/     100 | consumed samples", "iteration=40"),
        ("iter 40: loss 2.5, time 12.3ms", "iter=40"),
        ("  4%|4         | 40/1000 [00:12<04:48,  3.3it/s]", "bar=40"),
        ("{'loss': 2.5, 'epoch': 3.2}", "epoch=3"),
        (" 39/100 [00:01]\r 40/100 [00:02]\nsaving", "bar=40"),
        ("Epoch 3 | step 40 | loss 2.5\nstored in 0.3 s", "step=40 epoch=3"),
        ("batch_size: 8, 12 steps/s, ETA 3 h, 4/8 done", ""),
        ("", ""),
    ],
)
def test_where_a_log_stands(tmp_path: Path, text: str, position: str) -> None:
    assert bash(tmp_path, f"position_in {quote_bash(text)}").strip() == position


def test_a_run_that_stops_after_some_steps(run: Watched) -> None:
    run.steps(10)
    run.silence(1200)
    assert run.stalls() == [300 + 600]
    record = run.record
    assert (record["step"], record["threshold"]) == (10, 600)
    # Written twice more: stacks of other nodes show late on a network file system.
    assert record["silent_seconds"] == 660
    assert record["since"] == run.began + 300
    assert (record["ranks"], record["stacks"]) == ([], [])
    assert run.out.count("took") == 1


def test_slow_steps_make_it_patient(run: Watched) -> None:
    run.steps(5, every=300)
    run.silence(3600)
    assert run.stalls() == [1500 + 3000]


def test_a_pause_that_ended_is_learned(run: Watched) -> None:
    run.steps(10)
    run.silence(570)  # the first evaluation
    run.steps(10, first=11)
    run.silence(1080)  # a longer one, within twice the first
    run.steps(3, first=21)
    assert run.stalls() == []


def test_before_the_first_step_it_has_half_an_hour(run: Watched) -> None:
    run.look("loading")
    run.silence(1740)
    run.look("compiling")  # whatever it writes counts here
    run.silence(1740)
    run.steps(3)
    assert run.stalls() == []


def test_a_run_that_never_comes_to_a_step(run: Watched) -> None:
    run.look("loading")
    run.silence(2400)
    assert run.stalls() == [30 + 1800]
    assert run.record["step"] is None


def test_nothing_counts_before_the_ranks_begin(run: Watched) -> None:
    run.silence(7200)  # the setup, a copy to the nodes
    run.steps(3)
    assert run.stalls() == []


def test_a_limit_of_the_jobs_own(run: Watched) -> None:
    run.steps(10, every=60)
    run.silence(600)
    # Its beat is a quarter of it; a look counts for two beats at most.
    assert run.stalls(HPCRUN_STALLED_AFTER="120") == [600 + 120]
    assert run.record["threshold"] == 120


def test_a_job_that_is_suspended_is_not_blamed(run: Watched) -> None:
    run.steps(10)
    run.look(after=86400)
    run.silence(300)
    run.look(after=7200)
    run.steps(2, first=11)
    assert run.stalls() == []


def test_clocks_that_are_set_back_do_no_harm(run: Watched) -> None:
    run.steps(5)
    run.look(after=-3600)
    run.steps(5, first=6)
    run.silence(900)
    assert len(run.stalls()) == 1


def test_a_run_that_moves_on_is_stalled_no_more(run: Watched) -> None:
    run.steps(10)
    run.silence(700)
    run.steps(2, first=11)
    run.silence(1380)  # twice the pause of 720 s that ended
    assert len(run.stalls()) == 1
    assert not (run.folder / "attempts/0/stall.json").exists()
    assert "say: the run moves on" in run.out


def test_output_without_a_step_is_borne_twice_as_long_and_never_ended(run: Watched) -> None:
    run.steps(10)
    for count in range(60):
        run.look(f"retrying the store ({count})")
    assert run.stalls(HPCRUN_SURVIVE="stalled") == [300 + 1200]
    assert "scancel" not in run.out


@pytest.mark.parametrize("survive", ["", "preempted", "preempted stalled"])
def test_it_is_ended_only_if_asked(run: Watched, survive: str) -> None:
    run.steps(10)
    run.silence(900)
    assert len(run.stalls(HPCRUN_SURVIVE=survive)) == 1
    is_asked = "stalled" in survive
    assert (run.folder / "attempts/0/stalled").exists() == is_asked
    # The steps of the launch, once, and not the batch script.
    ended = [line for line in run.out.splitlines() if line.startswith("scancel")]
    assert ended == ["scancel 7.0", "scancel 7.1"] * is_asked


def test_the_last_ranks_log_counts_too(run: Watched) -> None:
    for step in range(40):
        run.look(f" iteration {step}/ 100 |", rank=1)
        if step == 0:
            run.look("building the model", rank=0)
    assert run.stalls() == []


def test_a_bare_command_has_no_ranks_and_may_hang_too(run: Watched) -> None:
    """What launchers write beside ranks is no sign; of a command the node's log is all there is."""
    run.lines.append("touch ../../attempts/0/began")
    for step in range(10):
        run.lines.append(f"printf 'step {step} loss 2.5\\n' >>node-0.log")
        run.look()
    run.silence(900)
    assert run.stalls(HPCRUN_SURVIVE="stalled") == [300 + 600]
    assert (run.record["step"], run.record["ranks"]) == (9, [])
    assert "scancel 7.0" in run.out


# ---- who it is


def suspect(folder: Path, places: Sequence[str]) -> Stall:
    """Judge by stacks of ranks that are there, two on each node."""
    stacks = folder / "attempts" / "0" / "stacks"
    stacks.mkdir(parents=True)
    for rank, place in enumerate(places):
        head = f"rank {rank} node {rank // 2} host node{rank // 2 + 1} pid {rank + 7}\n"
        (stacks / f"rank-{rank}.txt").write_text(head + shown(place))
    stall = Stall(since=0, silent_seconds=900, threshold=600)
    return judged(stall, folder / "attempts" / "0", folder / "logs")


def shown(place: str) -> str:
    """What watch.sh writes of a rank that is there."""
    if kernel := KERNEL.get(place):
        return f"{kernel}\nno Python stack: there is no py-spy\n\n"
    how, _, frame = place.partition(" ")
    function, _, at = frame.partition(" ")
    at = at or "(/lib/torch/distributed/distributed_c10d.py:12)"
    assert how in ("in", "at")
    return f'S futex_wait\nby py-spy\n\nThread 12 (idle): "MainThread"\n    {function} {at}\n'


KERNEL = {
    "asleep": "S hrtimer_nanosleep",
    "running": "R 0",
    "waiting (futex)": "S futex",
    "waiting for a file or device (nfs)": "D nfs",
}


@pytest.mark.parametrize(
    ("places", "ranks", "why", "collective"),
    [
        (
            ["in all_reduce", "in all_reduce", "in all_reduce", "at load (data.py:7)"],
            "3",
            "at load (data.py:7), 3 of 4 in all_reduce",
            "all_reduce",
        ),
        (["in barrier", "at load (d.py:7)"], "1", "at load (d.py:7), 1 of 2 in barrier", "barrier"),
        (
            ["in barrier", "in all_reduce", "in barrier"],
            "1",
            "in all_reduce, 2 of 3 in barrier",
            "barrier",
        ),
        (["in all_reduce"] * 4, None, None, "all_reduce"),
        (
            ["at f (a.py:1)"] * 3 + ["at g (a.py:9)"],
            "3",
            "at g (a.py:9), 3 of 4 at f (a.py:1)",
            None,
        ),
        (["waiting (futex)", "asleep"], "1", "asleep", None),
        (
            ["running", "waiting for a file or device (nfs)"],
            "1",
            "waiting for a file or device (nfs)",
            None,
        ),
        (["asleep", "asleep"], None, None, None),
        (["at f (a.py:1)", "at g (a.py:9)"], None, None, None),
        (
            ["at f$(touch) (a]`id`.py:1)", "in x"],
            "0",
            "at f$(touch) (a]`id`.py:1), 1 of 2 in x",
            "x",
        ),
    ],
)
def test_who_is_elsewhere(
    tmp_path: Path,
    places: list[str],
    ranks: str | None,
    why: str | None,
    collective: str | None,
) -> None:
    stall = suspect(tmp_path, places)
    found = int(ranks) if ranks else None
    assert stall.ranks == ([] if found is None else [found])
    assert stall.suspect == (
        None
        if found is None
        else Suspect(rank=found, node=found // 2, host=f"node{found // 2 + 1}", why=why or "")
    )
    assert (stall.collective.name if stall.collective else None) == collective


def test_the_log_that_stopped_first(run: Watched) -> None:
    for step in range(6):
        run.look(f"step {step}", rank=0)
        run.lines.append(f"echo {step} >>rank-2.log")
        if step < 3:
            run.lines.append(f"echo {step} >>rank-1.log")
    run.silence(900)
    assert len(run.stalls()) == 1
    stall = judged(convert(run.record, Stall), run.folder / "attempts/0", run.folder / "logs")
    assert stall.ranks == [1]
    assert stall.suspect == Suspect(rank=1, why="the first whose log stopped")


# ---- the stacks, of real processes

PROGRAM = """
import os, sys
def hold():
    open(sys.argv[1], "w").close()
    os.open(sys.argv[2], os.O_RDONLY)
hold()
print("went on", flush=True)
if sys.argv[3] == "abort":
    os.abort()
"""


def start_rank(folder: Path, end: str) -> subprocess.Popen[bytes]:
    """Start a rank as the launcher does, and wait until its program holds."""
    for name in ("attempts/0/failures", "attempts/0/ended", "attempts/0/local", "logs/0"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("harness.sh", "watch.sh"):
        (folder / name).write_bytes((TEMPLATES / name).read_bytes())
    (folder / "program.py").write_text(PROGRAM)
    os.mkfifo(folder / "go")
    argv = [sys.executable, *(str(folder / name) for name in ("program.py", "ready", "go"))]
    process = subprocess.Popen(
        ["bash", str(folder / "harness.sh"), "rank", *argv, end, "S3CRET"],
        env=rank_env(folder) | {"TOKEN": "S3CRET"},
    )
    until((folder / "ready").exists, "the program's begin")
    return process


def end_of(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Let a program that holds go on, and wait for its end."""
    (folder / "go").write_bytes(b"")
    return process.wait()


def rank_env(folder: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HPCRUN_RUN_DIR": str(folder),
        "HPCRUN_ATTEMPT": "0",
        "HPCRUN_NODE_RANK": "0",
        "HPCRUN_WORLD_SIZE": "1",
        "HPCRUN_RANKS_PER_NODE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }


def take(folder: Path, **env: str) -> str:
    """Take the stacks as a step on the node does; return the rank's."""
    subprocess.run(
        ["bash", str(folder / "harness.sh"), "stacks"],
        env=rank_env(folder) | env,
        check=True,
    )
    return (folder / "attempts/0/stacks/rank-0.txt").read_text()


@pytest.mark.parametrize(("end", "code"), [("", 0), ("abort", 134)])
def test_python_writes_its_stacks_and_goes_on(tmp_path: Path, end: str, code: int) -> None:
    folder = tmp_path / "it's a run $(x)"
    process = start_rank(folder, end)
    text = take(folder)
    assert text.startswith("rank 0 node 0 host ")
    assert place_in(text) == "at hold (program.py:5)"
    assert "by faulthandler: there is no py-spy" in text
    assert f'File "{folder}/program.py", line 5 in hold' in text
    assert "S3CRET" not in text
    assert end_of(process, folder) == code
    log = (folder / "logs/0/rank-0.log").read_text()
    assert "went on" in log
    assert "hpcrun: nothing has moved for long: Python writes its stacks, and goes on" in log


# As py-spy 0.4.3 writes it; without a name where the program has not imported threading.
@pytest.mark.parametrize("thread", ['12 (idle): "MainThread"', "$4 (idle)"])
def test_py_spy_of_the_environment_is_preferred(tmp_path: Path, thread: str) -> None:
    folder = tmp_path / "run"
    process = start_rank(folder, "")
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\n[ \"$1 $2 $3\" = 'dump --nonblocking --pid' ] || exit 9\ncat <<.\n"
        "Process 12: python program.py S3CRET\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        f"Thread {thread}\n"
        "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n"
        "    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)\n"
        "    train (program.py:9)\n"
        'Thread 13 (idle): "Thread-1"\n    wait (threading.py:320)\n.\n'
    )
    tool.chmod(0o755)
    text = take(folder, PATH=f"{tool.parent}:/usr/bin:/bin")
    assert (place_in(text), text.splitlines()[2]) == ("in all_reduce", "by py-spy")
    assert "S3CRET" not in text
    assert end_of(process, folder) == 0
    assert (folder / "logs/0/rank-0.log").read_text() == "went on\n"


def test_a_py_spy_without_rights_is_done_without(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start_rank(folder, "")
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Error: Permission Denied: Try sudo S3CRET' >&2\nexit 1\n")
    tool.chmod(0o755)
    text = take(folder, PATH=f"{tool.parent}:/usr/bin:/bin")
    assert place_in(text) == "at hold (program.py:5)"
    assert text.splitlines()[2].startswith(
        "by faulthandler: py-spy: it may not look into the process"
    )
    assert end_of(process, folder) == 0


def test_the_flight_recorder_is_asked_for_its_dump(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start_rank(folder, "")
    disk = tmp_path / "the node's disk"
    disk.mkdir()
    (folder / "attempts/0/local/0").write_text(f"1 {disk}\n")
    os.mkfifo(disk / "flight-0.pipe")
    os.mkfifo(disk / "flight-1.pipe")  # nobody reads this one any more
    # As torch does (DumpPipe in ProcessGroupNCCL.hpp).
    pipe = os.open(disk / "flight-0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        take(folder)
        assert os.read(pipe, 128)
    finally:
        os.close(pipe)
    assert end_of(process, folder) == 0


@pytest.mark.parametrize(("number", "place"), [(0, "asleep"), (signal.SIGSTOP, "stopped")])
def test_without_python_the_kernel_knows_something(tmp_path: Path, number: int, place: str) -> None:
    folder = tmp_path / "run"
    for name in ("attempts/0/failures", "attempts/0/ended", "attempts/0/local", "logs/0"):
        (folder / name).mkdir(parents=True)
    for name in ("harness.sh", "watch.sh"):
        (folder / name).write_bytes((TEMPLATES / name).read_bytes())
    process = subprocess.Popen(
        ["bash", str(folder / "harness.sh"), "rank", "sleep", "4711"], env=rank_env(folder)
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def state() -> str:
        (pid,) = children.read_text().split()[:1] or ["0"]
        stat = Path(f"/proc/{pid}/stat")
        return stat.read_text().partition("(sleep) ")[2][:1] if pid != "0" else ""

    until(lambda: state() == "S", "the program")
    child = int(children.read_text().split()[0])
    os.kill(child, number)
    until(lambda: state() == ("T" if number else "S"), "the signal")
    assert place_in(take(folder)) == place
    os.kill(child, signal.SIGKILL)
    assert process.wait() == 137
