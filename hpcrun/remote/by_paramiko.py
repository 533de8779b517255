"""Connection through paramiko, via jump hosts."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import paramiko

from hpcrun.errors import OutOfReach
from hpcrun.remote.connection import (
    Connection,
    Prompts,
    Reply,
    SessionLimitError,
    SshSettings,
    bridge_session,
    listen_on_loopback,
    login_command,
    relay_sockets,
    retry_until_session,
    run_in_session,
)
from hpcrun.remote.host_keys import check_host_key
from hpcrun.remote.login import Authentication
from hpcrun.remote.ssh_config import Hop, NeedsSsh, find_ssh, hops_to

# Hide paramiko's log messages unless logging is configured: else Python prints warnings to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# A host that has become unreachable is detected in 30 s, also during the login, where ssh has no
# keepalives: a server that waits for a second factor is silent, but its kernel is not. In seconds,
# but TCP_USER_TIMEOUT in milliseconds; TCP_KEEPALIVE is TCP_KEEPIDLE on macOS.
_TCP_LIMITS = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPALIVE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 30_000,
}


class ParamikoConnection:
    """A connection to one host; see Connection. Falls back to the system's ssh."""

    def __init__(self, settings: SshSettings, ask: Prompts) -> None:
        self.settings = settings
        self.host = settings.host
        self._is_full = False
        self._prompts = ask
        self._links: list[paramiko.Transport] = []  # one per hop; the last one leads to the host
        self._proxy: subprocess.Popen[bytes] | None = None
        self._listeners: dict[tuple[str, int], socket.socket] = {}  # by remote address
        self._ports: dict[tuple[str, int], int] = {}  # local port of each forwarded address
        self._closed = threading.Event()
        self._keys: dict[Path, Any] = {}  # decrypted private keys
        self._was_asked = self._was_open = False
        self._refusal: OutOfReach | None = None
        self._fallback: Connection | None = None
        self._lock = threading.Lock()  # several threads run scripts
        self._spare: _SpareSession | None = None

    @property
    def is_full(self) -> bool:
        """Whether a second session was refused."""
        return self._is_full if self._fallback is None else self._fallback.is_full

    @is_full.setter
    def is_full(self, value: bool) -> None:
        self._is_full = value

    def share_options(self) -> list[str]:
        """Ssh cannot use a connection of paramiko; see Connection."""
        return self._fallback.share_options() if self._fallback is not None else []

    def open(self) -> None:
        """Connect; see Connection."""
        link = self._get_link()
        if not isinstance(link, paramiko.Transport):
            link.open()

    def run(
        self,
        script: str,
        *,
        stdin: Iterable[bytes] | bytes = b"",
        timeout: float = 60,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Run a script to its end; see Connection."""
        link = self._get_link()
        if not isinstance(link, paramiko.Transport):
            return link.run(script, stdin=stdin, timeout=timeout, on_output=on_output)

        def exchange() -> Reply:
            session = self._open_session(link)
            return run_in_session(
                session, self.settings, script, stdin=stdin, timeout=timeout, on_output=on_output
            )

        return retry_until_session(self, exchange)

    def _open_session(self, link: paramiko.Transport) -> _Session:
        line = login_command(self.settings)
        with self._lock:
            spare, self._spare = self._spare, None
        try:
            session = (spare.get_session(link) if spare else None) or _Session(link, line)
        except paramiko.ChannelException as error:
            raise SessionLimitError(self.host) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise OutOfReach(f"{self.host}: connection lost: {error}") from error
        with self._lock:
            if self._spare is None and not self.is_full:
                self._spare = _SpareSession(link, line)
        return session

    def forward_port(self, host: str, port: int) -> int:
        """Forward a local port to an address that the cluster's host can reach; see Connection."""
        link = self._get_link()
        if not isinstance(link, paramiko.Transport):
            return link.forward_port(host, port)
        if (host, port) not in self._listeners:
            listener = listen_on_loopback(self._ports.get((host, port), port))
            self._listeners[host, port] = listener
            self._ports[host, port] = int(listener.getsockname()[1])
            threading.Thread(
                target=_serve_forwarding, args=(listener, link, host, port), daemon=True
            ).start()
        return self._ports[host, port]

    def bridge_socket(self, script: str, here: socket.socket) -> None:
        """Connect a script's stdin and stdout to a socket; see Connection."""
        link = self._get_link()
        if isinstance(link, paramiko.Transport):
            bridge_session(self._open_session(link), self.settings, script, here)
        else:
            link.bridge_socket(script, here)

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        if self._fallback is not None:
            self._fallback.close()
        for listener in self._listeners.values():
            # shutdown() interrupts accept(), which close() does not
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in reversed(self._links):
            with contextlib.suppress(OSError, EOFError):
                # without it the thread of the link ends 0.1 s later
                link.sock.shutdown(socket.SHUT_RDWR)
            link.close()
            # Wait: the thread closes its channel in the previous link, which must still be open.
            if link.is_alive():
                link.join(5)
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
        self._links, self._listeners, self._proxy = [], {}, None

    def _get_link(self) -> paramiko.Transport | Connection:
        """Return the open connection, or the fallback to the system's ssh; connect if necessary.

        A refused authentication is not repeated.
        """
        with self._lock:
            return self._connect_unlocked()

    def _connect_unlocked(self) -> paramiko.Transport | Connection:
        if self._fallback is not None:
            return self._fallback
        if self._links and self._links[-1].is_active():
            return self._links[-1]
        if self._refusal is not None:
            raise self._refusal
        self.close()
        self._closed = threading.Event()
        try:
            self._open(hops_to(self.host))
        except NeedsSsh as need:
            self.close()
            if find_ssh() is None:
                raise OutOfReach(
                    f"{self.host}: {need} needs an ssh client", fix="install the OpenSSH client"
                ) from need
            from hpcrun.remote.by_openssh import OpensshConnection

            self._prompts.tell(f"{self.host}: using the system's ssh: {need}")
            self._fallback = OpensshConnection(self.settings, self._prompts, keeps=False)
            return self._fallback
        except BaseException as error:
            self.close()
            if isinstance(error, OutOfReach) and error.is_final:
                self._refusal = error
            raise
        self._was_open = True
        return self._links[-1]

    def _open(self, hops: Sequence[Hop]) -> None:
        for hop in hops:
            if hop.needs_ssh:
                raise NeedsSsh(hop.needs_ssh)
        for hop in hops:
            stream = _TimedStream(self._open_stream(hop))
            link = paramiko.Transport(stream)
            self._links.append(link)
            link.daemon = True
            link.banner_timeout = link.handshake_timeout = hop.connect_timeout
            check_host_key(link, hop)
            Authentication(link, hop, self._prompt_user, self._prompts.tell, self._keys).log_in()
            self._prompts.tell(f"{hop.name}: connected as {hop.who}")
        threading.Thread(
            target=_send_keepalives, args=(link, stream, hop, self._closed), daemon=True
        ).start()

    def _prompt_user(self, question: str, *, echo: bool = False) -> str:
        """Prompt the user, except when a connection that needed a prompt is reopened."""
        if self._was_open and self._was_asked:
            raise OutOfReach(
                f"{self.host}: connection lost, and a new one requires a prompt",
                fix="run the command again; with ssh: openssh, hpcrun connect keeps a connection "
                "open",
                is_final=True,
            )
        self._was_asked = True
        return self._prompts.secret(question, echo=echo)

    def _open_stream(self, hop: Hop) -> Any:
        """Return a socket, or a channel of the previous hop, for the next connection."""
        if self._links:
            try:
                where = (hop.hostname, hop.port)
                return self._links[-1].open_channel(
                    "direct-tcpip", where, ("127.0.0.1", 0), timeout=hop.connect_timeout
                )
            except (paramiko.SSHException, OSError, EOFError) as error:
                said = getattr(error, "text", None) or error
                raise OutOfReach(
                    f"{hop.name}: the jump host cannot reach {hop.hostname}:{hop.port}: {said}",
                    fix=f"does ssh {hop.name} work?",
                ) from error
        if hop.proxy_command:
            here, there = socket.socketpair()
            with there:
                # hpcrun handles Ctrl-C; the proxy must ignore it.
                argv = ["/bin/sh", "-c", f"trap '' INT; exec {hop.proxy_command}"]
                self._proxy = subprocess.Popen(argv, stdin=there.fileno(), stdout=there.fileno())
            return here
        return _connect_socket(hop)


def _connect_socket(hop: Hop) -> socket.socket:
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    family = families.get(hop.address_family, socket.AF_UNSPEC)
    # A name in bytes avoids the import of Python's IDNA tables.
    name = hop.hostname.encode() if hop.hostname.isascii() else hop.hostname
    try:
        found = socket.getaddrinfo(name, hop.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OutOfReach(
            f"{hop.name}: the host name {hop.hostname} does not resolve",
            fix="check HostName in ~/.ssh/config; the site may require its VPN",
        ) from error
    last: OSError | None = None
    for kind, type_, protocol, _, address in found:
        made = socket.socket(kind, type_, protocol)
        made.settimeout(hop.connect_timeout)
        try:
            made.connect(address)
        except OSError as error:
            made.close()
            last = error
            continue
        # A script and its stdin are small packets, which Nagle's algorithm would delay.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _TCP_LIMITS.items():
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return made
    is_slow = isinstance(last, TimeoutError)
    why = (
        f"no response within {hop.connect_timeout:.3g} s"
        if is_slow
        else getattr(last, "strerror", "")
    )
    raise OutOfReach(
        f"{hop.name}: {hop.hostname} port {hop.port}: {why or last}",
        fix=f"does ssh {hop.name} work? The site may require its VPN",
    ) from last


class _TimedStream:
    """A socket or channel that remembers when data last arrived."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.received_at = time.monotonic()

    def recv(self, size: int) -> bytes:
        """Receive data."""
        data = bytes(self._stream.recv(size))
        self.received_at = time.monotonic()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _send_keepalives(
    link: paramiko.Transport, stream: _TimedStream, hop: Hop, closed: threading.Event
) -> None:
    """Send keepalives, and close a connection that is silent: a read would block forever.

    Any received data shows that the connection works: behind a large upload, the response to a
    keepalive can take minutes.
    """
    while not closed.wait(hop.alive_interval) and link.is_active():
        answered = threading.Event()

        def send_keepalive(answered: threading.Event = answered) -> None:
            with contextlib.suppress(Exception):
                link.global_request("keepalive@openssh.com", wait=True)
                answered.set()

        threading.Thread(target=send_keepalive, daemon=True).start()
        # Periods are counted instead of seconds: a suspended process has not waited.
        silent, received_at = 0, stream.received_at
        while not (answered.wait(hop.alive_interval) or closed.is_set()) and link.is_active():
            silent = silent + 1 if stream.received_at == received_at else 0
            received_at = stream.received_at
            if silent >= hop.alive_count:
                link.close()


def _serve_forwarding(
    listener: socket.socket, link: paramiko.Transport, host: str, port: int
) -> None:
    while True:
        try:
            here, address = listener.accept()
        except OSError:  # closed
            return
        try:
            there = link.open_channel("direct-tcpip", (host, port), address[:2], timeout=30)
        except (paramiko.SSHException, OSError, EOFError):
            here.close()
            continue
        threading.Thread(target=relay_sockets, args=(here, there), daemon=True).start()


class _Session:
    """A command on a paramiko connection; see Session."""

    def __init__(self, link: paramiko.Transport, command: str) -> None:
        self.link = link
        self.channel = link.open_session(timeout=30)
        self.channel.exec_command(command)

    def send(self, data: bytes) -> None:
        """Write to its stdin."""
        self.channel.sendall(data)

    def end_input(self) -> None:
        """Close its stdin."""
        self.channel.shutdown_write()

    def read(self) -> bytes:
        """Read stdout."""
        return bytes(self.channel.recv(1 << 16))

    def read_stderr(self) -> bytes:
        """Read stderr."""
        return bytes(self.channel.recv_stderr(1 << 16))

    def exit_code(self) -> int | None:
        """Return the exit code; None if the connection is lost first."""
        self.channel.status_event.wait(5)
        code = int(self.channel.exit_status)
        return None if code == -1 and not self.link.is_active() else code

    def close(self) -> None:
        """Close the channel."""
        with contextlib.suppress(
            OSError, EOFError, paramiko.SSHException
        ):  # the connection is lost
            self.channel.close()


class _SpareSession:
    """A session for the next script, opened in advance to save a round trip."""

    def __init__(self, link: paramiko.Transport, command: str) -> None:
        self.link, self.command = link, command
        self.made: queue.SimpleQueue[_Session | None] = queue.SimpleQueue()
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        made = None
        with contextlib.suppress(Exception):  # sshd's MaxSessions, or a broken connection
            made = _Session(self.link, self.command)
        self.made.put(made)

    def get_session(self, link: paramiko.Transport) -> _Session | None:
        """Return the session if it belongs to this link and is still open."""
        made = self.made.get() if link is self.link else None
        has_ended = made is None or made.channel.closed or made.channel.eof_received
        return None if has_ended else made
