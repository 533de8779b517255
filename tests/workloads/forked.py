"""Runs the reference trainer, each rank in a fork of one process that has imported torch.

A program: each line of its standard input is JSON, the environment of each rank and the arguments;
each line that it prints is one of [exit code, stdout, stderr]. The import takes longer than most of
what the trainer is asked for.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, NoReturn

import torch.distributed.elastic.multiprocessing.errors as imported_once


def become(program: str, arguments: list[str]) -> NoReturn:
    """Be the program, to the exit code."""
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
    program: str, ranks: list[dict[str, str]], arguments: list[str]
) -> tuple[int, str, str]:
    """Run the program once on these ranks: the exit code of the first that fails, and the output.

    The others end with it.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        running = {start(program, environ, arguments, out, err) for environ in ranks}
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
        # Ranks share the files' offsets: what one writes comes after what another has written.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ.update(environ)
        become(program, arguments)
    return child


if __name__ == "__main__":
    assert imported_once
    for line in sys.stdin:
        print(json.dumps(outcome(sys.argv[1], *json.loads(line))), flush=True)
