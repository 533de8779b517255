"""Start the daemons of a sandbox and adopt all orphaned processes of the daemons and their jobs.

It runs as a separate program (``python -I -S keeper.py``) and imports nothing of hpcrun.

A process of a job that starts its own session, clears its environment and loses its parent is
adopted by init, and can no longer be attributed to the sandbox. The keeper is a child subreaper
(prctl(2)), so it adopts such processes instead: all descendants of the keeper belong to the
sandbox. It also reaps them, which init does not do in many containers.

Standard input is a JSON object: ``pid_file``, and ``daemons``, a list of objects with ``name``,
``argv``, ``output`` (a file for the daemon's output), ``pid_file`` and ``port`` (its port; 0 for
none). Each daemon detaches itself, and is up when its pid file is written and its port accepts
connections; then the next one is started. Standard output has one line per daemon, with its name
and exit code, and is closed when all have started.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
UP_TIMEOUT = 60.0  # seconds


def reset_signals() -> None:
    """Reset all signals to their default actions: nohup and ``&`` make children ignore some."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def is_up(pid_file: Path, port: int) -> bool:
    """Return True if a daemon has written its pid and, if it has a port, accepts connections."""
    try:
        if not pid_file.read_text().strip():
            return False
    except OSError:
        return False
    if not port:
        return True
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_up(pid_file: Path, port: int) -> bool:
    """Wait until a daemon, whose parents end with code 0, is up or has failed, or for a timeout."""
    deadline = time.monotonic() + UP_TIMEOUT
    while time.monotonic() < deadline:
        if is_up(pid_file, port):
            return True
        try:
            if os.waitpid(-1, os.WNOHANG)[1]:
                return False
        except ChildProcessError:
            pass
        time.sleep(0.01)
    return False


def start(argv: list[str], output: str, pid_file: str, port: int) -> int:
    """Start a daemon; return its exit code, or -1 if it did not come up."""
    with Path(output).open("ab") as sink:
        code = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False
        ).returncode
    if code == 0 and not wait_until_up(Path(pid_file), port):
        return -1
    return code


def main() -> None:
    """Detach, start the daemons and report; then reap until no child is left."""
    request = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    reset_signals()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Path(request["pid_file"]).write_text(f"{os.getpid()}\n")
    for daemon in request["daemons"]:
        code = start(daemon["argv"], daemon["output"], daemon["pid_file"], daemon["port"])
        print(daemon["name"], code, flush=True)
        if code:
            break
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
