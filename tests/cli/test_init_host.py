"""hpcrun init --host: a cluster behind a real sshd, with replayed answers of Slurm."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from hpcrun.actions.init import survey
from tests.cli.calling import Caller, Done
from tests.cli.init_slurm import Slurm, checked, files, profile
from tests.remote.sshd import Laptop, servers
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow
# A login that prints a banner and has a different PATH.
LOGIN = "echo Welcome; echo on $HOSTNAME >&2; export PATH={path} SCRATCH=$HOME/scratch\n"
# The commands of every Linux, without Slurm.
COREUTILS = "bash cat cut env getent head id ls mkdir rmdir sh stat timeout tr uname"


class Cluster:
    """A host with its own home; Slurm's commands are in ``tools``."""

    def __init__(self, folder: Path, laptop: Laptop) -> None:
        self.home, self.tools, self.laptop = folder / "far home", folder / "far tools", laptop
        self.plain = str(folder / "coreutils")
        Path(self.plain).mkdir()
        for name in COREUTILS.split():
            (Path(self.plain) / name).symlink_to(str(shutil.which(name)))
        self.slurm = Slurm(self.tools)
        python = self.home / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho 1\n")
        python.chmod(0o755)

    def has(self, *, plain: str = "", login: str = "") -> None:
        """Set the PATH of commands, and additional folders in that of login shells."""
        (server,) = self.laptop.servers
        server.stop()
        path = f"{plain}:{self.plain}".strip(":")
        server.options.insert(0, f'SetEnv "HOME={self.home}" "PATH={path}" USER=me')
        server.start()
        (self.home / "scratch").mkdir(exist_ok=True)
        text = LOGIN.format(path=f"'{login}:{self.plain}'".replace("':", "'"))
        (self.home / ".bash_profile").write_text(text)

    @property
    def trips(self) -> int:
        return self.laptop.servers[0].log.count("Starting session: ")


@pytest.fixture
def bare(tmp_path: Path, clean_environ: dict[str, str]) -> Caller:
    caller = Caller(tmp_path, clean_environ)
    (caller.project / "hpcrun.yaml").unlink()
    return caller


@pytest.fixture
def far(tmp_path: Path, bare: Caller) -> Iterator[Cluster]:
    (tmp_path / "far tools").mkdir()
    with servers(tmp_path / "ssh", mycluster=[]) as laptop:
        bare.environ |= {
            "HOME": str(laptop.home),
            "PATH": f"{laptop.home}/bin:{bare.environ['PATH']}",
            "SCRATCH": str(tmp_path),  # the laptop's own PATH is irrelevant
        }
        yield Cluster(tmp_path, laptop)


@pytest.fixture(autouse=True)
def nothing_stays_connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[paramiko.Transport] = []
    start = paramiko.Transport.start_client

    def noted(self: paramiko.Transport, *args: object, **options: object) -> None:
        made.append(self)
        start(self, *args, **options)

    monkeypatch.setattr(paramiko.Transport, "start_client", noted)
    yield
    for one in made:
        one.close()
        one.join(PATIENCE)


def refused(done: Done, bare: Caller) -> str:
    """Assert exit code 4, and that nothing was written."""
    assert done.code == 4 and files(bare) == [], done
    return done.err


def test_init_host_queries_the_cluster_and_writes_the_profile_locally(
    bare: Caller, far: Cluster
) -> None:
    far.has(plain=str(far.tools), login=str(far.tools))
    (far.home / ".bash_profile").unlink()
    bare.write("train.py", "import torch\n")
    answer = checked(bare("init", "--host", "mycluster", "train.py", "--json"))
    assert far.trips <= 4
    assert answer["action"] == "created" and answer["cluster"] == "hot" and answer["job"]["written"]
    made = profile(bare)
    assert made["host"] == "mycluster" and "login_shell" not in made and "slurm_path" not in made
    assert made["partitions"]["gpu"]["cpus_per_node"] == 124 and made["slurm_version"] == "24.11.5"
    assert made["runs_dir"] == "~/hpcrun/runs" and made["setup"] == {"venv": "~/venv"}
    # Again, with the host of the profile.
    before = far.trips
    assert checked(bare("init", "--json"))["action"] == "unchanged"
    assert far.trips - before <= 4
    far.slurm.answer("sinfo", "gpu|20|256|512000|mixed|g[01-20]|gpu:a100:4(S:0-1)|ib\n")
    assert bare("init", "--check", "--host", "mycluster").code == 1
    other = bare("init", "--host", "other", "--yes")
    assert other.code == 2 and "for the host mycluster, not for other" in other.err


def test_slurm_on_the_path_of_a_login_shell_is_found(bare: Caller, far: Cluster) -> None:
    far.has(login=str(far.tools))
    answer = checked(bare("init", "--host", "mycluster", "--user", "--json"))
    assert far.trips <= 4
    clusters = Path(bare.environ["HOME"]) / ".config" / "hpcrun" / "clusters"
    assert answer["profile"] == str(clusters / "hot.yaml") and files(bare) == []
    text = (clusters / "hot.yaml").read_text()
    assert "login_shell: true\n" in text and "runs_dir: $SCRATCH/hpcrun/runs" in text
    assert bare("init", "--check", "--cluster", "hot").code == 0


def test_slurm_in_a_usual_folder_is_found(
    bare: Caller, far: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.has()
    err = refused(bare("init", "--host", "mycluster", "--yes"), bare)
    assert "mycluster: no Slurm there" in err and "slurm_path: FOLDER" in err
    monkeypatch.setattr(survey, "_SLURM_FOLDERS", ("/nowhere", str(far.tools)))
    assert bare("init", "--host", "mycluster", "--like", "mahti", "--yes").code == 0
    made = profile(bare)
    assert (made["slurm_path"], made["host"]) == (str(far.tools), "mycluster")
    assert made["partitions"]["gpu"]["cpus_per_node"] == 124 and made["fabric"] == "infiniband"
    assert "nothing changed" in bare("init", "--check").out


def test_unreachable_host_writes_nothing(bare: Caller, far: Cluster) -> None:
    far.has(plain=str(far.tools))
    far.slurm.answer(
        "config", "", "slurm_load_ctl_conf error: Unable to contact slurm controller", 1
    )
    assert "Slurm does not answer" in refused(bare("init", "--host", "mycluster"), bare)
    for argv in (["--like", "mahti"], ["--user"], ["train.py"]):
        bare.write("train.py", "import torch\n").touch()
        done = bare("init", "--host", "nowhere.invalid", "--yes", *argv)
        (bare.project / "train.py").unlink()
        assert "nowhere.invalid" in refused(done, bare) and "fix: " in done.err
    (far.laptop.ssh / "known_hosts").rename(far.laptop.ssh / "away")
    err = refused(bare("init", "--host", "mycluster", "--yes"), bare)
    assert "SHA256:" in err and "ssh mycluster" in err
    (far.laptop.ssh / "away").rename(far.laptop.ssh / "known_hosts")
    shutil.move(far.laptop.ssh / "id", far.laptop.ssh / "old")
    other = far.laptop.make_key("other")
    shutil.move(other, far.laptop.ssh / "id")
    err = refused(bare("init", "--host", "mycluster", "--yes"), bare)
    assert "mycluster" in err and "fix: " in err
    assert not (Path(bare.environ["HOME"]) / ".config").exists()
