"""Read the metrics of log files, runs, sweeps and Slurm jobs for `hpcrun parse`."""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from hpcrun.actions.logs import masker_of
from hpcrun.context import Context
from hpcrun.curves import (
    FORMATS,
    PATTERN_LIMIT_CPU_S,
    Curve,
    LineFormat,
    LogFileReader,
    ParsedRun,
    Pieces,
    Store,
    build_series,
    derive_curve,
    explain_lines,
    explain_unused,
    find_line_start,
    find_warnings,
    own_format,
    parse_stored,
    read_beginning,
    read_stated_numbers,
    thin_series,
)
from hpcrun.errors import InputError
from hpcrun.logs import list_log_files
from hpcrun.monitor import STDIN, Source, find_sources
from hpcrun.patterns import time_limit
from hpcrun.runs import EVALUATIONS, RunFolder, read_plan
from hpcrun.text import format_count

if TYPE_CHECKING:
    from hpcrun.actions.evaluation_scores import EvaluationScores

_PIPE_CHUNK_BYTES = 1 << 20
# A pipe is read for this long at most before its curve is drawn.
_PIPE_READ_S = 0.5
# While no rank has logged a loss, the ranks are compared again when the logs have grown by this
# factor.
_RECHECK_GROWTH = 1.2
# Lines that were not read are explained in this many bytes at the start of a log.
_MAX_EXPLAINED_BYTES = 1 << 22
# Programs state the number of their parameters and steps before they train.
_MAX_STATED_BYTES = 1 << 18
# If only the ends of logs are read, at most this many files are read.
_MAX_TAILED_FILES = 16


# Called with a file and the number of its bytes that were read.
OnProgress = Callable[[Path, int], None]
_PiecesOf = Callable[[Path], Iterator[Pieces]]


def parse_runs(
    context: Context,
    arguments: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    full: bool = False,
    every: int = 1,
    verbose: bool = False,
    training: int | None = None,
) -> list[ParsedRun]:
    """Read the runs and logs that the arguments name; without arguments, the newest run.

    Args:
        arguments: words for ``find_sources``.
        patterns: line formats of the user, tried before the known ones.
        full: keep every point and every sample; otherwise long metrics are thinned.
        every: keep only every N-th row of each layout.
        verbose: explain what looks like a metric and is not used.
        training: number of the training to show of several in one log; None for the last one.

    Raises InputError.
    """
    own, runs = build_own_formats(patterns, "--pattern"), []
    sources = find_sources(context, arguments)
    sizes = {path: _size(path) for source in sources for _, path in _file_choices(source)[0]}
    read: dict[Path, int] = {}
    with context.bar("reading", "MB") as show:

        def advance(path: Path, position: int) -> None:
            read[path] = position
            sizes.setdefault(path, _size(path))
            show(sum(read.values()) / 1e6, sum(sizes.values()) / 1e6)

        for source in sources:
            log = CurveLog(context, source, own, every=every, training=training)
            log.read(advance)
            if training and training > (found := log.curve(all_trainings=False).trainings):
                count = format_count(found, "training")
                raise InputError(
                    f"{source.name}: --training {training}, but the log contains {count}",
                    fix="leave out --training, or give a lower number",
                )
            run = structs.replace(log.run(full=full), stated=log.read_stated_numbers())
            runs.append(structs.replace(run, unused=log.explain_unused()) if verbose else run)
    return runs


