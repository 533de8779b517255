"""Ray's ports, memory and folder in a job."""

from __future__ import annotations

import socket
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
