"""Ray in a job: its head or a worker on this node, and the program on the first node.

The ports of Ray are derived from the job, so that jobs that share a node do not use the same ones.
Its processes and files are removed at the end; its logs are copied to logs/N/ray-K of the run.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set

from hpcrun.jobside.records import write_record

Say = Callable[[str], None]

TICK_S = 0.5
# How long the nodes may take to register.
REGISTER_S = 300.0
# Ray gives up 30 s after it started a node's processes (raylet_start_wait_time_s in its node.py).
# A head that ends later than this was slow, as with its files on a busy file system, and is
# started again.
SLOW_START_S = 20.0
# How long Ray's processes may take to end.
END_S = 10.0
# Ports below 32768, where the kernel's ports for outgoing connections start, in blocks of a node.
# Above 10001, which Ray reserves for its clients also on nodes that do not serve any.
FIRST_PORT, BLOCK, BLOCKS = 10256, 256, 87
NODE_SERVICES = (
    *("node-manager-port", "object-manager-port", "dashboard-agent-listen-port"),
    *("dashboard-agent-grpc-port", "runtime-env-agent-port", "metrics-export-port"),
)
HEAD_SERVICES = ("ray-client-server-port", "dashboard-port")
# Ray's default share of the memory for its object store.
OBJECT_STORE_SHARE = 0.3
MIN_OBJECT_STORE = 80 << 20
# The path of a socket has 107 bytes at most, and Ray adds about 65 to that of its folder.
MAX_FOLDER_LENGTH = 40
MAX_LOG_BYTES = 64 << 20
# The ranks of Ray's workers are those of their own groups, not those of the job.
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
_REGISTERED = """
import json, sys, time
import ray
while True:
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        break
    except Exception:
        time.sleep(1)
while True:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found = sorted(int(name[12:]) for node in nodes for name in node["Resources"]
                   if name.startswith("hpcrun_node_"))
    print(json.dumps(found), flush=True)
    if len(found) >= int(sys.argv[2]):
        break
    time.sleep(0.5)
"""


def is_free(port: int) -> bool:
    """Return True if a process of this node can listen on a port."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def choose_ports(
    job_id: str, attempt: int, node: int, taken: Set[int], *, is_head: bool
) -> Dict[str, int]:
    """Return the port of each of Ray's services on a node, and the range of its workers' ports.

    Args:
        taken: Ports of the job that are used later. Their whole blocks are skipped: Ray refuses a
            port that is in the range of its workers.

    >>> ports = choose_ports("4711", 0, 0, set(), is_head=False)
    >>> ports["max-worker-port"] - ports["min-worker-port"] > 200
    True
    """
    digits = int(re.sub("[^0-9]", "", job_id)[-9:] or "0")
    names = [*NODE_SERVICES, *(HEAD_SERVICES if is_head else ())]
    for number in range(BLOCKS):
        block = (digits + 31 * attempt + 17 * node + 13 * number) % BLOCKS
        first = FIRST_PORT + BLOCK * block
        if any(first <= port < first + BLOCK for port in taken):
            continue
        free = [port for port in range(first, first + 32) if is_free(port)]
        if len(free) >= len(names):
            break
    ports = dict(zip(names, free))
    return {**ports, "min-worker-port": first + 32, "max-worker-port": first + BLOCK - 1}


def node_memory(environ: Mapping[str, str], total: int) -> int:
    """Return the memory of the job on this node in bytes; ``total`` is the node's.

    >>> node_memory({"SLURM_MEM_PER_NODE": "2048"}, 8 << 30) >> 20
    2048
    >>> node_memory({"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "2"}, 8 << 30) >> 20
    1024
    """

    def number(name: str) -> int:
        text = environ.get(name, "")
        return int(text) if text.isdecimal() else 0

    memory = number("SLURM_MEM_PER_NODE")
    memory = memory or number("SLURM_MEM_PER_CPU") * number("SLURM_CPUS_ON_NODE")
    memory = memory or number("SLURM_MEM_PER_GPU") * number("HPCRUN_GPUS_PER_NODE")
    return min(memory << 20, total) if memory else total


