"""What the words behind `hpcrun parse` name: log files, runs, sweeps, Slurm jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.state.foreign import find_any
from hpcrun.errors import InputError
from hpcrun.runs.find import find, is_job_id, no_runs_in
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.store import runs_of

STDIN = Path("/dev/stdin")


class Source(Struct, frozen=True):
    """What becomes one curve: the files of one log, or a run; ``name`` is what the user typed."""

    name: str
    files: tuple[Path, ...] = ()
    run: RunFolder | None = None


def find_sources(
    context: Context, words: Sequence[str], *, is_awaited: bool = False
) -> list[Source]:
    """Find what the words name, one source for each curve; no words: the newest run.

    A word is a log file, "-" for what comes through a pipe, a run, a sweep (a source for each of
    its runs), or a Slurm job. Standard output and error of one job are one log: files that differ
    in nothing but .out and .err, or stdout and stderr. ``is_awaited``: the output of a Slurm job
    may be yet to come. Raises InputError when there is no such thing.
    """
    sources: list[Source] = []
    for word in words or (None,):
        sources += _sources_of(context, word, is_awaited=is_awaited)
    return _with_twins(sources)


def _sources_of(context: Context, word: str | None, *, is_awaited: bool) -> list[Source]:
    if word == "-":
        return [Source("standard input", (STDIN,))]
    if word is not None:
        path = context.cwd / word
        if path.is_dir() and find(context.runs_dir, word) is None:
            raise InputError(f"{word}: a folder", fix="name the log files in it")
        if path.exists() and not path.is_dir():
            return [Source(word, (path,))]
    run = find_any(context, word)
    if isinstance(run, SweepFolder):
        return [Source(each.run_id, run=each) for each in runs_of(run)]
    if run is not None:
        return [Source(run.run_id, run=run)]
    if word is None:
        raise InputError(no_runs_in(context.runs_dir), fix="hpcrun parse FILE")
    if is_job_id(word):
        jobs = scheduler.show_jobs(slurm_transport(context), word)
        named = tuple(map(Path, jobs[0].outputs)) if jobs else ()
        there = named if is_awaited else tuple(path for path in named if path.is_file())
        if there:
            return [Source(str(there[0]), there)]
        if named:
            raise InputError(
                f"{word}: its output {named[0]} is not there (yet)",
                fix=f"hpcrun parse -f {word} waits for it",
            )
    raise InputError(f"{word}: no such file, run or job", fix="hpcrun status lists the runs")


# The part of a name that tells a job's standard output from its standard error, and what it is
# called: 7.out and 7.err, run.o7 and run.e7 (PBS, SGE), stdout and stderr; output and errors.
_STREAM = re.compile(
    r"(?P<out> \.out(?:put)?$ | \.o(?=\d+$) | (?<![a-z])(?:std)?out(?:put)?(?![a-z]) )"
    r"|(?P<err> \.err(?:or)?$ | \.e(?=\d+$) | (?<![a-z])(?:std)?err(?:or)?(?![a-z]) )"
    r"|(?P<log> \.log$ )",
    re.VERBOSE | re.IGNORECASE,
)


def _with_twins(sources: Sequence[Source]) -> list[Source]:
    """Make one source of a job's two streams, where both are named."""
    joined: list[Source] = []
    waiting: dict[tuple[Path, str], tuple[int, bool]] = {}
    for source in sources:
        stream = _stream(source)
        if stream is not None:
            key, is_err = stream
            twin = waiting.get(key)
            if twin is not None and twin[1] != is_err:
                first = joined[twin[0]]
                out, err = (first, source) if is_err else (source, first)
                joined[twin[0]] = Source(out.name, (*out.files, *err.files))
                del waiting[key]
                continue
            waiting[key] = (len(joined), is_err)
        joined.append(source)
    return joined


def _stream(source: Source) -> tuple[tuple[Path, str], bool] | None:
    """Return what the two streams of a job have in common, and whether this is its errors'."""
    if len(source.files) != 1 or source.files[0] == STDIN:
        return None
    path = source.files[0]
    named = list(_STREAM.finditer(path.name))
    if not named:
        return None
    found = max(named, key=lambda each: (each["log"] is None, each.start()))
    common = path.name[: found.start()] + "\0" + path.name[found.end() :]
    return (path.parent, common), found["err"] is not None
