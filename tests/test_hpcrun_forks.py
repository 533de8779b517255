"""Commands in forks behave as in processes of their own."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hpcrun_forks
from tests.source import ROOT

# The process that forks, with another command line.
PROGRAM = """\
import os, resource, sys, time
from tests import hpcrun_forks

def main():
    print(os.getpid(), os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
    if sys.argv[1:] == ["sleep"]:
        os.open("started", os.O_CREAT)
        time.sleep(60)
    sys.exit("message" if sys.argv[1:] else 3)

hpcrun_forks.main = main
hpcrun_forks._serve(sys.argv[1])
"""


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a process that forks the command line above."""
    path = tempfile.mkdtemp(prefix="hpcrun-forks-") + "/socket"  # a socket's path is short
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        monkeypatch.setattr(hpcrun_forks, "_start_forks", lambda *_: path)
        yield
        process.communicate()


def test_fork_has_the_umask_limits_and_exit_code_of_a_process(forks: None, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    umask = os.umask(0o027)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        done = hpcrun_forks.run([], cwd=tmp_path, env={})
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (done.stdout.split()[1:], done.returncode) == ([str(0o027), "200"], 3)
    done = hpcrun_forks.run(["text"], cwd=tmp_path, env={})
    assert (done.stderr, done.returncode) == ("message\n", 1)


def test_timeout_kills_the_command(forks: None, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        hpcrun_forks.run(["sleep"], cwd=tmp_path, env={}, timeout=1)
    assert [path.name for path in tmp_path.iterdir()] == ["started"]
    running = set()
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            running.add((proc / "cwd").resolve())
    assert tmp_path.resolve() not in running
