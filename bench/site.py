"""The environment of a benchmark: a home, a project and a real Slurm, in one new folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.timing import Command

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-bench"
# Slurm's commands that are counted; wrappers run the real commands.
COUNTED = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sstat", "sacctmgr", "srun")


class Site:
    """A user's environment: HOME, a project, the folder of the sandbox, the programs to measure."""

    def __init__(self, folder: Path, peers: Path = PEERS) -> None:
        self.folder = folder
        self.peers = peers
        self.home = folder / "home"
        self.project = folder / "project"
        self.sandbox = folder / "sandbox"
        self.runs = self.home / "runs"
        self.calls = folder / "calls"
        for made in (self.home, self.project, self.calls):
            made.mkdir()
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH", "HPCRUN", "PYTHON", "XDG_"))
        }
        env.pop("VIRTUAL_ENV", None)
        self.env = env | {
            "HOME": str(self.home),
            "HPCRUN_SANDBOX_DIR": str(self.sandbox),
            "PATH": f"{peers}/bin:{env['PATH']}",
            "SLURM_CONF": str(self.sandbox / "slurm.conf"),
        }

    @property
    def python(self) -> str:
        """The Python with hpcrun and the alternatives installed, as users install them."""
        return str(self.peers / "bin" / "python")

    @property
    def hpcrun(self) -> str:
        """The installed hpcrun."""
        return str(self.peers / "bin" / "hpcrun")

    def call(self, *argv: str, env: dict[str, str] | None = None, timeout: float = 120) -> str:
        """Run a command in the project; return its output. Raises CalledProcessError."""
        done = subprocess.run(
            argv,
            cwd=self.project,
            env=env or self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
        return done.stdout

    def command(self, *words: str) -> Command:
        """Return the command line of a call of hpcrun."""
        return Command([self.hpcrun, *words])

    def profile(self) -> None:
        """Set the runs folder and the training Python in the profile of the sandbox."""
        with (self.sandbox / "cluster.yaml").open("a") as file:
            file.write(f"runs_dir: {self.runs}\npython: {sys.executable}\n")

    def hold_queue(self, held: bool) -> None:
        """Prevent jobs from starting, or allow it again; running jobs would affect the timing."""
        state = "DOWN" if held else "UP"
        self.call("scontrol", "update", "partition=sandbox", f"state={state}")

    def clear_queue(self) -> None:
        """Cancel all jobs."""
        self.call("scancel", "--partition=sandbox")

    def counting(self, name: str) -> tuple[dict[str, str], Path]:
        """Return an environment that records calls of Slurm commands, and the file of records."""
        folder = self.calls / name
        folder.mkdir()
        notes = folder / "notes"
        notes.touch()
        for program in COUNTED:
            real = shutil.which(program, path=self.env["PATH"])
            if real is None:
                continue
            wrapper = folder / program
            wrapper.write_text(
                f'#!/bin/sh\necho "$(date +%s.%N) {program}" >>{notes}\nexec {real} "$@"\n'
            )
            wrapper.chmod(0o755)
        return self.env | {"PATH": f"{folder}:{self.env['PATH']}"}, notes


def noted(notes: Path, since: float = 0.0, until: float = float("inf")) -> list[str]:
    """Return the Slurm commands called between two times (seconds since the epoch)."""
    found = []
    for line in notes.read_text().splitlines():
        at, _, words = line.partition(" ")
        if since <= float(at) < until:
            found.append(words)
    return found


@contextlib.contextmanager
def make_site(peers: Path = PEERS) -> Iterator[Site]:
    """Create a site with a running Slurm of two nodes, and remove it afterwards."""
    # Slurm's sockets are below this folder, and need a short path.
    with tempfile.TemporaryDirectory(prefix="hpcrun-bench-", ignore_cleanup_errors=True) as name:
        site = Site(Path(name), peers)
        try:
            site.call(site.hpcrun, "sandbox", "up", "--nodes", "2")
            site.profile()
            yield site
        finally:
            with contextlib.suppress(subprocess.SubprocessError):
                site.call(site.hpcrun, "sandbox", "down", "--yes")


def failure(error: subprocess.CalledProcessError) -> str:
    """Return one line with the command that failed and the last line of its output."""
    output = error.stderr or error.stdout or ""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    last = (text.strip().splitlines() or [""])[-1]
    return f"{' '.join(map(str, error.cmd))[:80]}: code {error.returncode}: {last}"
