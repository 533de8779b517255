"""A Slurm job in the output of squeue, sacct and ``scontrol show job``: queries and parsers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from hpcrun.errors import InputError
from hpcrun.slurm.hosts import expand_hosts
from hpcrun.slurm.states import is_unlimited, parse_duration, parse_state
from hpcrun.text import is_whole_number

# Names and folders may contain any printable character, and folders even newlines: so fields are
# separated by the unit separator, squeue's rows by the record separator, and free text comes last.
_FIELD, _ROW = "\x1f", "\x1e"
# These formats exist in Slurm 20.11 to 26.05; an unknown one would be an error.
_SQUEUE = {
    "job_id": "%i",
    "number": "%A",
    "state": "%T",
    "reason": "%r",
    "elapsed": "%M",
    "limit": "%l",
    "nodes": "%D",
    "cpus": "%C",
    "node_list": "%N",
    "start": "%S",
    "end": "%e",
    "partition": "%P",
    "user": "%u",
    "uid": "%U",
    "account": "%a",
    "qos": "%q",
    "priority": "%Q",
    "dependency": "%E",
    "gres": "%b",
    "work_dir": "%Z",
    "name": "%j",
}
_SACCT = {
    "job_id": "JobID",
    "number": "JobIDRaw",
    "state": "State",
    "exit_code": "ExitCode",
    "elapsed": "Elapsed",
    "limit": "Timelimit",
    "start": "Start",
    "end": "End",
    "nodes": "NNodes",
    "cpus": "NCPUS",
    "node_list": "NodeList",
    "partition": "Partition",
    "user": "User",
    "account": "Account",
    "qos": "QOS",
    "tres": "AllocTRES",
    "name": "JobName",
    "work_dir": "WorkDir",
}
_SHOW_JOB = {
    "number": "JobId",
    "account": "Account",
    "qos": "QOS",
    "partition": "Partition",
    "priority": "Priority",
    "reason": "Reason",
    "dependency": "Dependency",
    "gres": "TresPerNode",
    "nodes": "NumNodes",
    "node_list": "NodeList",
    "cpus": "NumCPUs",
    "elapsed": "RunTime",
    "limit": "TimeLimit",
    "start": "StartTime",
    "end": "EndTime",
    "exit_code": "ExitCode",
    "step_code": "DerivedExitCode",
    "work_dir": "WorkDir",
    "command": "Command",
}
# Free text up to the end of the line or beyond; other keys share a line.
_TEXTS = frozenset({"Command", "Comment", "StdErr", "StdIn", "StdOut", "SubmitLine", "WorkDir"})
# Slurm's placeholders for missing values.
_NOTHING = frozenset({"(null)", "N/A", "None assigned", "Unknown"})
_COUNT = r"([0-9]{1,9})([KMGTkmgt]?)"
_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class SlurmJob(Struct, frozen=True, kw_only=True):
    """A job, a task of an array or a part of a heterogeneous job; "" and None are unknown values.

    Times are texts in Slurm's format, ``nodes`` may be a range such as 1-2, and ``gpus`` counts
    those of all nodes.

    Attributes:
        job_id: 7, or 7_3 for a task, 7_[4-9%2] for all pending tasks, 6+1 for a part.
        number: Slurm's number of it, by which every srun can address a task.
        exit_code: Slurm's ``code:signal``, from which sacct before 25.11 subtracts 128 if possible.
        step_code: The exit code of its worst step, if one failed.
        gres: Requested resources of each node.
        stdout: Same file as ``stderr`` unless the job requested two.
        slots: GPUs of each host or, without GPUs, its tasks; empty if Slurm does not show them.
        source: The command that printed the job.
    """

    job_id: str
    source: str
    number: str = ""
    state: str
    reason: str = ""
    name: str = ""
    user: str = ""
    uid: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    priority: str = ""
    dependency: str = ""
    gres: str = ""
    nodes: str = ""
    node_list: str = ""
    cpus: str = ""
    gpus: int | None = None
    slots: tuple[int, ...] = ()
    elapsed: str = ""
    limit: str = ""
    start: str = ""
    end: str = ""
    exit_code: str = ""
    step_code: str = ""
    restarts: int = 0
    work_dir: str = ""
    command: str = ""
    stdout: str = ""
    stderr: str = ""

    @property
    def array(self) -> str:
        return array_job_id(self.job_id)

    @property
    def task(self) -> str:
        """The task's number in its array, or [4-9%2]; "" for other jobs."""
        return self.job_id.partition("_")[2]

    @property
    def is_taken(self) -> bool:
        """Whether Slurm accepted it: the queue also shows jobs rejected for their constraints."""
        return self.reason != "BadConstraints"

    @property
    def folder(self) -> str:
        """The name of the working directory, which for a run is the name of its folder."""
        return self.work_dir.rstrip("/").rpartition("/")[2]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The job's nodes, in Slurm's order; empty while it is pending."""

        return tuple(expand_hosts(self.node_list)) if self.node_list else ()

    @property
    def elapsed_seconds(self) -> float | None:
        """How long the job has run; None if unknown."""
        return parse_duration(self.elapsed)

    @property
    def limit_seconds(self) -> float | None:
        """The job's time limit; None if it has none or it is unknown."""
        return None if is_unlimited(self.limit) else parse_duration(self.limit)

    @property
    def outputs(self) -> list[str]:
        """The job's output file and, if that is another one, its error file."""
        return list(dict.fromkeys(path for path in (self.stdout, self.stderr) if path))


