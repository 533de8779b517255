"""The comparison of a job's nodes."""

from __future__ import annotations

import contextlib
import doctest
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hpcrun.jobside import nodes
from hpcrun.jobside.nodes import compare_nodes
from tests.waiting import PATIENCE, until

NDR = "InfiniBand 400 Gb/sec (4X NDR)"


def test_doctests() -> None:
    assert doctest.testmod(nodes).failed == 0


class FirstNode:
    """The first node of a job, which compares the others with itself in a thread."""

    def __init__(self, count: int, ports: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.warnings: list[str] | None = None

        def compare() -> None:
            self.warnings = compare_nodes("127.0.0.1", self.port, count, ports)

        self.thread = threading.Thread(target=compare)
        self.thread.start()

    def open(self) -> socket.socket:
        connections: list[socket.socket] = []

        def is_there() -> bool:
            with contextlib.suppress(ConnectionRefusedError):
                connections.append(socket.create_connection(("127.0.0.1", self.port)))
            return bool(connections)

        until(is_there, "the first node")
        assert connections[0].recv(100) == b"hpcrun: ports?\n"
        return connections[0]

    def connect(self, ports: str) -> socket.socket:
        connection = self.open()
        connection.sendall(f"{ports}\n".encode())
        return connection


def answer(connection: socket.socket, ahead: float = 0.0) -> None:
    assert connection.recv(100) == b"hpcrun: time?\n"
    connection.sendall(b"%d\n" % ((time.time() + ahead) * 1000))


def read_warnings(connection: socket.socket) -> list[str]:
    with connection, connection.makefile() as lines:
        return lines.read().splitlines()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of all connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_wrong_clocks_and_ports_of_a_thousand_nodes_are_found() -> None:
    count, odd = 1024, {5: -7.0, 700: 12.0}
    first = FirstNode(count, f"8 {NDR}")
    connections = [first.connect(f"{7 if number == 9 else 8} {NDR}") for number in range(1, count)]
    for number, connection in enumerate(connections, 1):
        answer(connection, odd.get(number, 0.0))
    found = {
        number: warnings
        for number, connection in enumerate(connections, 1)
        if (warnings := read_warnings(connection))
    }
    first.thread.join()
    assert first.warnings == []
    assert set(found) == {5, 9, 700}
    assert "behind" in found[5][0] and "its clock is at least" in found[5][0]
    assert found[700][0].endswith("ahead of the first node's")
    assert found[9] == [f"its network ports that are up: 7 {NDR}; those of the first node: 8 {NDR}"]


def test_first_node_that_lacks_ports_is_the_one_that_is_warned() -> None:
    first = FirstNode(3, "")
    others = [first.connect(f"1 {NDR}") for _ in range(2)]
    for connection in others:
        answer(connection)
    assert [read_warnings(connection) for connection in others] == [[], []]
    first.thread.join()
    assert first.warnings == [
        f"its network ports that are up: none; those of most other nodes: 1 {NDR}"
    ]


def _vanish(connection: socket.socket) -> None:
    connection.close()


def _babble(connection: socket.socket) -> None:
    connection.sendall(b"\xff" * 5000)


def _answer_with_words(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"date: illegal option -- %s3N\n")


@pytest.mark.parametrize("behave", [_vanish, _babble, _answer_with_words])
def test_broken_node_does_not_prevent_the_comparison(
    behave: Callable[[socket.socket], None],
) -> None:
    first = FirstNode(3, "")
    broken = first.connect("")
    behave(broken)
    good = first.connect("")
    answer(good, 5)
    [found] = read_warnings(good)
    assert found.endswith("ahead of the first node's")
    first.thread.join()
    broken.close()


def test_foreign_connections_do_not_end_the_comparison() -> None:
    first = FirstNode(2, "")
    for sent in (b"", b"\xff" * 5000):  # e.g. a port scanner
        with first.open() as foreign:
            foreign.sendall(sent)
    node = first.connect("")
    answer(node, 5)
    [found] = read_warnings(node)
    assert found.endswith("ahead of the first node's")
    first.thread.join()
    assert first.warnings == []


def test_late_nodes_are_not_awaited_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "PATIENCE_S", 0.3)
    first = FirstNode(3, "")
    with first.connect("") as connection:
        answer(connection)
        first.thread.join(PATIENCE)
        assert first.warnings == []


def test_port_of_another_program_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert compare_nodes("127.0.0.1", other.getsockname()[1], 2, "") == []
