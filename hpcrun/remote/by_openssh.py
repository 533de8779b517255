"""A Connection by the system's ssh: one master, kept by ControlPersist, and a client a script."""

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
from hpcrun.remote.ssh_config import ask_ssh, find_ssh

# How long an unused master stays: a working day where the profile wants it kept, else until the
# end of a command whose hpcrun was killed.
_KEPT, _LEFT = "8h", "60"
# A path of a Unix socket has 104 bytes on a Mac, and ssh appends 17 while it makes one.
_LONGEST = 80
# What ssh has no limit for unless its configuration says one.
_USUAL = {"ServerAliveInterval": 15, "ConnectTimeout": 30}
_STRICT = (
    *("-o", "StrictHostKeyChecking=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none", "-o", "RequestTTY=no", "-o", "PermitLocalCommand=no"),
)


class OpensshConnection:
    """A connection to one host; see Connection. ``keeps``: it stays when this object is closed."""

    def __init__(self, settings: SshSettings, ask: Prompts, *, keeps: bool = True) -> None:
        self.settings = settings
        self.host = settings.host
        self.keeps = keeps
        self._ask = ask
        self._control: Path | None = None
        self._is_open = False
        self._forwards: set[tuple[str, int]] = set()  # ports there that the master leads here
        self._ports: dict[tuple[str, int], int] = {}  # where they are found here
        self._refusal: OutOfReach | None = None
        self._lock = threading.Lock()  # several threads run scripts

    @property
    def is_full(self) -> bool:
        """Whether a session was refused; noted for every hpcrun that has the same master."""
        return self._note().exists()

    @is_full.setter
    def is_full(self, value: bool) -> None:
        if value:
            self._note().touch()
        else:
            self._note().unlink(missing_ok=True)

    def _note(self) -> Path:
        return Path(f"{self._socket()}.full")

    def run(
        self,
        script: str,
        *,
        stdin: Iterable[bytes] | bytes = b"",
        timeout: float = 60,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """Run a script to its end; see Connection."""

        def talk() -> Reply:
            session = self._session()
            return run_in_session(
                session, self.settings, script, stdin=stdin, timeout=timeout, on_output=on_output
            )

        try:
            # What an iterator has given is gone.
            return retry_until_session(self, talk) if isinstance(stdin, bytes) else talk()
        except SessionLimitError:
            raise
        except OutOfReach:
            self._is_open = False  # look whether the master is there
            raise

    def _session(self) -> _Session:
        self.open()
        # Without its master a client would connect by itself, and ask again: it must fail.
        only = ("-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "BatchMode=yes")
        return _Session(self._argv(*only, *_STRICT, "--", self.host, login_command(self.settings)))

    def bridge_socket(self, script: str, here: socket.socket) -> None:
        """Let a script be the other side of a socket; see Connection."""
        bridge_session(self._session(), self.settings, script, here)

    def forward_port(self, host: str, port: int) -> int:
        """Lead a port of this machine to one that the far side reaches."""
        if not self._has_master():
            self._is_open = False
            self._forwards.clear()
        self.open()
        if (host, port) not in self._forwards:
            with listen_on_loopback(self._ports.get((host, port), port)) as one:
                free = self._ports[host, port] = int(one.getsockname()[1])
            where = f"127.0.0.1:{free}:[{host}]:{port}"
            done = _call(self._argv("-O", "forward", "-L", where, "--", self.host))
            if done.returncode:
                raise OutOfReach(f"{self.host}: {where} cannot be forwarded: {_last(done.stderr)}")
            self._forwards.add((host, port))
            # The master stays; what it leads here must not.
            atexit.register(_call, self._argv("-O", "cancel", "-L", where, "--", self.host))
        return self._ports[host, port]

    def close(self) -> None:
        """End the connection, unless it is to be kept."""
        if not self.keeps:
            self.disconnect()

    def disconnect(self) -> bool:
        """End the connection; return whether there was one."""
        self._is_open = self.is_full = False
        return (
            self._has_master() and not _call(self._argv("-O", "exit", "--", self.host)).returncode
        )

    def open(self) -> None:
        """Open the connection where there is none: ssh asks what is to be asked."""
        with self._lock:
            self._open()

    def _open(self) -> None:
        if self._is_open or self._has_master():
            self._is_open = True
            return
        if self._refusal is not None:
            raise self._refusal
        self.is_full = False  # it was a master's that is gone
        _remove_dead(self._socket())
        options = ask_ssh(self.host)
        alive: list[str] = []
        for name, value in _USUAL.items():
            if options.get(name.lower(), ["none"])[0] in ("none", "0"):
                alive += ["-o", f"{name}={value}"]
        stays = f"ControlPersist={_KEPT if self.keeps else _LEFT}"
        argv = self._argv("-M", "-N", "-f", "-o", stays, *alive, *_STRICT, "--", self.host)
        with tempfile.TemporaryFile() as stderr:
            # In this terminal's foreground, since it asks there.
            code = subprocess.call(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            )
            stderr.seek(0)
            said = stderr.read().decode("utf-8", "replace")
        if code:
            error = self._error(said, options)
            if error.is_final:
                self._refusal = error
            raise error
        self._ask.tell(f"{self.host}: connected by the system's ssh")
        self._is_open = True

    def _has_master(self) -> bool:
        """Whether a master listens; ssh -O check says the same, 20 ms later."""
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self._socket()))
            return True
        return False

    def _argv(self, *words: str) -> list[str]:
        program = find_ssh()
        if program is None:
            raise OutOfReach(
                f"{self.host}: no ssh client", fix="install OpenSSH's, or ssh: paramiko"
            )
        return [program, "-S", str(self._socket()), *words]

    def _socket(self) -> Path:
        if self._control is None:
            name = sha256(self.host.encode()).hexdigest()[:12]
            if not self.keeps:
                name += f".{os.getpid()}"
            self._control = runtime_folder() / name
        return self._control

    def _error(self, said: str, options: dict[str, list[str]]) -> OutOfReach:
        """Make of ssh's words an error that says what to do."""
        host = self.host
        if "HOST IDENTIFICATION HAS CHANGED" in said:
            found = re.search(r"SHA256:\S+?(?=\.?\s)", said)
            line = re.search(r"Offending .* key in (.*)", said)
            return OutOfReach(
                f"{host}: its host key has changed: it is now {found[0] if found else 'another'}"
                + (f", and not that of {line[1].strip()}" if line else "")
                + ". Somebody may listen in",
                fix="ask the site's support whether the new key is theirs; if so: ssh-keygen -R "
                f"the name in that line, and ssh {host} once",
                is_final=True,
            )
        if "Host key verification failed" in said:
            mark = "" if _has_proxy(options) else self._fingerprint()
            return OutOfReach(
                f"{host}: its host key is not known" + (f": {mark}" if mark else ""),
                fix=f"ssh {host} once, and compare the key with what the site says before a yes",
                is_final=True,
            )
        if "Permission denied" in said or "Too many authentication failures" in said:
            return OutOfReach(
                f"{host}: you were not let in: {_last(said)}",
                fix=f"try ssh {host}; nothing is tried again by itself",
                is_final=True,
            )
        return OutOfReach(
            f"{host}: {_last(said) or 'ssh gave no reason'}",
            fix=f"does ssh {host} work? Are you in the site's network (VPN)?",
        )

    def _fingerprint(self) -> str:
        """Ask the server for its host key; it is not logged in to."""
        no_login = ("-v", "-o", "BatchMode=yes", "-o", "PreferredAuthentications=none")
        argv = self._argv(*no_login, "-o", "ControlMaster=no", *_STRICT, "--", self.host, "true")
        done = _call(argv)
        found = re.search(r"Server host key: (\S+ SHA256:\S+)", done.stderr)
        return found[1] if found else ""


