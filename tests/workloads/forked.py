"""Run trainings with each rank in a fork of one process that has imported torch and a framework.

A program, whose arguments are the modules that every training imports: each line of its standard
input is JSON, the module of a framework, a program, the environment of each rank, the arguments,
and when to ask all ranks to stop (after how many steps, and then a pause before each); each line
that it prints is one of [exit code, stdout, stderr]. Importing takes longer than most trainings, so
torch is imported once, and each framework in a fork of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, NoReturn

# What a framework imports when a training begins.
LATER = {
    "accelerate": ["datasets"],
    "deepspeed": ["networkx", "setuptools", "torch._inductor.compile_fx"],
    "transformers.trainer": ["deepspeed"],
}


def become(program: str, arguments: list[str]) -> NoReturn:
    """Run the program in this process, up to its exit code."""
    code: object = 0
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent)
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def outcome(
    program: str,
    ranks: list[dict[str, str]],
    arguments: list[str],
    stop: tuple[int, list[float]] | None,
) -> tuple[int, str, str]:
    """Run the program once on these ranks: the exit code of the first that fails, and the output.

    The others end with it.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        children = [start(program, environ, arguments, out, err) for environ in ranks]
        if stop:
            ask_to_stop(children, out, *stop)
        running = set(children)
        code = 0
        while running:
            child, status = os.wait()
            running.remove(child)
            if code == 0 and (code := os.waitstatus_to_exitcode(status)):
                for other in running:
                    os.kill(other, signal.SIGKILL)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def start(
    program: str, environ: dict[str, str], arguments: list[str], out: IO[str], err: IO[str]
) -> int:
    """Fork a rank; return its pid."""
    child = os.fork()
    if child == 0:
        # Ranks share file offsets, so that their output is appended instead of overwritten.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ.update(environ)
        become(program, arguments)
    return child


def ask_to_stop(children: list[int], out: IO[str], steps: int, pauses: list[float]) -> None:
    """Send SIGTERM to each rank once it has printed this many steps, unless one ends before."""
    # By pread: the ranks share the file's offset.
    while os.pread(out.fileno(), 1 << 20, 0).count(b'{"step"') < steps:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.002)
    for child, pause in zip(children, pauses, strict=True):
        time.sleep(pause)
        os.kill(child, signal.SIGTERM)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Run the programs of all requests in forks of this process."""
    for line in requests:
        print(json.dumps(outcome(*json.loads(line))), file=answers, flush=True)


def fork_with(module: str) -> tuple[IO[str], IO[str]]:
    """Fork a process that imports a framework and serves; return its two pipes."""
    (requests, ask), (answer, answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(ask)
        os.close(answer)
        for name in (module, *LATER.get(module, ())):
            importlib.import_module(name)
        serve(os.fdopen(requests), os.fdopen(answers, "w"))
        os._exit(0)
    os.close(requests)
    os.close(answers)
    return os.fdopen(ask, "w"), os.fdopen(answer)


if __name__ == "__main__":
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed prints as it is imported
    for name in sys.argv[1:]:
        importlib.import_module(name)
    servers: dict[str, tuple[IO[str], IO[str]]] = {}
    for line in sys.stdin:
        module, *request = json.loads(line)
        if module not in servers:
            servers[module] = fork_with(module)
        print(json.dumps(request), file=servers[module][0], flush=True)
        print(servers[module][1].readline(), end="", file=stdout, flush=True)
