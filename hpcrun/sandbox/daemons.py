"""Slurm's programs for a sandbox: find them, start the daemons, ask and tell what they say."""

from __future__ import annotations

import json
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcrun.errors import HpcrunError, InputError
from hpcrun.sandbox import config, keeper
from hpcrun.sandbox.config import Layout
from hpcrun.sandbox.processes import MARK
from hpcrun.sandbox.shape import Shape, node_names

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "scancel")
# Not on an ordinary user's PATH; the last two are where sites build their own Slurm.
MORE_PATH = (
    "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin:/opt/slurm/sbin:/opt/slurm/bin"
)
# All that daemons and commands get of the user's environment: no SLURM_*, SBATCH_*, SINFO_* ...
KEPT = ("HOME", "LD_LIBRARY_PATH", "LOGNAME", "TZ", "USER")
LOWEST_PORT = 10_000
START_TIMEOUT = 60.0  # seconds


def clean_environment(environ: Mapping[str, str], layout: Layout) -> dict[str, str]:
    """Return the environment for the sandbox's own calls of Slurm.

    >>> made = clean_environment({"PATH": "/x", "SLURM_CONF": "/other"}, Layout(Path("/tmp/s")))
    >>> made["SLURM_CONF"], made["PATH"].startswith("/x:")
    ('/tmp/s/slurm.conf', True)
    """
    kept = {name: environ[name] for name in KEPT if name in environ}
    path = ":".join(part for part in (environ.get("PATH", ""), MORE_PATH) if part)
    return {**kept, "LC_ALL": "C", "PATH": path, "SLURM_CONF": str(layout.slurm_conf)}


def find_programs(path: str) -> dict[str, str]:
    """Return where Slurm's and munge's programs are; raise HpcrunError when some are missing."""
    found = {program: shutil.which(program, path=path) for program in PROGRAMS}
    if missing := [program for program, where in found.items() if where is None]:
        raise HpcrunError(
            f"a sandbox needs Slurm's daemons and munge; not found: {', '.join(missing)}",
            fix="apt install slurm-wlm munge (Debian, Ubuntu), or"
            " dnf install slurm slurm-slurmctld slurm-slurmd munge (Red Hat with EPEL);"
            " no service needs to be configured or started",
        )
    return {program: where for program, where in found.items() if where}