class CurveLog:
    """The logs of one curve, which may grow while they are read.

    In most runs the first rank prints the loss, with Megatron and its relatives the last one;
    otherwise the files of all ranks are read. If a file is truncated or replaced, the whole curve
    is read again from the start. While logs grow, output of an attempt is ignored once the next
    attempt has begun. ``is_over`` is True if nothing can follow (the end of a pipe).
    """

    def __init__(
        self,
        context: Context,
        source: Source,
        own: Sequence[LineFormat] = (),
        *,
        tail: int | None = None,
        every: int = 1,
        training: int | None = None,
    ) -> None:
        """Set what to read.

        Args:
            own: line formats of the user.
            tail: read only this many bytes at the end of each log, and no large number of files.
            every: keep only every N-th row of each layout.
            training: number of the training to show of several; None for the last one.
        """
        self.source = source
        self.is_over = False
        self._context, self._tail, self._every = context, tail, every
        self._training = training
        if source.run is not None:
            plan = read_plan(source.run)
            own = (*own, *build_own_formats(plan.log_patterns if plan else (), "log_patterns"))
        self._formats = (*own, *FORMATS) if own else FORMATS
        # Index of the files of _file_choices() that are read, and the size at the last check.
        self._choice, self._checked_size = 0, 0.0
        self._is_decided = source.run is None
        self._scores = _open_scores(context, source.run)
        # Load the secrets now: their file is removed at the end of the run.
        self._masked = masker_of(context, [] if source.run is None else [source.run]).text
        self._start_over()

    def _start_over(self) -> None:
        self._store = Store(every=self._every, is_hidden=self._is_hidden)
        self._attempt = 0
        self._readers: dict[Path, LogFileReader] = {}
        # Files are numbered in the order of their names, not in the order of their first bytes.
        self._numbers = {path: number for number, path in enumerate(self.source.files)}
        self._known: ParsedRun | None = None

    def _is_hidden(self, name: str) -> bool:
        """Return True if the name of a metric contains a secret."""
        return self._masked(f"{name}=1") != f"{name}=1"

    def read(self, progress: OnProgress | None = None) -> None:
        """Read the logs from start to end, choosing the files that have the loss."""
        self._read(lambda path: iter(self._reader(path)), progress)

    def read_new(self) -> bool:
        """Read what was appended; return True if there was anything."""
        before = self._size
        was_replaced = any(map(self._was_replaced, self._readers))
        if was_replaced:
            self._start_over()
        self._read(self._read_new)
        is_evaluated = self._scores is not None and self._scores.update()
        return was_replaced or self._size != before or is_evaluated

    def finish(self) -> None:
        """Read last lines without a line end; call it when nothing can follow."""
        for attempt, path in self._files():
            if path != STDIN and path in self._readers and attempt >= self._attempt:
                self._add(attempt, path, self._readers[path].reader.finish())

    def is_missing(self) -> bool:
        """Return True if none of the files exists, as before a Slurm job starts."""
        return self.source.run is None and not any(path.exists() for path in self.source.files)

    def curve(self, *, all_trainings: bool, full: bool = False) -> Curve:
        """Derive the curve from what was read so far; ``full``: with all points.

        ``all_trainings``: of several trainings in one log, keep the points of all. Otherwise the
        curve is that of the selected training, and loses its points when the next one begins.
        """
        build = build_series if full else thin_series
        return derive_curve(self._store, build, self._training, all_trainings=all_trainings)

    def explain_unused(self) -> tuple[str, ...]:
        """Explain what looks like a metric and is not used, in the lines read and at the start."""
        texts = [*explain_unused(self._store, self.curve(all_trainings=True))]
        for _, path in self._files():
            texts += explain_lines(read_beginning(path, _MAX_EXPLAINED_BYTES))
        return tuple(map(self._masked, texts))

    def read_stated_numbers(self) -> dict[str, str]:
        """Read the numbers that the first file with any states at its start."""
        for _, path in self._files():
            if path in self._readers and path != STDIN:
                text = read_beginning(path, _MAX_STATED_BYTES).decode("utf-8", "replace")
                if found := read_stated_numbers(text):
                    return found
        return {}

    def run(self, *, full: bool = False) -> ParsedRun:
        """Return the run with everything read so far, and with its records.

        ``full``: with all points, and the samples.
        """
        parsed, run = self._parsed(full=full), self.source.run
        if run is None:
            return parsed
        if self._scores is not None:
            self._scores.update()
            parsed = structs.replace(parsed, curve=self._scores.add(parsed.curve))
        from hpcrun.actions.run_facts import (  # deferred: YAML takes 20 ms
            add_attempts,
            measure_step_time,
            read_run_facts,
            summarize_usage,
        )
        from hpcrun.actions.why import describe_failure

        facts, gpus, seconds = read_run_facts(run)
        parsed, failure = add_attempts(parsed, run), describe_failure(self._context, run)
        return structs.replace(
            parsed,
            facts=facts,
            gpus=gpus,
            seconds=seconds,
            failure=failure,
            usage=structs.replace(
                summarize_usage(run), step_seconds=measure_step_time(run, parsed.curve)
            ),
        )

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
            training=self._training,
        )
        parsed = structs.replace(parsed, warnings=find_warnings(parsed.curve))
        self._known = None if full else parsed
        return parsed

    @property
    def _size(self) -> int:
        return sum(reader.bytes for reader in self._readers.values())

    def _files(self) -> list[tuple[int, Path]]:
        return _file_choices(self.source)[self._choice]

    def _read(self, pieces_of: _PiecesOf, progress: OnProgress | None = None) -> None:
        """Read, and try other files until a loss is found; without one, use the last choice."""
        self._read_files(pieces_of, progress)
        if self._is_decided or self._size < self._checked_size * _RECHECK_GROWTH:
            return
        for choice, files in enumerate(_file_choices(self.source)):
            if self._tail is not None and len(files) > _MAX_TAILED_FILES:
                continue
            if choice != self._choice:
                self._choice = choice
                self._start_over()
                self._read_files(pieces_of, progress)
            self._is_decided = self._parsed().points > 0
            if self._is_decided:
                break
        self._checked_size = self._size

    def _read_files(self, pieces_of: _PiecesOf, progress: OnProgress | None) -> None:
        for attempt, path in self._files():
            if attempt < self._attempt:
                continue
            for pieces in self._limit_time(path, pieces_of(path)):
                self._add(attempt, path, pieces)
                if progress is not None:
                    progress(path, self._readers[path].position)

    def _limit_time(self, path: Path, pieces: Iterator[Pieces]) -> Iterator[Pieces]:
        """Yield each piece; raise InputError if a user's pattern takes too long for one."""
        own = ", ".join(form.pattern.pattern for form in self._formats if not form.needle)
        error = InputError(
            f"{path}: the pattern {own} took more than {PATTERN_LIMIT_CPU_S:g} s of CPU time",
            fix="avoid nested repetitions such as (a+)+, and end .* with a literal",
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

    def _read_new(self, path: Path) -> Iterator[Pieces]:
        """Yield what was appended to a file, up to its present end."""
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
        """Yield what is in the pipe, for a limited time, because it may be refilled as fast."""
        reader = self._reader(STDIN)
        until = time.monotonic() + _PIPE_READ_S
        while not self.is_over and select.select([0], [], [], 0)[0] and time.monotonic() < until:
            data = os.read(0, _PIPE_CHUNK_BYTES)
            self.is_over = not data
            reader.bytes += len(data)
            yield reader.reader.feed(data) if data else reader.reader.finish()

    def _was_replaced(self, path: Path) -> bool:
        """Return True if a file is shorter than what was read of it, or was replaced."""
        reader = self._readers[path]
        try:
            now = None if path == STDIN else path.stat()
        except OSError:
            return False
        return now is not None and (now.st_size < reader.bytes or now.st_ino != reader.inode)


def _open_scores(context: Context, run: RunFolder | None) -> EvaluationScores | None:
    """Return the scores of a training's checkpoints; None if nothing evaluates them."""
    if run is None or not (run.path / EVALUATIONS).is_file():
        return None
    from hpcrun.actions.evaluation_scores import EvaluationScores  # deferred: rarely needed

    def read_curve(evaluation: RunFolder) -> Curve:
        log = CurveLog(context, Source(evaluation.run_id, run=evaluation))
        log.read()
        return log.curve(all_trainings=False, full=True)

    return EvaluationScores(context, run, read_curve)


def build_own_formats(patterns: Iterable[str], where: str) -> tuple[LineFormat, ...]:
    """Build line formats from a user's patterns. Raises InputError for an invalid one."""
    made = []
    for pattern in patterns:
        try:
            re.compile(pattern)  # first, for its error message
            made.append(own_format(where.lstrip("-"), pattern))
        except (re.error, ValueError, RecursionError, OverflowError) as error:
            fix = r"name the groups, as in 'it (?P<step>\d+) L (?P<loss>\S+)'"
            raise InputError(f"{where} {pattern}: {error}", fix=fix) from error
    return tuple(made)


def _file_choices(source: Source) -> list[list[tuple[int, Path]]]:
    """Return choices of files to read, with their attempts, in the order to try them."""
    if source.run is None:
        return [[(0, path) for path in source.files]]
    files = list_log_files(source.run)
    ranks = [file for file in files if file.attempt is not None]
    if not ranks and source.run.batch_script.is_file():
        # The user's own sbatch script writes to the output of the job.
        return [[(0, file.path) for file in files]]
    last = max((file.rank or 0 for file in ranks), default=0)
    return [
        [(file.attempt or 0, file.path) for file in ranks if not chosen or file.rank in chosen]
        for chosen in ((0,), (last,), ())
    ]


def _size(path: Path) -> int:
    """Return the size of a file; 0 for a pipe or a missing file."""
    with contextlib.suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0
