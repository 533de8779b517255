"""Configuration of the sandbox, and refusals before anything is started."""

from __future__ import annotations

import doctest
import importlib
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from hpcrun.errors import HpcrunError, InputError
from hpcrun.sandbox import config, directory, lifecycle, processes
from hpcrun.sandbox.config import plain_shape
from hpcrun.sandbox.directory import SandboxFiles, sandbox_dir
from hpcrun.sandbox.lifecycle import down, status, up
from hpcrun.spec.job import Cluster, Partition
from tests.needs import require_root
from tests.waiting import until

LAYOUT = SandboxFiles(Path("/tmp/s"))


@pytest.mark.parametrize("name", ["config", "directory", "lifecycle", "processes"])
def test_docstring_examples_pass(name: str) -> None:
    module = importlib.import_module(f"hpcrun.sandbox.{name}")
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_every_sandbox_node_has_its_port_and_gpus() -> None:
    text = config.slurm_conf(
        LAYOUT,
        hostname="desk",
        user="1000",
        shape=plain_shape(3, 8),
        ports=[7000, 7001, 7002, 7003],
        first_job=17,
    )
    lines = text.splitlines()
    nodes = [line for line in lines if line.startswith("NodeName=")]
    assert [line.split()[0] for line in nodes] == [f"NodeName=node{n}" for n in (1, 2, 3)]
    assert [line.split()[3] for line in nodes] == [f"Port={n}" for n in (7001, 7002, 7003)]
    assert all("Gres=gpu:8" in line and "CPUs=32" in line for line in nodes)
    assert {"SlurmctldHost=desk(127.0.0.1)", "SlurmctldPort=7000", "FirstJobId=17"} < set(lines)


def test_sandbox_without_gpus_configures_no_gres() -> None:
    text = config.slurm_conf(
        LAYOUT, hostname="h", user="0", shape=plain_shape(1, 0), ports=[1, 2], first_job=1
    )
    assert "Gres=" not in text
    assert config.gres_conf(LAYOUT, plain_shape(1, 0)) == ""


@pytest.mark.parametrize("gpus", [0, 4])
def test_sandbox_profile_is_a_valid_cluster_profile(gpus: int) -> None:
    text = config.cluster_profile(LAYOUT, plain_shape(2, gpus))
    profile = msgspec.convert(yaml.safe_load(text), Cluster)
    assert profile.name == "sandbox"
    assert profile.accelerator == "cpu"
    assert profile.slurm_conf == "/tmp/s/slurm.conf"
    assert profile.partitions == {
        "sandbox": Partition(gpus_per_node=gpus or None, cpus_per_node=16 if gpus else 8)
    }
    assert profile.partition == "sandbox"
    assert list(profile.gpu_types) == ["*"]
    assert profile.env == {"OMP_NUM_THREADS": "1"}
    assert profile.runs_dir == Cluster().runs_dir


