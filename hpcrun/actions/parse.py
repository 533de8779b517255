"""Reads the metrics of log files, runs, sweeps and Slurm jobs, as `hpcrun parse` names them."""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.actions.logs import masker_of
from hpcrun.context import Context
from hpcrun.curves import (
    FORMATS,
    PATTERN_LIMIT_CPU_S,
    Curve,
    Format,
    LogFileReader,
    ParsedRun,
    Pieces,
    Store,
    build_series,
    derive_curve,
    find_line_start,
    find_warnings,
    own_format,
    parse_stored,
    thin_series,
)
from hpcrun.errors import InputError
from hpcrun.logs import log_files
from hpcrun.monitor import STDIN, Source, find_sources
from hpcrun.patterns import time_limit
from hpcrun.runs import read_plan

_CHUNK = 1 << 20
# A pipe is read for so long at most, before its curve may be drawn.
_PIPE_SECONDS = 0.5
# While no rank has logged a loss, the ranks are compared again when the logs are longer by this.
_LONGER = 1.2
# Where only the ends of logs are read, at most this many are read at once.
_FEW = 16


# Called with a file and how many of its bytes were read.
OnProgress = Callable[[Path, int], None]
_PiecesOf = Callable[[Path], Iterator[Pieces]]


def parse_runs(
    context: Context,
    arguments: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    full: bool = False,
    every: int = 1,
) -> list[ParsedRun]:
    """Read what the arguments name (``find_sources``), a run for each; without: the newest run.

    ``patterns`` are line formats of the user's own, tried before the known ones. ``full`` keeps
    every point and every sample; else a long metric is thinned. ``every``: keep only every
    Nth row of a form. Raises InputError.
    """
    own, runs = own_formats(patterns, "--pattern"), []
    sources = find_sources(context, arguments)
    sizes = {path: _size(path) for source in sources for _, path in _choices(source)[0]}
    read: dict[Path, int] = {}
    with context.bar("reading", "MB") as show:

        def advance(path: Path, position: int) -> None:
            read[path] = position
            sizes.setdefault(path, _size(path))
            show(sum(read.values()) / 1e6, sum(sizes.values()) / 1e6)

        for source in sources:
            log = CurveLog(context, source, own, every=every)
            log.read(advance)
            runs.append(log.run(full=full))
    return runs


