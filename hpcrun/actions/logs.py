"""The logs of jobs: list the files, select parts of them, and follow what is appended."""

from __future__ import annotations

import math
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct, structs

from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import UnsafeFile, open_plain, read_plain
from hpcrun.logs import (
    LogFile,
    Tail,
    find_attempt,
    find_last_lines,
    find_next_attempt,
    list_log_files,
    list_role_log_files,
)
from hpcrun.monitor import find_targets_by_word, unknown_run_error
from hpcrun.remote import NO_SUCH_FILE
from hpcrun.runs import (
    END_NAMES,
    End,
    RunFolder,
    read_history,
    read_plan,
    read_record,
    read_task,
    runs_of,
)
from hpcrun.secrets import Masker, SecretMark, is_secret_name, looks_random
from hpcrun.text import format_ranges, is_whole_number

if TYPE_CHECKING:
    from hpcrun.monitor import JobOutput, Monitor
    from hpcrun.runs import JobStatus, SweepFolder

# The maximum delay in seconds before a new line is shown, also after hours of silence.
LOOK_EVERY = 0.1
# Seconds without output after which `logs -f` and `--follow` report the stage of the run.
SILENCE = 3.0
# Each check of a file is a request to the file server, so hundreds of ranks are checked in turns.
# The most recently written files, rank 0 and the batch script are checked every time.
FILES_A_TURN = 24
LIVELY = 8
# The interval in seconds between searches for new files, and its increase per file.
LIST_EVERY = 0.2
LIST_EACH = 0.003
# The block size in bytes, and a day in seconds.
_BLOCK = 1 << 16
_DAY = 86400.0
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Lines(Struct, frozen=True):
    """New lines of a log, or a ``heading`` where they come from another attempt or file."""

    file: LogFile
    data: bytes = b""
    heading: str = ""


# ---- the query


class LogQuery(Struct, frozen=True, kw_only=True):
    """The requested part of the logs; empty fields and None do not restrict it.

    Attributes:
        nodes: Node numbers or host names.
        attempt: -1 is the last attempt.
        role: The name of a role; "" selects all of them.
        lines: The number of last lines of each file.
        since: Seconds since the epoch.
    """

    ranks: frozenset[int] = frozenset()
    nodes: tuple[str, ...] = ()
    attempt: int | None = None
    role: str = ""
    err: bool = False
    lines: int | None = None
    pattern: re.Pattern[str] | None = None
    since: float | None = None

    def keeps(self, line: bytes) -> bool:
        """Return True if a line matches the pattern; colours in it are ignored."""
        if self.pattern is None:
            return True
        text = line.rstrip(b"\r\n").decode("utf-8", "replace")
        return self.pattern.search(_ESCAPE.sub("", text) if "\x1b" in text else text) is not None


# ---- logs of jobs


def logs_of(context: Context, word: str | None, query: LogQuery, *, whole: bool = True) -> JobLogs:
    """Find the logs of the runs or the job that a word names. Raises InputError, OutOfReach.

    Args:
        whole: A word that names a sweep selects all its runs.
    """
    target = find_targets_by_word(context, [word], whole=whole)[word]
    if target is None:
        target = _find_current_stage(context, word)
    if isinstance(target, str):
        from hpcrun.monitor import JobOutput  # deferred: most logs are those of runs

        logs = JobLogs(context, query=query, output=JobOutput(target))
        logs.monitor.query()  # poll() would consume state changes that the follower has to report
        return logs
    return JobLogs(context, runs_of(target), query)


def _find_current_stage(context: Context, word: str | None) -> RunFolder | SweepFolder:
    """Return the stage of a pipeline that runs; else the last that failed, or that has ended.

    Raises InputError if the word is no pipeline's id, or no stage has begun.
    """
    # deferred: few words need it
    from hpcrun.monitor import describe_stages, find_pipeline, status_of

    pipeline = find_pipeline(context, word)
    if pipeline is None:
        raise unknown_run_error(context, word)
    stages = describe_stages(pipeline, status_of(context, pipeline.runs()))
    begun = [one for one in stages if any(status.last for status in one.statuses)]
    for matches in (
        [one for one in begun if not one.final],
        [one for one in begun if not one.ok],
        begun,
    ):
        if matches:
            return pipeline.newest()[matches[-1].name]
    raise InputError(
        f"{word}: no stage has begun yet", fix=f"hpcrun status {word} shows what they wait for"
    )


