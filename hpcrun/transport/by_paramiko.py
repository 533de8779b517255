"""A Connection by paramiko, over the hosts on the way.

https://www.rfc-editor.org/rfc/rfc4252 has the methods of authentication.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko

from hpcrun.errors import OutOfReach
from hpcrun.transport.connection import (
    Connection,
    NoSession,
    Prompts,
    Reply,
    SshSettings,
    both_ways,
    converse,
    exec_line,
    in_turn,
    lead,
    listen_here,
)
from hpcrun.transport.host_keys import check_host_key
from hpcrun.transport.ssh_config import Hop, NeedsSsh, find_ssh, hops_to, is_hardware_key

# Its messages are for those who look into paramiko; else Python prints the worst.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# A person looks for a phone; servers allow two minutes, as a rule.
_TYPING = 300.0
_PASSPHRASES = 3  # tries, as ssh gives


class ParamikoConnection:
    """A connection to one host; see Connection. What paramiko cannot do the system's ssh does."""

    def __init__(self, settings: SshSettings, ask: Prompts) -> None:
        self.settings = settings
        self.host = settings.host
        self.is_full = False
        self._ask = ask
        self._links: list[paramiko.Transport] = []  # the last one leads to the host
        self._proxy: subprocess.Popen[bytes] | None = None
        self._listeners: dict[tuple[str, int], socket.socket] = {}  # of ports there
        self._ports: dict[tuple[str, int], int] = {}  # where they are found here
        self._closed = threading.Event()
        self._keys: dict[Path, Any] = {}  # that were decrypted
        self._was_asked = self._was_open = False
        self._refusal: OutOfReach | None = None
        self._instead: Connection | None = None
        self._lock = threading.Lock()  # several threads run scripts
        self._spare: _Spare | None = None

    def run(
        self,
        script: str,
        *,
        stdin: Iterable[bytes] | bytes = b"",
        timeout: float = 60,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Run a script to its end; see Connection."""
        link = self._link()
        if not isinstance(link, paramiko.Transport):
            return link.run(script, stdin=stdin, timeout=timeout, on_output=on_output)

        def talk() -> Reply:
            session = self._session(link)
            return converse(
                session, self.settings, script, stdin=stdin, timeout=timeout, on_output=on_output
            )

        return in_turn(self, talk)

    def _session(self, link: paramiko.Transport) -> _Session:
        line = exec_line(self.settings)
        with self._lock:
            spare, self._spare = self._spare, None
        try:
            session = (spare.take(link) if spare else None) or _Session(link, line)
        except paramiko.ChannelException as error:
            raise NoSession(self.host) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise OutOfReach(f"{self.host}: the connection broke: {error}") from error
        if not self.is_full:
            self._spare = _Spare(link, line)
        return session

    def forward(self, host: str, port: int) -> int:
        """Lead a port of this machine to one that the far side reaches."""
        link = self._link()
        if not isinstance(link, paramiko.Transport):
            return link.forward(host, port)
        if (host, port) not in self._listeners:
            listener = listen_here(self._ports.get((host, port), port))
            self._listeners[host, port] = listener
            self._ports[host, port] = int(listener.getsockname()[1])
            threading.Thread(target=_serve, args=(listener, link, host, port), daemon=True).start()
        return self._ports[host, port]

    def lead(self, script: str, here: socket.socket) -> None:
        """Let a script be the other side of a socket; see Connection."""
        link = self._link()
        if isinstance(link, paramiko.Transport):
            lead(self._session(link), self.settings, script, here)
        else:
            link.lead(script, here)

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        if self._instead is not None:
            self._instead.close()
        for listener in self._listeners.values():
            listener.shutdown(socket.SHUT_RDWR)  # ends accept, which close alone does not
            listener.close()
        for link in reversed(self._links):
            link.close()
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
        self._links, self._listeners, self._proxy = [], {}, None

    def _link(self) -> paramiko.Transport | Connection:
        """Return the open connection, or the system's ssh's; open it where there is none.

        What was refused is not tried again.
        """
        with self._lock:
            return self._link_alone()

    def _link_alone(self) -> paramiko.Transport | Connection:
        if self._instead is not None:
            return self._instead
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
                    f"{self.host}: {need} needs an ssh client", fix="install OpenSSH's"
                ) from need
            from hpcrun.transport.by_openssh import OpensshConnection

            self._ask.tell(f"{self.host}: by the system's ssh: {need}")
            self._instead = OpensshConnection(self.settings, self._ask, keeps=False)
            return self._instead
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
            link = paramiko.Transport(self._reach(hop))
            self._links.append(link)
            link.daemon = True
            link.banner_timeout = link.handshake_timeout = hop.connect_timeout
            check_host_key(link, hop)
            _Login(link, hop, self._question, self._ask.tell, self._keys).log_in()
            self._ask.tell(f"{hop.name}: connected as {hop.who}")
        threading.Thread(target=_watch, args=(link, hop, self._closed), daemon=True).start()

    def _question(self, question: str, *, echo: bool = False) -> str:
        """Ask the user; of a connection that broke nothing is asked again."""
        if self._was_open and self._was_asked:
            raise OutOfReach(
                f"{self.host}: the connection broke, and a new one needs an answer from you",
                fix="type the command again; hpcrun connect keeps a connection (ssh: openssh)",
                is_final=True,
            )
        self._was_asked = True
        return self._ask.secret(question, echo=echo)

    def _reach(self, hop: Hop) -> Any:
        """Return what the next connection is spoken over: a socket, or a channel of the last."""
        if self._links:
            try:
                where = (hop.hostname, hop.port)
                return self._links[-1].open_channel(
                    "direct-tcpip", where, ("127.0.0.1", 0), timeout=hop.connect_timeout
                )
            except (paramiko.SSHException, OSError, EOFError) as error:
                said = getattr(error, "text", None) or error
                raise OutOfReach(
                    f"{hop.name}: the jump host does not reach {hop.hostname}:{hop.port}: {said}",
                    fix=f"does ssh {hop.name} work?",
                ) from error
        if hop.proxy_command:
            here, there = socket.socketpair()
            with there:
                # Ctrl-C on the terminal is for hpcrun to handle.
                argv = ["/bin/sh", "-c", f"trap '' INT; exec {hop.proxy_command}"]
                self._proxy = subprocess.Popen(argv, stdin=there.fileno(), stdout=there.fileno())
            return here
        return _connect(hop)


def _connect(hop: Hop) -> socket.socket:
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    family = families.get(hop.address_family, socket.AF_UNSPEC)
    try:
        found = socket.getaddrinfo(hop.hostname, hop.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OutOfReach(
            f"{hop.name}: no host has the name {hop.hostname}",
            fix="is it another one in ~/.ssh/config? Are you in the site's network (VPN)?",
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
        # A script and its stdin are small pieces, which must not wait for each other.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    is_slow = isinstance(last, TimeoutError)
    why = f"no answer in {hop.connect_timeout:.3g} s" if is_slow else getattr(last, "strerror", "")
    raise OutOfReach(
        f"{hop.name}: {hop.hostname} port {hop.port}: {why or last}",
        fix=f"does ssh {hop.name} work? Are you in the site's network (VPN)?",
    ) from last


def _watch(link: paramiko.Transport, hop: Hop, closed: threading.Event) -> None:
    """Keep a connection alive, and close one that no longer answers: else a read would wait."""
    while not closed.wait(hop.alive_interval) and link.is_active():
        answered = threading.Event()

        def ask(answered: threading.Event = answered) -> None:
            with contextlib.suppress(Exception):
                link.global_request("keepalive@openssh.com", wait=True)
                answered.set()

        threading.Thread(target=ask, daemon=True).start()
        if not answered.wait(hop.alive_interval * hop.alive_count) and not closed.is_set():
            link.close()


def _serve(listener: socket.socket, link: paramiko.Transport, host: str, port: int) -> None:
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
        threading.Thread(target=both_ways, args=(here, there), daemon=True).start()


class _Session:
    """A command of a paramiko connection; see Session."""

    def __init__(self, link: paramiko.Transport, command: str) -> None:
        self.link = link
        self.channel = link.open_session(timeout=30)
        # exec_command() without waiting for its answer: that would be one more trip. A refusal
        # closes the channel.
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
        message.add_int(self.channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        link._send_user_message(message)

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
        """Return how it ended."""
        self.channel.status_event.wait(5)
        code = int(self.channel.exit_status)
        return None if code == -1 and not self.link.is_active() else code

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # it broke
            self.channel.close()


class _Spare:
    """The session of the next script, opened while another one runs: that saves a round trip."""

    def __init__(self, link: paramiko.Transport, command: str) -> None:
        self.link, self.command = link, command
        self.made: queue.SimpleQueue[_Session | None] = queue.SimpleQueue()
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        made = None
        with contextlib.suppress(Exception):  # sshd's MaxSessions; the link broke
            made = _Session(self.link, self.command)
        self.made.put(made)

    def take(self, link: paramiko.Transport) -> _Session | None:
        """Return the session, where it is one of this link and still there."""
        made = self.made.get() if link is self.link else None
        has_ended = made is None or made.channel.closed or made.channel.eof_received
        return None if has_ended else made


class _Login:
    """One user's way into one host: ssh's methods, in its order, each once."""

    def __init__(
        self,
        link: paramiko.Transport,
        hop: Hop,
        ask: Callable[..., str],
        tell: Callable[[str], None],
        keys: dict[Path, Any],
    ) -> None:
        self.link = link
        self.hop = hop
        self.ask = ask
        self.tell = tell
        self.keys = keys
        self.agent = paramiko.agent.AgentSSH()
        self.tried: list[str] = []  # for the message
        self.offered: set[bytes] = set()

    def log_in(self) -> None:
        """Prove who the user is. Raises OutOfReach that is final, NeedsSsh."""
        try:
            self._log_in()
        finally:
            self.agent._close()

    def _log_in(self) -> None:
        hop = self.hop
        allowed: list[str] = []
        try:
            self.link.auth_none(hop.user)
            return
        except paramiko.BadAuthenticationType as error:
            allowed = list(error.allowed_types)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken(error) from error
        for _ in range(5):  # factors that a server may want
            more = self._one_factor(allowed)
            if self.link.is_authenticated():
                return
            if more is None:
                break
            allowed = more
        did = "; ".join(self.tried) or "there was nothing to try"
        raise OutOfReach(
            f"{hop.name}: {hop.who} was not let in: {did} (the server takes {', '.join(allowed)})",
            fix=f"try ssh {hop.name}; nothing is tried again by itself",
            is_final=True,
        )

    def _broken(self, error: BaseException) -> OutOfReach:
        did = "; ".join(self.tried)
        return OutOfReach(
            f"{self.hop.name}: the server ended the login of {self.hop.who}: {error}"
            + (f" ({did})" if did else ""),
            fix="too many keys of an agent? IdentityFile and IdentitiesOnly yes name the right one"
            if len(self.offered) > 2
            else f"try ssh {self.hop.name}; nothing is tried again by itself",
            is_final=True,
        )

    def _one_factor(self, allowed: list[str]) -> list[str] | None:
        """Prove one thing; return what the server wants besides, or None where nothing did."""
        methods = [method for method in self.hop.methods if method in allowed]
        try:
            if "publickey" in methods:
                more = self._by_keys()
                if more is not None:
                    return more
            self._leave_to_ssh(methods)
            for method in methods:
                if self.hop.batch or method not in ("keyboard-interactive", "password"):
                    continue
                by = self._by_answers if method == "keyboard-interactive" else self._by_password
                done, more = by()
                if done:
                    return more
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken(error) from error
        return None

    def _leave_to_ssh(self, methods: list[str]) -> None:
        """Let the system's ssh show a Kerberos ticket, or this host's own key."""
        can_ask = {"keyboard-interactive", "password"} & set(methods) and not self.hop.batch
        ticket = os.environ.get("KRB5CCNAME") or Path(f"/tmp/krb5cc_{os.getuid()}").exists()
        if "gssapi-with-mic" in methods and (ticket or not can_ask):
            raise NeedsSsh(f"{self.hop.name}: Kerberos (GSSAPI)")
        if "hostbased" in methods and not can_ask:
            raise NeedsSsh(f"{self.hop.name}: hostbased authentication")

    # Each of the following returns what the server wants besides ([]: nothing); None: refused.

    def _by_keys(self) -> list[str] | None:
        for label, key in self._candidates():
            if key.asbytes() in self.offered and key.public_blob is None:
                continue
            self.offered.add(key.asbytes())
            try:
                more = list(self.link.auth_publickey(self.hop.user, key))
            except paramiko.BadAuthenticationType:
                return None
            except paramiko.AuthenticationException as error:
                if not self.link.is_active():
                    raise
                self.tried.append(f"{label} was refused")
                self.tell(f"{self.hop.name}: {label}: {error}")
                continue
            self.tell(f"{self.hop.name}: {label} was taken")
            return more
        return None

    def _candidates(self) -> Iterator[tuple[str, Any]]:
        """Yield keys as ssh tries them: the agent's that are named, its others, then the files.

        Files that are encrypted come last, since they cost the user a question.
        """
        public = {_public_blob(path): path for path in self.hop.identity_files}
        agents = self._agent_keys()
        named = [key for key in agents if key.asbytes() in public]
        others = [] if self.hop.identities_only else [key for key in agents if key not in named]
        for key in (*named, *others):
            if key.get_name().startswith("sk-"):
                raise NeedsSsh(f"{self.hop.name}: a hardware key in the agent")
            yield f"the agent's {key.get_name()} key {getattr(key, 'comment', '')}".strip(), key
        locked = []
        for path in self.hop.identity_files:
            if not path.exists():
                continue
            if is_hardware_key(path):
                raise NeedsSsh(f"a hardware key, {path}")
            if _public_blob(path) in {key.asbytes() for key in named}:
                continue
            try:
                key = self.keys.get(path) or paramiko.PKey.from_path(path)
            except (TypeError, paramiko.PasswordRequiredException):
                locked.append(path)
            except Exception as error:
                if not path.with_name(path.name.removesuffix(".pub")).exists():
                    continue
                self.tried.append(f"{path} cannot be read: {error}")
            else:
                yield from self._with_certificates(path, key)
        for path in locked:
            if (key := self._unlock(path)) is not None:
                yield from self._with_certificates(path, key)
        missing = [path for path in self.hop.identity_files if not path.exists()]
        if missing and len(missing) == len(self.hop.identity_files) < 5:
            self.tried.append(f"{missing[0]}: no such key file")

    def _agent_keys(self) -> list[Any]:
        """Ask the agent for its keys; none where it does not answer."""
        if self.hop.agent is None:
            return []
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self.hop.agent)
            self.agent._connect(sock)
        except (OSError, paramiko.SSHException):
            sock.close()
        return list(self.agent.get_keys())

    def _with_certificates(self, path: Path, key: Any) -> Iterator[tuple[str, Any]]:
        self.keys[path] = key
        for certificate in self.hop.certificate_files:
            try:
                key.load_certificate(str(certificate))
            except Exception as error:
                self.tried.append(f"{certificate} cannot be used: {error}")
            else:
                yield f"{certificate}", key
        yield f"{path}", key
        if key.public_blob is not None:
            key.public_blob = None
            self.offered.discard(key.asbytes())
            yield f"{path}", key

    def _unlock(self, path: Path) -> Any:
        """Ask for a passphrase; None where nobody answers rightly."""
        for _ in range(_PASSPHRASES):
            if self.hop.batch:
                break
            try:
                answer = self.ask(f"{self.hop.who}: passphrase of {path}")
            except OutOfReach as error:
                self.tried.append(f"{path}: {error.message}")
                return None
            if not answer:
                break
            with contextlib.suppress(ValueError, TypeError, paramiko.SSHException):
                return paramiko.PKey.from_path(path, answer.encode())
        self.tried.append(f"{path} is encrypted, and its passphrase was not given")
        return None

    def _by_password(self) -> tuple[bool, list[str] | None]:
        answer = self.ask(f"{self.hop.who}: password")
        try:
            return True, list(self.link.auth_password(self.hop.user, answer, fallback=False))
        except paramiko.AuthenticationException:
            self.tried.append("the password was refused")
            return True, None

    def _by_answers(self) -> tuple[bool, list[str] | None]:
        """Answer the server's questions. The first value: something was asked."""
        # paramiko waits for the answers in its own thread, where Ctrl-C does not come.
        wanted: queue.Queue[Any] = queue.Queue()
        given: queue.Queue[list[str]] = queue.Queue()

        def questions(title: str, text: str, prompts: list[tuple[str, bool]]) -> list[str]:
            wanted.put((title, text, prompts))
            return given.get()

        def talk() -> None:
            try:
                self.link.auth_timeout = _TYPING
                wanted.put(list(self.link.auth_interactive(self.hop.user, questions)))
            except Exception as error:
                wanted.put(error)

        threading.Thread(target=talk, daemon=True).start()
        was_asked, heading = False, ""
        while True:
            try:
                what = wanted.get(timeout=_TYPING)
            except queue.Empty:
                raise paramiko.SSHException(f"no answer in {_TYPING:.0f} s") from None
            if isinstance(what, paramiko.AuthenticationException):
                self.tried.append("the answer was refused" if was_asked else "no question came")
                return was_asked, None
            if isinstance(what, Exception):
                raise what
            if isinstance(what, list):
                return True, what
            title, text, prompts = what
            heading = "\n".join(part.strip() for part in (heading, title, text) if part.strip())
            answers = []
            for prompt, echo in prompts:
                was_asked = True
                question = f"{self.hop.who}: {str(prompt).strip().rstrip(':')}"
                answers.append(self.ask(f"{heading}\n{question}".strip(), echo=bool(echo)))
                heading = ""
            given.put(answers)


def _public_blob(path: Path) -> bytes:
    """Return the public half of a key file, as far as it lies there in the open."""
    for name in (path, path.with_name(f"{path.name}.pub")):
        with contextlib.suppress(OSError, ValueError, IndexError, UnicodeDecodeError):
            words = name.read_text().split()
            if words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1])
    return b""