def object_store_bytes(memory: int, shared: int) -> int:
    """Return the size of the object store; ``shared`` is the free space in /dev/shm.

    >>> object_store_bytes(100 << 30, 10 << 30) >> 30
    8
    """
    return max(MIN_OBJECT_STORE, int(min(OBJECT_STORE_SHARE * memory, 0.8 * shared)))


def total_memory() -> int:
    """Return the memory of this node in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_shared_memory() -> int:
    """Return the free space in /dev/shm in bytes."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def folder_path(environ: Mapping[str, str]) -> str:
    """Return the path of Ray's folder, which must be short, and the same on all nodes."""
    root = os.path.dirname(environ["HPCRUN_LOCAL_DIR"])
    digits = re.sub("[^0-9]", "", environ.get("SLURM_JOB_ID", "")) or str(os.getpid())
    name = "ray-{}-{}".format(digits, environ.get("HPCRUN_ATTEMPT", "0"))
    role = environ.get("HPCRUN_ROLE_INDEX", "")
    path = os.path.join(root, name + ("-" + role if role else ""))
    return path if len(path) <= MAX_FOLDER_LENGTH else os.path.join("/tmp", os.path.basename(path))


@contextlib.contextmanager
def ray_folder(environ: Mapping[str, str]) -> Iterator[str]:
    """Provide Ray's folder: a short link to a folder in the run's folder on this node.

    Raises:
        OSError: It cannot be created, or belongs to someone else.
    """
    path, target = folder_path(environ), os.path.join(environ["HPCRUN_LOCAL_DIR"], "ray")
    os.makedirs(target, 0o700, exist_ok=True)
    is_own = True
    try:
        os.symlink(target, path)
    except FileExistsError:
        # Several nodes of a sandbox are one machine.
        is_own = False
        if os.lstat(path).st_uid != os.getuid():
            raise
        if not os.path.isdir(path):  # of an attempt that was killed
            os.unlink(path)
            os.symlink(target, path)
            is_own = True
    try:
        yield path
    finally:
        if is_own:
            with contextlib.suppress(OSError):
                os.unlink(path)


