"""A real sshd on a loopback port, with its own keys and configuration."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hpcrun.remote.connection import Connection
from tests.needs import require
from tests.waiting import until
from tests.workloads.trainer import free_port

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@dataclass
class Sshd:
    """A server; ``name`` is what the client's configuration calls it."""

    folder: Path
    name: str
    port: int
    options: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)  # what begins its command, as unshare does
    process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> str:
        """Return type and key."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def log(self) -> str:
        """Return the server's log."""
        return (self.folder / "log").read_text()

    def start(self) -> None:
        """Start the server; return once it accepts connections."""
        folder = self.folder
        require(SSHD, "sshd")
        (folder / "config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host_key\n"
            "StrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nLogLevel VERBOSE\n"
            + "".join(f"{option}\n" for option in self.options)
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.inside, str(SSHD), "-D", "-e", "-f", str(folder / "config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # sshd passes only these of its own variables to a session.
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                start_new_session=True,
            )
        until(self._answers, lambda: f"sshd's answer: {self.log}")

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def stop(self, *, sessions: bool = False) -> None:
        """Stop the server; its sessions survive unless they are ended explicitly."""
        if self.process is not None:
            pid = self.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children")
            started = children.read_text().split() if sessions else []
            self.process.kill()
            self.process.wait()
            for each in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(each), signal.SIGKILL)


@dataclass
class Laptop:
    """The user's side: a home with keys and an ssh configuration, and an ssh that reads it."""

    home: Path
    runtime: Path  # short: sockets lie in it
    servers: list[Sshd] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    @property
    def ssh(self) -> Path:
        """Return the folder of keys and configuration."""
        return self.home / ".ssh"

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of the user's programs."""
        return {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(self.runtime),
        }

    def make_key(self, name: str, passphrase: str = "", kind: str = "ed25519") -> Path:
        """Create a key that servers can accept; return its path."""
        path = self.ssh / name
        argv = ["ssh-keygen", "-q", "-a", "1", "-t", kind, "-N", passphrase, "-f", str(path)]
        subprocess.run(argv, check=True)
        return path

    def configure(self, text: str) -> None:
        """Write the ssh configuration, with the servers' addresses appended."""
        hosts = "".join(
            f"Host {one.name}\n  HostName 127.0.0.1\n  Port {one.port}\n" for one in self.servers
        )
        (self.ssh / "config").write_text(f"{text}\n{hosts}")

    def trust(self, *servers: Sshd) -> None:
        """Write the known_hosts file."""
        lines = [f"[127.0.0.1]:{one.port} {one.host_key}\n" for one in servers]
        (self.ssh / "known_hosts").write_text("".join(lines))

    def usual(self) -> str:
        """Return the configuration that all hosts of these tests share."""
        return (
            f"Host *\n  IdentityFile {self.ssh}/id\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.ssh}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        )


@contextlib.contextmanager
def servers(folder: Path, **options: list[str]) -> Iterator[Laptop]:
    """Start a server for each name, and make a home that knows them; its key ``id`` is let in."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / "bin").mkdir()
    laptop = Laptop(home, Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp")))
    laptop.make_key("id")
    try:
        for name, extra in options.items():
            own = folder / name
            own.mkdir()
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "host_key")]
            subprocess.run(argv, check=True)
            keys = f"AuthorizedKeysFile {laptop.ssh}/id.pub {own}/authorized_keys"
            laptop.servers.append(Sshd(own, name, free_port(), [*extra, keys]))
            laptop.servers[-1].start()
        laptop.trust(*laptop.servers)
        laptop.configure(laptop.usual())
        # ssh reads the home folder from the user database instead of $HOME.
        wrapper = home / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {laptop.ssh}/config "$@"\n')
        wrapper.chmod(0o755)
        yield laptop
    finally:
        for server in laptop.servers:
            server.stop()
        for control in laptop.runtime.glob("hpcrun/*"):
            subprocess.run(["ssh", "-S", str(control), "-O", "exit", "x"], check=False)
        shutil.rmtree(laptop.runtime)
