"""Launching on the hosts of a hostfile, by a stand-in for ssh that runs the commands here."""

from __future__ import annotations

import doctest
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from hpcrun.jobside import hosts
from hpcrun.jobside.hosts import HostsLauncher, render_environment

# The last two arguments are the host and its command. Commands are those of one host for all.
SSH = """#!/bin/bash
host=${@: -2:1} command=${@: -1}
case $command in
*" address "*)
    case $host in
    greets) echo "Welcome to $host"; echo 127.0.0.1 12345 ;;
    lost) echo "Welcome to $host"; exit 3 ;;
    odd) echo "Good morning" ;;
    slow) exec sleep 60 ;;
    *) echo 127.0.0.1 12345 ;;
    esac
    ;;
*)
    case $host in
    unreachable) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
    strange) echo "Host key verification failed." >&2; exit 255 ;;
    blind) exit 90 ;;
    esac
    echo hpcrun-ready
    read -r way
    echo "$host $way" >>"${0%/*}/ways"
    case $host in
    fails) exit 7 ;;
    waits) while read -r _; do :; done; echo "$host ends" >>"${0%/*}/ways"; exit 143 ;;
    esac
    ;;
esac
"""


class Launch:
    """A run folder, and what the launcher printed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "ssh").write_text(SSH)
        (self.bin / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        monkeypatch.setattr("hpcrun.jobside.hosts.signal.signal", lambda number, handler: None)
        self.run = folder / "a run"
        self.attempt = self.run / "attempts/0"
        (self.attempt / "failures").mkdir(parents=True)
        self.lines: list[str] = []

    def go(self, *names: str) -> int:
        environ = {"HPCRUN_RUN_DIR": str(self.run), "HPCRUN_RANKS_PER_NODE": "4"}
        environ |= {"PATH": os.environ["PATH"], "HPCRUN_LAUNCHER": "torchrun"}
        launcher = HostsLauncher(
            environ, "ssh", "python3", names, self.lines.append, self.lines.append
        )
        return launcher.launch()

    @property
    def ways(self) -> list[str]:
        return sorted((self.bin / "ways").read_text().splitlines())


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    return Launch(tmp_path, monkeypatch)


def test_doctests() -> None:
    assert doctest.testmod(hosts).failed == 0


@pytest.mark.parametrize("count", [1, 32, pytest.param(1024, marks=pytest.mark.thorough)])
def test_every_host_is_started_and_the_hostfile_lists_them(launch: Launch, count: int) -> None:
    names = [f"lab{number}" for number in range(count)]
    assert launch.go(*names) == 0
    assert launch.ways == sorted(f"{name} ssh" for name in names)
    lines = (launch.attempt / "hostfile").read_text().splitlines()
    assert lines == [f"{name} slots=4" for name in names]
    assert launch.lines == ["hpcrun: rank 0 is on lab0, at 127.0.0.1 port 12345"]
    assert not (launch.attempt / "environment").exists()


def test_failing_host_ends_the_others(launch: Launch) -> None:
    assert launch.go("waits", "fails") == 7
    assert launch.ways == ["fails ssh", "waits ends", "waits ssh"]


def test_every_host_that_does_not_answer_is_named(launch: Launch) -> None:
    assert launch.go("lab1", "unreachable", "strange", "blind") == 1
    assert launch.lines == [
        "hpcrun: error: host unreachable cannot be reached by ssh: ssh: connect to host unreachable"
        " port 22: No route to host",
        "hpcrun: error: host strange cannot be reached by ssh: Host key verification failed.",
        "  fix: check its host key: ssh strange",
        f"hpcrun: error: host blind cannot see the run folder {launch.run}: runs_dir must be on a"
        " file system that all hosts share",
    ]


def test_lines_that_a_host_prints_at_login_are_not_its_address(launch: Launch) -> None:
    assert launch.go("greets") == 0
    assert launch.lines == ["hpcrun: rank 0 is on greets, at 127.0.0.1 port 12345"]


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("lost", "printed no address of rank 0, but 'Welcome to lost' (exit code 3)"),
        ("odd", "printed no address of rank 0, but 'Good morning' (exit code 0)"),
        ("slow", "printed no address of rank 0 within 1 s"),
    ],
)
def test_host_without_an_address_is_named(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, host: str, message: str
) -> None:
    if host == "slow":
        monkeypatch.setattr(hosts, "ADDRESS_TIMEOUT_S", 1)
    assert launch.go(host) == 1
    assert launch.lines == [f"hpcrun: error: host {host} {message}"]


@pytest.mark.parametrize("locale", ["C", "de_DE.UTF-8", "tr_TR.UTF-8"])
def test_bash_reads_each_value_of_the_environment_as_it_was(tmp_path: Path, locale: str) -> None:
    values = {
        "PLAIN": "a",
        "ODD": 'it\'s a "$(touch x)" \\ `y`\nsecond line\t\u0131\u00e4\udcff',
        "EMPTY": "",
        "UID": "7",
        "SLURM_JOB_ID": "7",
        "HPCRUN_JOBSIDE_PYTHON": "/only/here/python",
        "HPCRUN_OWN_PYTHON": "/only/here/python",
        "with space": "x",
    }
    file = tmp_path / "environment"
    file.write_bytes(os.fsencode(render_environment(values)))
    script = f". {shlex.quote(str(file))} && exec env -0"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], "LC_ALL": locale},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    found = dict(os.fsdecode(pair).split("=", 1) for pair in done.stdout.split(b"\0") if pair)
    assert {name: found.get(name) for name in values} == {
        **values,
        "UID": None,
        "SLURM_JOB_ID": None,
        "HPCRUN_JOBSIDE_PYTHON": None,
        "HPCRUN_OWN_PYTHON": None,
        "with space": None,
    }