class RayNode:
    """Ray's processes on this node of the job."""

    def __init__(self, environ: Mapping[str, str], say: Say, complain: Say) -> None:
        self.environ, self.say, self.complain = dict(environ), say, complain
        self.node = int(environ.get("HPCRUN_NODE_RANK") or 0)
        self.nodes = int(environ.get("HPCRUN_NODES") or 1)
        self.run_dir = environ["HPCRUN_RUN_DIR"]
        self.attempt = environ.get("HPCRUN_ATTEMPT") or "0"
        self.head = environ.get("MASTER_ADDR") or "127.0.0.1"
        self.port = int(environ["MASTER_PORT"])
        records = os.path.join(self.run_dir, "attempts", self.attempt)
        self.registered = os.path.join(records, "ray-registered")
        self.ended = os.path.join(records, "ray-ended")
        self.program: Optional["subprocess.Popen[bytes]"] = None
        self.has_stopped = False

    @property
    def is_head(self) -> bool:
        return self.node == 0

    def run(self, words: List[str]) -> int:
        """Run Ray, and on the first node the program; return the exit code of this node."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        try:
            with ray_folder(self.environ) as folder:
                try:
                    return (
                        self._run_head(folder, words) if self.is_head else self._follow_head(folder)
                    )
                finally:
                    self._copy_logs(folder)
        except OSError as error:
            self.complain("hpcrun: error: ray: {}".format(error))
            return 1

    def _stop(self, number: int, _: Any) -> None:
        self.has_stopped = True
        # Slurm signals all processes of a step itself.
        if self.program is not None and not self.environ.get("SLURM_JOB_ID"):
            self.program.send_signal(number)

    # ---- Ray

    def _start_ray(self, folder: str) -> "subprocess.Popen[bytes]":
        environ = self.environ
        job = environ.get("SLURM_JOB_ID", "")
        ports = choose_ports(job, int(self.attempt), self.node, {self.port}, is_head=self.is_head)
        memory = object_store_bytes(node_memory(environ, total_memory()), free_shared_memory())
        cpus = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE")
        gpus = environ.get("HPCRUN_GPUS_PER_NODE") if environ.get("HPCRUN_DEVICE") == "cuda" else ""
        options = {
            "node-ip-address": self.head if self.is_head else self._address(),
            "temp-dir": folder,
            "num-cpus": cpus or str(len(os.sched_getaffinity(0))),
            "num-gpus": gpus or "0",
            "object-store-memory": str(memory),
            "resources": json.dumps({"hpcrun_node_{}".format(self.node): 1}),
            **{name: str(port) for name, port in ports.items()},
        }
        if self.is_head:
            options.update({"port": str(self.port), "include-dashboard": "true"})
            record = {"address": self.head, "dashboard": ports["dashboard-port"]}
            path = os.path.join(self.run_dir, "attempts", self.attempt, "ray.json")
            write_record(path, json.dumps(record))
        else:
            options["address"] = "{}:{}".format(self.head, self.port)
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        argv += ["--head", "--disable-usage-stats"] if self.is_head else []
        argv += ["--{}={}".format(name, value) for name, value in options.items()]
        return subprocess.Popen(argv, env=self._ray_environment(), stdin=subprocess.DEVNULL)

    def _ray_environment(self) -> Dict[str, str]:
        environ = {k: value for k, value in self.environ.items() if k not in RANK_VARIABLES}
        environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        return environ

    def _address(self) -> str:
        """Return the address of this node on its route to the first one."""
        family = socket.AF_INET6 if ":" in self.head else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((self.head, self.port))  # sends nothing
            return str(probe.getsockname()[0])

    def _end_ray(self, ray: "subprocess.Popen[bytes]") -> None:
        """End Ray's processes; the harness kills any that remain."""
        if ray.poll() is None:
            ray.terminate()
        try:
            ray.wait(END_S)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()

    def _copy_logs(self, folder: str) -> None:
        """Copy Ray's logs to the run."""
        target = os.path.join(self.run_dir, "logs", self.attempt, "ray-{}".format(self.node))
        for session in sorted(self._sessions(folder)):
            source = os.path.join(session, "logs")
            for root, _, names in os.walk(source):
                for name in names:
                    path = os.path.join(root, name)
                    to = os.path.join(target, os.path.relpath(path, source))
                    with contextlib.suppress(OSError):
                        if os.path.isfile(path) and 0 < os.path.getsize(path) <= MAX_LOG_BYTES:
                            os.makedirs(os.path.dirname(to), exist_ok=True)
                            shutil.copyfile(path, to)

    def _sessions(self, folder: str) -> List[str]:
        try:
            names = os.listdir(folder)
        except OSError:
            return []
        paths = [os.path.join(folder, name) for name in names if name.startswith("session_2")]
        return [path for path in paths if os.path.isdir(path)]

    # ---- The first node

    def _run_head(self, folder: str, words: List[str]) -> int:
        code = 1
        began = time.monotonic()
        started, ray = began, self._start_ray(folder)
        try:
            while not self._wait_for_nodes(ray, began):
                if self.has_stopped:
                    return 143
                if ray.poll() is None:
                    return 1
                now = time.monotonic()
                if now - started < SLOW_START_S or now - began > REGISTER_S:
                    self.complain("hpcrun: error: ray: its head did not start: see the lines above")
                    return 1
                self.say("hpcrun: ray: the head was too slow to start; starting it again")
                started, ray = now, self._start_ray(folder)
            address = "{}:{}".format(self.head, self.port)
            environ = dict(self.environ, RANK="0", LOCAL_RANK="0", RAY_ADDRESS=address)
            environ["WORLD_SIZE"] = environ.get("HPCRUN_WORLD_SIZE", "1")
            self.program = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL)
            while self.program.poll() is None:
                if ray.poll() is not None and not self.has_stopped:
                    self.complain(
                        "hpcrun: error: ray: its head ended: see logs/{}/ray-0".format(self.attempt)
                    )
                    self.program.terminate()
                    self.program.wait()
                    return 1
                time.sleep(TICK_S)
            code = self.program.returncode
            code = 128 - code if code < 0 else code
            return code
        finally:
            write_record(self.ended, str(code))
            self._end_ray(ray)

    def _wait_for_nodes(self, ray: "subprocess.Popen[bytes]", began: float) -> bool:
        """Wait until all nodes have registered; False if they do not, or Ray ends."""
        found = set()  # type: Set[int]
        argv = [sys.executable, "-c", _REGISTERED, "{}:{}".format(self.head, self.port)]
        waiter = subprocess.Popen(
            [*argv, str(self.nodes)],
            env=self._ray_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        output = waiter.stdout
        assert output is not None

        def read() -> None:
            for line in output:
                with contextlib.suppress(ValueError):
                    found.update(json.loads(line.decode()))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while waiter.poll() is None:
                if self.has_stopped:
                    return False
                if ray.poll() is not None:
                    return False
                if time.monotonic() - began > REGISTER_S:
                    break
                time.sleep(TICK_S)
        finally:
            waiter.kill()
            waiter.wait()
            reader.join(END_S)
            if not reader.is_alive():
                output.close()
        if waiter.returncode not in (0, -signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                ray.wait(END_S)
                return False  # it ended because the head did
            self.complain("hpcrun: error: ray: its nodes cannot be listed: see the lines above")
            return False
        missing = [host for node, host in enumerate(self._hosts()) if node not in found]
        if missing:
            text = "hpcrun: error: ray: {} did not register within {:.0f} s: see its node log"
            self.complain(text.format(" and ".join(missing), REGISTER_S))
            return False
        write_record(self.registered, str(self.nodes))
        self.say(
            "hpcrun: ray: all {} node(s) have registered after {:.0f} s".format(
                self.nodes, time.monotonic() - began
            )
        )
        return True

    def _hosts(self) -> List[str]:
        try:
            with open(self.environ.get("HPCRUN_HOSTFILE", ""), encoding="utf-8") as file:
                return [line.split()[0] for line in file if line.strip()]
        except OSError:
            return ["node {}".format(node) for node in range(self.nodes)]

    # ---- The others

    def _head_answers(self) -> bool:
        try:
            socket.create_connection((self.head, self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def _follow_head(self, folder: str) -> int:
        """Run a worker until the program on the first node has ended.

        A worker ends if the head answers but has not registered itself yet, so it is started again
        until all nodes have registered.
        """
        began = time.monotonic()
        while not self._head_answers() and time.monotonic() - began < REGISTER_S:
            if self.has_stopped:
                return 143
            if os.path.exists(self.ended):
                return 0
            time.sleep(TICK_S)
        ray = self._start_ray(folder)
        try:
            while not os.path.exists(self.ended):
                if self.has_stopped:
                    return 143
                if ray.poll() is not None:
                    # The records of the head may appear a moment after the worker has ended.
                    time.sleep(4 * TICK_S)
                    if os.path.exists(self.ended):
                        break
                    late = time.monotonic() - began > REGISTER_S
                    if late or os.path.exists(self.registered):
                        self.complain(
                            "hpcrun: error: ray: its worker ended: see logs/{}/ray-{}".format(
                                self.attempt, self.node
                            )
                        )
                        return 1
                    self.say("hpcrun: ray: the worker did not reach its head; starting it again")
                    ray = self._start_ray(folder)
                time.sleep(TICK_S)
            return 0
        finally:
            self._end_ray(ray)


def run_node(environ: Mapping[str, str], words: List[str], say: Say, complain: Say) -> int:
    """Run Ray on this node of the job, and the program on the first one."""
    return RayNode(environ, say, complain).run(words)
