"""Parse a run: the logs of its attempts to a curve and warnings.

The caller opens the files; here come their bytes, or the frames that a Reader made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from hpcrun.metrics.columns import curve_columns
from hpcrun.metrics.curve import Curve
from hpcrun.metrics.curves.build import CurveBuilder
from hpcrun.metrics.health.find import find_warnings
from hpcrun.metrics.lines.tables import LARGEST_DOCUMENT, may_be_document
from hpcrun.metrics.names import LOSS
from hpcrun.metrics.reading.read import Reader, read_document_frames
from hpcrun.metrics.row import Frame, Placed
from hpcrun.metrics.sample import Samples


class ParsedRun(Struct, frozen=True):
    """What the logs of one run say, and how much was read to find it.

    ``source`` is what the user named (a file, a job, a run). ``formats`` are the forms in which
    samples were found, most frequent first. ``warnings`` is empty for a healthy log. ``samples``
    are kept only where they are asked for. ``lines`` counts the lines before the first that
    measured something.

    ``facts`` is what is known of the run beside its log: the settings of a run of hpcrun as its
    job file names them ("batch.micro_batch_per_gpu": "4"), so that runs can be told apart; empty
    for a plain log, as are ``gpus`` and ``seconds`` (of running, all attempts) None.
    """

    source: str
    formats: tuple[str, ...]
    samples: Samples
    curve: Curve
    warnings: tuple[str, ...]
    files: int
    lines: int
    bytes: int
    facts: dict[str, str] = {}
    gpus: int | None = None
    seconds: float | None = None

    @property
    def points(self) -> int:
        """Number of points of the training loss."""
        return summary.count if (summary := self.curve.summary(LOSS)) else 0

    def columns(self) -> dict[str, list[float | None]]:
        """Return a table for pandas: a row per step, a column per metric (``curve_columns``)."""
        return curve_columns(self.curve)


class RunParser:
    """Makes one run of the frames of its logs, which come file by file.

    >>> parser = RunParser()
    >>> reader = Reader()
    >>> parser.begin(0)
    >>> parser.add(reader.feed(b"step=1 loss=2.5\\nstep=2 loss=2.25\\n"))
    >>> parser.run("a.log").points
    2
    """

    def __init__(self, *, limit: int | None = None, keep_samples: bool = False) -> None:
        """Keep ``limit`` points of each metric, None for all; the samples only if asked for."""
        self._builder = CurveBuilder(limit, keep_samples)
        self._formats: dict[str, int] = {}

    def begin(self, attempt: int, file: int = 0) -> None:
        """Begin a log file, or go on with it; an attempt may have several."""
        self._builder.begin(attempt, file)

    def add(self, pieces: Sequence[Frame | Placed]) -> None:
        """Take what stands next in the file."""
        for piece in pieces:
            if isinstance(piece, Frame):
                name = piece.layout.format
                self._formats[name] = self._formats.get(name, 0) + len(piece)
        self._builder.add(pieces)

    def end(self) -> None:
        """The file is over."""
        self._builder.end()

    def curve(self) -> Curve:
        """Return the curve as it is known so far."""
        return self._builder.curve()

    def run(
        self,
        source: str,
        *,
        files: int = 1,
        lines: int = 0,
        size: int = 0,
        facts: Mapping[str, str] | None = None,
        gpus: int | None = None,
        seconds: float | None = None,
        notes: Sequence[str] = (),
    ) -> ParsedRun:
        """Return the run as it is known so far; ``size`` is how many bytes were read."""
        curve = self._builder.curve()
        curve = structs.replace(curve, notes=(*curve.notes, *notes))
        return ParsedRun(
            source=source,
            formats=tuple(sorted(self._formats, key=lambda name: -self._formats[name])),
            samples=self._builder.samples,
            curve=curve,
            warnings=find_warnings(curve),
            files=files,
            lines=lines,
            bytes=size,
            facts=dict(facts or {}),
            gpus=gpus,
            seconds=seconds,
        )


def read_pieces(reader: Reader, chunks: Iterable[bytes]) -> Iterator[list[Frame | Placed]]:
    """Read a log that comes in chunks to its end; it may be one JSON document.

    >>> state = [b'{"log_history": [{"loss": 2.5,', b' "step": 10}]}']
    >>> [[*frame.steps] for pieces in read_pieces(Reader(), state) for frame in pieces]
    [[10]]
    """
    begun: list[bytes] = []
    size = 0
    chunks = iter(chunks)
    for chunk in chunks:
        begun.append(chunk)
        size += len(chunk)
        if size > LARGEST_DOCUMENT or not may_be_document(b"".join(begun[:2])):
            break
    else:
        if frames := read_document_frames(b"".join(begun)):
            yield [*frames]
            return
    for chunk in begun:
        yield reader.feed(chunk)
    for chunk in chunks:
        yield reader.feed(chunk)
    yield reader.finish()
