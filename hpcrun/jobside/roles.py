"""Roles: the programs of a job that has several, each in a step of its own.

The main role is the run itself: its files are in the run's directory. Those of another role are in
roles/ROLE, which is laid out as a run. attempts/N/roles.json has the state of each role.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set

from hpcrun.jobside.records import read_json, write_json, write_record
from hpcrun.jobside.slurm import Job, parse_record

Say = Callable[[str], None]

TICK_S = 0.25
# How long one check of readiness may take.
CHECK_TIMEOUT_S = 2.0
CHECK_EVERY_S = 1.0
# How long a role that is asked to end may take.
GRACE_S = 20.0
# The record of a failure may appear with a delay on a network file system.
RECORD_DELAY_S = 2.0
# Settings of the job that apply to its main role only.
_MAIN_SETTINGS = (
    *("HPCRUN_SURVIVE", "HPCRUN_SAVES", "HPCRUN_STOP_SIGNAL", "HPCRUN_CHECKPOINT_KEEP"),
    *("HPCRUN_STALLED_AFTER", "HPCRUN_JOB_PYTHON"),
)
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def find_port(job_id: str, attempt: int, role: int, attempts_to_bind: int = 0) -> int:
    """Return a port for a role; job, attempt and role make it unique, as far as there are ports.

    It is below 32768, where the kernel's ports for outgoing connections start, and differs from
    the port of the rendezvous (free_port in templates/harness.sh).

    >>> find_port("1000", 0, 0), find_port("1000", 0, 1), find_port("1000", 1, 0)
    (23003, 23214, 24012)
    """
    digits = re.sub("[^0-9]", "", job_id)[-9:] or "0"
    offset = int(digits) * 7 + attempt * 1009 + role * 211 + 4003 + attempts_to_bind * 101
    return 12000 + offset % 18000


def fill_address(text: str, host: str, port: int) -> str:
    """Fill the address of a role in its condition of readiness; IPv6 needs brackets.

    >>> fill_address("http://{host}:{port}/health", "fd00::1", 8000)
    'http://[fd00::1]:8000/health'
    """
    host = "[{}]".format(host) if ":" in host else host
    return text.replace("{host}", host).replace("{port}", str(port))


def check_url(url: str) -> str:
    """Return "" if a URL answers with success, else the reason; ``tcp://`` needs a connection."""
    from http.client import HTTPException  # deferred: slow to load
    from urllib import error, parse, request

    try:
        if url.startswith("tcp://"):
            place = parse.urlsplit(url)
            address = (place.hostname or "", place.port or 0)
            socket.create_connection(address, CHECK_TIMEOUT_S).close()
            return ""
        # A proxy of the site does not reach the nodes.
        opener = request.build_opener(request.ProxyHandler({}))
        opener.open(url, timeout=CHECK_TIMEOUT_S).close()
        return ""
    except error.HTTPError as answer:
        return "HTTP status {}".format(answer.code)
    except error.URLError as failure:
        reason = failure.reason
        return str(getattr(reason, "strerror", None) or reason)
    except HTTPException:
        return "the response is not HTTP"
    except (OSError, ValueError) as failure:
        return str(getattr(failure, "strerror", None) or failure)


