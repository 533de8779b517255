"""Slurm's commands and answers inside a job: its own record, its nodes, and what follows."""

import os
import re
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from hpcrun.jobside.records import read_json, write_record

Say = Callable[[str], None]

# Failures that end when slurmctld or munged has been restarted; matched in lower case.
_SILENCE = (
    *("slurm controller", "backup controller", "timed out", "zero bytes", "connection refused"),
    *("connection reset", "not connected", "connection failure", "authentication error"),
    *("authentication credential", "munge"),
)
RETRY_S = 5.0
# Number of tries, RETRY_S apart, of what a run needs to continue: nothing else ends the job then.
MANY_TRIES = 720
# Variables of the user that change the form of Slurm's answers.
_FORMATS = ("SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
_FORMAT_PREFIXES = ("SQUEUE_", "SACCT_", "SCONTROL_")


class Answer(NamedTuple):
    """The result of a command: its output, or None and the error message if it failed."""

    text: Optional[str]
    error: str = ""
    code: int = 0

    @property
    def is_silence(self) -> bool:
        """True if it failed because slurmctld did not answer, which may end."""
        if self.text is not None:
            return False
        return not self.error or any(part in self.error.lower() for part in _SILENCE)


def command_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of Slurm's commands, without settings of their output."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _FORMATS and not name.startswith(_FORMAT_PREFIXES)
    }


def run_slurm(
    argv: Sequence[str],
    seconds: float,
    environ: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
) -> Answer:
    """Run one of Slurm's commands. Its output and its messages are kept apart."""
    import subprocess  # deferred: slow to load, and a successful end needs no command

    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            env=command_environment(os.environ) if environ is None else dict(environ),
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        return Answer(None)
    except OSError as error:
        return Answer(None, str(error), 127)
    output = os.fsdecode(done.stdout)
    if done.returncode == 0:
        return Answer(output)
    return Answer(None, (os.fsdecode(done.stderr) + output).strip(), done.returncode)


# ---- Parsing -------------------------------------------------------------------------------------


def parse_record(text: str) -> Dict[str, str]:
    """Parse the first record of ``scontrol --oneliner show``; of equal names the first one counts.

    A job's name is left out: it is free text, and precedes all other fields.

    >>> parse_record("JobId=7 JobName=a JobState=FAILED UserId=ada(1) JobState=RUNNING")["JobState"]
    'RUNNING'
    """
    line = text.lstrip().partition("\n")[0]
    line = re.sub(r"(^| )JobName=.*? (?=UserId=\S+\(\d+\) )", " ", line, count=1)
    fields: Dict[str, str] = {}
    for match in re.finditer(r"(?:^|\s)([A-Za-z][\w:]*)=(\S*)", line):
        fields.setdefault(match.group(1), match.group(2))
    return fields


def parse_time(text: str) -> Optional[float]:
    """Parse a time of scontrol into seconds since the epoch; None if it has none.

    >>> parse_time("Unknown"), parse_time("1970-01-03T00:00:00") is None
    (None, False)
    """
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_seconds(text: str) -> Optional[int]:
    """Parse a number of seconds, or a duration as in ``1-02:03:04``.

    >>> [parse_seconds(text) for text in ("90", "00:05:00", "1-00:00:10", "")]
    [90, 300, 86410, None]
    """
    match = re.match(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)$", text.strip())
    if match is None:
        return None
    days, first, second, last = (int(part or 0) for part in match.groups())
    minutes = 60 * first + second if match.group(3) else first
    return 86400 * days + 60 * minutes + last


def parse_submitted(text: str) -> str:
    """Parse the job id in the output of ``sbatch --parsable``; a site's wrapper may print more.

    >>> parse_submitted("cost: 3 units\\n42;cluster\\nthank you\\n"), parse_submitted("no job")
    ('42', '')
    """
    found = re.findall(r"^(\d+)(?:;\S*)?\s*$", text, re.M)
    return found[-1] if found else ""


