"""Start a sandbox, report its status and stop it: a real Slurm of one user, without root."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcrun.errors import HpcrunError, InputError, NeedsLinux
from hpcrun.sandbox import config, keeper, processes
from hpcrun.sandbox import directory as place
from hpcrun.sandbox.config import SandboxShape, describe_size, node_names, plain_shape
from hpcrun.sandbox.directory import SandboxFiles
from hpcrun.slurm import FINAL, SlurmJob, parse_squeue, parse_version, squeue_argv
from hpcrun.structs import decodable

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "scancel")
# Directories that are missing from an ordinary user's PATH; sites install their own Slurm into the
# last two.
MORE_PATH = (
    "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin:/opt/slurm/sbin:/opt/slurm/bin"
)
# The only variables of the user that daemons and commands inherit: no SLURM_*, SBATCH_*, SINFO_*.
KEPT_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "LOGNAME", "TZ", "USER")
LOWEST_PORT = 10_000
START_TIMEOUT = 120.0  # seconds, for a busy machine
# Slurm kills jobs that ignore SIGTERM after ten seconds (KillWait, config.py).
CANCEL_GRACE = 30.0  # seconds that jobs have to end by themselves in ``down``


class SandboxStatus(Struct, frozen=True):
    """The status of a sandbox.

    Attributes:
        like: The profile on which its shape is modelled, "" for none.
        pids: The running daemons.
        dead: The names of the daemons that do not run.
    """

    directory: str
    slurm_conf: str
    profile: str
    nodes: int
    gpus_per_node: int
    like: str
    pids: dict[str, int]
    dead: tuple[str, ...]
    up: bool

    @property
    def about(self) -> str:
        return describe_size(self.nodes, self.gpus_per_node, self.like)


def status(directory: Path) -> SandboxStatus | None:
    """Return the status of the sandbox in ``directory``, or None if there is none.

    Raises:
        InputError: The directory belongs to another user, or is unusable.
    """
    layout = SandboxFiles(place.resolve_parents(directory))
    if not place.check_owned(layout.root):
        return None
    shape = read_shape(layout.root)
    if shape is None:
        return None
    alive = {one.pid for one in processes.find_members(layout.root)}
    daemons = ("keeper", "munged", "slurmctld", *node_names(shape.nodes))
    pids = {name: read_pid(layout, name) for name in daemons}
    living = {name: pid for name, pid in pids.items() if pid in alive}
    dead = tuple(name for name in pids if name not in living)
    return SandboxStatus(
        directory=str(layout.root),
        slurm_conf=str(layout.slurm_conf),
        profile=str(layout.profile),
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        like=shape.like,
        pids=living,
        dead=dead,
        # The profile is written last, when all nodes are ready.
        up=not dead and layout.profile.exists(),
    )


def up(
    directory: Path,
    *,
    shape: SandboxShape | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> SandboxStatus:
    """Start a sandbox and return when it can run jobs.

    A running sandbox is left unchanged; the remains of a broken one are removed first. On failure,
    nothing remains.

    Args:
        show: Called with the number of started daemons and the number of all daemons.

    Raises:
        InputError: A sandbox of another shape is running, or the directory is unusable.
        HpcrunError: The sandbox cannot be started.
    """
    if sys.platform != "linux":
        raise NeedsLinux("hpcrun sandbox")
    shape = shape or plain_shape(2, 4)
    layout = SandboxFiles(place.resolve_parents(directory))
    place.check_directory(layout.root)
    check_user(os.geteuid())
    environ = clean_environment(os.environ, layout)
    programs = find_programs(environ["PATH"])
    while True:
        place.create_folder(layout.root)
        # A concurrent `down` that held the lock may have removed the directory: retry.
        with contextlib.suppress(FileNotFoundError), place.lock_folder(layout.root):
            found = status(layout.root)
            if found and found.up:
                _check_shape(found, shape)
                return found
            refuse_from_inside(layout)
            try:
                processes.kill_members(layout.root, read_pid(layout, "keeper"))
                place.remove_contents(layout.root)
                return start_sandbox(layout, programs, environ, shape, show)
            except OSError as error:
                remove_sandbox(layout)
                raise HpcrunError(f"{error.filename or layout.root}: {error.strerror}") from error
            except BaseException:
                remove_sandbox(layout)
                raise


def _check_shape(found: SandboxStatus, asked: SandboxShape) -> None:
    if read_shape(Path(found.directory)) != asked:
        again = ", as that file is now" if found.about == asked.about() else ""
        raise InputError(
            f"{found.directory}: a sandbox of {found.about} is up; "
            f"{asked.about()} were asked for{again}",
            fix="end it and its jobs first: hpcrun sandbox down",
        )


def start_sandbox(
    layout: SandboxFiles,
    programs: dict[str, str],
    environ: dict[str, str],
    shape: SandboxShape,
    show: Callable[[int, int], None],
) -> SandboxStatus:
    """Start everything in the empty directory and wait until all nodes are idle."""
    layout.shape.write_bytes(msgspec.json.encode(shape))
    version = query_slurm_version(programs["slurmctld"], environ)
    port = write_files(layout, shape, version)
    start_daemons(layout, programs, environ, shape.nodes, port, show)
    names, deadline = node_names(shape.nodes), time.monotonic() + START_TIMEOUT
    while late := describe_unready_nodes(query_node_states(programs["sinfo"], environ), names):
        if (now := status(layout.root)) and now.dead:
            raise HpcrunError(f"{now.dead[0]} died{read_log_tail(layout, now.dead[0])}")
        if time.monotonic() > deadline:
            first = late[0].split()[0]
            raise HpcrunError(
                f"after {START_TIMEOUT:.0f} s these nodes are not ready: {', '.join(late)};"
                f" {first}{read_log_tail(layout, first)}"
            )
        time.sleep(0.02)
    layout.profile.write_text(config.cluster_profile(layout, shape), encoding="utf-8")
    now = status(layout.root)
    if now is None or not now.up:
        raise HpcrunError(f"{layout.root}: the sandbox broke down while it came up")
    return now


def live_jobs(directory: Path) -> list[SlurmJob]:
    """Return the waiting and running jobs of the sandbox in ``directory``; none if it is not up."""
    layout = SandboxFiles(place.resolve_parents(directory))
    if not (now := status(layout.root)) or "slurmctld" in now.dead:
        return []
    environ = clean_environment(os.environ, layout)
    # The daemons may still run although Slurm's packages were removed.
    with contextlib.suppress(HpcrunError):
        squeue = find_programs(environ["PATH"])["squeue"]
        found = parse_squeue(run_slurm_command([squeue, *squeue_argv()[1:]], environ))
        return [job for job in found if job.state not in FINAL | {"COMPLETING"}]
    return []


def down(directory: Path) -> bool:
    """Stop the sandbox in ``directory`` and its jobs, and remove it; return True if there was one.

    Jobs have some seconds to write their last output.

    Raises:
        InputError: It is not a sandbox of this user, or the caller is one of its jobs.
        HpcrunError: A process or a file cannot be removed.
    """
    layout = SandboxFiles(place.resolve_parents(directory))
    existed = place.check_owned(layout.root)
    refuse_from_inside(layout)
    if not existed:
        left = bool(processes.find_members(layout.root))
        processes.kill_members(layout.root, None)
        return left
    try:
        with place.lock_folder(layout.root):
            cancel_jobs(layout)
            remove_sandbox(layout)
    except FileNotFoundError:  # a concurrent `down` has removed it
        return False
    return True


def cancel_jobs(layout: SandboxFiles) -> None:
    """Cancel the running jobs through Slurm, as far as possible within CANCEL_GRACE."""

    def no_step_left() -> bool:
        return not any(
            one.name.startswith("slurmstepd") for one in processes.find_members(layout.root)
        )

    if no_step_left() or not (now := status(layout.root)) or "slurmctld" in now.dead:
        return
    environ = clean_environment(os.environ, layout)
    # The daemons may still run although Slurm's packages were removed.
    with contextlib.suppress(HpcrunError):
        # Errors of scancel are ignored, because all processes are killed anyway.
        scancel = find_programs(environ["PATH"])["scancel"]
        run_slurm_command(
            [scancel, "--quiet", f"--user={os.geteuid()}"], environ, timeout=CANCEL_GRACE
        )
        processes.wait_for(no_step_left, CANCEL_GRACE)


def remove_sandbox(layout: SandboxFiles) -> None:
    """Kill all processes and remove all files."""
    processes.kill_members(layout.root, read_pid(layout, "keeper"))
    place.remove_contents(layout.root)
    layout.root.rmdir()


def refuse_from_inside(layout: SandboxFiles) -> None:
    """Raise InputError if the caller is one of the processes that would be killed."""
    if any(one.pid == os.getpid() for one in processes.find_members(layout.root)):
        raise InputError(
            f"this runs in a job of the sandbox {layout.root}, which it would end",
            fix="run it from a shell outside the sandbox's jobs",
        )


def read_pid(layout: SandboxFiles, daemon: str) -> int | None:
    """Read the pid that a daemon wrote; the daemon may have exited."""
    try:
        return int(layout.pid(daemon).read_text())
    except (OSError, ValueError):
        return None


def read_shape(directory: Path) -> SandboxShape | None:
    """Read the recorded shape; None if there is no record."""
    try:
        return msgspec.json.decode(
            SandboxFiles(directory).shape.read_bytes(), type=decodable(SandboxShape)
        )
    except (OSError, msgspec.DecodeError):
        return None


def clean_environment(environ: Mapping[str, str], layout: SandboxFiles) -> dict[str, str]:
    """Return the environment for the sandbox's own Slurm commands.

    >>> files = SandboxFiles(Path("/tmp/s"))
    >>> made = clean_environment({"PATH": "/x", "SLURM_CONF": "/other"}, files)
    >>> made["SLURM_CONF"], made["PATH"].startswith("/x:")
    ('/tmp/s/slurm.conf', True)
    """
    kept = {name: environ[name] for name in KEPT_VARIABLES if name in environ}
    path = ":".join(part for part in (environ.get("PATH", ""), MORE_PATH) if part)
    return {**kept, "LC_ALL": "C", "PATH": path, "SLURM_CONF": str(layout.slurm_conf)}


def find_programs(path: str) -> dict[str, str]:
    """Return the paths of the programs of Slurm and munge.

    Raises:
        HpcrunError: Some programs are missing.
    """
    found = {program: shutil.which(program, path=path) or "" for program in PROGRAMS}
    if missing := [program for program, where in found.items() if not where]:
        raise HpcrunError(
            f"a sandbox needs Slurm's daemons and munge; not found: {', '.join(missing)}",
            fix="apt install slurm-wlm munge (Debian, Ubuntu), or"
            " dnf install slurm slurm-slurmctld slurm-slurmd munge (Red Hat with EPEL);"
            " no service needs to be configured or started",
        )
    return found


def check_user(uid: int) -> None:
    """Raise InputError for a uid without a name, which Slurm rejects and many containers have."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise InputError(
            f"uid {uid} has no name on this machine, and Slurm serves named users only",
            fix="add a line for it to /etc/passwd, or start the container as a user that exists",
        ) from None