class LogSearch:
    """Searches the logs of a role for a line, each part of them once."""

    def __init__(self, folder: str, pattern: str) -> None:
        self.folder, self.pattern = folder, re.compile(pattern)
        self.offsets: Dict[str, int] = {}

    def check(self) -> str:
        """Return "" if a line matches, else the reason."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(".log"))
        except OSError:
            names = []
        for name in names:
            try:
                with open(os.path.join(self.folder, name), "rb") as file:
                    file.seek(self.offsets.get(name, 0))
                    text = file.read()
            except OSError:
                continue
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            self.offsets[name] = self.offsets.get(name, 0) + end
            for line in re.split("[\r\n]", text[:end].decode("utf-8", "replace")):
                if self.pattern.search(line):
                    return ""
        return "no line of its log matches {}".format(self.pattern.pattern)


class RolePlan(NamedTuple):
    """A role in roles.json (hpcrun.plan.RolePlan)."""

    name: str
    is_main: bool
    nodes: List[int]
    waits_for: List[str]
    ready: Optional[str]
    ready_within: int
    group: int


def read_roles(run: str) -> List[RolePlan]:
    """Read roles.json."""
    with open(os.path.join(run, "roles.json"), "rb") as file:
        records = json.loads(file.read().decode("utf-8"))
    records = [{"group": 0, **each} for each in records]
    return [RolePlan(**{key: each[key] for key in RolePlan._fields}) for each in records]


class Role:
    """A role of this attempt, and its process."""

    def __init__(self, plan: RolePlan, folder: str, hosts: List[str], attempt: int) -> None:
        self.plan, self.folder, self.hosts, self.attempt = plan, folder, hosts, attempt
        self.address, self.port = "127.0.0.1", 0
        self.state, self.at = "waiting", time.time()
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.began = self.checked = 0.0
        self.search: Optional[LogSearch] = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def attempt_path(self, *names: str) -> str:
        return self.path("attempts", str(self.attempt), *names)

    def check_ready(self) -> str:
        """Return "" if the role is ready, else the reason."""
        ready = self.plan.ready
        if ready is None:
            return ""
        if not ready.startswith("log:"):
            return check_url(fill_address(ready, self.address, self.port))
        if self.search is None:
            folder = self.path("logs", str(self.attempt))
            self.search = LogSearch(folder, ready[len("log:") :])
        return self.search.check()


class RoleRunner:
    """Starts the roles of a job, and ends them when the main one ends or any of them fails.

    Raises:
        LookupError: Slurm does not name all nodes of the job.
    """

    def __init__(self, environ: Mapping[str, str], say: Say, complain: Say) -> None:
        self.environ, self.say, self.complain = dict(environ), say, complain
        self.job = job = Job(environ, complain)
        hosts = job.host_names(job.node_list) if job.is_slurm else [job.host]
        for group in range(1, int(environ.get("SLURM_HET_SIZE") or 1)):
            name = "SLURM_JOB_NODELIST_HET_GROUP_{}".format(group)
            hosts += job.host_names(environ.get(name, ""))
        self.roles: List[Role] = []
        plans = read_roles(job.run)
        if len(hosts) <= max(node for plan in plans for node in plan.nodes):
            raise LookupError("Slurm does not name the job's nodes ({})".format(job.node_list))
        for plan in plans:
            folder = job.run if plan.is_main else os.path.join(job.run, "roles", plan.name)
            names = [hosts[node] for node in plan.nodes]
            self.roles.append(Role(plan, folder, names, job.attempt))
        self.main = next(role for role in self.roles if role.plan.is_main)
        self.has_stopped = False
        self.failed = False

    def run(self) -> int:
        """Run all roles, and return the exit code of the main one, or of the one that failed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            return self._supervise()
        except Exception as error:
            # The steps of the roles would otherwise run until the time limit of the job.
            text = "hpcrun: error: the roles can no longer be supervised: {}: {}"
            self.complain(text.format(type(error).__name__, error))
            with contextlib.suppress(OSError):
                self._fail(self.main, 1)
            with contextlib.suppress(OSError):
                self._copy_failures()
            with contextlib.suppress(OSError):
                self._end_others()
            return 143 if self.has_stopped else 1

    def _supervise(self) -> int:
        self._find_addresses()
        self._make_folders()
        self._record()
        code = None
        while code is None:
            if not self.has_stopped:
                self._start_ready_roles()
            self._wait(TICK_S)
            code = self._find_end()
        if not self.has_stopped:
            if code != 0 or self.failed:
                self._copy_failures()
            self._end_others()
        return code

    # ---- Starting

    def _find_addresses(self) -> None:
        """Find the address and a port of the first node of each role."""
        hosts = {host for role in self.roles for host in role.hosts}
        # On a single node, the loopback address is enough; all other nodes need a real one.
        first = sorted({role.hosts[0] for role in self.roles}) if len(hosts) > 1 else []
        known = {host: self._address_of(host) for host in first}
        if known.get(self.job.host, "").startswith("127."):
            # Debian resolves a host's own name to 127.0.1.1.
            other = next(host for host in sorted(hosts) if host != self.job.host)
            known[self.job.host] = route_address(known.get(other) or self._address_of(other))
        number_of_job = self.job.id or str(os.getpid())
        for index, role in enumerate(self.roles):
            role.address = known.get(role.hosts[0], "127.0.0.1")
            for number in range(10):
                role.port = find_port(number_of_job, self.job.attempt, index, number)
                if check_url("tcp://{}:{}".format(role.address, role.port)):
                    break  # nothing listens there

    def _address_of(self, node: str) -> str:
        answer = self.job.call("scontrol", "--oneliner", "show", "node", node)
        name = parse_record(answer.text or "").get("NodeAddr") or node
        try:
            found = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
        except OSError as error:
            self.complain("hpcrun: error: the address of node {}: {}".format(node, error))
            return name
        addresses = [str(each[4][0]) for each in found]
        return next((each for each in addresses if ":" not in each), addresses[0])

    def _make_folders(self) -> None:
        mode = 0o755 & ~current_umask()
        for role in self.roles:
            if role is self.main:
                continue
            for names in ("failures", "ended", "local"):
                os.makedirs(role.attempt_path(names), mode, exist_ok=True)
            os.makedirs(role.path("logs", str(role.attempt)), mode, exist_ok=True)

    def _start_ready_roles(self) -> None:
        by_name = {role.name: role for role in self.roles}
        for role in self.roles:
            if role.state == "waiting" and all(
                by_name[name].state in ("ready", "ended") for name in role.plan.waits_for
            ):
                self._start(role)
        for role in self.roles:
            due = role.checked + CHECK_EVERY_S
            if role.state != "starting" or time.monotonic() < due:
                continue
            reason = role.check_ready()
            role.checked = time.monotonic()
            waited = role.checked - role.began
            if not reason:
                self._set_state(role, "ready")
                if role.plan.ready:
                    self.say("hpcrun: role {} is ready after {:.0f} s".format(role.name, waited))
            elif waited > role.plan.ready_within:
                text = "hpcrun: error: role {} on {} was not ready within {} s ({}): {}"
                self.complain(
                    text.format(
                        role.name,
                        role.hosts[0],
                        role.plan.ready_within,
                        fill_address(str(role.plan.ready), role.address, role.port),
                        reason,
                    )
                )
                self._fail(role, 1)

    def _start(self, role: Role) -> None:
        environ = component_environment(self.environ, role.plan.group)
        for name in () if role is self.main else _MAIN_SETTINGS:
            environ.pop(name, None)
        for each in self.roles:
            start = "HPCRUN_ROLE_{}_".format(each.name.upper())
            environ[start + "HOST"], environ[start + "PORT"] = each.address, str(each.port)
        environ.update(
            HPCRUN_RUN_DIR=role.folder,
            HPCRUN_ROLE=role.name,
            HPCRUN_ROLE_INDEX=str(self.roles.index(role)),
            HPCRUN_HOST=role.address,
            HPCRUN_PORT=str(role.port),
            SLURM_JOB_NODELIST=",".join(role.hosts),
            SLURM_JOB_NUM_NODES=str(len(role.hosts)),
        )
        environ.pop("HPCRUN_ROLES", None)
        where = ",".join(role.hosts)
        self.say("hpcrun: role {} starts on {}, port {}".format(role.name, where, role.port))
        output: Optional[int] = None
        if role is not self.main:
            path = role.path("logs", "batch.log")
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            line = "hpcrun: attempt {} begins on {}\n".format(role.attempt, where)
            os.write(output, line.encode())
        role.process = subprocess.Popen(
            ["bash", "--", role.path("job.sbatch"), "body"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_unblock_signals,
        )
        if output is not None:
            os.close(output)
        role.began = time.monotonic()
        self._set_state(role, "starting")

    # ---- Waiting

    def _wait(self, seconds: float) -> None:
        """Wait for a signal; forward one of the batch script: Slurm signals all processes."""
        received = signal.sigtimedwait(_SIGNALS, seconds)
        if received is None:
            return
        self.has_stopped = True
        if received.si_pid == os.getppid():
            for role in self.roles:
                if role.process is not None and role.is_alive:
                    role.process.terminate()

    def _find_end(self) -> Optional[int]:
        """Return the exit code with which the attempt ends; None while it runs."""
        if self.has_stopped:
            return None if any(role.is_alive for role in self.roles) else 143
        for role in self.roles:
            if role.process is None or role.is_alive or role.state in ("ended", "failed"):
                continue
            code = exit_code(role.process.returncode)
            if role is self.main:
                self._set_state(role, "failed" if code else "ended")
                return code
            if code == 0 and (role.state == "ready" or role.plan.ready is None):
                self._set_state(role, "ended")
                continue
            if code == 0:
                text = "hpcrun: error: role {} on {} ended before it was ready ({})"
                ready = fill_address(str(role.plan.ready), role.address, role.port)
                self.complain(text.format(role.name, role.hosts[0], ready))
            else:
                # Its own logs have the error.
                text = "hpcrun: role {} on {} ended with exit code {}: the job ends"
                self.complain(text.format(role.name, ",".join(role.hosts), code))
            self._fail(role, code or 1)
        for role in self.roles:
            if role.state == "failed":
                return exit_code(getattr(role.process, "returncode", None) or 1)
        return None

    def _fail(self, role: Role, code: int) -> None:
        """Note that a role failed, and record it unless its processes have."""
        self.failed = True
        deadline = time.monotonic() + (0 if role.is_alive else RECORD_DELAY_S)
        while not self._failures_of(role) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not self._failures_of(role):
            record = {
                "rank": None,
                "node": 0,
                "host": role.hosts[0],
                "exit_code": code,
                "signal": None,
                "at": round(time.time(), 3),
                "why": None,
            }
            name = "{:.0f}-node-0.json".format(time.time() * 1e6)
            write_json(role.attempt_path("failures", name), "failure", record)
        self._set_state(role, "failed")

    # ---- The end

    def _failures_of(self, role: Role) -> List[str]:
        try:
            names = os.listdir(role.attempt_path("failures"))
        except OSError:
            return []
        return sorted(name for name in names if name.endswith(".json"))

    def _copy_failures(self) -> None:
        """Add the failures of the other roles to those of the run; the first one counts."""
        for role in self.roles:
            for index, name in enumerate(self._failures_of(role) if role is not self.main else ()):
                record = read_json(role.attempt_path("failures", name))
                if not record:
                    continue
                # No name of the main role's ranks: "TIME-rank-R.json".
                moment = name.partition("-")[0]
                path = "{}-{}.role.{}.json".format(moment, index, role.name)
                record["role"] = role.name
                write_json(self.main.attempt_path("failures", path), "failure", record)

    def _end_others(self) -> None:
        """Ask the remaining roles to end, and terminate those that do not within a grace time."""
        alive = [role for role in self.roles if role.is_alive]
        asking = [process for process in map(self._ask, alive) if process is not None]
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(role.is_alive for role in alive):
            self._wait(TICK_S)
        for role in alive:
            if role.process is not None and role.is_alive:
                role.process.terminate()  # srun kills its step
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(role.is_alive for role in alive):
            self._wait(TICK_S)
        for role in alive:
            if role.process is not None and role.is_alive:
                role.process.kill()
        for process in asking:
            process.kill()
            process.wait()
        for role in alive:
            if role.state != "failed":
                self._set_state(role, "ended")
        for role in self.roles:
            if role is not self.main and not self.has_stopped:
                self._clean(role)

    def _ask(self, role: Role) -> Optional["subprocess.Popen[bytes]"]:
        if not self.job.is_slurm and role.process is not None:
            role.process.terminate()
            return None
        return self._run_beside(role, "30", role.hosts, ["ask"])

    def _clean(self, role: Role) -> None:
        """Remove folders of a role on nodes where its processes were killed before they could."""
        try:
            nodes = sorted(int(n) for n in os.listdir(role.attempt_path("local")) if n.isdecimal())
        except OSError:
            return
        names = [role.hosts[node] for node in nodes if node < len(role.hosts)]
        if names and self.job.is_slurm:
            process = self._run_beside(role, "30", names, ["clean", *role.hosts])
            if process is not None:
                process.wait()

    def _run_beside(
        self, role: Role, seconds: str, hosts: List[str], mode: List[str]
    ) -> Optional["subprocess.Popen[bytes]"]:
        environ = component_environment(self.environ, role.plan.group)
        environ["HPCRUN_RUN_DIR"] = role.folder
        if role is not self.main:
            environ.pop("HPCRUN_STOP_SIGNAL", None)
        harness = ["bash", "--", role.path("harness.sh")]
        try:
            return subprocess.Popen(
                [*harness, "beside", seconds, ",".join(hosts), str(len(hosts)), *mode],
                env=environ,
                stdin=subprocess.DEVNULL,
                preexec_fn=_unblock_signals,
            )
        except OSError as error:
            self.complain("hpcrun: error: role {}: {}".format(role.name, error))
            return None

    # ---- The record

    def _set_state(self, role: Role, state: str) -> None:
        role.state, role.at = state, round(time.time(), 3)
        self._record()

    def _record(self) -> None:
        states: Dict[str, Any] = {}
        for role in self.roles:
            states[role.name] = {
                "state": role.state,
                "at": role.at,
                "hosts": role.hosts,
                "address": role.address,
                "port": role.port,
            }
        write_record(self.main.attempt_path("roles.json"), json.dumps(states))


def component_environment(environ: Mapping[str, str], group: int) -> Dict[str, str]:
    """Return the environment of the batch script with Slurm's values for another component.

    The batch script of a heterogeneous job has the values of the first component, and those of all
    components under names with a suffix. srun reads some of them as options.

    >>> given = {"SLURM_MEM_PER_NODE": "9", "SLURM_JOB_NODELIST": "a"}
    >>> given.update(SLURM_MEM_PER_NODE_HET_GROUP_0="9", SLURM_JOB_NODELIST_HET_GROUP_1="b")
    >>> found = component_environment(given, 1)
    >>> found["SLURM_JOB_NODELIST"], "SLURM_MEM_PER_NODE" in found, found["HPCRUN_HET_GROUP"]
    ('b', False, '1')
    """
    made = dict(environ)
    if group == 0:
        return made
    for name in environ:
        if name.endswith("_HET_GROUP_0"):
            made.pop(name[: -len("_HET_GROUP_0")], None)
    suffix = "_HET_GROUP_{}".format(group)
    for name, value in environ.items():
        if name.endswith(suffix) and not name.startswith("SLURM_JOB_ID"):
            made[name[: -len(suffix)]] = value
    made["SLURM_JOB_ID"] = environ.get("SLURM_JOB_ID", "")
    made["HPCRUN_HET_GROUP"] = str(group)
    return made


def route_address(other: str) -> str:
    """Return the address of this host on its route to another one."""
    family = socket.AF_INET6 if ":" in other else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def current_umask() -> int:
    """Return the umask of this process."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def exit_code(returncode: int) -> int:
    """Return the exit code of a shell for a code of subprocess, which is negative for a signal.

    >>> exit_code(-9), exit_code(2)
    (137, 2)
    """
    return 128 - returncode if returncode < 0 else returncode


def _unblock_signals() -> None:
    blocked: Set[signal.Signals] = _SIGNALS
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)


def run_roles(environ: Mapping[str, str], say: Say, complain: Say) -> int:
    """Run the roles of a job, and return the exit code of the batch script's body."""
    try:
        runner = RoleRunner(environ, say, complain)
    except LookupError as error:
        complain("hpcrun: error: no role was started: {}".format(error))
        return 1
    return runner.run()
