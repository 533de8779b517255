"""Find the processes of one sandbox and kill them, and no others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from hpcrun.errors import HpcrunError

# An environment variable of the keeper and the daemons that contains the sandbox's directory.
MARK = "HPCRUN_SANDBOX"
# Both overwrite their environment with their process title, which destroys the mark.
TITLE_WRITERS = ("slurmstepd", "slurmscriptd")
# Processes that do not exit within this time are considered stuck.
_KILL_TIMEOUT_S = 10.0


class Process(Struct, frozen=True):
    """A running process; ``pid`` with ``start`` (clock ticks since boot) is unique."""

    pid: int
    parent: int
    start: int
    name: str
    marked: bool


def parse_stat(text: str) -> tuple[str, str, int, int]:
    """Parse name, state, parent and start from /proc/PID/stat (proc(5)).

    >>> parse_stat("7 (a) b) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 9")
    ('a) b', 'S', 1, 4711)
    """
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], fields[0], int(fields[1]), int(fields[19])


def is_marked(environ: bytes, name: str, cwd: str, root: Path) -> bool:
    """Return True if a process by itself shows that it belongs to the sandbox in ``root``.

    Daemons have the mark. A process of a job has SLURMD_NODENAME, unlike the user's shells and
    srun, and the sandbox's SLURM_CONF. The working directory of a step daemon is the log directory.

    >>> root = Path("/tmp/s")
    >>> is_marked(b"A=1\\0HPCRUN_SANDBOX=/tmp/s\\0", "slurmd", "/", root)
    True
    >>> is_marked(b"SLURM_CONF=/tmp/s/slurm.conf\\0SLURM_JOB_ID=1\\0", "bash", "/tmp/s", root)
    False
    >>> job = b"SLURM_CONF=/tmp/s/slurm.conf\\0SLURMD_NODENAME=node1\\0"
    >>> is_marked(job, "sleep", "/", root), is_marked(job, "sleep", "/", Path("/tmp/s2"))
    (True, False)
    >>> is_marked(b"slurmstepd: [3.0]", "slurmstepd", "/tmp/s/log", root)
    True
    """
    entries = environ.split(b"\0")
    if os.fsencode(f"{MARK}={root}") in entries:
        return True
    if os.fsencode(f"SLURM_CONF={root}/slurm.conf") in entries:
        return any(entry.startswith(b"SLURMD_NODENAME=") for entry in entries)
    return name.startswith(TITLE_WRITERS) and (cwd == str(root) or cwd.startswith(f"{root}/"))


def read_process(pid: int, root: Path) -> Process | None:
    """Read one process; None if it has exited or is a zombie."""
    folder = Path("/proc") / str(pid)
    try:
        name, state, parent, start = parse_stat((folder / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None
    if state in "ZX":
        return None
    try:
        environ, cwd = (folder / "environ").read_bytes(), str((folder / "cwd").readlink())
        # Root can read the processes of all users, and any user can set the mark, so only the mark
        # of our own processes counts.
        ours = folder.stat().st_uid == os.geteuid()
    except OSError:  # another user's process, or one that is exiting
        return Process(pid, parent, start, name, False)
    return Process(pid, parent, start, name, ours and is_marked(environ, name, cwd, root))


def select_members(processes: Iterable[Process]) -> list[Process]:
    """Return the marked processes and all their descendants.

    >>> parents = {4: 3, 2: 1, 3: 2, 9: 1}
    >>> everyone = [Process(pid, parents[pid], 0, "", marked=pid == 2) for pid in parents]
    >>> [one.pid for one in select_members(everyone)]
    [4, 2, 3]
    """
    everyone = list(processes)
    inside = {one.pid for one in everyone if one.marked}
    while True:
        more = {one.pid for one in everyone if one.parent in inside} - inside
        if not more:
            return [one for one in everyone if one.pid in inside]
        inside |= more


def find_members(root: Path) -> list[Process]:
    """Return the running processes of the sandbox in ``root``."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    found = (read_process(pid, root) for pid in pids)
    return select_members(one for one in found if one)


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to this process, but not to another one that has reused its pid."""
    if sys.platform != "linux":  # no sandbox has been started
        return
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # before Linux 5.3, or a sandboxed kernel
        handle = -1
    try:
        if (now := read_process(process.pid, Path("/"))) is None or now.start != process.start:
            return
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return
    finally:
        if handle >= 0:
            os.close(handle)


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll ``condition`` every 20 ms for ``timeout`` seconds; return its last result."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill_members(root: Path, keeper: int | None) -> None:
    """Kill every process of the sandbox in ``root``.

    All are stopped before any is killed, so that none can fork meanwhile. The keeper is killed
    last, because until then it adopts and reaps the others.

    Args:
        keeper: The pid of the sandbox's keeper.

    Raises:
        HpcrunError: Some processes do not exit.
    """
    deadline = time.monotonic() + _KILL_TIMEOUT_S

    def others() -> list[Process]:
        return [one for one in find_members(root) if one.pid != keeper]

    def killed() -> bool:
        rest = others()
        for one in rest:
            send_signal(one, signal.SIGKILL)
        return not rest

    def keeper_gone() -> bool:
        return not find_members(root)

    stopped: set[tuple[int, int]] = set()
    while time.monotonic() < deadline:
        fresh = [one for one in others() if (one.pid, one.start) not in stopped]
        if not fresh:
            break
        for one in fresh:
            send_signal(one, signal.SIGSTOP)
        stopped |= {(one.pid, one.start) for one in fresh}
    if wait_for(killed, _KILL_TIMEOUT_S) and wait_for(keeper_gone, 1.0):
        return
    for one in find_members(root):
        send_signal(one, signal.SIGKILL)
    if not wait_for(keeper_gone, 2.0):
        left = ", ".join(f"{one.pid} ({one.name})" for one in find_members(root))
        raise HpcrunError(
            f"{root}: processes of the sandbox do not end: {left}",
            fix="look at them with ps; a process in state D waits for a disk or a file server",
        )
