"""Parse a run: the logs of its attempts to samples, curve and warnings.

Pure. The caller opens the files; here come their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpcrun.metrics.curve import Curve, build_curve
from hpcrun.metrics.names import EVAL_LOSS, LOSS
from hpcrun.metrics.read import Reader
from hpcrun.metrics.sample import Sample


class ParsedRun(Struct, frozen=True):
    """What the logs of one run say, and how much was read to find it.

    ``source`` is what the user named (a file, a job, a run). ``formats`` are the forms in which
    samples were found, most frequent first. ``warnings`` is empty for a healthy log.
    """

    source: str
    formats: tuple[str, ...]
    samples: tuple[Sample, ...]
    curve: Curve
    warnings: tuple[str, ...]
    files: int
    lines: int
    bytes: int

    @property
    def points(self) -> int:
        """Number of points of the training loss."""
        return len(self.curve.series(LOSS).values)


def parse_chunks(source: str, attempts: Sequence[tuple[int, Iterable[bytes]]]) -> ParsedRun:
    """Parse a run from (attempt number, pieces of one log file) pairs.

    An attempt may have several files (one per node, rank 0 first). Where two of them print the
    same metric, the first speaks for the attempt, as the first rank does within a file.

    >>> run = parse_chunks("a.log", [(0, [b"step=1 loss=2.5\\n", b"step=2 loss=nan\\n"])])
    >>> run.points, run.formats, run.lines, run.warnings
    (2, ('key=value',), 2, ('loss is nan at step 2',))
    """
    samples: list[Sample] = []
    formats: dict[str, int] = {}
    told: dict[int, set[str]] = {}
    lines = size = 0
    for attempt, chunks in attempts:
        reader = Reader(attempt)
        found = [sample for chunk in chunks for sample in reader.feed(chunk)] + reader.finish()
        names = told.setdefault(attempt, set())
        fresh = [sample for sample in found if sample.name not in names]
        names.update(sample.name for sample in fresh)
        samples += fresh
        for name, count in reader.formats.items():
            formats[name] = formats.get(name, 0) + count
        lines += reader.lines_read
        size += reader.bytes_read
    curve = build_curve(samples, (attempt for attempt, _ in attempts))
    return ParsedRun(
        source=source,
        formats=tuple(sorted(formats, key=lambda name: -formats[name])),
        samples=tuple(samples),
        curve=curve,
        warnings=tuple(_warnings(curve)),
        files=len(attempts),
        lines=lines,
        bytes=size,
    )


def _warnings(curve: Curve) -> Iterable[str]:
    """Yield what is wrong with a loss; fp16 scales gradients until they overflow, so those may."""
    for name in (LOSS, EVAL_LOSS):
        steps, values = curve.series(name)
        broken = [index for index, value in enumerate(values) if not math.isfinite(value)]
        if not broken:
            continue
        step = steps[broken[0]]
        where = f"at step {step}" if step is not None else f"at point {broken[0] + 1}"
        if len(broken) > 1:
            where = f"first {where}, {len(broken)} of {len(values)} points are not finite"
        yield f"{name} is {values[broken[0]]} {where}"
