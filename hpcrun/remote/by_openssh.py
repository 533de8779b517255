"""Connection through the system's ssh: one ControlPersist master, and one client per script."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO

from hpcrun.errors import OutOfReach
from hpcrun.remote.connection import (
    Prompts,
    Reply,
    SessionLimitError,
    SshSettings,
    bridge_session,
    listen_on_loopback,
    login_command,
    retry_until_session,
    run_in_session,
)
from hpcrun.remote.ssh_config import find_ssh, query_ssh_config

# How long an unused master persists: a working day if the profile keeps connections; else long
# enough for the running command, also if hpcrun was killed.
_KEPT, _LEFT = "8h", "60"
# macOS limits the path of a Unix socket to 104 bytes, and ssh appends 17 while it creates one.
_LONGEST = 80
# Limits that ssh does not set unless its configuration does.
_USUAL = {"ServerAliveInterval": 5, "ConnectTimeout": 30}
_STRICT = (
    *("-o", "StrictHostKeyChecking=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none", "-o", "RequestTTY=no", "-o", "PermitLocalCommand=no"),
)


class OpensshConnection:
    """A connection to one host; see Connection. ``keeps``: close() leaves the master running."""

    def __init__(self, settings: SshSettings, ask: Prompts, *, keeps: bool = True) -> None:
        self.settings = settings
        self.host = settings.host
        self.keeps = keeps
        self._prompts = ask
        self._control: Path | None = None
        self._is_open = False
        self._forwards: set[tuple[str, int]] = set()  # remote addresses that the master forwards
        self._ports: dict[tuple[str, int], int] = {}  # local port of each forwarded address
        self._refusal: OutOfReach | None = None
        self._lock = threading.Lock()  # several threads run scripts

    @property
    def is_full(self) -> bool:
        """Whether a session was refused; shared by all hpcrun processes with the same master."""
        return self._full_marker().exists()

    @is_full.setter
    def is_full(self, value: bool) -> None:
        if value:
            self._full_marker().touch()
        else:
            self._full_marker().unlink(missing_ok=True)

    def _full_marker(self) -> Path:
        return Path(f"{self._socket_path()}.full")

    def run(
        self,
        script: str,
        *,
        stdin: Iterable[bytes] | bytes = b"",
        timeout: float = 60,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Run a script to its end; see Connection."""

        def exchange() -> Reply:
            session = self._open_session()
            return run_in_session(
                session, self.settings, script, stdin=stdin, timeout=timeout, on_output=on_output
            )

        try:
            # The items of a consumed iterator cannot be sent again.
            return retry_until_session(self, exchange) if isinstance(stdin, bytes) else exchange()
        except SessionLimitError:
            raise
        except OutOfReach:
            self._is_open = False  # check for the master again
            raise

    def _open_session(self) -> _Session:
        self.open()
        # Without its master a client would connect by itself, and prompt again; make it fail
        # instead.
        only = ("-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "BatchMode=yes")
        return _Session(
            self._ssh_argv(*only, *_STRICT, "--", self.host, login_command(self.settings))
        )

    def bridge_socket(self, script: str, here: socket.socket) -> None:
        """Connect a script's stdin and stdout to a socket; see Connection."""
        bridge_session(self._open_session(), self.settings, script, here)

    def forward_port(self, host: str, port: int) -> int:
        """Forward a local port to an address that the cluster's host can reach; see Connection."""
        if not self._has_master():
            self._is_open = False
            self._forwards.clear()
        self.open()
        if (host, port) not in self._forwards:
            with listen_on_loopback(self._ports.get((host, port), port)) as one:
                free = self._ports[host, port] = int(one.getsockname()[1])
            where = f"127.0.0.1:{free}:[{host}]:{port}"
            done = _run_ssh(self._ssh_argv("-O", "forward", "-L", where, "--", self.host))
            if done.returncode:
                raise OutOfReach(
                    f"{self.host}: {where} cannot be forwarded: {_last_line(done.stderr)}"
                )
            self._forwards.add((host, port))
            # The master persists, so its forwarding must be cancelled.
            atexit.register(_run_ssh, self._ssh_argv("-O", "cancel", "-L", where, "--", self.host))
        return self._ports[host, port]

    def close(self) -> None:
        """Terminate the connection, unless it is to be kept."""
        if not self.keeps:
            self.disconnect()

    def disconnect(self) -> bool:
        """Terminate the connection; return True if there was one."""
        self._is_open = self.is_full = False
        return (
            self._has_master()
            and not _run_ssh(self._ssh_argv("-O", "exit", "--", self.host)).returncode
        )

    def open(self) -> None:
        """Open the connection if it is not open; ssh prompts on the terminal."""
        with self._lock:
            self._open()

    def _open(self) -> None:
        if self._is_open or self._has_master():
            self._is_open = True
            return
        if self._refusal is not None:
            raise self._refusal
        self.is_full = False  # the note belonged to a master that no longer exists
        _remove_dead(self._socket_path())
        options = query_ssh_config(self.host)
        alive: list[str] = []
        for name, value in _USUAL.items():
            if options.get(name.lower(), ["none"])[0] in ("none", "0"):
                alive += ["-o", f"{name}={value}"]
        stays = f"ControlPersist={_KEPT if self.keeps else _LEFT}"
        argv = self._ssh_argv("-M", "-N", "-f", "-o", stays, *alive, *_STRICT, "--", self.host)
        with tempfile.TemporaryFile() as stderr:
            # Runs in the terminal's foreground, since ssh prompts there.
            code = subprocess.call(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            )
            stderr.seek(0)
            said = stderr.read().decode("utf-8", "replace")
        if code:
            error = self._connection_error(said, options)
            if error.is_final:
                self._refusal = error
            raise error
        self._prompts.tell(f"{self.host}: connected with the system's ssh")
        self._is_open = True

    def share_options(self) -> list[str]:
        """Name the master's socket; see Connection."""
        return ["-S", str(self._socket_path())] if self._has_master() else []

    def _has_master(self) -> bool:
        """Return True if a master listens; 20 ms faster than `ssh -O check`."""
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self._socket_path()))
            return True
        return False

    def _ssh_argv(self, *words: str) -> list[str]:
        program = find_ssh()
        if program is None:
            raise OutOfReach(
                f"{self.host}: no ssh client",
                fix="install the OpenSSH client, or set ssh: paramiko in the profile",
            )
        return [program, "-S", str(self._socket_path()), *words]

    def _socket_path(self) -> Path:
        if self._control is None:
            name = sha256(self.host.encode()).hexdigest()[:12]
            if not self.keeps:
                name += f".{os.getpid()}"
            self._control = runtime_folder() / name
        return self._control

    def _connection_error(self, said: str, options: dict[str, list[str]]) -> OutOfReach:
        """Convert ssh's error output to an error with a fix."""
        host = self.host
        if "HOST IDENTIFICATION HAS CHANGED" in said:
            found = re.search(r"SHA256:\S+?(?=\.?\s)", said)
            line = re.search(r"Offending .* key in (.*)", said)
            return OutOfReach(
                f"{host}: its host key has changed: it is now "
                f"{found[0] if found else 'a different one'}"
                + (f", not the key in {line[1].strip()}" if line else "")
                + ". This may be a man-in-the-middle attack",
                fix="ask the site's support whether the key was replaced; if so: ssh-keygen -R "
                f"with the name in that line, then ssh {host} once",
                is_final=True,
            )
        if "Host key verification failed" in said:
            mark = "" if _has_proxy(options) else self._fingerprint()
            return OutOfReach(
                f"{host}: its host key is unknown" + (f": {mark}" if mark else ""),
                fix=f"run ssh {host} once, and compare the key with the one that the site "
                "publishes before you accept it",
                is_final=True,
            )
        if "Permission denied" in said or "Too many authentication failures" in said:
            return OutOfReach(
                f"{host}: authentication failed: {_last_line(said)}",
                fix=f"try ssh {host}; hpcrun does not retry a failed login",
                is_final=True,
            )
        return OutOfReach(
            f"{host}: {_last_line(said) or 'ssh printed no reason'}",
            fix=f"does ssh {host} work? The site may require its VPN",
        )

    def _fingerprint(self) -> str:
        """Query the server's host key without authenticating."""
        no_login = ("-v", "-o", "BatchMode=yes", "-o", "PreferredAuthentications=none")
        argv = self._ssh_argv(
            *no_login, "-o", "ControlMaster=no", *_STRICT, "--", self.host, "true"
        )
        done = _run_ssh(argv)
        found = re.search(r"Server host key: (\S+ SHA256:\S+)", done.stderr)
        return found[1] if found else ""


