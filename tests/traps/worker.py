"""Run tests in a mutated copy of this repository, each time in a fork of a warm process.

This program reads requests as lines of JSON from its standard input, and answers each with a line.
With ``--rig`` it starts a real Slurm that all requests share.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Modules that take long to import and are not mutated.
WARM = ("click", "hypothesis", "jinja2", "msgspec", "pytest", "yaml")
LIMIT = 550.0  # seconds; tests have their own limits, these are for a busy machine
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Recorder:
    """A pytest plugin that records the outcome of each test, and provides the shared rig."""

    def __init__(self, rig: object) -> None:
        self.rig = rig
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record the outcome of the test itself, and of setup and teardown only failures."""
        if report.when == "call" or (report.outcome != "passed"):
            bad = "error" if report.when != "call" and report.outcome == "failed" else ""
            if self.outcomes.get(report.nodeid) != "failed":
                self.outcomes[report.nodeid] = bad or report.outcome

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> object:
        """Return the worker's running rig."""
        if fixturedef.argname not in ("rig", "bare_rig") or self.rig is None:
            return None
        fixturedef.cached_result = (self.rig, fixturedef.cache_key(request), None)
        return self.rig


def run_tests(folder: str, tests: list[str], log: str, rig: object) -> dict[str, Any]:
    """Run some tests of a copy in this process; return pytest's exit code and all outcomes."""
    import pytest

    with Path(log).open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "hpcrun")]:
        del sys.modules[name]
    recorder = Recorder(rig)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", f"{folder}/setup.cfg"]
    options += [f"--rootdir={folder}", f"--basetemp={folder}-tmp", "--tb=short"]
    # A mutant may hang, and then leave a process whose end nobody waits for.
    options += ["-W", "ignore:Module already imported", "--timeout=60"]
    options += ["-p", "no:unraisableexception"]
    code = int(pytest.main([*options, *tests], plugins=[recorder]))
    return {"code": code, "outcomes": recorder.outcomes}


def in_a_fork(task: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a task in a child process; kill it after a timeout, and all its descendants."""
    with tempfile.TemporaryFile("w+") as answer:
        keeper = os.fork()
        if keeper == 0:
            # Orphans become children of this process, so that it finds them.
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            child = os.fork()
            if child == 0:
                try:
                    json.dump(task(), answer)
                    answer.flush()
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(0)
            deadline = time.monotonic() + LIMIT
            while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < deadline:
                time.sleep(0.01)
            end_children()
            os._exit(0)
        os.waitpid(keeper, 0)
        answer.seek(0)
        text = answer.read()
        return dict(json.loads(text)) if text else {"code": -1, "outcomes": {}}


def end_children() -> None:
    """Kill all descendants of this process, including those of killed children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := children.read_text().split():
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    """Answer requests until the input ends."""
    rig: Any = None
    folder = tempfile.TemporaryDirectory(prefix="hpcrun-rig-", dir="/var/tmp")
    if "--rig" in sys.argv:
        from tests.cluster.rig import Rig

        rig = Rig(Path(folder.name) / "rig", accounting=False)
        rig.start()
    try:
        for module in WARM:
            importlib.import_module(module)
        for line in sys.stdin:
            wanted = json.loads(line)
            print(json.dumps(in_a_fork(lambda: run_tests(**wanted, rig=rig))), flush=True)  # noqa: B023
    finally:
        if rig is not None:
            rig.stop()
        folder.cleanup()


if __name__ == "__main__":
    main()