class CurveLog:
    """The logs of one curve, and how far they were read: to their ends, or as they grow.

    Of a run's ranks the first prints the loss nearly always, the last in Megatron's family; else
    the files of all are read. ``is_over``: nothing can follow (the end of a pipe). A file that
    became shorter, or is another, is read from its start again, and with it the whole curve. What
    an attempt writes after the next one has begun is left out, while it grows.
    """

    def __init__(
        self,
        context: Context,
        source: Source,
        own: Sequence[Format] = (),
        *,
        tail: int | None = None,
        every: int = 1,
    ) -> None:
        """Begin at the start of the logs, or ``tail`` bytes before their ends; nothing is read yet.

        With ``tail`` it leaves out what needs many files, so that a look at a run stays cheap.
        ``every``: keep only every Nth row of a form.
        """
        self.source = source
        self.is_over = False
        self._context, self._tail, self._every = context, tail, every
        if source.run is not None:
            plan = read_plan(source.run)
            own = (*own, *own_formats(plan.log_patterns if plan else (), "log_patterns"))
        self._formats = (*own, *FORMATS) if own else FORMATS
        # Which of _choices() is read, and at what size that was decided or asked last.
        self._choice, self._asked_at = 0, 0.0
        self._is_decided = source.run is None
        # Now: what it has to hide is gone at the run's end.
        self._masked = masker_of(context, [] if source.run is None else [source.run]).text
        self._begin()

    def _begin(self) -> None:
        self._store = Store(every=self._every, hides=self._hides)
        self._attempt = 0
        self._readers: dict[Path, LogFileReader] = {}
        # Which file comes first is not which is written first: the first one counts.
        self._numbers = {path: number for number, path in enumerate(self.source.files)}
        self._known: ParsedRun | None = None

    def _hides(self, name: str) -> bool:
        """Whether a metric has a secret's name, or is one: a log may have a number behind it."""
        return self._masked(f"{name}=1") != f"{name}=1"

    def read(self, progress: OnProgress | None = None) -> None:
        """Read all of the logs, to the choice of files that has the loss."""
        self._read(lambda path: iter(self._reader(path)), progress)

    def look(self) -> bool:
        """Read what is new; return whether there was anything."""
        before = self._size
        is_another = any(map(self._is_another, self._readers))
        if is_another:
            self._begin()
        self._read(self._new)
        return is_another or self._size != before

    def finish(self) -> None:
        """Take a last line that has no end yet: nothing follows any more."""
        for attempt, path in self._files():
            if path != STDIN and path in self._readers and attempt >= self._attempt:
                self._add(attempt, path, self._readers[path].reader.finish())

    def is_missing(self) -> bool:
        """Return whether none of its files is there: a job's, that waits or never began."""
        return self.source.run is None and not any(path.exists() for path in self.source.files)

    def curve(self) -> Curve:
        """Return the curve as it is known so far."""
        return derive_curve(self._store, thin_series)

    def run(self, *, full: bool = False) -> ParsedRun:
        """Return the run as it is known so far; ``full``: with all points, and the samples.

        Beside the log it has what is known of the run.
        """
        parsed, run = self._parsed(full=full), self.source.run
        if run is None:
            return parsed
        from hpcrun.actions.run_facts import add_attempts, read_run_facts  # here: YAML takes 20 ms
        from hpcrun.actions.why import failure_of

        facts, gpus, seconds = read_run_facts(run)
        parsed, failure = add_attempts(parsed, run), failure_of(self._context, run)
        return structs.replace(parsed, facts=facts, gpus=gpus, seconds=seconds, failure=failure)

    def _parsed(self, *, full: bool = False) -> ParsedRun:
        if self._known is not None and not full:
            return self._known
        readers = self._readers.values()
        parsed = parse_stored(
            self.source.name,
            self._store,
            build=build_series if full else thin_series,
            keep_samples=full,
            files=len(readers),
            lines=sum(reader.lines for reader in readers),
            size=self._size,
            notes=[self._masked(note) for reader in readers for note in reader.notes],
        )
        parsed = structs.replace(parsed, warnings=find_warnings(parsed.curve))
        self._known = None if full else parsed
        return parsed

    @property
    def _size(self) -> int:
        return sum(reader.bytes for reader in self._readers.values())

    def _files(self) -> list[tuple[int, Path]]:
        return _choices(self.source)[self._choice]

    def _read(self, pieces_of: _PiecesOf, progress: OnProgress | None = None) -> None:
        """Read on, to the choice of files that has the loss, the last one if none has it yet."""
        self._read_files(pieces_of, progress)
        if self._is_decided or self._size < self._asked_at * _LONGER:
            return
        for choice, files in enumerate(_choices(self.source)):
            if self._tail is not None and len(files) > _FEW:
                continue
            if choice != self._choice:
                self._choice = choice
                self._begin()
                self._read_files(pieces_of, progress)
            self._is_decided = self._parsed().points > 0
            if self._is_decided:
                break
        self._asked_at = self._size

    def _read_files(self, pieces_of: _PiecesOf, progress: OnProgress | None) -> None:
        for attempt, path in self._files():
            if attempt < self._attempt:
                continue
            for pieces in self._limited(path, pieces_of(path)):
                self._add(attempt, path, pieces)
                if progress is not None:
                    progress(path, self._readers[path].position)

    def _limited(self, path: Path, pieces: Iterator[Pieces]) -> Iterator[Pieces]:
        """Give each piece, unless a user's own pattern takes far too long for one."""
        own = ", ".join(form.pattern.pattern for form in self._formats if not form.needle)
        error = InputError(
            f"{path}: the pattern {own} takes for ever",
            fix="repeat nothing that is repeated, as in (a+)+, and name what ends a .*",
        )
        while True:
            with time_limit(PATTERN_LIMIT_CPU_S, error) if own else contextlib.nullcontext():
                found = next(pieces, None)
            if found is None:
                return
            yield found

    def _add(self, attempt: int, path: Path, pieces: Pieces) -> None:
        self._attempt = attempt
        self._store.begin(attempt, self._numbers.setdefault(path, len(self._numbers)))
        self._store.add(pieces)
        self._known = None

    def _reader(self, path: Path, offset: int = 0) -> LogFileReader:
        if path not in self._readers:
            run, is_far = self.source.run, self._context.cluster.host is not None
            kept = run.samples_of(path) if run is not None and is_far else None
            self._readers[path] = LogFileReader(
                path, offset=offset, kept=kept, formats=self._formats
            )
        return self._readers[path]

    def _new(self, path: Path) -> Iterator[Pieces]:
        """Read on in a file to its present end."""
        if path == STDIN:
            yield from self._read_pipe()
            return
        try:
            size, start = path.stat().st_size, 0
            if self._tail is not None and size > self._tail and path not in self._readers:
                with path.open("rb") as file:
                    start = find_line_start(file, size - self._tail)
            if size and size > self._reader(path, start).bytes:
                yield from self._readers[path].read_new()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error

    def _read_pipe(self) -> Iterator[Pieces]:
        """Read what stands in the pipe; not without end, where it is filled as fast."""
        reader = self._reader(STDIN)
        until = time.monotonic() + _PIPE_SECONDS
        while not self.is_over and select.select([0], [], [], 0)[0] and time.monotonic() < until:
            data = os.read(0, _CHUNK)
            self.is_over = not data
            reader.bytes += len(data)
            yield reader.reader.feed(data) if data else reader.reader.finish()

    def _is_another(self, path: Path) -> bool:
        """Whether a file is shorter than what was read of it, or another one in its place."""
        reader = self._readers[path]
        try:
            now = None if path == STDIN else path.stat()
        except OSError:
            return False
        return now is not None and (now.st_size < reader.bytes or now.st_ino != reader.inode)


def own_formats(patterns: Iterable[str], where: str) -> tuple[Format, ...]:
    """Make line formats of a user's own patterns. Raises InputError for one that is no pattern."""
    made = []
    for pattern in patterns:
        try:
            re.compile(pattern)  # first: what is no pattern has no names either
            made.append(own_format(where.lstrip("-"), pattern))
        except (re.error, ValueError, RecursionError, OverflowError) as error:
            fix = r"give its values names, as in 'it (?P<step>\d+) L (?P<loss>\S+)'"
            raise InputError(f"{where} {pattern}: {error}", fix=fix) from error
    return tuple(made)


def _choices(source: Source) -> list[list[tuple[int, Path]]]:
    """Return the files to read, with their attempts, in the order in which to try them."""
    if source.run is None:
        return [[(0, path) for path in source.files]]
    ranks = [file for file in log_files(source.run) if file.attempt is not None]
    last = max((file.rank or 0 for file in ranks), default=0)
    return [
        [(file.attempt or 0, file.path) for file in ranks if not chosen or file.rank in chosen]
        for chosen in ((0,), (last,), ())
    ]


def _size(path: Path) -> int:
    """Return how long a file is; 0 of a pipe, and of what is not there."""
    with contextlib.suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0
