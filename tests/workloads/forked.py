"""Runs the reference trainer several times, each in a fork of one process that has imported torch.

A program: reads a JSON list of lists of arguments from its standard input and prints
one of [exit code, stdout, stderr]. The import takes longer than all that the trainer does until it
refuses its arguments.
Effects: processes.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

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


def outcome(program: str, arguments: list[str]) -> tuple[int, str, str]:
    """Run the program once: its exit code and what it wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            become(program, arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


if __name__ == "__main__":
    assert imported_once
    print(json.dumps([outcome(sys.argv[1], case) for case in json.load(sys.stdin)]))