def run_slurm_command(argv: Sequence[str], environ: Mapping[str, str], timeout: float = 10) -> str:
    """Return the output of a Slurm command; "" if it does not exit within ``timeout`` seconds."""
    try:
        answer = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout.decode(errors="replace")


def query_slurm_version(slurmctld: str, environ: Mapping[str, str]) -> tuple[int, int]:
    """Query slurmctld for its release. Raise HpcrunError if the output does not contain it."""
    answer = run_slurm_command([slurmctld, "-V"], environ)
    version = parse_version(answer)
    if version is None:
        raise HpcrunError(f"slurmctld -V answered {answer.strip()!r}: no Slurm version in it")
    return version


def find_free_ports(count: int) -> list[int]:
    """Find free TCP ports below the kernel's ephemeral range. Raises HpcrunError."""
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


def write_files(layout: SandboxFiles, shape: SandboxShape, version: tuple[int, int]) -> int:
    """Write all files that the daemons read; return slurmctld's port."""
    ports = find_free_ports(shape.nodes + 1)
    for folder in layout.folders:
        folder.mkdir(mode=0o700)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(os.urandom(128))
    for index in range(shape.gpus_per_node):
        # slurmd requires device files. It accepts links to /dev/null, which every machine and
        # container has.
        layout.gpu(index).symlink_to("/dev/null")
    layout.slurm_conf.write_text(
        config.slurm_conf(
            layout,
            # Slurm compares the name with the host's name up to the first dot.
            hostname=socket.gethostname().partition(".")[0],
            resolves=_resolves(socket.gethostname()),
            user=str(os.geteuid()),
            shape=shape,
            ports=ports,
            first_job=config.first_job_id(time.time(), layout.root),
        )
    )
    layout.gres_conf.write_text(config.gres_conf(layout, shape))
    layout.cgroup_conf.write_text(config.cgroup_conf(version))
    return ports[0]


