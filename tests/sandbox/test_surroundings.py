"""The sandbox in difficult surroundings: other users, odd hosts, broken daemons, interrupts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import hpcrun
from hpcrun.errors import HpcrunError
from hpcrun.sandbox import lifecycle, processes
from tests.needs import require_root
from tests.sandbox.using import pids_with, slurm
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.cluster

NOBODY = 65534
CHECKOUT = str(Path(hpcrun.__file__).parents[1])
UP = (
    "import sys; from pathlib import Path; from hpcrun.sandbox import lifecycle; "
    "lifecycle.up(Path(sys.argv[1]))"
)
DOWN = UP.replace(".up(", ".down(")


@pytest.fixture(scope="module")
def public_python() -> Iterator[tuple[Path, Path]]:
    """This Python and hpcrun's sandbox where any user can read them: interpreter, PYTHONPATH.

    The interpreter of the tests and the checkout may lie in a home that is closed to others.
    """
    folder = Path(tempfile.mkdtemp(prefix="hpy", dir="/tmp"))
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    bulky = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "tests", "__pycache__", "config-*", "idlelib"
    )
    try:
        shutil.copytree(base / "lib" / version, folder / "lib" / version, ignore=bulky)
        for library in (base / "lib").glob("libpython3*.so*"):
            shutil.copy2(library, folder / "lib")
        (folder / "bin").mkdir()
        shutil.copy2(Path(sys.executable).resolve(), folder / "bin" / "python3")
        code = folder / "code"
        shutil.copytree(Path(hpcrun.__file__).parent, code / "hpcrun")
        shutil.copytree(Path(msgspec.__file__).parent, code / "msgspec")
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        yield folder / "bin" / "python3", code
    finally:
        shutil.rmtree(folder)


def test_sandbox_works_without_root(place: Path, public_python: tuple[Path, Path]) -> None:
    require_root()
    python, code = public_python
    place.parent.chmod(0o1777)
    # No variable of root is inherited, not even HOME; /usr/sbin is not on the PATH.
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"}

    def as_nobody(*argv: str, **more: str) -> str:
        done = subprocess.run(
            argv,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={**environ, **more},
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    word = f"81{os.getpid()}.5"
    stray = f"(env -i setsid -f sleep {word}); setsid sleep {word} & wait"
    show = "echo $(id -u) $CUDA_VISIBLE_DEVICES"
    conf = str(place / "slurm.conf")
    as_nobody(str(python), "-c", UP, str(place))
    try:
        assert place.stat().st_uid == NOBODY and place.stat().st_mode & 0o777 == 0o700
        pids = [int(file.read_text()) for file in (place / "run").glob("*.pid")]
        assert len(pids) == 5
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids} == {NOBODY}
        message = as_nobody("srun", "-N2", "--gres=gpu:3", "sh", "-c", show, SLURM_CONF=conf)
        assert message.splitlines() == [f"{NOBODY} 0,1,2"] * 2
        as_nobody("sbatch", "--output=/dev/null", f"--wrap={stray}", SLURM_CONF=conf)
        until(lambda: len(pids_with(word)) == 2)
    finally:
        as_nobody(str(python), "-c", DOWN, str(place))
    assert not place.exists()
    assert pids_with(word) == [] and pids_with(str(place)) == []
    assert not any(processes.read_process(pid, place) for pid in pids)


def test_unresolvable_hostname_is_supported(place: Path) -> None:
    require_root()
    # A UTS namespace has a hostname of its own.
    script = (
        'hostname no-such-host.example && "$0" -c "$1" "$2" &&'
        ' SLURM_CONF="$2/slurm.conf" srun -N2 hostname'
    )
    done = subprocess.run(
        ["unshare", "--uts", "bash", "-c", script, sys.executable, UP, str(place)],
        env={**os.environ, "PYTHONPATH": CHECKOUT},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no-such-host.example"] * 2


def test_slurm_variables_in_the_environment_are_ignored(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    monkeypatch.setenv("SINFO_FORMAT", "nonsense")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    monkeypatch.delenv("HOME", raising=False)
    assert slurm(lifecycle.up(place), "srun", "echo", "ok") == "ok"
    assert lifecycle.down(place)


def test_daemons_release_the_pipe_of_the_caller_and_outlive_it(place: Path) -> None:
    done = subprocess.run(
        f"nohup '{sys.executable}' -c '{UP}' {place} 2>&1 | cat",
        shell=True,
        env={**os.environ, "PYTHONPATH": CHECKOUT},
        start_new_session=True,
        capture_output=True,
    )
    assert done.returncode == 0
    now = lifecycle.status(place)
    assert now and now.up
    for pid in now.pids.values():
        message = Path(f"/proc/{pid}/status").read_text()
        ignored = int(message.split("SigIgn:")[1].split()[0], 16)
        # The ignored SIGHUP of nohup would be inherited by every job.
        assert not ignored >> (signal.SIGHUP - 1) & 1
        for standard in (0, 1, 2):
            target = Path(f"/proc/{pid}/fd/{standard}").readlink()
            assert target == Path("/dev/null"), (pid, standard, target)


def put_first(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str, script: str) -> None:
    """Run ``script`` in place of ``program``."""
    stand_in = folder / program
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("program", "script", "message"),
    [
        ("slurmd", "echo no gres for you >&2; exit 3", "node1 ended with code 3.*no gres for you"),
        ("munged", "echo key is bad >&2; exit 1", "munged ended with code 1.*key is bad"),
    ],
)
def test_error_of_a_failing_daemon_is_shown_and_nothing_remains(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    script: str,
    message: str,
) -> None:
    put_first(monkeypatch, tmp_path, program, script)
    with pytest.raises(HpcrunError, match=f"(?s){message}"):
        lifecycle.up(place)
    assert not place.exists()
    assert processes.find_members(place) == []


def test_configuration_error_of_slurmctld_is_shown(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcrun.sandbox import config

    real = config.slurm_conf
    monkeypatch.setattr(config, "slurm_conf", lambda *a, **k: real(*a, **k) + "NoSuchKey=1\n")
    with pytest.raises(HpcrunError, match=r"(?s)slurmctld ended with code 1.*NoSuchKey"):
        lifecycle.up(place)
    assert not place.exists()
    assert processes.find_members(place) == []


def test_port_conflict_of_slurmctld_is_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(
            lifecycle, "find_free_ports", lambda count: [port, *range(11_000, 11_002)]
        )
        # The end of the daemon is detected without waiting for the timeout.
        monkeypatch.setattr(lifecycle, "START_TIMEOUT", 2 * PATIENCE)
        with pytest.raises(HpcrunError, match=r"(?s)slurmctld .*(already )?in use"):
            lifecycle.up(place)
    assert processes.find_members(place) == []


def test_interrupted_start_leaves_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_first(monkeypatch, tmp_path, "slurmd", "exec sleep 97.5")
    environ = {**os.environ, "PYTHONPATH": CHECKOUT}
    with subprocess.Popen(
        [sys.executable, "-c", UP, str(place)], env=environ, stderr=subprocess.PIPE
    ) as process:
        until(lambda: any(one.name == "sleep" for one in processes.find_members(place)))
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate()[1]
    assert not place.exists()
    assert processes.find_members(place) == []


def test_killed_test_run_leaves_no_daemon(place: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.sandbox.using import taken_down\n"
        "from hpcrun.sandbox import lifecycle\n"
        "with taken_down(Path(sys.argv[1])): lifecycle.up(Path(sys.argv[1])); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(place)], cwd=CHECKOUT) as process:
        until(lambda: (now := lifecycle.status(place)) and now.up)
        process.kill()
    until(lambda: not place.exists())
    assert processes.find_members(place) == []


def test_concurrent_starts_share_one_sandbox(place: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": CHECKOUT}
    both = [subprocess.Popen([sys.executable, "-c", UP, str(place)], env=environ) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    names = [one.name for one in processes.find_members(place)]
    assert names.count("munged") == 1
    assert slurm(place, "srun", "-N2", "echo", "ok").split() == ["ok", "ok"]