def _remove_dead(control: Path) -> None:
    """Remove the socket of a killed master: a new master would start without a socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(str(control))
        except ConnectionRefusedError:
            control.unlink()


def _has_proxy(options: dict[str, list[str]]) -> bool:
    return any(options.get(key, ["none"]) != ["none"] for key in ("proxyjump", "proxycommand"))


def runtime_folder() -> Path:
    """Create the folder of the masters' sockets, accessible only by the user. Raises OutOfReach."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(given, "hpcrun") if given else Path(f"/tmp/hpcrun-ssh-{os.getuid()}")
    if len(os.fsencode(folder)) > _LONGEST - 20:
        folder = Path(f"/tmp/hpcrun-ssh-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise OutOfReach(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OutOfReach(
            f"{folder} must belong to you and be closed to others", fix="chmod 700 it, or remove it"
        )
    return folder


def _run_ssh(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run an ssh command that needs no input."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", "ssh did not respond within 30 s")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class _Session:
    """A client of the master that runs one command; see Session."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            # Ctrl-C on the terminal is for hpcrun to handle.
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stderr = self.process.stderr

    def send(self, data: bytes) -> None:
        """Write to its stdin."""
        view = memoryview(data)
        while view:
            view = view[self.stdin.write(view) or 0 :]

    def end_input(self) -> None:
        """Close its stdin."""
        self.stdin.close()

    def read(self) -> bytes:
        """Read stdout."""
        return _read_piece(self.stdout)

    def read_stderr(self) -> bytes:
        """Read stderr."""
        return _read_piece(self.stderr)

    def exit_code(self) -> int | None:
        """Return the exit code; None after a broken connection, for which ssh returns 255."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(5)
            return None if code == 255 or code < 0 else code
        return None

    def close(self) -> None:
        """Kill the client: the master then ends its session."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.stdin.close()


def _read_piece(stream: IO[bytes]) -> bytes:
    """Read a piece; at the end close the stream, in the thread that reads it."""
    data = stream.read(1 << 16)
    if not data:
        stream.close()
    return data
