"""Reads the metrics of log files, runs, sweeps and Slurm jobs, as `hpcrun parse` names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.curves.read_log import LogFileReader
from hpcrun.controller.secrets import masker_of
from hpcrun.controller.targets import find_target
from hpcrun.errors import InputError
from hpcrun.logs.files import LogFile, log_files
from hpcrun.metrics.lines.formats import own_format
from hpcrun.metrics.lines.line import FORMATS, Format
from hpcrun.metrics.parse import ParsedRun, parse_stored
from hpcrun.metrics.store import Store
from hpcrun.plan.types import label
from hpcrun.runs.find import find, no_runs_in
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import read_plan, read_task, runs_of

STDIN = Path("/dev/stdin")
# How many points of each metric are kept of a long log: more than a window or a page can show.
POINTS = 4000
# The part of a file's name that differs between a job's standard output and error: 7.out and
# 7.err, run.o7 and run.e7 (PBS, SGE), stdout and stderr; output and errors.
_STREAM = re.compile(
    r"(?P<out> \.out(?:put)?$ | \.o(?=\d+$) | (?<![a-z])(?:std)?out(?:put)?(?![a-z]) )"
    r"|(?P<err> \.err(?:or)?$ | \.e(?=\d+$) | (?<![a-z])(?:std)?err(?:or)?(?![a-z]) )"
    r"|(?P<log> \.log$ )",
    re.VERBOSE | re.IGNORECASE,
)


class Source(Struct, frozen=True):
    """What becomes one curve: the files of one log, or a run; ``name`` is what the user typed.

    ``job``: the id of the Slurm job that writes the files, where that is what the user typed.
    """

    name: str
    files: tuple[Path, ...] = ()
    run: RunFolder | None = None
    job: str | None = None


def parse(
    context: Context,
    arguments: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    full: bool = False,
) -> list[ParsedRun]:
    """Read what the arguments name (``find_sources``), a run for each; without: the newest run.

    ``patterns`` are line formats of the user's own, tried before the known ones. ``full`` keeps
    every point and every sample; else a long log costs no more memory than a short one. Raises
    InputError.
    """
    own = own_formats(patterns, "--pattern")
    sources = find_sources(context, arguments)
    return [
        _without_secrets(context, source, parse_source(source, own=own, full=full))
        for source in sources
    ]


def _without_secrets(context: Context, source: Source, parsed: ParsedRun) -> ParsedRun:
    """Leave out a metric whose name is a secret: a log may have a number behind one.

    Samples stay as the log has them.
    """
    masker = masker_of(context, [source.run] if source.run is not None else [])
    shown = {
        name: series
        for name, series in parsed.curve.metrics.items()
        if masker.mask(data := name.encode("utf-8", "surrogateescape")) == data
    }
    return structs.replace(parsed, curve=structs.replace(parsed.curve, metrics=shown))


def parse_source(source: Source, *, own: Sequence[Format] = (), full: bool = False) -> ParsedRun:
    """Read one source.

    Of a run's ranks the first prints the loss nearly always, the last in Megatron's family; else
    the files of all are read.
    """
    if source.run is None:
        return _parse(source.name, [(0, path) for path in source.files], own, full=full)
    own = (*own, *formats_of(source.run))
    for chosen in file_choices(log_files(source.run)):
        logs = [(file.attempt or 0, file.path) for file in chosen]
        parsed = _parse(source.name, logs, own, full=full)
        if parsed.points:
            break
    return with_facts(parsed, source.run)


def with_facts(parsed: ParsedRun, run: RunFolder) -> ParsedRun:
    """Add what is known of a run beside its log."""
    from hpcrun.controller.curves.facts import run_facts  # here: YAML takes 20 ms, files need none

    facts, gpus, seconds = run_facts(run)
    return structs.replace(parsed, facts=facts, gpus=gpus, seconds=seconds)


def own_formats(patterns: Iterable[str], where: str) -> tuple[Format, ...]:
    """Make line formats of a user's own patterns. Raises InputError for one that is no pattern."""
    made = []
    for pattern in patterns:
        try:
            re.compile(pattern)  # first: what is no pattern has no names either
            made.append(own_format(where.lstrip("-"), pattern))
        except (re.error, ValueError) as error:
            fix = r"give its values names, as in 'it (?P<step>\d+) L (?P<loss>\S+)'"
            raise InputError(f"{where} {pattern}: {error}", fix=fix) from error
    return tuple(made)


