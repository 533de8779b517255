"""Servers that prompt for passwords and codes, which sshd without PAM cannot do."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paramiko

from tests.remote.sshd import Laptop


class Questioner(paramiko.ServerInterface):  # type: ignore[misc]
    """A server that asks."""

    def __init__(self, allowed: str, right: Sequence[str], title: str) -> None:
        self.allowed, self.right, self.title = allowed, right, title
        self.given: list[str] = []
        self.tried: list[str] = []
        self.knows_keys = True
        self.env = dict(os.environ)  # of what runs there

    def get_allowed_auths(self, username: str) -> str:
        return self.allowed

    def check_auth_none(self, username: str) -> int:
        self.tried.append("none")
        return int(paramiko.AUTH_FAILED)

    def check_auth_publickey(self, username: str, key: Any) -> int:
        self.tried.append("certificate" if key.public_blob else "key")
        if not self.knows_keys or "publickey" not in self.allowed:
            return int(paramiko.AUTH_FAILED)
        self.allowed = "keyboard-interactive"
        return int(paramiko.AUTH_PARTIALLY_SUCCESSFUL)

    def check_auth_password(self, username: str, password: str) -> int:
        self.given.append(password)
        is_right = password == self.right[0]
        return int(paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED)

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        query = paramiko.InteractiveQuery(self.title, "Push or code")
        query.add_prompt("Password: ", False)
        query.add_prompt("Verification code: ", True)
        return query

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.given += responses
        is_right = responses == [*self.right]
        return int(paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        threading.Thread(target=self._execute, args=(channel, command), daemon=True).start()
        return True

    def _execute(self, channel: Any, command: bytes) -> None:
        pipe = subprocess.PIPE
        argv = ["bash", "-c", command.decode()]
        with subprocess.Popen(argv, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe) as done:
            assert done.stdin and done.stdout and done.stderr

            def take(stdin: Any = done.stdin) -> None:
                with contextlib.suppress(OSError), stdin:
                    while data := channel.recv(9999):
                        stdin.write(data)
                        stdin.flush()

            threading.Thread(target=take, daemon=True).start()
            out, err = done.stdout.read(), done.stderr.read()
        with contextlib.suppress(OSError, EOFError):  # nobody listens any more
            channel.sendall(out)
            channel.sendall_stderr(err)
            channel.send_exit_status(done.returncode)
            channel.close()


@contextlib.contextmanager
def askers(laptop: Laptop) -> Iterator[Callable[..., Questioner]]:
    """Start prompting servers for one connection each, by their authentication methods."""
    listeners: list[Any] = []
    key = paramiko.RSAKey.generate(2048)

    def start(
        allowed: str, right: Sequence[str] = ("swordfish", "123456"), title: str = "Site"
    ) -> Questioner:
        server = Questioner(allowed, right, title)
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        port = listener.getsockname()[1]

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    link = paramiko.Transport(listener.accept()[0])
                    listeners.append(link)
                    link.add_server_key(key)
                    link.start_server(server=server)

        threading.Thread(target=serve, daemon=True).start()
        laptop.configure(f"Host asks\n  HostName 127.0.0.1\n  Port {port}\n{laptop.usual()}")
        with (laptop.ssh / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{port} ssh-rsa {key.get_base64()}\n")
        return server

    yield start
    for listener in listeners:
        if isinstance(listener, socket.socket):
            listener.shutdown(socket.SHUT_RDWR)  # ends accept, which close alone does not
        listener.close()
