"""A network link with delays that tests can cut."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time


class Link:
    """Passes on what comes to ``port``, after ``delay`` seconds, ``rate`` bytes a second at most.

    After ``cut_after`` more messages, or with ``cut()``, its connections are cut; the next ones go
    through.
    """

    def __init__(self, to: int, address: str = "127.0.0.1", *, delay: float = 0.0) -> None:
        self.address, self.to, self.delay = address, to, delay
        self.rate = float("inf")
        self.count, self.cut_after, self.is_cut = 0, -1, False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def start(self, cut_after: int = -1) -> None:
        """Count from 0."""
        self.count, self.cut_after, self.is_cut = 0, cut_after, False

    def cut(self) -> None:
        """Cut all connections."""
        self.is_cut = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        """Refuse new connections."""
        # Closing alone leaves the thread in accept(), which may be restarted on another socket that
        # has got the same file descriptor.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    far = socket.create_connection((self.address, self.to))
                except OSError:
                    client.close()
                    continue
                ends = (client, far)
                for one in ends:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += ends
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self._take, args=(one, other), daemon=True).start()

    def _take(self, one: socket.socket, other: socket.socket) -> None:
        on_the_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        give = threading.Thread(target=self._give, args=(other, on_the_way), daemon=True)
        give.start()
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self._lock:
                    self.count += 1
                    if self.count == self.cut_after:
                        self.cut()
                        break
                on_the_way.put((time.monotonic() + self.delay, data))
        on_the_way.put((time.monotonic() + self.delay, b""))
        give.join()
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _give(
        self, other: socket.socket, on_the_way: queue.SimpleQueue[tuple[float, bytes]]
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = on_the_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    return
                time.sleep(len(data) / self.rate)
                other.sendall(data)