def curve_label(context: Context, source: str) -> str:
    """Return how a curve is named in a drawing: a sweep's run by its values, all else as it is."""
    task = read_task(RunFolder(context.runs_dir / source))
    if task is None:
        return source
    return f"{task.index}: {label(task.values)}"


def file_choices(files: Sequence[LogFile]) -> list[list[LogFile]]:
    """Return the files to read, in the order in which to try them."""
    ranks = [file for file in files if file.attempt is not None]
    last = max((file.rank or 0 for file in ranks), default=0)
    first_rank = [file for file in ranks if file.rank == 0]
    last_rank = [file for file in ranks if file.rank == last]
    return [first_rank, last_rank, ranks]


def formats_of(run: RunFolder) -> tuple[Format, ...]:
    """Return the line formats that a run's job names."""
    plan = read_plan(run)
    return own_formats(plan.log_patterns, "log_patterns") if plan is not None else ()


def _parse(
    name: str, logs: Sequence[tuple[int, Path]], own: Sequence[Format], *, full: bool
) -> ParsedRun:
    store = Store()
    formats = (*own, *FORMATS) if own else FORMATS
    lines = size = 0
    notes: list[str] = []
    for number, (attempt, path) in enumerate(logs):
        log = LogFileReader(path, formats=formats)
        store.begin(attempt, number)
        for pieces in log:
            store.add(pieces)
        lines += log.lines
        size += log.bytes
        notes += log.notes
    return parse_stored(
        name,
        store,
        limit=None if full else POINTS,
        keep_samples=full,
        files=len(logs),
        lines=lines,
        size=size,
        notes=notes,
    )


def find_sources(
    context: Context, arguments: Sequence[str], *, is_awaited: bool = False
) -> list[Source]:
    """Find what the arguments name, one source for each curve; without any: the newest run.

    An argument is a log file, "-" for a pipe, a run, a sweep (a source for each of its runs), or a
    Slurm job. Standard output and error of one job are one log: files that differ in nothing but
    .out and .err, or stdout and stderr. ``is_awaited``: the output of a Slurm job may be yet to
    come. Raises InputError when there is no such thing.
    """
    sources: list[Source] = []
    for name in arguments or (None,):
        sources += _sources_of(context, name, is_awaited=is_awaited)
    return _with_twins(sources)


def _sources_of(context: Context, name: str | None, *, is_awaited: bool) -> list[Source]:
    if name == "-":
        return [Source("standard input", (STDIN,))]
    if name is not None:
        path = context.cwd / name
        if path.is_dir() and find(context.runs_dir, name) is None:
            raise InputError(f"{name}: a folder", fix="name the log files in it")
        if path.exists() and not path.is_dir():
            return [Source(name, (path,))]
    target = find_target(context, name)
    if name is None and target is None:
        raise InputError(no_runs_in(context.runs_dir), fix="hpcrun parse FILE")
    if isinstance(target, str):
        jobs = scheduler.show_jobs(slurm_transport(context), target)
        named = tuple(map(Path, jobs[0].outputs)) if jobs else ()
        there = named if is_awaited else tuple(path for path in named if path.is_file())
        if there:
            return [Source(str(there[0]), there, job=target)]
        if named:
            raise InputError(
                f"{name}: its output {named[0]} does not exist (yet)",
                fix=f"hpcrun parse -f {name} waits for it",
            )
    elif target is not None:
        return [Source(run.run_id, run=run) for run in runs_of(target)]
    raise InputError(f"{name}: no such file, run or job", fix="hpcrun status lists the runs")


def _with_twins(sources: Sequence[Source]) -> list[Source]:
    """Make one source of a job's two streams, where both are named."""
    joined: list[Source] = []
    waiting: dict[tuple[Path, bool], int] = {}
    for source in sources:
        stream = _stream(source)
        if stream is not None:
            common, is_err = stream
            twin = waiting.pop((common, not is_err), None)
            if twin is not None:
                out, err = (joined[twin], source) if is_err else (source, joined[twin])
                files = (*out.files, *err.files)
                joined[twin] = Source(out.name, files, job=out.job or err.job)
                continue
            waiting[stream] = len(joined)
        joined.append(source)
    return joined


def _stream(source: Source) -> tuple[Path, bool] | None:
    """Return what the two streams of a job have in common, and whether this is its errors'."""
    if len(source.files) != 1 or source.files[0] == STDIN:
        return None
    path = source.files[0]
    named = list(_STREAM.finditer(path.name))
    if not named:
        return None
    found = max(named, key=lambda each: (each["log"] is None, each.start()))
    common = path.name[: found.start()] + "\0" + path.name[found.end() :]
    return path.with_name(common), found["err"] is not None