class Waiting(NamedTuple):
    """A pending job with its dependencies, as squeue prints them without their states."""

    job: str
    dependency: str


def parse_waiting(text: str) -> List[Waiting]:
    """Parse pending jobs from ``squeue -o '%i %E'``. A pending array is named by its number alone.

    >>> parse_waiting("12_[0-3%2] afterok:7_*(unfulfilled),singleton\\n8 (null)\\n")
    [Waiting(job='12', dependency='afterok:7_*,singleton')]
    """
    rows = []
    for line in text.splitlines():
        job, _, dependency = line.strip().partition(" ")
        dependency = re.sub(r"\([A-Za-z]*\)", "", dependency).strip()
        if dependency:
            rows.append(Waiting(job.partition("_[")[0], dependency))
    return rows


def find_counterpart(waiting: Waiting, task: str) -> str:
    """Return the waiting task that starts after this TASK of another array alone; "" if none does.

    >>> [find_counterpart(Waiting(job, "aftercorr:7_*"), "7_2") for job in ("9", "9_2", "9_1")]
    ['9_2', '9_2', '']
    """
    array, _, index = task.partition("_")
    if not index or "aftercorr:{}_*".format(array) not in waiting.dependency.split(","):
        return ""
    job, _, own = waiting.job.partition("_")
    return "{}_{}".format(job, index) if own in ("", index) else ""


def replace_dependency(dependency: str, old: str, new: str) -> str:
    """Return a dependency on the success, the failure or the end of NEW where it was one of OLD.

    >>> replace_dependency("afterok:7,afterany:8", "7", "9")
    'afterok:9,afterany:8'
    >>> replace_dependency("afterok:7?afterok:8", "7", "9"), replace_dependency("after:7", "7", "9")
    ('afterok:9?afterok:8', 'after:7')
    >>> replace_dependency("afterok:7?afterok:9", "7", "9")
    'afterok:9'
    >>> replace_dependency("afternotok:7,afternotok:9", "7", "9")
    'afternotok:9'
    """
    separator = "?" if "?" in dependency else ","
    parts: Dict[str, None] = {}
    for part in dependency.split(separator):
        kind, _, jobs = part.partition(":")
        if kind in ("afterok", "afterany", "afternotok"):
            names = [new if job == old else job for job in jobs.split(":")]
            part = ":".join([kind, *names])
        parts.setdefault(part)
    return separator.join(parts)


def replace_array_failure(dependency: str, array: str, tasks: Sequence[str]) -> str:
    """Return a dependency on the failure of one of TASKS where it was on that of an array.

    A dependency on the failure of several jobs requires that all fail, so these are alternatives,
    which Slurm cannot combine with further requirements. Then the result is "".

    >>> replace_array_failure("afternotok:7_*?afternotok:5", "7_*", ["9", "7_2"])
    'afternotok:9?afternotok:7_2?afternotok:5'
    >>> replace_array_failure("afternotok:7_*,singleton", "7_*", ["9", "7_2"])
    ''
    """
    parts: Dict[str, None] = {}
    for part in dependency.split("?"):
        if part == "afternotok:" + array:
            parts.update(dict.fromkeys("afternotok:" + task for task in tasks))
        elif "," in part or array in part.split(":"):
            return ""
        else:
            parts[part] = None
    return "?".join(parts)


def read_slurmstepd(text: str, job: str) -> str:
    """Return the state that follows from slurmstepd's last message about a job in its output.

    For a step it also prints CANCELLED when a grace time starts, so there the reason is needed.

    >>> read_slurmstepd("error: *** JOB 7 ON n1 CANCELLED AT 1 DUE TO TIME LIMIT ***", "7")
    'TIMEOUT'
    """
    pattern = r"\*\*\* (?:JOB {0} .*CANCELLED AT|STEP {0}\..*DUE TO) .*".format(re.escape(job))
    found = re.findall(pattern, text)
    last = found[-1] if found else ""
    if "DUE TO PREEMPTION" in last:
        return "PREEMPTED"
    if "DUE TO TIME LIMIT" in last:
        return "TIMEOUT"
    if re.search("DUE TO NODE .*FAILURE", last):
        return "NODE_FAIL"
    return "" if "DUE TO " in last or not last else "CANCELLED"