def check_user(uid: int) -> None:
    """Raise InputError for a user without a name, as in many a container: Slurm refuses them."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise InputError(
            f"uid {uid} has no name on this machine, and Slurm serves named users only",
            fix="add a line for it to /etc/passwd, or start the container as a user that exists",
        ) from None


def slurm_version(slurmctld: str, environ: Mapping[str, str]) -> tuple[int, int]:
    """Ask the daemon's program for its release."""
    answer = subprocess.run(
        [slurmctld, "-V"], env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return config.parse_version((answer.stdout + answer.stderr).decode(errors="replace"))


def free_ports(count: int) -> list[int]:
    """Find TCP ports that nobody listens on, below the range that the kernel hands out.

    Raise HpcrunError when there are not so many.
    """
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        ceiling = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        ceiling = 32768
    if ceiling < LOWEST_PORT + 4096:
        ceiling = 65536
    found: list[int] = []
    for port in random.sample(range(LOWEST_PORT, ceiling), ceiling - LOWEST_PORT):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise HpcrunError(f"no {count} free TCP ports from {LOWEST_PORT} to {ceiling - 1}")


def write_files(layout: Layout, shape: Shape, version: tuple[int, int]) -> int:
    """Write all that the daemons read; return slurmctld's port."""
    ports = free_ports(shape.nodes + 1)
    for folder in layout.folders:
        folder.mkdir(mode=0o700)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(os.urandom(128))
    for index in range(shape.gpus_per_node):
        # slurmd wants device files. A link to one that every machine and container has will do.
        layout.gpu(index).symlink_to("/dev/null")
    layout.slurm_conf.write_text(
        config.slurm_conf(
            layout,
            # Slurm compares with the host's name up to the first dot.
            hostname=socket.gethostname().partition(".")[0],
            user=str(os.geteuid()),
            shape=shape,
            ports=ports,
            first_job=config.first_job_id(time.time(), layout.root),
        )
    )
    layout.gres_conf.write_text(config.gres_conf(layout, shape))
    layout.cgroup_conf.write_text(config.cgroup_conf(version))
    return ports[0]


def start(
    layout: Layout, programs: Mapping[str, str], environ: Mapping[str, str], nodes: int, port: int
) -> None:
    """Start the keeper and, through it, every daemon; raise HpcrunError when one does not start.

    The daemons outlive the caller and its terminal.
    """
    munged = [
        programs["munged"],
        "--force",  # the folders above the sandbox may be open to others; the sandbox is not
        f"--key-file={layout.munge_key}",
        f"--socket={layout.munge_socket}",
        f"--seed-file={layout.munge_seed}",
        f"--pid-file={layout.pid('munged')}",
        f"--log-file={layout.log('munged')}",
    ]
    commands = [("munged", munged, 0), ("slurmctld", [programs["slurmctld"]], port)]
    commands += [(node, [programs["slurmd"], "-N", node], 0) for node in node_names(nodes)]
    request = {
        "pid_file": str(layout.pid("keeper")),
        "daemons": [
            {
                "name": name,
                "argv": argv,
                "output": str(layout.output(name)),
                "pid_file": str(layout.pid(name)),
                "port": listens,
            }
            for name, argv, listens in commands
        ],
    }
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__],
            input=json.dumps(request).encode(),
            capture_output=True,
            env={**environ, MARK: str(layout.root)},
            timeout=START_TIMEOUT,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise HpcrunError(f"the sandbox's daemons did not start in {error.timeout:.0f} s") from None
    report = [line.split() for line in answer.stdout.decode().splitlines()]
    for name, code in report:
        if code == "-1":
            raise HpcrunError(f"{name} does not come up{log_tail(layout, name)}")
        if code != "0":
            raise HpcrunError(f"{name} ended with code {code}{log_tail(layout, name)}")
    if len(report) < len(commands):
        said = answer.stderr.decode(errors="replace").strip()
        raise HpcrunError(f"the sandbox's keeper ended early: {said or 'it said nothing'}")


def node_states(sinfo: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Ask for the state of each node; empty when slurmctld does not answer."""
    try:
        answer = subprocess.run(
            [sinfo, "--noheader", "--Node", "--format=%N %T"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}
    return dict(parse_node_states(answer.stdout.decode(errors="replace")))


def parse_node_states(text: str) -> list[tuple[str, str]]:
    """Read ``sinfo --noheader --Node --format="%N %T"``.

    >>> parse_node_states("node1 idle\\nnode2 unknown*\\n")
    [('node1', 'idle'), ('node2', 'unknown*')]
    """
    return [
        (name, state)
        for name, _, state in (line.partition(" ") for line in text.split("\n"))
        if state
    ]


def cancel_all(scancel: str, environ: Mapping[str, str]) -> None:
    """Cancel all jobs; an unwilling slurmctld is no error, because the end comes anyway."""
    try:
        subprocess.run(
            [scancel, "--quiet", f"--user={os.geteuid()}"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=3,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return


def log_tail(layout: Layout, daemon: str, lines: int = 10) -> str:
    """Return the last lines that a daemon printed or logged, to end an error message with."""
    said: list[str] = []
    for file in (layout.output(daemon), layout.log(daemon)):
        try:
            said += file.read_text(errors="replace").splitlines()
        except OSError:
            continue
    tail = "\n".join(f"  {line}" for line in said[-lines:])
    return f"; its log ends:\n{tail}" if tail else "; it logged nothing"


def unready(states: Mapping[str, str], nodes: Sequence[str]) -> list[str]:
    """Return the nodes that are not idle, each with its state.

    >>> unready({"node1": "idle", "node2": "down*"}, ["node1", "node2", "node3"])
    ['node2 (down*)', 'node3 (no answer)']
    """
    return [
        f"{node} ({states.get(node, 'no answer')})" for node in nodes if states.get(node) != "idle"
    ]
