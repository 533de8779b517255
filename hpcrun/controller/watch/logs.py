"""Picks what `hpcrun logs` shows: files, where in them to begin, which lines."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import find_any
from hpcrun.controller.state.status import resolve_any
from hpcrun.controller.watch.follow import Begins, Lines
from hpcrun.controller.watch.since import start_since
from hpcrun.controller.watch.watched import Watched
from hpcrun.controller.watch.watched_runs import WatchedRuns
from hpcrun.errors import InputError
from hpcrun.logs.files import LogFile, end_in, part_of
from hpcrun.logs.tail import Tail, start_of_last
from hpcrun.runs.find import is_job_id, plain_id
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.store import runs_of

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class LogQuery(Struct, frozen=True, kw_only=True):
    """What of the logs is wanted; what is empty or None does not narrow it.

    ``nodes`` are numbers or host names; ``attempt`` -1 is the last; ``lines`` are the last ones of
    each file; ``since`` is in seconds since the epoch.
    """

    ranks: frozenset[int] = frozenset()
    nodes: tuple[str, ...] = ()
    attempt: int | None = None
    err: bool = False
    lines: int | None = None
    pattern: re.Pattern[str] | None = None
    since: float | None = None

    def keeps(self, line: bytes) -> bool:
        """Tell whether a line is shown: colours in it do not count."""
        if self.pattern is None:
            return True
        text = line.rstrip(b"\r\n").decode("utf-8", "replace")
        return self.pattern.search(_ESCAPE.sub("", text) if "\x1b" in text else text) is not None


def parse_ranks(words: Sequence[str]) -> frozenset[int]:
    """Read ranks as 0,3-5. Raises InputError.

    >>> sorted(parse_ranks(["0,3-5", "7"]))
    [0, 3, 4, 5, 7]
    """
    found: set[int] = set()
    for word in ",".join(words).split(",") if words else ():
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InputError(f"--rank {word}: no rank", fix="as in --rank 0 or --rank 0,3-5")
        found.update(range(first, last + 1))
    return frozenset(found)


def parse_count(text: str | None) -> int | None:
    """Read a number of lines; None for all. Raises InputError."""
    if text is None or text == "all":
        return None
    if re.fullmatch(r"[0-9]{1,12}", text):
        return int(text)
    raise InputError(f"--lines {text}: no number of lines", fix="as in -n 50, or -n all")


def parse_attempt(text: str | None) -> int | None:
    """Read the number of an attempt, -1 for the last one. Raises InputError."""
    if text is None:
        return None
    if text == "last":
        return -1
    if re.fullmatch(r"[0-9]{1,7}", text):
        return int(text)
    raise InputError(f"--attempt {text}: no attempt", fix="as in --attempt 0, or --attempt last")


def parse_pattern(text: str | None) -> re.Pattern[str] | None:
    """Compile a regular expression of Python's. Raises InputError."""
    if text is None:
        return None
    if any("\ud800" <= char <= "\udfff" for char in text):
        # In a locale that is not UTF-8; logs are.
        text = os.fsencode(text).decode("utf-8", "surrogateescape")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        at = error.pos if isinstance(error, re.error) else None
        where = f" at character {at + 1}" if at is not None else ""
        said = error.msg if isinstance(error, re.error) else str(error)
        raise InputError(
            f"--grep {text}: no regular expression: {said}{where}",
            fix=f"to look for the words themselves: --grep '{re.escape(text)}'",
        ) from error


def watched_of(context: Context, word: str | None) -> Watched:
    """Find what a word names: a run, a sweep, or a Slurm job that hpcrun did not submit.

    Raises InputError, OutOfReach.
    """
    word = plain_id(word) if word is not None else None
    found = find_any(context, word)
    if found is None and word is not None and is_job_id(word):
        from hpcrun.controller.watch.watched_job import WatchedJob

        return WatchedJob(context, word)
    found = found or resolve_any(context, word)
    return WatchedRuns(context, runs_of(found) if isinstance(found, SweepFolder) else [found])


class _Hosts:
    """By what names a file's node may be called: its number, and its host in that attempt."""

    def __init__(self, watched: WatchedRuns) -> None:
        self._folders = {run.run_id: run.attempts for run in watched.runs}
        self._known: dict[Path, list[str]] = {}

    def names_of(self, file: LogFile) -> set[str]:
        if file.node is None or file.job_id is None:
            return set()
        hosts = self._read(self._folders[file.job_id] / str(file.attempt) / "hostfile")
        return {str(file.node), *hosts[file.node : file.node + 1]}

    def wanted(self, words: Sequence[str]) -> set[str]:
        """Read what the user calls the nodes. Raises InputError where no attempt has such a one."""
        paths = [path for each in self._folders.values() for path in each.glob("[0-9]*/hostfile")]
        known = sorted({host for path in paths for host in self._read(path)})
        for word in words:
            if not word.isdigit() and word not in known:
                there = f"; there are {', '.join(known)}" if known else ""
                raise InputError(
                    f"--node {word}: no such node of the run{there}", fix="--node 0 is the first"
                )
        return {str(int(word)) if word.isdigit() else word for word in words}

    def _read(self, path: Path) -> list[str]:
        if not self._known.get(path):
            with suppress(FileNotFoundError):
                lines = path.read_text(errors="replace").splitlines()
                self._known[path] = [line.split()[0] for line in lines if line.split()]
        return self._known.get(path, [])


