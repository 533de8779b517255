"""Picks what `hpcrun logs` shows: files, where in them to begin, which lines.

Effects: reads files, few Slurm commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import find_any
from hpcrun.controller.state.status import resolve_any
from hpcrun.controller.watch.follow import Begins, Lines
from hpcrun.controller.watch.since import start_since
from hpcrun.controller.watch.watched import Watched
from hpcrun.controller.watch.watched_runs import WatchedRuns
from hpcrun.errors import InputError
from hpcrun.logs.ends import start_of_last
from hpcrun.logs.files import LogFile
from hpcrun.logs.tail import Tail
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.store import is_job_id, plain_id, runs_of

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


def chooser(watched: Watched, query: LogQuery) -> Callable[[Sequence[LogFile]], list[LogFile]]:
    """Make what picks the wanted files. Raises InputError for what a job has none of."""
    is_run = isinstance(watched, WatchedRuns)
    if not is_run and (query.ranks or query.nodes):
        option = "--rank" if query.ranks else "--node"
        raise InputError(
            f"{option}: hpcrun did not submit this job, whose ranks and nodes share one output",
            fix="--grep picks lines, as in --grep '^3:' for what srun --label says of rank 3",
        )
    hosts = host_numbers(watched) if isinstance(watched, WatchedRuns) and query.nodes else {}
    nodes = frozenset(_node_number(word, hosts) for word in query.nodes)

    def choose(files: Sequence[LogFile]) -> list[LogFile]:
        last = max((file.attempt for file in files if file.attempt is not None), default=0)
        wanted = last if query.attempt == -1 else query.attempt
        found = []
        for file in files:
            if wanted is not None and file.attempt not in (wanted, None):
                continue
            if query.ranks and file.rank not in query.ranks:
                continue
            if nodes and file.node not in nodes:
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
    if not chosen and query.ranks:
        there = sorted({file.rank for file in files if file.rank is not None})
        raise InputError(
            f"--rank {_ranges(sorted(query.ranks))}: {_list('rank', there)}",
            fix="" if there else "without --rank the launcher's and the batch script's words show",
        )
    if not chosen and query.nodes:
        there = sorted({file.node for file in files if file.node is not None})
        raise InputError(f"--node {','.join(query.nodes)}: {_list('node', there)}")


def host_numbers(watched: WatchedRuns) -> dict[str, int]:
    """Read the names of the nodes, by the newest hostfile: name -> number."""
    found: dict[str, int] = {}
    for run in watched.runs:
        for hostfile in sorted(run.attempts.glob("[0-9]*/hostfile")):
            lines = hostfile.read_text(errors="replace").splitlines()
            found |= {line.split()[0]: index for index, line in enumerate(lines) if line.split()}
    return found


def begin(tail: Tail, files: Sequence[LogFile], query: LogQuery) -> None:
    """Have the reading begin where --lines and --since say, in each of the files."""
    keep = query.keeps if query.pattern is not None else None
    for file in files:
        try:
            start = 0
            if query.since is not None:
                start = start_since(file.path, query.since)
            if query.attempt is not None and file.attempt is None:
                start = max(start, _part_of_attempt(file, query.attempt)[0])
            if query.lines is not None:
                last = start_of_last(tail.transport, str(file.path), query.lines, keep)
                start = max(start, last)
        except FileNotFoundError:
            continue
        if start:
            tail.start(file, start)


def read(
    watched: Watched, tail: Tail, files: Sequence[LogFile], attempt: int | None = None
) -> Iterator[Lines | Begins]:
    """Give what the files hold now, with a word where another attempt begins.

    With ``attempt``, of the batch script's log what belongs to it.
    """
    attempts: dict[tuple[str | None, bool], int] = {}
    for file in files:
        if file.attempt is not None and isinstance(watched, WatchedRuns):
            key = (file.job_id, file.is_err)
            if attempts.get(key, file.attempt) != file.attempt:
                yield Begins(file, watched.attempt_line(file))
            attempts[key] = file.attempt
        end = None
        if attempt is not None and file.attempt is None:
            end = _part_of_attempt(file, attempt)[1]
        for _, data in tail.finish([file]):
            # Such a log is short: it comes in one piece.
            cut = None if end is None else data.find(end)
            yield Lines(file, data if cut is None or cut < 0 else data[:cut])


def _part_of_attempt(file: LogFile, attempt: int) -> tuple[int, bytes | None]:
    """Where an attempt begins in the batch script's log, and the words with which the next does."""
    found = [
        (int(match[1]), match.start(), match.group())
        for match in re.finditer(
            rb"^hpcrun: attempt (\d+) (?:of job \S+ )?begins on .*", file.path.read_bytes(), re.M
        )
    ]
    if attempt < 0:
        return (found[-1][1], None) if found else (0, None)
    start = next((at for number, at, _ in found if number == attempt), 0)
    following = (words for number, at, words in found if number > attempt and at > start)
    return start, next(following, None)


def _node_number(word: str, hosts: dict[str, int]) -> int:
    if word.isdigit():
        return int(word)
    if word in hosts:
        return hosts[word]
    known = f"; there are {', '.join(hosts)}" if hosts else ""
    raise InputError(f"--node {word}: no such node of the run{known}", fix="--node 0 is the first")


def _list(what: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return f"no log of it; there is none of any {what} yet"
    some = f"{what} {numbers[0]} alone" if len(numbers) == 1 else f"{what}s {_ranges(numbers)}"
    return f"no log of it; there are logs of {some}"


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