def test_slurm_variables_of_the_user_do_not_reach_the_sandbox() -> None:
    users = {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "gpu01",
        "SBATCH_PARTITION": "long",
        "SINFO_FORMAT": "%all",
        "SCANCEL_INTERACTIVE": "1",
        "MUNGE_ADDR": "x",
        "LD_PRELOAD": "/x.so",
        "HOME": "/home/u",
    }
    made = lifecycle.clean_environment(users, LAYOUT)
    assert set(made) == {"HOME", "LC_ALL", "PATH", "SLURM_CONF"}
    assert made["SLURM_CONF"] == "/tmp/s/slurm.conf"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/tmp/my sandbox", "a blank"),
        ("/tmp/a#b", "'#'"),
        ("/tmp/50%n", "'%'"),
        ("/tmp/a[1-2]", "'\\['"),
        ("/tmp/süß", "'ß'"),
        ("/tmp/new\nline", "'\\\\n'"),
        ("/tmp/" + 70 * "x", "75 bytes"),
    ],
)
def test_path_unsupported_by_slurm_is_refused(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refusal:
        sandbox_dir({"HPCRUN_SANDBOX_DIR": name}, 0)
    assert "HPCRUN_SANDBOX_DIR" in refusal.value.fix
    with pytest.raises(InputError, match=why):
        up(Path(name))


def test_longest_directory_fits_the_longest_socket_path() -> None:
    longest = "/tmp/" + (directory.MAX_DIRECTORY - 5) * "x"
    assert sandbox_dir({"HPCRUN_SANDBOX_DIR": longest}, 0) == Path(longest)
    assert len(longest + directory.LONGEST_SOCKET) == directory.MAX_SOCKET_PATH


def test_sandbox_directory_cannot_be_created_by_other_users(place: Path) -> None:
    uid = os.getuid()
    home, runtime, deep = (place.parent / name for name in ("home", "run", "d" * 60))
    for folder in (home, runtime, deep):
        folder.mkdir()
    both = {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
    assert sandbox_dir(both, uid) == runtime / "hpcrun-sandbox"
    runtime.chmod(0o777)
    open_ = sandbox_dir(both, uid)
    if not Path(f"/run/user/{uid}").exists():
        assert open_.parent == home / ".cache" / "hpcrun"
        assert sandbox_dir({"HOME": str(deep)}, uid) == Path(f"/tmp/hpcrun-sandbox-{uid}")
    # An existing sandbox is found from every shell.
    runtime.chmod(0o700)
    directory.create_folder(open_)
    directory.SandboxFiles(open_).shape.touch()
    assert sandbox_dir(both, uid) == open_
    # No parent folder may be writable by other users.
    home.chmod(0o777)
    with pytest.raises(InputError, match=f"others can write to {home}"):
        directory.create_folder(home / "mine")
    assert not (home / "mine").exists()


def test_relative_directory_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert sandbox_dir({"HPCRUN_SANDBOX_DIR": "mine"}, 0) == Path("/tmp/mine")


@pytest.mark.parametrize(("nodes", "gpus"), [(0, 4), (65, 4), (2, -1), (2, 17)])
def test_out_of_range_shape_is_refused(nodes: int, gpus: int) -> None:
    with pytest.raises(InputError, match="a sandbox"):
        plain_shape(nodes, gpus)


def test_folder_with_other_files_is_refused_unchanged(place: Path) -> None:
    place.mkdir()
    (place / "thesis.tex").write_text("x")
    for action in (up, status, down):
        with pytest.raises(InputError, match="is not a sandbox"):
            action(place)
    assert (place / "thesis.tex").read_text() == "x"


def test_symlink_as_sandbox_directory_is_refused(place: Path) -> None:
    place.symlink_to("/tmp")
    for action in (up, status, down):
        with pytest.raises(InputError, match="symbolic link"):
            action(place)
    place.unlink()


def test_file_as_sandbox_directory_is_refused(place: Path) -> None:
    place.write_text("")
    with pytest.raises(InputError, match="not a directory"):
        up(place)


def test_directory_of_another_user_is_refused(place: Path) -> None:
    require_root()
    place.mkdir()
    os.chown(place, 65534, -1)
    for action in (up, status, down):
        with pytest.raises(InputError, match="belongs to uid 65534"):
            action(place)


def test_missing_programs_are_named_with_their_packages() -> None:
    with pytest.raises(HpcrunError, match="munged, slurmctld, slurmd") as refusal:
        lifecycle.find_programs("/nonexistent")
    assert "slurm-wlm munge" in refusal.value.fix


def test_user_without_a_name_is_refused() -> None:
    with pytest.raises(InputError, match="uid 3999999999 has no name"):
        lifecycle.check_user(3999999999)


def test_ports_are_free_and_different() -> None:
    ports = lifecycle.find_free_ports(20)
    assert len(set(ports)) == 20
    assert min(ports) >= lifecycle.LOWEST_PORT


def test_marked_process_of_another_user_is_ignored() -> None:
    require_root()
    marked = {"HPCRUN_SANDBOX": "/tmp/no-such-sandbox", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(["sleep", "60"], env=marked) as ours:
        until(
            lambda: (
                [one.pid for one in processes.find_members(Path("/tmp/no-such-sandbox"))]
                == [ours.pid]
            )
        )
        ours.kill()
    with subprocess.Popen(["sleep", "60"], env=marked, user=65534, group=65534) as theirs:
        assert processes.find_members(Path("/tmp/no-such-sandbox")) == []
        theirs.kill()


def test_recycled_pid_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        seen = processes.read_process(other.pid, Path("/tmp/s"))
        assert seen is not None
        older = msgspec.structs.replace(seen, start=seen.start - 1)
        processes.send_signal(older, signal.SIGKILL)
        assert other.poll() is None
        processes.send_signal(seen, signal.SIGKILL)
        assert other.wait(5) == -signal.SIGKILL