def select_first_components(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Replace the components of each heterogeneous job by the first one, with the job's own id.

    The batch script runs in the first component, and its end is that of the job.

    >>> jobs = [SlurmJob(job_id=x, source="squeue", state="RUNNING") for x in ("5+0", "5+1", "7_3")]
    >>> [job.job_id for job in select_first_components(jobs)]
    ['5', '7_3']
    """
    return [
        structs.replace(job, job_id=job.array) if "+" in job.job_id else job
        for job in jobs
        if "+" not in job.job_id or job.job_id.endswith("+0")
    ]


def is_task_id(job_id: str) -> bool:
    """Return True for the id of an array's task or of a part of a job.

    >>> is_task_id("7_3"), is_task_id("6+1"), is_task_id("7")
    (True, True, False)
    """
    return "_" in job_id or "+" in job_id


def array_job_id(job_id: str) -> str:
    """Return an id without its task or part.

    >>> array_job_id("7_3"), array_job_id("7_[4-9%2]"), array_job_id("6+1"), array_job_id("7")
    ('7', '7', '6', '7')
    """
    return split_job_id(job_id)[0]


def split_job_id(job_id: str) -> tuple[str, str]:
    """Return the id of a job or array, and the number of its task or part.

    >>> split_job_id("7_3"), split_job_id("6+1"), split_job_id("7")
    (('7', '3'), ('6', '1'), ('7', ''))
    """
    number, _, task = job_id.replace("+", "_").partition("_")
    return number, task


def parse_task_numbers(text: str, most: int) -> list[int] | None:
    """Parse the tasks of an array, the first ``most`` of them; None for a malformed list.

    >>> parse_task_numbers("3-5,9", 99), parse_task_numbers("0-100:5%4", 2), parse_task_numbers(
    ...     "5-3", 99)
    ([3, 4, 5, 9], [0, 5], None)
    """
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1) or 1)
        found += numbers[: most - len(found)]
    return list(dict.fromkeys(found))


def is_valid_job_id(job_id: str) -> bool:
    """Return True if Slurm can have assigned the id: 32 bits, and task numbers are limited, too.

    >>> [is_valid_job_id(word) for word in ("4711_3", "4711+1", "553038940000")]
    [True, True, False]
    """
    number, task = split_job_id(job_id)
    return 0 < int(number) < 0xFFFFFFFE and int(task or 0) < 0xFFFFFFFE


# ---- Generic resources in the notation of nodes: ``gpu:a100:4(S:0-1),shard:8`` ------------------


def count_node_gpus(gres: str) -> dict[str, int]:
    """Count the GPUs of a node by type; "" is the type of untyped GPUs.

    Sockets, indices and ``no_consume`` do not affect the count. Shares of GPUs (shard, mps) are not
    GPUs: requests for gres gpu do not get them. Unreadable entries are ignored.

    >>> [count_node_gpus(gres) for gres in ("gpu:a100:4(S:0-1)", "gpu:4(S:0,2),shard:8", "(null)")]
    [{'a100': 4}, {'': 4}, {}]
    >>> [count_node_gpus(gres) for gres in ("gpu:a100:2,gpu:1g.5gb:7", "gpu:v100:no_consume:2")]
    [{'a100': 2, '1g.5gb': 7}, {'v100': 2}]
    """
    found: dict[str, int] = {}
    for name, kind, count in _parse_gres(gres):
        if name == "gpu" and count > 0:
            found[kind] = found.get(kind, 0) + count
    return found


def _parse_gres(gres: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, type and count of each resource. A type may be a number: gpu:4090:2."""
    if gres.strip() in ("", "none", *_NOTHING):
        return
    for text in re.sub(r"\([^()]*\)", "", gres).split(","):
        text = re.sub("^gres[:/]", "", text.strip())
        name, *rest = (part.strip() for part in re.split("[:=]", text))
        rest = [part for part in rest if part not in ("no_consume", "")]
        count = re.fullmatch(_COUNT, rest[-1]) if rest else None
        kind = ":".join(rest[:-1] if count else rest)
        number = int(count[1]) * _FACTOR[count[2].lower()] if count else 1
        yield name, kind, number


def count_gpus(gres: str) -> int:
    """Count the GPUs of all types.

    >>> count_gpus("gpu:a100:4(IDX:0-3),gpu:v100:2(IDX:0,2),shard:8"), count_gpus("gres/gpu:1")
    (6, 1)
    >>> count_gpus("(null)"), count_gpus("gres:gpu:h100:8"), count_gpus("gpu")
    (0, 8, 1)
    """
    return sum(count_node_gpus(gres).values())


def count_tres_gpus(tres: str) -> int | None:
    """Count the GPUs in a list of trackable resources; None if it lists none.

    Entries with a type are included in the entry without one.

    >>> count_tres_gpus("cpu=8,node=2,gres/gpu=4,gres/gpu:a100=4"), count_tres_gpus(
    ...     "gres/gpu:a100=2"), count_tres_gpus("")
    (4, 2, None)
    """
    found = parse_gpu_limits(tres)
    return found.get("", sum(found.values())) if found else None


def parse_gpu_limits(text: str) -> dict[str, int]:
    """Parse limits on GPUs from a list of trackable resources; "" is any type.

    >>> parse_gpu_limits("cpu=512,gres/gpu=16,gres/gpu:a100=8"), parse_gpu_limits(
    ...     ""), parse_gpu_limits("cpu=1")
    ({'': 16, 'a100': 8}, {}, {})
    """
    pairs = re.findall(r"(?:^|,)\s*gres/gpu(?::([^=,]+))?=([0-9]{1,9})(?=,|\s*$)", text)
    return {kind: int(count) for kind, count in pairs}


# ---- Queries and output ------------------------------------------------------------------------

# My jobs with a line of column names, which is printed even if there are no jobs.
SQUEUE_HEADED = ("squeue", "--me", "--format=%i")


def squeue_argv(job_ids: Sequence[str] = (), *, partition: str = "") -> list[str]:
    """Return the query for all my jobs, for some jobs, or for all pending jobs of a partition.

    One call serves any number: squeue in a loop burdens the cluster (squeue(1), PERFORMANCE).
    """
    # --array prints a row for each task; otherwise one row stands for all pending ones, as
    # 7_[3-9%4].
    states = "PENDING" if partition else "all"
    argv = ["squeue", "--noheader", f"--states={states}", "--array"]
    argv.append(f"--format={_FIELD.join(_SQUEUE.values())}{_ROW}")
    if partition:
        return [*argv, f"--partition={partition}"]
    # --jobs includes jobs of hidden partitions, but --me does not.
    return [*argv, "--jobs=" + ",".join(job_ids)] if job_ids else [*argv, "--all", "--me"]


def parse_squeue(stdout: str) -> list[SlurmJob]:
    r"""Parse the output of squeue_argv(); malformed rows are ignored.

    >>> row = "7_3|9|RUNNING|None|0:05|1:00|2|8|n[1-2]|N/A|N/A|gpu|me|1000|lab|normal|1|(null)|"
    >>> job, = parse_squeue((row + "gres:gpu:4|/w|a b").replace("|", "\x1f") + "\x1e\n")
    >>> job.number, job.hosts, job.start, job.limit_seconds, job.name
    ('9', ('n1', 'n2'), '', 60.0, 'a b')
    """
    return [
        _build_job(_SQUEUE, fields, source="squeue")
        for fields in _squeue_rows(stdout)
        if _is_job(fields)
    ]


def is_squeue_garbled(stdout: str) -> bool:
    r"""Return True if the output has anything but whole rows, so that missing jobs prove nothing.

    >>> is_squeue_garbled("<html>"), is_squeue_garbled(""), is_squeue_garbled("7\x1fRUNNING\x1e\n")
    (True, False, True)
    """
    *rows, rest = _squeue_rows(stdout)
    return rest != [""] or not all(map(_is_job, rows))


# A message of Slurm or of a wrapper, after which rows may be missing.
_FAILURE = re.compile(r"(?i)error|fail|unable|cannot|timed? ?out|refused|denied|<[a-z]")


def without_banner(stdout: str) -> tuple[str, str]:
    r"""Remove lines that a site's wrapper prints before or after the rows; return them, too.

    These are whole lines without a field separator that report no failure.

    >>> without_banner("Welcome!\n7\x1fRUNNING\x1e\nbye\n")
    ('7\x1fRUNNING\x1e\n', 'Welcome! bye')
    >>> without_banner("squeue: error: x\n7\x1fRUNNING\x1e\n")[1]
    ''
    """
    first = stdout.find(_FIELD)
    begin = stdout.rfind("\n", 0, first) + 1 if first >= 0 else len(stdout)
    end = max(stdout.rfind(_ROW) + 1, begin)
    before, after = stdout[:begin], stdout[end:]
    banner = " ".join(f"{before} {after}".split())
    if not banner or _FIELD in after or _FAILURE.search(banner):
        return stdout, ""
    return stdout[begin:end] + "\n" * (end > begin), banner


def _squeue_rows(stdout: str) -> list[list[str]]:
    """Split rows into fields; the name, the last field, may contain both separators."""
    *rows, rest = re.split(rf"{_ROW}(?:\n|\Z)", stdout)
    columns = len(_SQUEUE) - 1
    return [*(row.lstrip("\n").split(_FIELD, columns) for row in rows), rest.strip().split(_FIELD)]


def _is_job(fields: Sequence[str]) -> bool:
    """Return True if these are the fields of a job: a site's wrapper may print something first."""
    return (
        len(fields) == len(_SQUEUE)
        and fields[0][:1].isdecimal()
        and "\n" not in fields[0]
        and is_whole_number(fields[1])
    )


def _build_job(columns: Mapping[str, str], fields: Sequence[str], *, source: str) -> SlurmJob:
    known = ["" if field in _NOTHING else field for field in fields[:-2]]
    values: dict[str, Any] = dict(zip(columns, [*known, *fields[-2:]], strict=True))
    values["state"] = parse_state(values["state"])
    if tres := values.pop("tres", ""):
        # The accounting has the total number of GPUs, which does not tell those of each of several
        # nodes.
        values["gpus"] = gpus = count_tres_gpus(tres)
        values["slots"] = (gpus,) if gpus and values["nodes"] == "1" else ()
    return SlurmJob(source=source, **values)


def sacct_argv(job_ids: Sequence[str]) -> list[str]:
    """Return the query for the last start of each job, without its steps.

    Tasks of an array that never started share one row, as 7_[3-9%4], which is printed for 7. With
    --jobs the default window is all time (sacct(1), DEFAULT TIME WINDOW).
    """
    argv = ["sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={_FIELD}"]
    return [*argv, f"--format={','.join(_SACCT.values())}", "--jobs=" + ",".join(job_ids)]


def parse_sacct(stdout: str) -> list[SlurmJob]:
    r"""Parse the output of sacct_argv(); a newline in a name or folder continues its row.

    >>> row = "7|7|CANCELLED by 0|0:15|1:00|2:00|s|e|1|2|n1|gpu|me|lab|normal|cpu=2,gres/gpu=1|"
    >>> row = (row + "job|/w").replace("|", "\x1f")
    >>> [(job.state, job.gpus, job.work_dir) for job in parse_sacct(f"{row}\nb\n{row}\n")]
    [('CANCELLED', 1, '/w\nb'), ('CANCELLED', 1, '/w')]
    """
    rows = (fields for fields in _sacct_rows(stdout) if len(fields) == len(_SACCT))
    return [_build_job(_SACCT, fields, source="sacct") for fields in rows]


def is_sacct_garbled(stdout: str) -> bool:
    """Return True if the output has anything but whole rows.

    >>> is_sacct_garbled("<html>"), is_sacct_garbled("")
    (True, False)
    """
    return any(len(fields) != len(_SACCT) and fields != [""] for fields in _sacct_rows(stdout))


def _sacct_rows(stdout: str) -> list[list[str]]:
    begin = rf"(?:^|\n)(?=[0-9][^\n{_FIELD}]*{_FIELD})"
    return [text.split(_FIELD) for text in re.split(begin, stdout.removesuffix("\n"))]


def show_job_argv(job_id: str) -> list[str]:
    """Return the query to slurmctld for a job, with per-node details; values may contain blanks."""
    return ["scontrol", "--details", "show", "job", job_id]


def show_each_argv(job_ids: Sequence[str]) -> tuple[list[str], str]:
    r"""Return the query to slurmctld for several jobs, and its stdin: it accepts no list of ids.

    >>> show_each_argv(["7_3", "9"])
    (['scontrol', '--details'], 'show job 7_3\nshow job 9\nquit\n')
    >>> text = "scontrol: show job 7\nJobId=7 JobName=x\n   StdOut=/a b\n\nscontrol: quit\n"
    >>> [job.outputs for job in parse_show_job(text)]
    [['/a b']]
    """
    lines = [*(f"show job {job_id}" for job_id in job_ids), "quit"]
    return ["scontrol", "--details"], "".join(f"{line}\n" for line in lines)


def parse_show_job(text: str) -> list[SlurmJob]:
    r'''Parse the output of show_job_argv(): a job, all tasks of an array or all parts of a job.

    The pending tasks of an array are one record, as 7_[4-6].

    >>> text = """JobId=9 ArrayJobId=7 ArrayTaskId=3 JobName=x
    ...    UserId=me(1000) GroupId=us(100) MCS_label=N/A
    ...    JobState=RUNNING Reason=None Dependency=(null)
    ...    NodeList=n[1-2]
    ...    NumNodes=2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
    ...    TRES=cpu=3,mem=6000M,node=2,gres/gpu=3
    ...      Nodes=n1 CPU_IDs=1-2 Mem=4000 GRES=gpu:a100:2(IDX:1-2)
    ...      Nodes=n2 CPU_IDs=1 Mem=2000 GRES=gpu:a100:1(IDX:1)
    ...    StdErr=/a b.err
    ...    StdIn=/dev/null
    ...    StdOut=/a b.out
    ... """
    >>> job, = parse_show_job(text)
    >>> job.job_id, job.number, job.user, job.gpus, job.slots, job.outputs
    ('7_3', '9', 'me', 3, (2, 1), ['/a b.out', '/a b.err'])
    '''
    # scontrol prints prompts when it reads commands from a file, in most builds with the command.
    text = re.sub(r"(?m)^(?:scontrol: )+(?:(?:show job \S+|quit)$)?", "", text)
    return [_parse_record(record) for record in re.split(r"(?m)^(?=JobId=\d)", text)[1:]]


def _parse_record(record: str) -> SlurmJob:
    record = re.sub(r"(\n *)+\Z", "", record)  # 24.11 ends a record with a blank line
    head, *lines = re.split(r"\n +(?=[A-Z][\w/:]*=)", record)
    head, _, name = head.partition(" JobName=")
    values = defaultdict[str, str](str)
    for line in [head, *lines]:
        for pair in [line] if line.partition("=")[0] in _TEXTS else line.split():
            key, _, value = pair.partition("=")
            # The first occurrence counts: free text that looks like a key comes later.
            values.setdefault(key, "" if value in _NOTHING else value)
    user, _, uid = values["UserId"].rstrip(")").partition("(")
    # Jobs of salloc have no output files.
    paths = (values[key] for key in ("StdOut", "StdErr"))
    stdout, stderr = (path if path.startswith("/") else "" for path in paths)
    known: dict[str, Any] = {field: values[key] for field, key in _SHOW_JOB.items()}
    if known["step_code"] == "0:0":
        known["step_code"] = ""
    return SlurmJob(
        job_id=_shown_id(values),
        source="scontrol",
        state=parse_state(values["JobState"]),
        name=name,
        user=user,
        uid=uid,
        gpus=_shown_gpus(values),
        slots=_parse_gpu_slots(lines, values),
        restarts=_number(values["Restarts"]),
        stdout=stdout,
        stderr=stderr or stdout,  # 26.05 leaves it empty if it is the same file
        **known,
    )


def _number(text: str) -> int:
    return int(text) if is_whole_number(text) else 0


def _shown_id(values: defaultdict[str, str]) -> str:
    """Return the job id as Slurm's commands accept it."""
    array, task = values["ArrayJobId"], values["ArrayTaskId"]
    if array and task:
        return f"{array}_{task}" if is_whole_number(task) else f"{array}_[{task}]"
    whole, part = values["HetJobId"], values["HetJobOffset"]
    return f"{whole}+{part}" if whole and part else values["JobId"]


def _allocated_gpus(values: defaultdict[str, str]) -> int | None:
    # AllocTRES since 23.02, next to a ReqTRES that may differ; older versions print TRES.
    return count_tres_gpus(values.get("AllocTRES", values["TRES"]))


def _shown_gpus(values: defaultdict[str, str]) -> int | None:
    found = _allocated_gpus(values)
    found = count_tres_gpus(values["ReqTRES"]) if found is None else found
    if found is not None:
        return found
    # Without accounting of GPUs (AccountingStorageTRES) only requested GPUs are shown.
    of_job, of_node = (count_gpus(values[f"TresPer{of}"]) for of in ("Job", "Node"))
    nodes = values["NumNodes"].partition("-")[0]
    return of_job or (of_node * int(nodes) if of_node and is_whole_number(nodes) else None)


def _parse_gpu_slots(lines: Sequence[str], values: defaultdict[str, str]) -> tuple[int, ...]:
    """Count the GPUs of each host or, without GPUs, its tasks."""
    hosts = expand_known_hosts(values["NodeList"])
    cpus, gpus = dict.fromkeys(hosts, 0), dict.fromkeys(hosts, 0)
    for line in lines:
        found = re.match(r"Nodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(\S*)", line)
        names, ids, gres = found.groups() if found else ("", "", "")
        ranges = re.findall(r"(\d+)(?:-(\d+))?", ids)  # 0-3,8
        count = sum(int(last or first) - int(first) + 1 for first, last in ranges)
        for host in expand_known_hosts(names):
            cpus[host] = cpus.get(host, 0) + count
            gpus[host] = gpus.get(host, 0) + count_gpus(gres)
    if any(gpus.values()):
        return tuple(gpus[host] for host in hosts)
    total = count_gpus(values["JOB_GRES"]) or _allocated_gpus(values)
    if total and hosts:
        # After a job has ended Slurm keeps only the total; --gpus-per-node makes it evenly
        # distributed.
        is_even = len(hosts) == 1 or count_gpus(values["TresPerNode"]) > 0
        return (total // len(hosts),) * len(hosts) if is_even else ()
    return _tasks(values, [cpus[host] for host in hosts])


def expand_known_hosts(node_list: str) -> list[str]:
    """Return the hosts of a node list, as SlurmJob.hosts does; empty if it is malformed."""

    try:
        return expand_hosts(node_list)
    except InputError:  # invalid host names
        return []


def _tasks(values: defaultdict[str, str], cpus: Sequence[int]) -> tuple[int, ...]:
    """Return the tasks of each node if Slurm's output determines them."""
    tasks = _number(values["NumTasks"])
    if not tasks or len(cpus) <= 1:
        return (tasks,) if tasks and cpus else ()
    each = values["NtasksPerN:B:S:C"].partition(":")[0]
    # With --ntasks it is only an upper limit.
    if is_whole_number(each) and int(each) * len(cpus) == tasks:
        return (int(each),) * len(cpus)
    if tasks == len(cpus):
        return (1,) * len(cpus)
    by_cpus = tuple(count // max(1, _number(values["CPUs/Task"])) for count in cpus)
    return by_cpus if sum(by_cpus) == tasks else ()
