"""Run hpcrun in forks of a process that has imported it.

Starting Python and importing hpcrun takes longer than most of what a test asks for. A fork has the
environment, folder, umask, limits, streams and exit code of a process of its own; only its imports
are done, so tests/test_startup.py imports the modules of the command line on their own.
This module is also the program that forks, whose argument is the socket that it listens on.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import pkgutil
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import hpcrun
from hpcrun.cli.start import main
from tests.source import ROOT

# A command that takes longer is stuck.
_LIMIT_S = 900.0
_LIMITS = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})
# What Python reads as it starts: each combination has a process of its own.
_AT_START = ("LANG", "LANGUAGE", "LC_", "PYTHON")


def run(
    argv: Sequence[str | bytes], *, cwd: Path, env: Mapping[str, str], timeout: float = _LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run ``hpcrun`` with these arguments to its end, without input; capture its output.

    Raises:
        subprocess.TimeoutExpired: The command was killed after this many seconds.
    """
    ready = _start_forks(*sorted((k, v) for k, v in env.items() if k.startswith(_AT_START)))
    pipes = [os.pipe(), os.pipe()]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(os.fdopen(read, "rb")) for read, _ in pipes]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(ready)
            socket.send_fds(client, [b"\0"], [write for _, write in pipes])
            for _, write in pipes:
                os.close(write)
            client.sendall(pickle.dumps((list(argv), str(cwd), dict(env), _read_limits())))
            client.shutdown(socket.SHUT_WR)
            child = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "little")
            try:
                out, err = _read_all(outputs, time.monotonic() + timeout)
                client.settimeout(timeout)
                code = pickle.loads(_receive(client))
            except BaseException as error:
                os.kill(child, signal.SIGKILL)
                client.settimeout(10)
                _receive(client)  # until the child is gone
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(["hpcrun", *argv], timeout) from error
                raise
    return subprocess.CompletedProcess(["hpcrun", *argv], code, out.decode(), err.decode())


def _read_limits() -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the umask and the resource limits of this process."""
    umask = os.umask(0)
    os.umask(umask)
    return umask, {number: resource.getrlimit(number) for number in _LIMITS}


@cache
def _start_forks(*environ: tuple[str, str]) -> str:
    """Start a process that forks, for the lifetime of this one; return its socket."""
    path = tempfile.mkdtemp(prefix="hpcrun-forks-") + "/socket"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_AT_START)}
    forks = subprocess.Popen(
        [sys.executable, "-m", "tests.hpcrun_forks", path],
        cwd=ROOT,
        env={**kept, **dict(environ)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert forks.stdin and forks.stdout
    assert forks.stdout.readline() == b"ready\n"
    atexit.register(forks.communicate)  # the end of its input ends it
    return path


def _read_all(outputs: Sequence[Any], deadline: float) -> list[bytes]:
    """Read several pipes to their ends. Raises TimeoutError at the deadline."""
    found = dict.fromkeys(outputs, b"")
    with selectors.DefaultSelector() as selector:
        for output in outputs:
            selector.register(output, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(key.fileobj)
                found[key.fileobj] += piece
    return list(found.values())


def _receive(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


# ---- the process that forks ----------------------------------------------------------------------


def _serve(path: str) -> None:
    """Answer each connection in a fork, until the input ends."""
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.bind(path)
        server.listen()
        selector.register(server, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while any(key.fileobj is server for key, _ in selector.select()):
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                selector.close()
                _answer(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    shutil.rmtree(Path(path).parent)


def _answer(connection: socket.socket) -> NoReturn:
    """Run one command in a fork, and send its exit code, negative if a signal ended it."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 2)
    request = pickle.loads(_receive(connection))
    child = os.fork()
    if child == 0:
        connection.close()
        _become(streams, *request)
    for stream in streams:
        os.close(stream)
    connection.sendall(child.to_bytes(4, "little"))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(pickle.dumps(code))
    os._exit(0)


def _become(
    streams: list[int],
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    limits: tuple[int, dict[int, tuple[int, int]]],
) -> NoReturn:
    """Run the command line in this process, up to its exit code."""
    null = os.open(os.devnull, os.O_RDWR)
    for number, stream in enumerate((null, *streams)):
        os.dup2(stream, number)
        os.close(stream)
    os.umask(limits[0])
    for number, limit in limits[1].items():
        if resource.getrlimit(number) != limit:
            resource.setrlimit(number, limit)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.path[0] = cwd  # as python -m has it
    sys.argv = [str(ROOT / "hpcrun" / "__main__.py"), *map(os.fsdecode, argv)]  # as with python -m
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        try:
            output.flush()
        except OSError:
            code = 120
    os._exit(code)


def _import_everything() -> None:
    """Import all modules of the command line."""
    for module in pkgutil.walk_packages(hpcrun.__path__, "hpcrun."):
        if not module.name.endswith("__main__") and ".workloads" not in module.name:
            importlib.import_module(module.name)


if __name__ == "__main__":
    _import_everything()
    gc.collect()
    gc.freeze()
    _serve(sys.argv[1])