_OUT_OF_MEMORY = re.compile(
    r"^(?:slurmstepd|srun)[^ ]*: error: .*(?:oom.kill|out of memory|memory limit)", re.I | re.M
)


def names_memory(text: str) -> bool:
    """Return True if Slurm reports in a job's output that a process was killed for its memory.

    slurmstepd does at the end of the step ("Detected 1 oom_kill event", "exceeded memory limit"),
    and srun names the task.
    """
    return bool(_OUT_OF_MEMORY.search(text))


def is_node_lost(record: Mapping[str, str], began: float) -> bool:
    """Return True if a node is down or not responding, or has booted since the attempt began."""
    state = record.get("State", "").upper()
    if re.search(r"DOWN|NOT_RESPONDING|FAIL|\*", state):
        return True
    booted = parse_time(record.get("BootTime", ""))
    return booted is not None and booted > began


def is_node_name(name: str) -> bool:
    """Return True for the name of a node, as opposed to that of a partial record."""
    return bool(re.match(r"[A-Za-z0-9._-]+$", name)) and not name.endswith(".part")


# ---- The job -------------------------------------------------------------------------------------


def slurm_job(environ: Mapping[str, str]) -> str:
    """Return the job id for Slurm's commands; a task's plain number may mean its whole array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        array = environ.get("SLURM_ARRAY_JOB_ID", "")
        return "{}_{}".format(array, environ["SLURM_ARRAY_TASK_ID"])
    return environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", "")


class Job:
    """The job that runs this attempt."""

    def __init__(self, environ: Mapping[str, str], say: Say) -> None:
        self.environ, self.say = environ, say
        self.run = environ["HPCRUN_RUN_DIR"]
        self.attempt = int(environ.get("HPCRUN_ATTEMPT") or 0)
        self.folder = os.path.join(self.run, "attempts", str(self.attempt))
        self.id = slurm_job(environ)
        self.is_slurm = bool(environ.get("SLURM_JOB_ID"))
        self.survives = environ.get("HPCRUN_SURVIVE", "").split()
        self.host = environ.get("SLURMD_NODENAME") or os.uname().nodename
        self.allocated = environ.get("HPCRUN_ALLOCATED", "")  # with spare nodes
        self.node_list = environ.get("SLURM_JOB_NODELIST", "")
        self.sleep: Callable[[float], None] = time.sleep
        self.env = command_environment(environ)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def call(self, *argv: str, seconds: float = 20) -> Answer:
        return run_slurm(argv, seconds, self.env)

    def insist(self, tries: int, what: str, call: Callable[[], Answer]) -> Answer:
        """Repeat a call while slurmctld does not answer it."""
        while True:
            answer = call()
            tries -= 1
            if answer.text is not None:
                return answer
            self.say("hpcrun: {}: {}".format(what, answer.error or "no answer"))
            if not answer.is_silence or self.is_replaced() or tries <= 0:
                return answer
            self.sleep(RETRY_S)

    def successor(self) -> str:
        """Return the job that waits to continue this run, if any."""
        for _ in range(25):
            if not os.path.exists(self.path("chaining")):
                break
            self.sleep(0.2)
        found = read_json(self.path("begin.json")).get("successor")
        return found if isinstance(found, str) and found.isdecimal() else ""

    # ---- What Slurm knows

    def show(
        self, tries: int = 2, on_silence: Optional[Callable[[], None]] = None
    ) -> Dict[str, str]:
        """Return Slurm's record of the job; empty if there is none, or no answer."""
        if not self.is_slurm:
            return {}
        for number in range(tries):
            answer = self.call("scontrol", "--oneliner", "show", "job", self.id, seconds=10)
            if answer.text is not None:
                return parse_record(answer.text.split("\n", 1)[0])
            if not answer.is_silence or self.is_replaced():
                break
            if number == 0 and on_silence is not None:
                on_silence()
            if number + 1 < tries:
                self.sleep(RETRY_S)
        return {}

    def is_replaced(self) -> bool:
        """Return True if the next attempt has started, because Slurm considered this node dead."""
        return os.path.isdir(os.path.join(self.run, "attempts", str(self.attempt + 1)))

    def begins_again(self, record: Mapping[str, str]) -> bool:
        """Return True if Slurm restarts the job by itself, or has done so."""
        restarts = record.get("Restarts", "")
        count = self.environ.get("SLURM_RESTART_COUNT") or "0"
        return restarts.isdecimal() and int(restarts) > int(count)

    def state(self, record: Mapping[str, str]) -> str:
        """Return Slurm's decision on the job, as the name of a final state; "" while it runs.

        Until the job is over scontrol shows all ends as COMPLETING (20.11 to 26.05).
        """
        state, reason = record.get("JobState", ""), record.get("Reason", "")
        if not state:
            return self.last_message() if self.is_slurm else ""
        if state == "COMPLETING" and reason in ("TimeLimit", "NodeDown"):
            return "TIMEOUT" if reason == "TimeLimit" else "NODE_FAIL"
        if state in ("COMPLETING", "PENDING"):
            message = self.last_message()
            if self.begins_again(record):
                if message and message != "CANCELLED":
                    return message
                return "NODE_FAIL" if self.lost_nodes() else "REQUEUED"
            # It may be cancelled by its owner in the grace time.
            is_preemption = is_preempted(record) and message != "CANCELLED"
            return "PREEMPTED" if is_preemption else "CANCELLED"
        if state == "RUNNING":  # on other nodes, at the same time as this attempt
            return "NODE_FAIL" if self.begins_again(record) else ""
        return state

    def last_message(self) -> str:
        return read_slurmstepd(self.output(), self.environ.get("SLURM_JOB_ID", ""))

    def output(self) -> str:
        """Return this attempt's part of the job's own output."""
        try:
            with open(os.path.join(self.run, "logs", "batch.log"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 18)))
                text = file.read().replace(b"\0", b"").decode("utf-8", "replace")
        except OSError:
            return ""
        return text.rpartition("hpcrun: attempt {} of job ".format(self.attempt))[2]

    def host_names(self, node_list: str) -> List[str]:
        if not node_list or node_list.startswith("("):
            return []
        answer = self.call("scontrol", "show", "hostnames", node_list, seconds=10)
        return (answer.text or "").split()

    # ---- Nodes

    def began(self) -> float:
        """Return when this attempt began; now, before it has."""
        begin = read_json(self.path("begin.json")).get("begun_at")
        return float(int(begin)) if isinstance(begin, (int, float)) else time.time()

    def show_nodes(self, node_list: str) -> List[Dict[str, str]]:
        answer = self.call("scontrol", "--oneliner", "show", "node", node_list, seconds=10)
        return [parse_record(line) for line in (answer.text or "").splitlines() if line.strip()]

    def bad_nodes(self, attempt: Optional[int] = None) -> List[str]:
        """Return the nodes that failed in one attempt, or in all attempts of the run."""
        root = os.path.join(self.run, "attempts")
        try:
            numbers = os.listdir(root) if attempt is None else [str(attempt)]
        except OSError:
            return []
        found: Set[str] = set()
        for number in numbers:
            try:
                found.update(filter(is_node_name, os.listdir(os.path.join(root, number, "bad"))))
            except OSError:
                continue
        return sorted(found)

    def lost_nodes(self, node_list: str = "") -> List[str]:
        """Return the nodes that cannot run the ranks any more.

        Those are the nodes that Slurm reports as down or not responding, that have rebooted since
        this attempt began, that were removed from a job with spare nodes, even if they are back by
        now, and those that the preflight found to be bad.
        """
        found = self.bad_nodes(self.attempt)
        node_list = node_list or self.node_list
        if not self.is_slurm or not node_list:
            return found
        if int(self.environ.get("SLURM_JOB_NUM_NODES") or 1) < 2 and not self.allocated:
            return found
        kept = self.host_names(self.show().get("NodeList", "")) if self.allocated else []
        if self.host not in kept:
            kept = []  # not Slurm's answer on this job as it runs here
        began = self.began()
        for record in self.show_nodes(node_list):
            name = record.get("NodeName", "")
            if is_node_lost(record, began) or (kept and name not in kept):
                found.append(name)
        return sorted(set(filter(is_node_name, found)))

    def note_bad_node(self, node: str, why: str) -> None:
        os.makedirs(self.path("bad"), exist_ok=True)
        path = os.path.join(self.path("bad"), node)
        if not os.path.exists(path):
            write_record(path, why)

    def note_silent_nodes(self) -> None:
        """Record the job's other nodes that are unreachable from here as bad."""

        def check(record: Dict[str, str]) -> None:
            port = record.get("Port", "")
            address = record.get("NodeAddr", "")
            if is_unreachable(address, int(port) if port.isdecimal() else 6818):
                why = "it cannot be reached from {}".format(self.host)
                self.note_bad_node(record.get("NodeName", ""), why)

        import threading  # deferred: rarely needed

        records = [
            record
            for record in self.show_nodes(self.node_list)
            if record.get("NodeName", self.host) != self.host
        ]
        threads = [threading.Thread(target=check, args=(record,)) for record in records]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # ---- Times

    def kill_wait(self) -> int:
        """Return how long the processes of a job that is being ended may live, in seconds."""
        return parse_kill_wait(self.config())

    def config(self) -> str:
        return self.call("scontrol", "show", "config", seconds=5).text or ""

    def grace(self) -> int:
        """Return for how many seconds ranks may save after a request to end.

        The grace time before a preemption is the partition's, or that of the job's QOS if Slurm
        preempts by QOS; at the time limit KillWait counts.
        """
        config = self.config()
        found = [30, parse_kill_wait(config)]
        partition = self.environ.get("SLURM_JOB_PARTITION", "")
        shown = self.call("scontrol", "--oneliner", "show", "partition", partition, seconds=5)
        found.append(parse_seconds(parse_record(shown.text or "").get("GraceTime", "")) or 0)
        qos = self.environ.get("SLURM_JOB_QOS", "")
        if qos and re.search(r"^PreemptType\s*=\s*preempt/qos", config, re.M):
            argv = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", qos, "format=GraceTime")
            found.append(parse_seconds(self.call(*argv, seconds=5).text or "") or 0)
        return max(found)


def is_preempted(record: Mapping[str, str]) -> bool:
    """Return True if Slurm has started to preempt the job, which may still have grace time."""
    return record.get("PreemptTime", "") not in ("", "None")


def parse_kill_wait(config: str) -> int:
    """Parse KillWait from Slurm's configuration, in seconds.

    >>> parse_kill_wait("KillOnBadExit = 0\\nKillWait  = 90 sec"), parse_kill_wait("")
    (90, 30)
    """
    match = re.search(r"^KillWait\s*=\s*(\d+)", config, re.M)
    return int(match.group(1)) if match else 30


def is_unreachable(address: str, port: int, limit: float = 15.0) -> bool:
    """Return True if a host cannot be reached for some time.

    A refused connection is an answer of a living host, as are all errors but those that report the
    host as unreachable.
    """
    import socket  # deferred: rarely needed

    end = time.monotonic() + limit
    while True:
        try:
            socket.create_connection((address, port), timeout=8).close()
            return False
        except socket.timeout:
            pass
        except OSError as error:
            text = str(error)
            if not any(
                word in text for word in ("No route", "unreachable", "timed out", "is down")
            ):
                return False
        if time.monotonic() >= end:
            return True
        time.sleep(1)
