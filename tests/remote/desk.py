"""A project on a laptop, and a cluster behind a real sshd with a minimal Slurm."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.calling import Caller, Done
from tests.remote.link import Link
from tests.remote.sshd import Laptop, Sshd, servers
from tests.slurm_answers import squeue_row

# A minimal Slurm: one job for each sbatch, running until a test changes its state.
SBATCH = """\
[[ $1 != --version ]] || { echo slurm 24.11.5; exit; }
exec 9>>"$HOME/lock"; flock 9; echo "$PWD" >>"$HOME/queue"; wc -l <"$HOME/queue"
"""
SQUEUE = """\
[[ $* == *--noheader* ]] || echo JOBID
number=0 state=RUNNING
[[ ! -f $HOME/state ]] || state=$(<"$HOME/state")
[[ ! -f $HOME/queue ]] || while read -r folder; do
  row=${ROW//@ID@/$((++number))}; row=${row//@STATE@/$state}
  printf '%s\\n' "${row//@DIR@/$folder}"
done <"$HOME/queue"
"""
JOB = "command: [bash, say.sh]\nresources: {gpus_per_node: 0}\n"
LOG = "logs/0/rank-0.log"
# Mount a separate file system on a folder for the following commands.
MOUNT = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
# Mount a file system on a folder with the files that it had, and fill it up.
FULL_MOUNT = """\
exec 3< <(tar -C "$1" -cf - .); mount -t tmpfs -o size=2m none "$1" && tar -C "$1" -xf - <&3
head -c 4m /dev/zero >"$1/filler" 2>/dev/null; shift; exec "$@"
"""


@dataclass
class Desk:
    """A project on a laptop; the cluster behind ssh has a home of its own."""

    hpcrun: Caller
    laptop: Laptop
    home: Path  # there

    @property
    def server(self) -> Sshd:
        return self.laptop.servers[0]

    @property
    def state(self) -> Path:
        """Return the folder of hpcrun's local state."""
        return self.laptop.home / ".local/state/hpcrun"

    def queue(self) -> list[str]:
        """Return the folders of the jobs that Slurm knows."""
        queue = self.home / "queue"
        return queue.read_text().splitlines() if queue.exists() else []

    def submit(self) -> Path:
        """Submit a job; return the folder of the run on the cluster."""
        done = self.hpcrun("submit", "job.yaml", "--json")
        assert done.code == 0, done
        run = Path(done.json["run_dir"])
        assert self.queue()[-1] == str(run)
        return run

    def begin(self, run: Path) -> Path:
        """Start a run; return its log on the cluster."""
        attempt = run / "attempts/0"
        attempt.mkdir(parents=True)
        (attempt / "begin.json").write_text(begin_record(time.time()))
        (run / LOG).parent.mkdir(parents=True)
        (run / LOG).write_text("step 1 loss 2.5\n")
        return run / LOG

    def end(self, run: Path) -> None:
        now = time.time()
        end = {"attempt": 0, "job_id": "1", "exit_code": 0, "signal": None, "stopped_by": None}
        end |= {"first_failure": None, "begun_at": now, "ended_at": now}
        (run / "attempts/0/end.json").write_text(json.dumps(end))
        (self.home / "state").write_text("COMPLETED")

    def on_tmpfs(self, options: str, *words: str) -> Done:
        """Call hpcrun with its local state on a separate file system."""
        self.state.mkdir(parents=True, exist_ok=True)
        argv = ["unshare", "-m", "bash", "-c", MOUNT, "bash", options, str(self.state)]
        done = subprocess.run(
            [*argv, sys.executable, "-m", "hpcrun", *words],
            cwd=self.hpcrun.project,
            env=self.hpcrun.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(words, done.returncode, done.stdout, done.stderr)

    def on_full_disk(self, *words: str) -> Done:
        """Call hpcrun with a copy of its local state on a file system that is full."""
        self.state.mkdir(parents=True, exist_ok=True)
        argv = ["unshare", "-m", "bash", "-c", FULL_MOUNT, "bash", str(self.state)]
        done = subprocess.run(
            [*argv, sys.executable, "-m", "hpcrun", *words],
            cwd=self.hpcrun.project,
            env=self.hpcrun.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(words, done.returncode, done.stdout, done.stderr)

    def slow(self, delay: float) -> Link:
        """Place a slow link in front of the server."""
        link = Link(self.server.port, delay=delay)
        name, key = f"[127.0.0.1]:{link.port}", self.server.host_key
        (self.laptop.ssh / "known_hosts").write_text(f"{name} {key}\n")
        config = f"Host far\n  HostName 127.0.0.1\n  Port {link.port}\n{self.laptop.usual()}"
        (self.laptop.ssh / "config").write_text(config)
        return link

    def is_untouched(self) -> bool:
        """Return True if neither side contains a run or a part of one."""
        here = self.state.glob("*/runs/*-*")
        there = self.home.glob("runs/*-*")
        return not self.queue() and not [*here] and not [*there]


def begin_record(at: float) -> str:
    record = {"attempt": 0, "job_id": "1", "host": "n1", "pid": 1, "nodes": "n1", "begun_at": at}
    return json.dumps(record)


@pytest.fixture
def desk(
    tmp_path: Path, clean_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    home, slurm = tmp_path / "far home", tmp_path / "slurm"
    for folder in (home, slurm):
        folder.mkdir()
    row = squeue_row("@ID@", "@STATE@", A="@ID@", Z="@DIR@").rstrip("\n")
    for name, text in (
        ("sbatch", SBATCH),
        ("squeue", f"ROW={shlex.quote(row)}\n{SQUEUE}"),
        ("sacct", "exit 1"),
        ("scancel", 'echo "$@" >>"$0.asked"'),
    ):
        (slurm / name).write_text(f"#!/bin/bash\n{text}\n")
        (slurm / name).chmod(0o755)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with servers(tmp_path, far=[f'SetEnv "HOME={home}"']) as laptop:
        hpcrun = Caller(tmp_path, clean_environ)
        path = f"{laptop.env['PATH']}:{hpcrun.environ['PATH']}"
        hpcrun.environ |= laptop.env | {"PATH": path}
        hpcrun.write("hpcrun.yaml", f"host: far\nruns_dir: ~/runs\nslurm_path: {slurm}\n")
        hpcrun.write("job.yaml", JOB)
        hpcrun.write("say.sh", "true\n")
        yield Desk(hpcrun, laptop, home)
