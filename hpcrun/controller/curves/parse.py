"""Reads the metrics of log files, runs and jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.controller.context import Context
from hpcrun.controller.curves.read_log import LogFileReader
from hpcrun.controller.curves.sources import Source, find_sources
from hpcrun.controller.secrets import masker_of
from hpcrun.errors import InputError
from hpcrun.logs.files import LogFile, log_files
from hpcrun.metrics.lines.formats.form import own_format
from hpcrun.metrics.lines.line import FORMATS, Format
from hpcrun.metrics.parse import ParsedRun, RunParser
from hpcrun.plan.types import label
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import read_plan, read_task

# So many points of each metric are kept of a long log: more than a window or a page can show.
POINTS = 4000


def parse(
    context: Context,
    words: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    full: bool = False,
) -> list[ParsedRun]:
    """Read what the words name (``find_sources``), a run for each; no words: the newest run.

    ``patterns`` are forms of lines of the user's own, tried before the known ones. ``full`` keeps
    every point and every sample; else a long log costs no more memory than a short one. Raises
    InputError.
    """
    own = own_formats(patterns, "--pattern")
    sources = find_sources(context, words)
    return [
        _without_secrets(context, source, parse_source(source, own=own, full=full))
        for source in sources
    ]


def _without_secrets(context: Context, source: Source, parsed: ParsedRun) -> ParsedRun:
    """Leave out a metric whose name is a secret: a log may have a number behind one.

    Samples stay as the log has them.
    """
    masker = masker_of(context, [source.run] if source.run is not None else [])
    metrics = parsed.curve.metrics
    told = {
        name: series
        for name, series in metrics.items()
        if masker.mask(data := name.encode("utf-8", "surrogateescape")) == data
    }
    if len(told) == len(metrics):
        return parsed
    return structs.replace(parsed, curve=structs.replace(parsed.curve, metrics=told))


def parse_source(source: Source, *, own: Sequence[Format] = (), full: bool = False) -> ParsedRun:
    """Read one source.

    Of a run's ranks the first prints the loss nearly always, the last in Megatron's family; else
    the files of all are read.
    """
    if source.run is None:
        return _parse(source.name, [(0, path) for path in source.files], own, full=full)
    from hpcrun.controller.curves.facts import (
        run_facts,  # here: YAML takes 20 ms, and files need none
    )

    run = source.run
    own = (*own, *formats_of(run))
    facts, gpus, seconds = run_facts(run)
    parsed = None
    for chosen in file_choices(log_files(run)):
        logs = [(file.attempt or 0, file.path) for file in chosen]
        parsed = _parse(source.name, logs, own, full=full)
        if parsed.points:
            break
    assert parsed is not None
    return structs.replace(parsed, facts=facts, gpus=gpus, seconds=seconds)


def own_formats(patterns: Iterable[str], where: str) -> tuple[Format, ...]:
    """Make forms of a user's own patterns. Raises InputError for one that is no pattern."""
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
    """What a curve is called in a drawing: a sweep's run by its values, all else as it is."""
    task = read_task(RunFolder(context.runs_dir / source))
    if task is None:
        return source
    return f"{task.index}: {label(task.values)}"


def file_choices(files: Sequence[LogFile]) -> list[list[LogFile]]:
    """Whose files to read, in the order in which to try them."""
    ranks = [file for file in files if file.attempt is not None]
    last = max((file.rank or 0 for file in ranks), default=0)
    first_rank = [file for file in ranks if file.rank == 0]
    last_rank = [file for file in ranks if file.rank == last]
    return [first_rank, last_rank, ranks]


def formats_of(run: RunFolder) -> tuple[Format, ...]:
    """Return the forms of lines that a run's job names."""
    plan = read_plan(run)
    return own_formats(plan.log_patterns, "log_patterns") if plan is not None else ()


def _parse(
    name: str, logs: Sequence[tuple[int, Path]], own: Sequence[Format], *, full: bool
) -> ParsedRun:
    parser = RunParser(limit=None if full else POINTS, keep_samples=full)
    formats = (*own, *FORMATS) if own else FORMATS
    lines = size = 0
    notes: list[str] = []
    for number, (attempt, path) in enumerate(logs):
        log = LogFileReader(path, formats=formats)
        parser.begin(attempt, number)
        for pieces in log:
            parser.add(pieces)
        parser.end()
        lines += log.lines
        size += log.bytes
        notes += log.notes
    return parser.run(name, files=len(logs), lines=lines, size=size, notes=notes)
