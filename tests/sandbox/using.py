"""Shared helpers of the sandbox tests: Slurm commands against a sandbox, and process lookup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcrun.sandbox.lifecycle import SandboxStatus
from tests.source import ROOT

# Takes a sandbox down once the other end of its standard input is closed.
_WATCH = """
import os, shutil, sys
from pathlib import Path
place = Path(os.environ["PLACE"])
sys.stdin.read()
from hpcrun.sandbox import lifecycle
if (place / "sandbox.json").exists():
    lifecycle.down(place)
shutil.rmtree(place.parent if place.name == "s" else place, ignore_errors=True)
"""


@contextmanager
def taken_down(place: Path) -> Iterator[Path]:
    """Stop the sandbox in ``place`` at the end, even if this process is killed.

    The folder above a place named ``s`` is removed, too.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _WATCH],
        cwd=ROOT,
        env={**os.environ, "PLACE": str(place)},  # tests look for command lines with it
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as watch:
        try:
            yield place
        finally:
            watch.communicate()
    assert watch.returncode == 0


def slurm(where: SandboxStatus | Path, *argv: str) -> str:
    """Run a Slurm command against the sandbox; return its output."""
    conf = str(where / "slurm.conf") if isinstance(where, Path) else where.slurm_conf
    environ = {"PATH": "/usr/sbin:" + os.environ["PATH"], "SLURM_CONF": conf}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout.strip()


def submit(where: SandboxStatus | Path, script: str, *options: str) -> str:
    """Submit a one-line batch job; return its id."""
    return slurm(where, "sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}")


def job_state(where: SandboxStatus | Path, job: str) -> str:
    return slurm(where, "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")


def pids_with(word: str) -> list[int]:
    """Find the living processes that have ``word`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")  # empty for a zombie
            except OSError:
                continue
            if any(word.encode() in part for part in argv):
                found.append(int(entry.name))
    return found
