"""Ray's ports, memory and folder in a job."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from hpcrun.jobside import ray_node
from hpcrun.jobside.ray_node import choose_ports, folder_path, is_free, ray_folder


def test_ports_of_jobs_and_nodes_do_not_overlap() -> None:
    ranges = [
        choose_ports(job, 0, node, set(), is_head=node == 0)
        for job in ("4711", "4712")
        for node in range(3)
    ]
    ports = [set(one.values()) for one in ranges]
    assert sum(map(len, ports)) == len(set.union(*ports))
    assert all(10000 <= port < 32768 for one in ports for port in one)
    assert len(ranges[0]) == len(ranges[1]) + 2  # the head has a client server and a dashboard


def test_ports_in_use_are_skipped() -> None:
    first = choose_ports("4711", 0, 0, set(), is_head=True)
    with socket.socket() as other:
        other.bind(("", first["node-manager-port"]))
        assert not is_free(first["node-manager-port"])
        second = choose_ports("4711", 0, 0, {first["dashboard-port"]}, is_head=True)
    assert first["node-manager-port"] not in second.values()
    assert first["dashboard-port"] not in second.values()


def test_port_of_the_head_is_outside_the_range_of_the_workers() -> None:
    """Ray refuses to start otherwise."""
    first = choose_ports("98", 0, 0, set(), is_head=True)
    for port in (first["min-worker-port"], first["max-worker-port"], min(first.values())):
        ports = choose_ports("98", 0, 0, {port}, is_head=True)
        assert not min(ports.values()) <= port <= ports["max-worker-port"]


def test_folder_of_ray_is_a_short_link_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "hpcrun-20261128-205814-a-long-name-of-a-job-ghsz.0.0"
    local.mkdir()
    environ = {"HPCRUN_LOCAL_DIR": str(local), "SLURM_JOB_ID": "4711", "HPCRUN_ATTEMPT": "1"}
    assert folder_path({**environ, "HPCRUN_LOCAL_DIR": "/l/run"}) == "/l/ray-4711-1"
    assert len(folder_path(environ)) <= ray_node.MAX_FOLDER_LENGTH
    monkeypatch.setattr(ray_node, "MAX_FOLDER_LENGTH", 1000)
    with ray_folder(environ) as folder:
        Path(folder, "session").touch()
        assert (local / "ray/session").exists()
        with ray_folder(environ) as again:  # of another node of a sandbox
            assert again == folder
        assert Path(folder).is_symlink()
    assert not Path(folder).is_symlink()


SCRIPTS = """
import pathlib, signal, sys, time
starts = pathlib.Path({starts!r})
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(starts.read_text()) <= {failures}:
    time.sleep({seconds})
    sys.exit(1)
signal.pause()
"""
PACKAGE = """
import pathlib, sys
def init(**_):
    starts = pathlib.Path({starts!r})
    if not starts.exists() or len(starts.read_text()) <= {failures}:
        raise ConnectionError
def nodes():
    return [{{"Alive": True, "Resources": {{"hpcrun_node_0": 1}}}}]
"""


def run_head_of_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, failures: int, seconds: float
) -> tuple[int, int, list[str]]:
    """Run the first node with a Ray whose first starts fail after some seconds.

    Returns:
        The exit code, how often Ray was started, and the messages.
    """
    starts = tmp_path / "starts"
    values = {"starts": str(starts), "failures": failures, "seconds": seconds}
    package = tmp_path / "python/ray"
    (package / "scripts").mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE.format(**values))
    (package / "scripts/__init__.py").touch()
    (package / "scripts/scripts.py").write_text(SCRIPTS.format(**values))
    (tmp_path / "attempts/0").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    monkeypatch.setenv("HPCRUN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPCRUN_NODES", "1")
    monkeypatch.setenv("MASTER_PORT", "12345")
    monkeypatch.setattr(ray_node, "SLOW_START_S", 0.5)
    monkeypatch.setattr(ray_node, "TICK_S", 0.01)
    messages: list[str] = []
    node = ray_node.RayNode(os.environ, messages.append, messages.append)
    code = node._run_head(str(tmp_path), [sys.executable, "-c", "raise SystemExit(3)"])
    return code, len(starts.read_text()), messages


def test_head_that_was_slow_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, starts, messages = run_head_of_ray(tmp_path, monkeypatch, failures=1, seconds=0.6)
    assert (code, starts) == (3, 2)
    assert messages[0] == "hpcrun: ray: the head was too slow to start; starting it again"


def test_head_that_cannot_start_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, starts, messages = run_head_of_ray(tmp_path, monkeypatch, failures=1, seconds=0)
    assert (code, starts) == (1, 1)
    assert messages == ["hpcrun: error: ray: its head did not start: see the lines above"]