def chooser(watched: Watched, query: LogQuery) -> Callable[[Sequence[LogFile]], list[LogFile]]:
    """Make what picks the wanted files. Raises InputError for what a job has none of."""
    is_run = isinstance(watched, WatchedRuns)
    if not is_run and (query.ranks or query.nodes):
        option = "--rank" if query.ranks else "--node"
        raise InputError(
            f"{option}: hpcrun did not submit this job, whose ranks and nodes share one output",
            fix="--grep picks lines, as in --grep '^3:' for what srun --label says of rank 3",
        )
    hosts = _Hosts(watched) if isinstance(watched, WatchedRuns) and query.nodes else None
    nodes = hosts.wanted(query.nodes) if hosts is not None else set()

    def choose(files: Sequence[LogFile]) -> list[LogFile]:
        last = max((file.attempt for file in files if file.attempt is not None), default=0)
        wanted = last if query.attempt == -1 else query.attempt
        found = []
        for file in files:
            if wanted is not None and file.attempt not in (wanted, None):
                continue
            if query.ranks and file.rank not in query.ranks:
                continue
            if hosts is not None and not hosts.names_of(file) & nodes:
                continue
            if query.err and not is_run and not file.is_err:
                continue
            found.append(file)
        return found

    return choose


def check_chosen(watched: Watched, query: LogQuery, chosen: Sequence[LogFile]) -> None:
    """Raise InputError where what was asked for by number is not there, or is not ours to read."""
    files = watched.files()
    for file in chosen:
        if not os.access(file.path, os.R_OK):
            raise InputError(f"{file.path}: no permission to read it", fix="ask the job's owner")
    if not files:
        return
    if query.attempt is not None and query.attempt >= 0:
        there = sorted({file.attempt for file in files if file.attempt is not None})
        if query.attempt not in there:
            raise InputError(f"--attempt {query.attempt}: {_list('attempt', there)}")
    if chosen:
        return
    of_nodes = chooser(watched, structs.replace(query, ranks=frozenset()))(files)
    if query.nodes and not of_nodes:
        files = chooser(watched, structs.replace(query, ranks=frozenset(), nodes=()))(files)
        there = sorted({file.node for file in files if file.node is not None})
        raise InputError(f"--node {','.join(query.nodes)}: {_list('node', there)}")
    if query.ranks:
        there = sorted({file.rank for file in of_nodes if file.rank is not None})
        said = _not_on(query.nodes, there) if query.nodes else _list("rank", there)
        raise InputError(
            f"--rank {_ranges(sorted(query.ranks))}: {said}",
            fix="" if there else "without --rank the launcher's and the batch script's words show",
        )


def new_tail(query: LogQuery) -> Tail:
    """Make what reads on in the files; of the batch script's log to the end of the attempt."""

    def ends(file: LogFile, lines: bytes) -> int | None:
        if file.attempt is not None or query.attempt is None or query.attempt < 0:
            return None
        return end_in(lines, query.attempt)

    return Tail(ends)


def begin(tail: Tail, files: Sequence[LogFile], query: LogQuery) -> None:
    """Have the reading begin where --attempt, --lines and --since say, in each of the files."""
    keep = query.keeps if query.pattern is not None else None
    for file in files:
        try:
            start, end = 0, None
            if query.attempt is not None and file.attempt is None:
                start, end = _part_of_file(file.path, query.attempt)
            if query.since is not None:
                start = max(start, start_since(file.path, query.since))
            if query.lines is not None:
                start = max(start, start_of_last(file.path, query.lines, keep, end=end))
        except FileNotFoundError:
            continue
        if end is not None:
            start = min(start, end)
        if start:
            tail.start(file, start)


def _part_of_file(path: Path, attempt: int) -> tuple[int, int]:
    """Find an attempt in the batch script's log without having all of it in memory."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0, 0
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as text,
        ):
            return part_of(text, attempt)


def read(watched: Watched, tail: Tail, files: Sequence[LogFile]) -> Iterator[Lines | Begins]:
    """Give what the files hold now, with a word where another attempt begins."""
    attempts: dict[tuple[str | None, bool], int] = {}
    for file in files:
        if file.attempt is not None and isinstance(watched, WatchedRuns):
            key = (file.job_id, file.is_err)
            if attempts.get(key, file.attempt) != file.attempt:
                yield Begins(file, watched.attempt_line(file))
            attempts[key] = file.attempt
        for _, data in tail.finish([file]):
            yield Lines(file, data)


def _list(what: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return f"no log of it; there is none of any {what} yet"
    some = f"{what} {numbers[0]} alone" if len(numbers) == 1 else f"{what}s {_ranges(numbers)}"
    return f"no log of it; there are logs of {some}"


def _not_on(nodes: Sequence[str], ranks: Sequence[int]) -> str:
    """Say which ranks the wanted nodes have.

    >>> _not_on(["node2"], [2, 3]), _not_on(["0", "1"], [4])
    ('not on node2, which has ranks 2-3', 'not on nodes 0, 1, which have rank 4 alone')
    """
    named = ", ".join(nodes)
    if nodes[0].isdigit():
        named = f"node{'s' if len(nodes) > 1 else ''} {named}"
    some = f"ranks {_ranges(ranks)}" if ranks else "no log of any rank"
    some = f"rank {ranks[0]} alone" if len(ranks) == 1 else some
    return f"not on {named}, which {'have' if len(nodes) > 1 else 'has'} {some}"


def _ranges(numbers: Sequence[int]) -> str:
    """Write numbers in order as ranges.

    >>> _ranges([0, 1, 2, 5])
    '0-2,5'
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