def _resolves(hostname: str) -> bool:
    """Return True if a host name resolves: Slurm binds its daemons to that address only then."""
    try:
        return bool(socket.getaddrinfo(hostname, None))
    except OSError:
        return False


def munged_argv(layout: SandboxFiles, program: str) -> list[str]:
    """Return the command line of munged."""
    return [
        program,
        # directories above the sandbox may be open to others, but not the sandbox itself
        "--force",
        f"--key-file={layout.munge_key}",
        f"--socket={layout.munge_socket}",
        f"--seed-file={layout.munge_seed}",
        f"--pid-file={layout.pid('munged')}",
        f"--log-file={layout.log('munged')}",
    ]


def start_daemons(
    layout: SandboxFiles,
    programs: Mapping[str, str],
    environ: Mapping[str, str],
    nodes: int,
    port: int,
    show: Callable[[int, int], None],
) -> None:
    """Start the keeper and, through it, the daemons, which outlive the caller.

    Raises:
        HpcrunError: A daemon did not start.
    """
    commands = {
        "munged": munged_argv(layout, programs["munged"]),
        "slurmctld": [programs["slurmctld"]],
        **{node: [programs["slurmd"], "-N", node] for node in node_names(nodes)},
    }
    daemons = [
        {
            "name": name,
            "argv": argv,
            "output": str(layout.output(name)),
            "pid_file": str(layout.pid(name)),
            "port": port if name == "slurmctld" else 0,
        }
        for name, argv in commands.items()
    ]
    request = {"pid_file": str(layout.pid("keeper")), "daemons": daemons}
    given: bytes | None = json.dumps(request).encode()
    deadline = time.monotonic() + START_TIMEOUT
    with subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, processes.MARK: str(layout.root)},
        start_new_session=True,
    ) as process:
        while True:
            show(sum(layout.pid(name).exists() for name in commands), len(commands))
            try:
                stdout, stderr = process.communicate(given, timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                given = None
            if time.monotonic() > deadline:
                text = f"the sandbox's daemons did not start in {START_TIMEOUT:.0f} s"
                raise HpcrunError(text)
    report = [line.split() for line in stdout.decode().splitlines()]
    for name, code in report:
        if code != "0":
            what = "does not come up" if code == "-1" else f"ended with code {code}"
            raise HpcrunError(f"{name} {what}{read_log_tail(layout, name)}")
    if len(report) < len(commands):
        printed = stderr.decode(errors="replace").strip()
        raise HpcrunError(f"the sandbox's keeper ended early: {printed or 'it printed nothing'}")


def query_node_states(sinfo: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Query the state of each node; return an empty dict if slurmctld does not respond."""
    answer = run_slurm_command([sinfo, "--noheader", "--Node", "--format=%N %T"], environ)
    return dict(line.split(" ", 1) for line in answer.splitlines() if " " in line)


def read_log_tail(layout: SandboxFiles, daemon: str) -> str:
    """Return the last lines of a daemon's output or log, for an error message."""
    printed: list[str] = []
    for file in (layout.output(daemon), layout.log(daemon)):
        with contextlib.suppress(OSError):
            printed += file.read_text(errors="replace").splitlines()
    tail = "\n".join(f"  {line}" for line in printed[-10:])
    return f"; its log ends:\n{tail}" if tail else "; it logged nothing"


def describe_unready_nodes(states: Mapping[str, str], nodes: Sequence[str]) -> list[str]:
    """Return the nodes that are not idle, each with its state.

    >>> describe_unready_nodes({"node1": "idle", "node2": "down*"}, ["node1", "node2", "node3"])
    ['node2 (down*)', 'node3 (no answer)']
    """
    return [
        f"{node} ({states.get(node, 'no answer')})" for node in nodes if states.get(node) != "idle"
    ]
