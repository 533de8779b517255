"""The same files on this machine and on a cluster behind SSH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrun.errors import OutOfReach
from hpcrun.remote import Transport
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import SshSettings
from hpcrun.remote.local import LocalTransport
from hpcrun.remote.ssh import SshTransport
from tests.remote.sshd import Laptop, servers

RUN, OTHER = "20261120-081455-job-7k3q", "20261120-081456-job-7k3r"
SBATCH = ["bash", "-c", 'echo "$PWD" >>"$LOG"; ls -A; echo oops >&2; echo 7; exit "${CODE:-0}"']


@dataclass
class Side:
    """A transport, the folder of the runs as readers see it, and the one on the cluster."""

    transport: Transport
    runs: Path
    far: Path
    is_ssh: bool

    def new(self, name: str = RUN, code: str = "print(1)\n") -> Path:
        run = self.runs / name
        for folder in ("attempts", "logs", "code/pkg"):
            (run / folder).mkdir(parents=True, mode=0o755)
        (run / "job.sbatch").write_text("#!/bin/bash\n")
        (run / "secrets.env").touch(0o600)
        (run / "secrets.env").write_text("export A=1\n")
        (run / "code" / "train.py").write_text(code)
        (run / "code" / "run.sh").write_text("exit\n")
        (run / "code" / "run.sh").chmod(0o755)
        (run / "code" / "pkg" / "link").symlink_to("../train.py")
        return run

    def deliver(self, *runs: Path, code: int = 0) -> tuple[int, str, str]:
        env = {"PATH": os.environ["PATH"], "LOG": str(self.far.parent / "log"), "CODE": str(code)}
        done = self.transport.submit_directories(runs, SBATCH, env=env)
        return done.exit_code, done.stdout, done.stderr

    def there(self, name: str, text: str | bytes) -> Path:
        path = self.far / RUN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def log(self, name: str = "logs/0/rank-0.log") -> bytes:
        return (self.runs / RUN / name).read_bytes()


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    folder = tmp_path_factory.mktemp("ssh")
    home = folder / "far home"
    home.mkdir()
    with servers(folder, mycluster=[f'SetEnv "HOME={home}" SQUEUE_STATES=all']) as made:
        yield made


@pytest.fixture(params=["local", "ssh"])
def side(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Side]:
    if request.param == "local":
        env = {"PATH": os.environ["PATH"], "OWN": "1"}
        (tmp_path / "runs").mkdir()
        yield Side(LocalTransport(env), tmp_path / "runs", tmp_path / "runs", False)
        return
    yield from _ssh_side(request.getfixturevalue("laptop"), tmp_path, monkeypatch)


class _Nobody:
    def secret(self, question: str, *, echo: bool = False) -> str:
        raise OutOfReach(question)

    def tell(self, text: str) -> None:
        pass


def _ssh_side(laptop: Laptop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    for name, value in laptop.env.items():
        monkeypatch.setenv(name, value)
    home = laptop.home.parent / "far home"
    connection = open_connection(SshSettings(host="mycluster"), _Nobody())
    runs = tmp_path / "state" / "runs"
    runs.mkdir(parents=True)
    transport = SshTransport(
        {"OWN": "1"}, connection=connection, mirror=runs, runs_dir="~/$USER's runs"
    )
    far_runs = home / f"{os.environ.get('USER', 'root')}'s runs"
    try:
        yield Side(transport, runs, far_runs, True)
    finally:
        connection.close()
        for path in home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