def _remove_dead(control: Path) -> None:
    """Remove the socket of a master that was killed: a new one would do without a socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(str(control))
        except ConnectionRefusedError:
            control.unlink()


def _has_proxy(options: dict[str, list[str]]) -> bool:
    return any(options.get(key, ["none"]) != ["none"] for key in ("proxyjump", "proxycommand"))


def runtime_folder() -> Path:
    """Make the folder of the masters' sockets, which is the user's alone. Raises OutOfReach."""
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
        raise OutOfReach(f"{folder} is not a folder of yours alone", fix="chmod 700, or remove it")
    return folder


def _call(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of ssh's that asks nothing."""
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
        return subprocess.CompletedProcess(argv, 255, "", "ssh gave no answer in 30 s")


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class _Session:
    """A client of the master, with one command; see Session."""

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
        return _take(self.stdout)

    def read_stderr(self) -> bytes:
        """Read stderr."""
        return _take(self.stderr)

    def exit_code(self) -> int | None:
        """Return how it ended; ssh says 255 where the connection did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(5)
            return None if code == 255 or code < 0 else code
        return None

    def close(self) -> None:
        """Let go of it: the master ends its session."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.stdin.close()


def _take(stream: IO[bytes]) -> bytes:
    """Read some; the end closes the stream, in the thread that reads it."""
    data = stream.read(1 << 16)
    if not data:
        stream.close()
    return data