class JobLogs:
    """The logs of some runs, or the ``output`` of another job with all its tasks.

    Reading continues where it last ended. The ``Tail`` of hpcrun.logs splits the bytes of files
    into lines, and this class turns lines into events.
    """

    def __init__(
        self,
        context: Context,
        runs: Sequence[RunFolder] = (),
        query: LogQuery | None = None,
        *,
        output: JobOutput | None = None,
        alive: Callable[[], bool] | None = None,
    ) -> None:
        """Select the logs.

        Args:
            alive: Returns True while the script of a local run is running.

        Raises:
            InputError: The query does not apply to such a job.
        """
        self.runs = list(runs)
        self.query = query = query or LogQuery()
        self.context = context
        self.output = output
        self._alive = alive
        if output is not None and (query.ranks or query.nodes):
            option = "--rank" if query.ranks else "--node"
            raise InputError(
                f"{option}: hpcrun did not submit this job, whose ranks and nodes share one output",
                fix="--grep selects lines, as in --grep '^3:' for rank 3 if srun --label "
                "prefixes the lines",
            )
        self._check_role()
        self._ranks_per_node: dict[Path, int] = {}
        self._hostfiles: dict[Path, list[str]] = {}
        self._by_id = {run.run_id: run for run in runs}
        self._nodes = self._wanted_nodes()
        self._tail = Tail(self._end_of_attempt)
        self._known: list[LogFile] = []
        self._attempts: dict[tuple[str | None, bool], int] = {}
        self._lively: list[LogFile] = []
        self._turn = 0
        self._next_list = 0.0
        # The stage of a run that has printed nothing yet, and the time to report it.
        self._has_spoken, self._stage, self._told_at = False, "", math.inf

    @cached_property
    def monitor(self) -> Monitor:
        """The states of the jobs; only a follower needs them."""
        from hpcrun.monitor import Monitor, WatchedRuns

        return Monitor(self.context, [self.output or WatchedRuns(self.runs, alive=self._alive)])

    # ---- file selection

    def files(self) -> list[LogFile]:
        """List the existing log files in display order."""
        if self.output is not None:
            return [file for file in self.output.files() if file.path.is_file()]
        found = []
        for run in self.runs:
            task = str(getattr(read_task(run), "index", "")) if len(self.runs) > 1 else ""
            for file in [*list_log_files(run), *list_role_log_files(run)]:
                node = file.node
                if file.rank is not None:
                    node = file.rank // self._ranks_on_node(run.for_role(file.role))
                found.append(structs.replace(file, node=node, job_id=run.run_id, task=task))
        return found

    def run_of(self, job_id: str | None) -> RunFolder | None:
        """Return the run of files with this job_id; None for a job that hpcrun did not submit."""
        return self._by_id.get(job_id or "")

    def _check_role(self) -> None:
        """Raise InputError for an unknown role."""
        role = self.query.role
        if not role:
            return
        if self.output is not None:
            raise InputError(f"--role {role}: hpcrun did not submit this job, which has no roles")
        for run in self.runs:
            names = [each.name for each in getattr(read_plan(run), "roles", [])]
            if role not in names:
                there = f"there are {', '.join(names)}" if names else "the job has no roles"
                raise InputError(f"--role {role}: no such role; {there}")

    def _role_of(self, file: LogFile) -> str:
        """Return the name of a file's role, also of the main one; "" in a job without roles."""
        run = self.run_of(file.job_id)
        plan = read_plan(run) if run is not None and not file.role else None
        return file.role or (plan.role if plan is not None else "")

    def _ranks_on_node(self, run: RunFolder) -> int:
        if run.path not in self._ranks_per_node:
            plan = read_plan(run)
            self._ranks_per_node[run.path] = max(1, plan.ranks_per_node) if plan else 1 << 30
        return self._ranks_per_node[run.path]

    def chosen(self) -> list[LogFile]:
        return self._select_files(self.files(), self.query)

    def _select_files(self, files: Sequence[LogFile], query: LogQuery) -> list[LogFile]:
        last = max((file.attempt for file in files if file.attempt is not None), default=0)
        wanted = last if query.attempt == -1 else query.attempt
        return [
            file
            for file in files
            if (wanted is None or file.attempt in (wanted, None))
            and (not query.role or self._role_of(file) == query.role)
            and (not query.ranks or file.rank in query.ranks)
            and (not query.nodes or self._names_of_node(file) & self._nodes)
            and (not query.err or self.output is None or file.is_err)
        ]

    def _names_of_node(self, file: LogFile) -> set[str]:
        """Return the names of a file's node: its number, and its host in that attempt."""
        run = self.run_of(file.job_id)
        if file.node is None or run is None:
            return set()
        attempts = run.for_role(file.role).attempts
        hosts = self._hosts(attempts / str(file.attempt) / "hostfile")
        return {str(file.node), *hosts[file.node : file.node + 1]}

    def _wanted_nodes(self) -> set[str]:
        """Return the requested nodes. Raises InputError for a node that no attempt used."""
        words = self.query.nodes
        runs = self.runs if words else []
        paths = [path for run in runs for path in run.attempts.glob("[0-9]*/hostfile")]
        paths += [p for run in runs for p in run.path.glob("roles/*/attempts/[0-9]*/hostfile")]
        known = sorted({host for path in paths for host in self._hosts(path)})
        for word in words:
            if not is_whole_number(word) and word not in known:
                there = f"; there are {', '.join(known)}" if known else ""
                raise InputError(
                    f"--node {word}: no such node of the run{there}", fix="--node 0 is the first"
                )
        return {str(int(word)) if word.isdecimal() else word for word in words}

    def _hosts(self, path: Path) -> list[str]:
        if not self._hostfiles.get(path):
            with suppress(FileNotFoundError, UnsafeFile):
                lines = read_plain(path).decode(errors="replace").splitlines()
                self._hostfiles[path] = [line.split()[0] for line in lines if line.split()]
        return self._hostfiles.get(path, [])

    def check(self) -> None:
        """Raise InputError if a requested attempt, node or rank is missing or unreadable."""
        query, files, chosen = self.query, self.files(), self.chosen()
        for name, why in self.output.faults.items() if self.output is not None else ():
            if why != NO_SUCH_FILE:
                raise InputError(f"{name}: {why}", fix="ask the job's owner")
        for file in chosen:
            if not os.access(file.path, os.R_OK):
                raise InputError(
                    f"{file.path}: no permission to read it", fix="ask the job's owner"
                )
        if not files:
            return
        if query.attempt is not None and query.attempt >= 0:
            there = sorted({file.attempt for file in files if file.attempt is not None})
            if query.attempt not in there:
                raise InputError(f"--attempt {query.attempt}: {_list('attempt', there)}")
        if chosen:
            return
        of_nodes = self._select_files(files, structs.replace(query, ranks=frozenset()))
        if query.nodes and not of_nodes:
            files = self._select_files(files, structs.replace(query, ranks=frozenset(), nodes=()))
            there = sorted({file.node for file in files if file.node is not None})
            raise InputError(f"--node {','.join(query.nodes)}: {_list('node', there)}")
        if query.ranks:
            there = sorted({file.rank for file in of_nodes if file.rank is not None})
            which = _not_on(query.nodes, there) if query.nodes else _list("rank", there)
            raise InputError(
                f"--rank {format_ranges(sorted(query.ranks))}: {which}",
                fix="" if there else "without --rank the launcher's and the batch script's show",
            )

    # ---- reading

    def begin(self) -> None:
        """Set the start of reading in each file according to --attempt, --lines and --since."""
        query = self.query
        keep = query.keeps if query.pattern is not None else None
        for file in self.chosen():
            try:
                start, end = 0, None
                if query.attempt is not None and file.attempt is None:
                    start, end = _part_of_file(file.path, query.attempt)
                if query.since is not None:
                    start = max(start, start_since(file.path, query.since))
                if query.lines is not None:
                    start = max(start, find_last_lines(file.path, query.lines, keep, end=end))
            except FileNotFoundError:
                continue
            if end is not None:
                start = min(start, end)
            if start:
                self._tail.start(file, start)

    def read(self) -> Iterator[Lines]:
        """Yield the current contents of the files, with a heading where another attempt begins."""
        for file in self.chosen():
            if self._is_new_attempt(file):
                yield Lines(file, heading=self._attempt_text(file))
            for data in self._tail.lines(file, is_last=True):
                if data is not None:
                    yield Lines(file, data)
            if rest := self._tail.rest(file):
                yield Lines(file, rest)

    def follow(
        self, *, with_lines: bool = True, sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[JobStatus | Lines | str]:
        """Yield new lines and changed statuses until all jobs have ended; final statuses come last.

        A string reports the stage of a run whose program has printed nothing yet, or that the
        connection was lost.
        """
        lost = ""
        while True:
            snapshot = self.monitor.poll()
            before, lost = lost, self.monitor.fetch_error
            if bool(lost) != bool(before):
                yield f"{lost}: connecting again" if lost else "connected again"
            if with_lines:
                yield from self._new_events(is_last=snapshot.is_over)
            yield from snapshot.changed
            if snapshot.is_over:
                return
            if with_lines and len(self.runs) == 1:
                yield from self._silence_warning(snapshot.statuses[0])
            sleep(LOOK_EVERY)

    def _silence_warning(self, status: JobStatus) -> Iterator[str]:
        """Report each stage that lasts for a moment, until the program prints something."""
        now = time.monotonic()
        if self._has_spoken or status.run is None or status.final:
            return
        from hpcrun.monitor import describe_stage  # deferred: only a follower needs it

        if (stage := describe_stage(status, status.run)) != self._stage:
            self._stage, self._told_at = stage, now + SILENCE
        elif now >= self._told_at:
            self._told_at = math.inf
            yield f"waiting for {stage}"

    def _new_events(self, *, is_last: bool) -> Iterator[Lines]:
        """Yield new events of the files that are due; at the end, of all files completely."""
        if is_last or time.monotonic() >= self._next_list:
            files = self.chosen()
            known = set(self._known)  # a set, because a sweep has thousands of files
            for file in files:
                if file in known:
                    continue
                if self._is_new_attempt(file):
                    # Remaining output of the previous attempt comes first.
                    for old in self._known:
                        if old.job_id == file.job_id and old.attempt not in (None, file.attempt):
                            yield from self._events_of(old)
                    yield Lines(file, heading=self._attempt_text(file))
                yield from self._events_of(file)
            self._known = files
            self._next_list = time.monotonic() + max(LIST_EVERY, LIST_EACH * len(files))
        for file in self._known if is_last else self._files_to_check():
            yield from self._events_of(file, is_last=is_last)
        for file in self._known if is_last else ():
            if rest := self._tail.rest(file):
                yield Lines(file, rest)

    def _events_of(self, file: LogFile, *, is_last: bool = False) -> Iterator[Lines]:
        for data in self._tail.lines(file, is_last=is_last):
            if self.output is not None:
                self.output.record_output(data)
            if file not in self._lively[:1]:
                self._lively = [file, *(each for each in self._lively if each != file)][:LIVELY]
            own = file.rank is None and (file.node is None or (data or b"").startswith(b"hpcrun: "))
            self._has_spoken = self._has_spoken or not own
            yield Lines(file, data or b"", "" if data else f"{file.name} was rewritten")

    def _is_new_attempt(self, file: LogFile) -> bool:
        """Record a file's attempt; return True if files of an earlier attempt were seen before."""
        if file.attempt is None:
            return False
        key = (file.job_id, file.is_err)
        before = self._attempts.get(key, file.attempt)
        self._attempts[key] = max(before, file.attempt)
        return file.attempt > before

    def _files_to_check(self) -> list[LogFile]:
        if len(self._known) <= FILES_A_TURN:
            return self._known
        always = [f for f in self._known if f.rank == 0 or f.attempt is None][-LIVELY:]
        always += [file for file in self._lively if file in self._known]
        self._turn += 1
        room = max(1, FILES_A_TURN - len(always))
        first = self._turn * room % len(self._known)
        others = (self._known[first:] + self._known[:first])[:room]
        return list(dict.fromkeys([*always, *others]))

    def _end_of_attempt(self, file: LogFile, lines: bytes) -> int | None:
        """Return the offset in these lines at which the wanted attempt ends, or None."""
        wanted = self.query.attempt
        if file.attempt is not None or wanted is None or wanted < 0:
            return None
        return find_next_attempt(lines, wanted)

    def _attempt_text(self, file: LogFile) -> str:
        """Describe the attempt of a file: its nodes, and why the previous attempt ended."""
        index = file.attempt or 0
        if (run := self.run_of(file.job_id)) is None:
            jobs = self.output.jobs if self.output is not None else []
            nodes = next((job.node_list for job in jobs if job.job_id == file.job_id), "")
            where = f" on {nodes}" if nodes else ""
            return f"attempt {index}{where}: Slurm has started the job again"
        attempts = read_history(run).attempts
        begin = next((each.begin for each in attempts if each.index == index), None)
        where = f" on {begin.nodes}" if begin is not None else ""
        before = [each for each in attempts if each.index < index]
        if not before:
            return f"attempt {index}{where}"
        return f"attempt {index}{where}; attempt {before[-1].index} {_end_text(before[-1].end)}"


def _end_text(end: End | None) -> str:
    if end is None:
        return "left no end record: its node died or it was killed"
    if end.why in END_NAMES:
        return f"was ended by {END_NAMES[end.why]}"
    if end.stopped_by is not None:
        return f"was stopped by SIG{end.stopped_by}"
    failure = end.first_failure
    if failure is None:
        return f"ended with exit code {end.exit_code}"
    who = f"rank {failure.rank}" if failure.rank is not None else "the launcher"
    return f"ended with exit code {end.exit_code}: {who} on {failure.host} failed first"


def _part_of_file(path: Path, attempt: int) -> tuple[int, int]:
    """Find an attempt in the batch script's log without reading it into memory."""
    with open_plain(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return 0, 0
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as text,
        ):
            return find_attempt(text, attempt)


# ---- the start of --since


def start_since(path: Path, since: float) -> int:
    """Return the byte offset of the first line that is not older, or the size if all are older.

    Lines are assumed to be in chronological order. If the last lines have no timestamps, the whole
    file counts, by its modification time. Raises OSError.
    """
    info = path.stat()
    if info.st_mtime < since:
        return info.st_size
    with open_plain(path) as file:
        log = _Stamps(file, info.st_size, info.st_mtime)
        if log.first_from(max(0, info.st_size - _BLOCK)) is None:
            return 0
        low = info.st_size
        if not log.knows_date and since < info.st_mtime - 0.8 * _DAY:
            low = 0  # such timestamps repeat every day
        while low > 0:
            low = max(0, low - 4 * _BLOCK)
            found = log.first_from(low)
            if found is not None and found[1] < since:
                break
        while (found := log.first_from(low)) is not None:
            at, stamp, end = found
            if stamp >= since:
                return 0 if at == log.begin else at
            low = end
        return info.st_size


class _Stamps:
    """Reads the timestamps in the lines of a log."""

    def __init__(self, file: BinaryIO, size: int, written: float) -> None:
        self.file, self.size, self.written = file, size, written
        self.knows_date = True  # until a timestamp without a date is read
        # Lines before the first timestamp, such as banners, belong to it.
        first = self.first_from(0)
        self.begin = first[0] if first else 0

    def first_from(self, offset: int) -> tuple[int, float, int] | None:
        """Return the first line with a timestamp at or after an offset: its start, time and end."""
        self.file.seek(offset)
        at = offset
        if offset:
            self.file.seek(offset - 1)
            at = offset - 1 + len(self.file.readline(_BLOCK))
        while at < min(self.size, offset + 2 * _BLOCK):
            line = self.file.readline(_BLOCK)
            if not line:
                return None
            stamp = self._time(line[:400].decode("utf-8", "replace"))
            if stamp is not None:
                return at, stamp, at + len(line)
            at += len(line)
        return None

    def _time(self, line: str) -> float | None:
        """Return the time of a line in seconds since the epoch, completed from the file's mtime."""
        from hpcrun.curves import find_time, read_time  # deferred: rarely needed

        span = find_time(line)
        seconds = read_time(line) if span else None
        if span is None or seconds is None:
            return None
        stamp = line[slice(*span)]
        if re.search(r"(Z|[+-]\d\d:?\d\d|UTC.*)\s*$", stamp) and seconds > 400 * _DAY:
            return seconds
        try:
            return self._to_local_time(stamp, seconds)
        except (ValueError, OverflowError, OSError):
            return None

    def _to_local_time(self, stamp: str, seconds: float) -> float:
        fields = time.gmtime(seconds)
        part = seconds % 1
        if seconds > 400 * _DAY:
            return time.mktime((*fields[:6], 0, 0, -1)) + part
        written = time.localtime(self.written)
        if re.match(r"\d\d:\d\d:\d\d", stamp):
            self.knows_date = False
            date, step = written[:3], _DAY
        else:
            # find_time counts days from the start of a leap year, and 1972 was one.
            fields = time.gmtime(seconds + 730 * _DAY)
            date, step = (written[0], fields[1], fields[2]), 365.25 * _DAY
        found = time.mktime((*date, *fields[3:6], 0, 0, -1)) + part
        return found if found <= self.written + 3600 else found - step


# ---- masking of secrets


def masker_of(context: Context, runs: Sequence[RunFolder]) -> Masker:
    """Create the masker of the secrets of some runs, and of the caller's own variables."""
    own = [value for name, value in context.environ.items() if is_secret_name(name)]
    values = [value for value in map(os.fsencode, own) if looks_random(value)]
    names: list[str] = []
    marks: list[SecretMark] = []
    # The runs of a sweep have the same secrets.
    for run in runs[:1]:
        plan = read_plan(run)
        names = list(plan.secrets) if plan is not None else []
        values += [os.fsencode(context.environ[name]) for name in names if name in context.environ]
        values += _values_of(context, run)
        with suppress(HpcrunError):  # another user's run
            marks = read_record(run.secret_marks, list[SecretMark]) or []
    return Masker(names=names, values=values, marks=marks)


def _values_of(context: Context, run: RunFolder) -> list[bytes]:
    """Return the values of a run's secrets while their file exists, and later if they were cached.

    The cache is needed because following a run continues after its secrets were removed.
    """
    known = context.session.secrets.setdefault(run.path, [])
    with suppress(OSError):
        text = read_plain(run.secrets)
        from hpcrun.render import unquote_bash  # deferred: few runs have secrets

        words = [line.partition("=")[2] for line in os.fsdecode(text).split("\n")]
        known[:] = dict.fromkeys([*known, *(os.fsencode(unquote_bash(word)) for word in words)])
    return known


# ---- numbers in messages


def _list(what: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return f"no log of it; there is none of any {what} yet"
    some = (
        f"{what} {numbers[0]} alone" if len(numbers) == 1 else f"{what}s {format_ranges(numbers)}"
    )
    return f"no log of it; there are logs of {some}"


def _not_on(nodes: Sequence[str], ranks: Sequence[int]) -> str:
    """Describe which ranks the requested nodes have.

    >>> _not_on(["node2"], [2, 3]), _not_on(["0", "1"], [4])
    ('not on node2, which has ranks 2-3', 'not on nodes 0, 1, which have rank 4 alone')
    """
    named = ", ".join(nodes)
    if is_whole_number(nodes[0]):
        named = f"node{'s' if len(nodes) > 1 else ''} {named}"
    some = f"ranks {format_ranges(ranks)}" if ranks else "no log of any rank"
    some = f"rank {ranks[0]} alone" if len(ranks) == 1 else some
    return f"not on {named}, which {'have' if len(nodes) > 1 else 'has'} {some}"
