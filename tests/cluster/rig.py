"""A real Slurm on simulated hosts on this machine, for the cluster tests of hpcrun.

It is configured as hpcrun's sandbox is, but for what _settings names; and it has accounting, where
that is asked for. The machine itself is the login host: with ``rig.env`` in the environment,
sbatch, squeue, sacct and srun work there. The head and the nodes are hosts of their own (hosts.py).
All share one file system, as NFS would give; /tmp and /dev/shm are private to each node.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.sandbox import config, lifecycle
from hpcrun.sandbox.directory import SandboxFiles
from tests.cluster import hosts
from tests.cluster.hosts import Host, Network
from tests.waiting import PATIENCE

HEAD = "head"
MEMORY_MB = 16000
_CLIENTS = ("sbatch", "squeue", "scontrol", "sacct", "scancel", "srun", "salloc", "sinfo")
_DAEMONS = ("munged", "slurmctld", "slurmd")
_ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
# Twice the same nodes: what waits in ``high`` has jobs of ``debug`` requeued.
_PARTITIONS = """\
PartitionName=debug Default=YES Nodes=ALL PriorityTier=1 MaxTime=7-00:00:00 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=1-00:00:00 State=UP
"""


class RigError(RuntimeError):
    """The rig did not start or recover; the message contains the tail of the relevant log."""


@dataclass
class Daemon:
    """One daemon of the rig: ``enter`` is the nsenter that waits for it."""

    name: str
    host: Host
    argv: list[str]
    enter: subprocess.Popen[bytes]


@dataclass
class Rig:
    """A Slurm cluster of ``nodes`` hosts of ``cpus`` CPUs and ``gpus_per_node`` pretended GPUs.

    ``root`` must not exist, and must lie outside /tmp, which each node has for itself.
    ``min_job_age``: for how many seconds squeue remembers an ended job, at least.
    ``resolve_names=False``: no node knows another node by name; NodeAddr alone says where it is.
    ``settings`` are more for slurm.conf, or others. ``pause``: for how many seconds a requeued job
    waits. ``job_submit`` is the site's own filter, in Lua.
    Start it in a thread that lives as long as the rig: the hosts die with that thread.

    >>> rig = Rig(Path("/var/tmp/example"), nodes=3, accounting=False)
    >>> rig.shared, rig.env["SLURM_CONF"]
    (PosixPath('/var/tmp/example/shared'), '/var/tmp/example/slurm.conf')
    """

    root: Path
    nodes: int = 2
    gpus_per_node: int = 4
    accounting: bool = True
    min_job_age: int = 10
    resolve_names: bool = True
    cpus: int = 8
    settings: Mapping[str, str] = field(default_factory=dict)
    pause: int = 120
    job_submit: str = ""
    network: Network = field(default_factory=Network, init=False)
    daemons: dict[str, Daemon] = field(default_factory=dict, init=False)
    _hosts: dict[str, Host] = field(default_factory=dict, init=False)

    @property
    def layout(self) -> SandboxFiles:
        """Paths of the files that a sandbox has, too."""
        return SandboxFiles(self.root)

    @property
    def conf(self) -> Path:
        """slurm.conf, the same for every host."""
        return self.layout.slurm_conf

    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which Slurm's commands find this rig."""
        return {"SLURM_CONF": str(self.conf)}

    @property
    def shared(self) -> Path:
        """A folder shared by all hosts, with the same path."""
        return self.root / "shared"

    @property
    def node_names(self) -> list[str]:
        """The compute nodes, in Slurm's order."""
        return config.node_names(self.nodes)

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each node by name."""
        return {name: self._hosts[name].address for name in self.node_names}

    def start(self) -> None:
        """Start the cluster and wait until every node is idle.

        Raises RigError, with the tail of a log, and leaves nothing behind but ``root``.
        """
        if self.root.is_relative_to("/tmp"):
            raise RigError(f"{self.root}: each node has a /tmp of its own; choose another folder")
        try:
            self._start()
        except BaseException:
            self._power_off()
            raise

    def stop(self) -> None:
        """Kill all hosts with all their processes, and remove ``root``."""
        self._power_off()
        if self.root.exists():
            shutil.rmtree(self.root)

    def argv_on(self, name: str, argv: Sequence[str], cwd: str = "/") -> list[str]:
        """Wrap a command so that it runs on a node (or the head)."""
        return self._hosts[name].argv(argv, cwd)

    def on_node(
        self, name: str, argv: Sequence[str], **kw: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node (or the head); ``kw`` as for subprocess.run, text captured."""
        env = {**(kw.pop("env", None) or os.environ), **self.env}
        cwd = str(kw.pop("cwd", "/"))
        if not {"stdout", "stderr", "capture_output"} & kw.keys():
            kw["capture_output"] = True
        options: dict[str, Any] = {"text": True, "check": False, **kw}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            self.argv_on(name, argv, cwd), env=env, **options
        )
        return done

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login host, pointed at this rig."""
        env = {**os.environ, **self.env}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    def processes(self, name: str) -> list[tuple[int, str]]:
        """List (PID here, command line) of a node's processes, the rig's own daemons left out.

        A job's slurmstepd is the job's: it is listed.
        """
        own = {" ".join(d.argv) for d in self.daemons.values() if d.host.name == name}
        return [p for p in self._hosts[name].processes() if p[1] not in own]

    def cut(self, name: str) -> None:
        """Disconnect a node (or the head) from the network; its processes continue."""
        self.network.set_link(self._hosts[name], up=False)

    def join(self, name: str) -> None:
        """Reconnect the node."""
        self.network.set_link(self._hosts[name], up=True)

    def kill_node(self, name: str) -> None:
        """Simulate a power failure of a node: all its processes die silently."""
        host = self._hosts[name]
        self.network.kill(host)
        self.daemons.pop(name).enter.wait()

    def revive_node(self, name: str) -> None:
        """Start a killed node again, /tmp empty, and wait until Slurm calls it idle."""
        self._power_on(name)
        self._wait(lambda: self._not_idle(name), f"node {name} to be idle")

    def reboot_nodes(self, *names: str) -> None:
        """Simulate a reboot of nodes, which are down for as long as a fast machine boots."""
        for name in names:
            self.kill_node(name)
        time.sleep(20)
        for name in names:
            self._power_on(name, "-b")

    def stop_slurmd(self, name: str) -> None:
        """Stop only the slurmd of a node: its jobs continue, unknown to Slurm."""
        self._end(name, signal.SIGKILL)

    def start_slurmd(self, name: str) -> None:
        """Start a node's slurmd again, and wait until Slurm calls the node idle."""
        self._start_slurmd(name)
        self._wait(lambda: self._not_idle(name), f"node {name} to be idle")

    def stop_controller(self) -> None:
        """Stop slurmctld, which saves its state first."""
        self._end("slurmctld", signal.SIGTERM)

    def stop_accounting(self) -> None:
        """Stop slurmdbd."""
        self._end("slurmdbd", signal.SIGTERM)

    def start_accounting(self) -> None:
        """Start slurmdbd again and wait until it answers."""
        self._start_slurmdbd()
        self._wait(lambda: self._refusal("sacctmgr", "-n", "list", "cluster"), "slurmdbd")

    def start_controller(self) -> None:
        """Start slurmctld from its saved state and wait until it answers."""
        self._daemon("slurmctld", HEAD, ["slurmctld", "-D", "-f", str(self.conf)])
        self._wait(lambda: self._refusal("sinfo", "-h"), "slurmctld's answer")

    def wait_idle(self) -> None:
        """Wait until no job is left on any node and every node is idle."""
        self._wait(lambda: self._not_idle(*self.node_names), "all nodes to be idle")

    def leftovers(self) -> list[str]:
        """Describe differences from the state after ``start``: processes, jobs, folders, nodes."""
        found = [
            f"{name}: process {pid}: {command}"
            for name in self.node_names
            for pid, command in self.processes(name)
        ]
        found += self.list_jobs()
        found += [f"{name}: {path}" for name in self.node_names for path in self.folders(name)]
        not_idle = self._not_idle(*self.node_names)
        return [*found, not_idle] if not_idle else found

    def list_jobs(self) -> list[str]:
        """Describe the jobs in the queue."""
        return self.run("squeue", "-h", "-o", "job %i %T %j (%R)").stdout.splitlines()

    def folders(self, name: str, place: str = "/tmp") -> list[str]:
        """List the contents of hpcrun's folder on a node's disk."""
        listed = self.on_node(name, ["find", place, "-maxdepth", "1", "-name", "hpcrun-*"])
        return listed.stdout.splitlines()

    def clear(self) -> None:
        """Restore the state after ``start``."""
        if "slurmctld" not in self.daemons:
            self.start_controller()
        if self.accounting and "slurmdbd" not in self.daemons:
            self.start_accounting()
        for host in self._hosts.values():
            if not host.init:
                self._power_on(host.name)
            elif host.name != HEAD and host.name not in self.daemons:
                self._start_slurmd(host.name)
            self.join(host.name)
        self.run("scancel", "--me")
        for pid, _ in (p for name in self.node_names for p in self.processes(name)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_idle()
        for name in self.node_names:
            self.on_node(name, ["rm", "-rf", *self.folders(name)])

    def _start(self) -> None:
        self.root.mkdir(parents=True)
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        self.network.start()
        prefix = self.network.prefix
        self._hosts[HEAD] = self._make_host(HEAD, f"{prefix}.2")
        for number, name in enumerate(self.node_names, 11):
            self._hosts[name] = self._make_host(name, f"{prefix}.{number}")
        for host in self._hosts.values():
            self._boot(host)
        self._write_configuration()
        self._start_munged()
        if self.accounting:
            self._start_accounting()
        self._daemon("slurmctld", HEAD, ["slurmctld", "-D", "-f", str(self.conf)])
        for name in self.node_names:
            self._start_slurmd(name)
        self.wait_idle()

    def _power_off(self) -> None:
        self.network.stop()
        for daemon in self.daemons.values():
            daemon.enter.wait()
        self.daemons.clear()
        self._hosts.clear()

    def _make_host(self, name: str, address: str) -> Host:
        return Host(name, address, self.root / "hosts" / name)

    def _boot(self, host: Host) -> None:
        names = {host.name: host.address for host in self._hosts.values()}
        self.network.boot(host, names if self.resolve_names else {})

    def _power_on(self, name: str, *options: str) -> None:
        shutil.rmtree(self._hosts[name].folder / "tmp")
        self._boot(self._hosts[name])
        self._start_slurmd(name, *options)

    def _daemon(
        self, name: str, host: str, argv: list[str], env: Mapping[str, str] | None = None
    ) -> None:
        # Nothing of the caller's environment: a daemon of a real host has never seen it.
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **(env or {})}
        with self.layout.output(name).open("ab") as out:
            enter = subprocess.Popen(
                self._hosts[host].argv(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=clean,
                start_new_session=True,
            )
        self.daemons[name] = Daemon(name, self._hosts[host], argv, enter)

    def _end(self, name: str, how: signal.Signals) -> None:
        daemon = self.daemons.pop(name)
        for pid, command in daemon.host.processes():
            if command == " ".join(daemon.argv):
                os.kill(pid, how)
        daemon.enter.wait()

    def _start_slurmd(self, name: str, *options: str) -> None:
        self._daemon(name, name, ["slurmd", "-D", "-f", str(self.conf), *options])

    def _start_munged(self) -> None:
        argv = [*lifecycle.munged_argv(self.layout, "munged"), "--foreground", "--num-threads=10"]
        self._daemon("munged", HEAD, argv)
        self._wait(lambda: _missing(self.layout.munge_socket), "munged's socket")

    def _start_accounting(self) -> None:
        data, socket = self.root / "db", self.root / "state" / "mariadb.socket"
        install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"]
        install += ["--skip-test-db", "--auth-root-authentication-method=normal"]
        # Not /tmp, which all rigs share: their temporary tables have names by chance alike.
        install += [f"--tmpdir={self.root}/state"]
        done = self.run(*install)
        if done.returncode:
            raise RigError(f"{install[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        argv = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}"]
        argv += [f"--socket={socket}", "--skip-networking", f"--pid-file={self.root}/state/db.pid"]
        argv += ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"]
        argv += [f"--tmpdir={self.root}/state"]
        self._daemon("mariadbd", HEAD, argv)
        self._wait(lambda: _missing(socket), "mariadbd's socket")
        slurmdbd = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.layout.munge_socket}",
            "DbdHost": HEAD,
            "DbdAddr": self._hosts[HEAD].address,
            "SlurmUser": "root",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
            "StorageUser": "root",
            "StorageLoc": "slurm",
            "LogFile": self.layout.log("slurmdbd"),
            "PidFile": self.layout.pid("slurmdbd"),
            "MessageTimeout": 5,
        }
        file = self.root / "slurmdbd.conf"
        file.touch(0o600)
        file.write_text(_lines(slurmdbd))
        self._start_slurmdbd()
        add = ["sacctmgr", "-i", "add"]
        cluster = self.network.link
        self._wait(lambda: self._refusal(*add, "cluster", cluster), "slurmdbd's answer")
        self.run(*add, "account", "research", f"cluster={cluster}")
        self.run(*add, "user", "root", "account=research", f"cluster={cluster}")

    def _start_slurmdbd(self) -> None:
        # It takes neither its file nor the database's socket from an option.
        socket = self.root / "state" / "mariadb.socket"
        env = {"SLURM_CONF": str(self.conf), "MYSQL_UNIX_PORT": str(socket)}
        self._daemon("slurmdbd", HEAD, ["slurmdbd", "-D"], env)

    def _write_configuration(self) -> None:
        node = config.NodeKind(
            nodes=self.nodes, cpus=self.cpus, memory_mb=MEMORY_MB, gpus=self.gpus_per_node
        )
        # ``like``: memory is counted.
        lifecycle.write_files(
            self.layout, config.SandboxShape(kinds=(node,), like="a rig"), self._version()
        )
        settings = {**self._settings(), **self.settings}
        if self.job_submit:
            settings["JobSubmitPlugins"] = "lua"
            (self.root / "job_submit.lua").write_text(self.job_submit)
        if settings["TaskPlugin"] == "task/cgroup":
            limits = "ConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"
            with self.layout.cgroup_conf.open("a") as file:
                file.write(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n{limits}")
        lines = self.conf.read_text().splitlines(keepends=True)
        # The nodes are hosts of their own, which reach each other.
        ours = {*settings, "PartitionName", "CommunicationParameters"}
        text = "".join(line for line in lines if line.partition("=")[0] not in ours)
        for name, address in self.addresses.items():
            on_one_machine = rf"NodeName={name} NodeHostname=\S+ NodeAddr=\S+ Port=\d+"
            text = re.sub(on_one_machine, f"NodeName={name} NodeAddr={address}", text)
        self.conf.write_text(text + _lines(settings) + _PARTITIONS)

    def _settings(self) -> dict[str, object]:
        """Name what slurm.conf has otherwise than a sandbox's."""
        socket = self.layout.munge_socket
        settings: dict[str, object] = {
            "ClusterName": self.network.link,
            "FirstJobId": 1,
            "SlurmctldHost": f"{HEAD}({self._hosts[HEAD].address})",
            # A requeued job waits so long, unless a test lets it start (Site.start_again).
            "AuthInfo": f"socket={socket},cred_expire={self.pause}",
            "EnforcePartLimits": "NO",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/linux",
            # A dead node and a silent slurmctld are noticed soon.
            "MessageTimeout": 5,
            "SlurmdTimeout": 20,
            "MinJobAge": self.min_job_age,
            "BatchStartTimeout": 10,
            # On a busy machine ten seconds are too short to clean up after a job.
            "KillWait": 20,
            "DefMemPerCPU": MEMORY_MB // self.cpus,
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
        }
        if not self.accounting:
            return settings
        return settings | {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": self._hosts[HEAD].address,
            # The socket again: slurmdbd's clients look for it here, not in AuthInfo.
            "AccountingStoragePass": socket,
            "AccountingStorageTRES": "gres/gpu",
        }

    def _version(self) -> tuple[int, int]:
        return lifecycle.query_slurm_version("slurmctld", os.environ)

    def _wait(self, why_not_yet: Callable[[], str], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while reason := why_not_yet():
            ended = [d for d in self.daemons.values() if d.enter.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended[0].name} ended" if ended else f"{reason} after {PATIENCE:g} s"
                tails = (
                    f"{daemon.name}{lifecycle.read_log_tail(self.layout, daemon.name)}"
                    for daemon in ended or self.daemons.values()
                )
                raise RigError("\n".join([f"waited for {what}: {why}", *tails]))
            time.sleep(0.1)

    def _refusal(self, *argv: str) -> str:
        done = self.run(*argv)
        return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""

    def _not_idle(self, *names: str) -> str:
        # By ``run``: on a rig of another release this machine's own sinfo has no answer.
        answer = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout
        states = dict(line.split(" ", 1) for line in answer.splitlines() if " " in line)
        return ", ".join(lifecycle.describe_unready_nodes(states, names))


def why_not(accounting: bool = True) -> str | None:
    """Return the reason why a rig cannot run on this machine, or None."""
    needed = [*hosts.COMMANDS, *_CLIENTS, *_DAEMONS, *(_ACCOUNTING if accounting else ())]
    missing = [command for command in needed if not shutil.which(command)]
    return f"not installed: {', '.join(missing)}" if missing else hosts.why_not()


def _lines(settings: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _missing(path: Path) -> str:
    return "" if path.exists() else f"{path} is missing"
