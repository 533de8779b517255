"""stacks.sh: the stacks of the ranks of a stalled run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.runs.ends import Stall, Suspect
from hpcrun.runs.flight import find_culprit, parse_stack_place
from tests.waiting import until

pytestmark = pytest.mark.slow

TEMPLATES = shipped_folder("templates")

# ---- who it is


def suspect(folder: Path, places: Sequence[str]) -> Stall:
    """Return the suspected rank by the stacks of ranks, two on each node."""
    stacks = folder / "attempts" / "0" / "stacks"
    stacks.mkdir(parents=True)
    for rank, place in enumerate(places):
        head = f"rank {rank} node {rank // 2} host node{rank // 2 + 1} pid {rank + 7}\n"
        (stacks / f"rank-{rank}.txt").write_text(head + shown(place))
    stall = Stall(since=0, silent_seconds=900, threshold=600)
    return find_culprit(stall, folder / "attempts" / "0", folder / "logs")


def shown(place: str) -> str:
    """Return what stacks.sh writes about a live rank."""
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
    """Start a rank as the launcher does, and wait until its program blocks."""
    for name in ("attempts/0/failures", "attempts/0/ended", "attempts/0/local", "logs/0"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("harness.sh", "records.sh", "stacks.sh"):
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
    """Let a blocked program continue, and wait for its end."""
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
    """Collect the stacks as a step on the node does; return those of the rank."""
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
    assert parse_stack_place(text) == "at hold (program.py:5)"
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
    assert (parse_stack_place(text), text.splitlines()[2]) == ("in all_reduce", "by py-spy")
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
    assert parse_stack_place(text) == "at hold (program.py:5)"
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
    for name in ("harness.sh", "records.sh", "stacks.sh"):
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
    assert parse_stack_place(take(folder)) == place
    os.kill(child, signal.SIGKILL)
    assert process.wait() == 137
