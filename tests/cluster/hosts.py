"""Simulated hosts, each with its own network, name, processes, /tmp, /dev/shm and /etc/hosts.

A host exists as long as its init process: the kernel kills every other process of the PID namespace
with it, and removes the links and mounts. The bridge is in a separate network namespace, the
switch, so that the machine itself sees only one interface: the uplink of the login host. All inits
die with the thread that started them (PR_SET_PDEATHSIG), so that a killed test run leaves only
files.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcrun.sandbox.processes import wait_for
from tests.waiting import PATIENCE

COMMANDS = ("ip", "nsenter", "unshare", "setpriv", "mount", "hostname", "env", "sleep")

# A checkout or an interpreter below /tmp is shared by all hosts, as on a file server.
SOFTWARE = [Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix)]

# The argument list of a process and everything below it, as the shell of the init sets it up.
# /sys is mounted again because /sys/class/net shows the network namespace of the mount; the cgroup
# tree below it is carried over, because slurmd will not start without one.
_INIT = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --rbind /sys/fs/cgroup "$2/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$2/cgroup" /sys/fs/cgroup
mount -t tmpfs tmpfs /dev/shm
tmp="$2/tmp"
shift 2
for path; do
    mkdir -p "$tmp/${path#/tmp/}"
    mount --rbind "$path" "$tmp/${path#/tmp/}"
done
mount --rbind "$tmp" /tmp
ip link set lo up
echo ready
# An init that ignores SIGCHLD has its orphans reaped by the kernel.
exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1
"""


class HostError(RuntimeError):
    """A host or a link could not be created."""


@dataclass
class Host:
    """A host: ``init`` is the PID of its first process as seen by the machine, 0 if it is down."""

    name: str
    address: str
    folder: Path
    init: int = 0
    keeper: subprocess.Popen[str] | None = None

    def argv(self, command: Sequence[str], cwd: str = "/") -> list[str]:
        """Wrap a command so that it runs on this host."""
        enter = ["nsenter", "-t", str(self.init), "--net", "--uts", "--ipc", "--mount", "--pid"]
        return [*enter, "--", "env", "-C", cwd, *command]

    def processes(self) -> list[tuple[int, str]]:
        """List (PID as seen by the machine, command line) of all processes except the init."""
        if not self.init:
            return []
        return [p for p in _processes_in(_namespace(self.init, "pid")) if p[0] != self.init]


