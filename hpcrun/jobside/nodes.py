"""The comparison of a job's nodes with its first one: their clocks and their network ports.

Each node connects to the first one. Asked for its ports, it sends a line with them; asked for its
time, one with milliseconds. Other lines that it then gets are warnings about itself, which it
reports. The connection ends when all nodes have been compared. A node sends nothing before it is
asked, since another program may have the port.
"""

import collections
import resource
import selectors
import socket
import time
from typing import Dict, List, Optional, Sequence

# A node that is late is not compared: the comparison must not outlive a short job by much.
PATIENCE_S = 20.0
CLOCK_TOLERANCE_MS = 1000
_LONGEST_LINE = 4096
PORTS_REQUEST, TIME_REQUEST = b"hpcrun: ports?\n", b"hpcrun: time?\n"


class Node:
    """A connected node.

    Attributes:
        ports: Its active ports; None until it has sent them.
        asked_at: When its time was requested, in ms of the first node's clock.
        is_done: True if it has answered, or broken the connection.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.ports: Optional[str] = None
        self.asked_at = 0.0
        self.warnings: List[str] = []
        self.is_done = False

    def receive(self, now_ms: float) -> None:
        """Read what has arrived, and request the time once."""
        try:
            arrived = self.connection.recv(_LONGEST_LINE)
        except OSError:
            arrived = b""
        self.received += arrived
        line, end, rest = self.received.partition(b"\n")
        if not arrived or len(self.received) > _LONGEST_LINE:
            self.is_done = True
        elif end and self.ports is None:
            self.ports, self.received = line.decode("ascii", "replace"), rest
            self.asked_at = time.time() * 1000
            self.is_done = not self.send(TIME_REQUEST)
        elif end:
            self.is_done = True
            if line.isdigit():
                warning = judge_clock(self.asked_at, int(line), now_ms)
                self.warnings += [warning] if warning else []

    def send(self, data: bytes) -> bool:
        try:
            self.connection.sendall(data)
        except OSError:
            return False
        return True


def judge_clock(asked_ms: float, there_ms: float, answered_ms: float) -> str:
    """Return a warning if a node's clock is off.

    Its time was measured between the request and the answer, both in the first node's time, plus or
    minus the clock's error: so a late answer does not cause a warning.

    >>> judge_clock(1000, 3500, 1200)
    "its clock is at least 2.3 s ahead of the first node's"
    >>> judge_clock(1000, 2100, 9000)
    ''
    """
    if there_ms - answered_ms > CLOCK_TOLERANCE_MS:
        off, way = there_ms - answered_ms, "ahead of"
    elif asked_ms - there_ms > CLOCK_TOLERANCE_MS:
        off, way = asked_ms - there_ms, "behind"
    else:
        return ""
    return "its clock is at least {:.1f} s {} the first node's".format(off // 100 / 10, way)


def judge_ports(all_ports: Sequence[str]) -> List[str]:
    """Return a warning, or "", for each node, of which the first one is the job's first.

    A node is compared with most of the nodes: the first one may be the one that lacks a port.

    >>> judge_ports(["2 InfiniBand 400", "1 InfiniBand 400"])[1]
    'its network ports that are up: 1 InfiniBand 400; those of the first node: 2 InfiniBand 400'
    >>> judge_ports(["", "2 InfiniBand 400", "2 InfiniBand 400"])[0]
    'its network ports that are up: none; those of most other nodes: 2 InfiniBand 400'
    """
    counts = collections.Counter(all_ports)
    usual = max(all_ports, key=lambda ports: counts[ports])  # the first one, if equally common
    whose = "the first node" if usual == all_ports[0] else "most other nodes"
    text = "its network ports that are up: {}; those of {}: {}"
    return [
        "" if ports == usual else text.format(ports or "none", whose, usual or "none")
        for ports in all_ports
    ]


def compare_nodes(address: str, port: int, count: int, ports: str) -> List[str]:
    """Compare the nodes that connect to this one, the first; send each its warnings.

    Args:
        count: The number of the job's nodes.
        ports: The active ports of this node.

    Returns:
        The warnings about this node.
    """
    allow_open_files(count)
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with server, selectors.DefaultSelector() as selector:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
            server.listen(count)
        except OSError:  # another program has the port
            return []
        selector.register(server, selectors.EVENT_READ)
        nodes: Dict[int, Node] = {}
        deadline = time.monotonic() + PATIENCE_S
        while sum(node.is_done for node in nodes.values()) < count - 1:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            now_ms = time.time() * 1000  # before other answers are handled
            if not ready:
                break
            for key, _ in ready:
                if key.fileobj is server:
                    try:
                        connection = server.accept()[0]
                    except OSError:  # too many open files, or the node has given up
                        selector.unregister(server)
                        continue
                    node = Node(connection)
                    if node.send(PORTS_REQUEST):
                        nodes[connection.fileno()] = node
                        selector.register(connection, selectors.EVENT_READ)
                    else:
                        connection.close()
                    continue
                node = nodes[key.fd]
                node.receive(now_ms)
                if node.is_done:
                    selector.unregister(node.connection)
                    if node.ports is None:  # e.g. a port scanner, which is no node of the job
                        del nodes[key.fd]
                        node.connection.close()
    known = [node for node in nodes.values() if node.ports is not None]
    own, *others = judge_ports([ports, *(node.ports or "" for node in known)])
    for node, warning in zip(known, others):
        lines = [*node.warnings, *([warning] if warning else [])]
        node.send("".join(line + "\n" for line in lines).encode("ascii", "replace"))
    for node in nodes.values():
        node.connection.close()
    return [own] if own else []


def allow_open_files(count: int) -> None:
    """Raise the limit of open files for this many more, as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