@dataclass
class Network:
    """A switch with hosts on it, and the machine itself (the login host) at ``address``."""

    link: str = ""
    prefix: str = ""
    switch: subprocess.Popen[str] | None = None
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The login host's address in this network."""
        return f"{self.prefix}.1"

    def start(self) -> None:
        """Create the switch with a free /24 network."""
        unshare = ["unshare", "--net", "sleep", "infinity"]
        self.switch = _spawn([*_DIE_WITH_PARENT, *unshare])
        if not wait_for(lambda: _left_namespace(self._switch_pid, "net"), PATIENCE):
            raise HostError(f"the switch has no network of its own after {PATIENCE:g} s")
        self._on_switch("link add br0 type bridge\nlink set br0 up")
        for _ in range(64):
            x, y = 64 + secrets.randbelow(192), secrets.randbelow(256)
            link, prefix = f"rig{x:02x}{y:02x}", f"10.{x}.{y}"
            # The interface's name reserves the network: concurrent rigs cannot both create it.
            if not _is_routed(f"{prefix}.0/24") and _makes_uplink(link, self._switch_pid):
                self.link, self.prefix = link, prefix
                break
        else:
            raise HostError("no free 10.x.y.0/24 found for the test hosts")
        _ip(f"addr add {self.address}/24 dev {link}\nlink set {link} up")
        self._on_switch("link set uplink master br0 up")

    def stop(self) -> None:
        """Kill all hosts with all their processes, and the switch."""
        for host in self.hosts.values():
            self.kill(host)
        self.hosts.clear()
        if self.link:
            # The kernel removes namespaces in the background, so delete the visible interfaces now.
            subprocess.run(["ip", "link", "delete", self.link], capture_output=True, check=False)
            self.link = ""
        if self.switch:
            self.switch.kill()
            self.switch.communicate()
            self.switch = None

    def boot(self, host: Host, names: dict[str, str]) -> None:
        """Start a host whose /etc/hosts has ``names`` (name -> address); its own is 127.0.1.1."""
        for name in ("tmp", "cgroup"):
            (host.folder / name).mkdir(parents=True, exist_ok=True)
        (host.folder / "tmp").chmod(0o1777)
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {host.name}"]
        lines += [f"{address} {name}" for name, address in names.items() if name != host.name]
        (host.folder / "hosts").write_text("\n".join(lines) + "\n")

        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]
        unshare += ["--kill-child", "--mount-proc", "sh", "-c", _INIT, "init"]
        shared = [str(path) for path in SOFTWARE if path.is_relative_to("/tmp")]
        host.keeper = _spawn([*_DIE_WITH_PARENT, *unshare, host.name, str(host.folder), *shared])
        assert host.keeper.stdout
        if host.keeper.stdout.readline().strip() != "ready":
            raise HostError(f"host {host.name} did not start: {host.keeper.communicate()[1]}")
        children = Path(f"/proc/{host.keeper.pid}/task/{host.keeper.pid}/children")
        host.init = int(children.read_text().split()[0])
        self.hosts[host.name] = host
        # Keep the MAC address after a restart, or neighbours would send to the old one for seconds.
        card = ":".join(["02", "00", *(f"{int(part):02x}" for part in host.address.split("."))])
        self._on_switch(
            f"link add {host.name} type veth peer name eth0 address {card} netns {host.init}\n"
            f"link set {host.name} master br0 up"
        )
        _ip(f"addr add {host.address}/24 dev eth0\nlink set eth0 up", netns_of=host.init)

    def kill(self, host: Host) -> None:
        """Simulate a power failure: cut the link first, so that peers receive no closing packets.

        Otherwise the link could survive the processes by minutes, because their half-closed TCP
        connections keep the network namespace alive.
        """
        if not host.keeper:
            return
        if host.init:
            # Either may already be gone, if the host was killed otherwise.
            with contextlib.suppress(HostError):
                self._on_switch(f"link delete {host.name}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(host.init, signal.SIGKILL)
        else:
            host.keeper.kill()
        # The init is reaped only after every other process of its PID namespace.
        host.keeper.communicate()
        host.keeper, host.init = None, 0

    def set_link(self, host: Host, *, up: bool) -> None:
        """Connect or disconnect the host's network cable at the switch."""
        self._on_switch(f"link set {host.name} {'up' if up else 'down'}")

    @property
    def _switch_pid(self) -> int:
        assert self.switch, "the network is not started"
        return self.switch.pid

    def _on_switch(self, batch: str) -> None:
        _ip(batch, netns_of=self._switch_pid)


def why_not() -> str | None:
    """Return the reason why hosts cannot be created here, or None."""
    if os.geteuid() != 0:
        return "hosts in namespaces of their own need root"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


_DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


def _spawn(argv: list[str]) -> subprocess.Popen[str]:
    # A separate session, so that Ctrl-C reaches only the test run, which then stops the hosts.
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )


def _namespace(pid: int | str, kind: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:  # it has ended, or belongs to a supervisor that even root cannot inspect
        return ""


def _left_namespace(pid: int, kind: str) -> bool:
    return _namespace(pid, kind) not in ("", _namespace("self", kind))


def _processes_in(pid_namespace: str) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _namespace(entry.name, "pid") == pid_namespace:
            try:
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words != [b""]:  # a zombie has no command line
                found.append((int(entry.name), b" ".join(words).decode(errors="replace")))
    return found


def _ip(batch: str, netns_of: int | None = None) -> None:
    enter = ["nsenter", "-t", str(netns_of), "--net"] if netns_of else []
    done = subprocess.run(
        [*enter, "ip", "-batch", "-"], input=batch, capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        raise HostError(f"ip {batch!r}: {done.stderr.strip()}")


def _is_routed(subnet: str) -> bool:
    argv = ["ip", "-j", "-4", "route", "show", "table", "all"]
    routes = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout or "[]")
    wanted = ipaddress.ip_network(subnet)
    taken = (ipaddress.ip_network(r["dst"]) for r in routes if r["dst"] != "default")
    return any(wanted.overlaps(network) for network in taken)


def _makes_uplink(link: str, switch: int) -> bool:
    argv = ["ip", "link", "add", link, "type", "veth", "peer", "name", "uplink"]
    return not subprocess.run([*argv, "netns", str(switch)], capture_output=True).returncode
