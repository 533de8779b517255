"""Parse a run: the logs of its attempts to a curve.

The caller opens the files; here come their bytes, or the frames that a Reader made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from hpcrun.metrics.curve import Curve, Series, build_series, curve_columns
from hpcrun.metrics.derive import derive
from hpcrun.metrics.names import LOSS
from hpcrun.metrics.store import Samples, Store


class ParsedRun(Struct, frozen=True):
    """What the logs of one run say, and how much was read to find it.

    ``source`` is what the user named (a file, a job, a run). ``formats`` are the forms in which
    samples were found, most frequent first. ``samples`` are kept only where they are asked for.
    ``lines`` counts the lines before the first that measured something. ``warnings`` are for the
    caller to fill in; a healthy log has none.

    ``facts`` is what is known of the run beside its log: the settings of a run of hpcrun as its
    job file names them ("batch.micro_batch_per_gpu": "4"), so that runs can be distinguished; empty
    for a plain log, as are ``gpus`` and ``seconds`` (of running, all attempts) None. ``spare_gpus``
    are those of spare nodes. Of a run that was started more than once ``attempts`` has a row of
    texts for each, ``cost`` is theirs.
    ``failure``: why it failed; "" where it did not, or has not ended.
    """

    source: str
    formats: tuple[str, ...]
    samples: Samples
    curve: Curve
    files: int
    lines: int
    bytes: int
    warnings: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    gpus: int | None = None
    spare_gpus: int = 0
    seconds: float | None = None
    attempts: tuple[tuple[str, ...], ...] = ()
    cost: str = ""
    failure: str = ""

    @property
    def points(self) -> int:
        """Number of points of the training loss."""
        return summary.count if (summary := self.curve.summary(LOSS)) else 0

    def columns(self) -> dict[str, list[float | None]]:
        """Return a table for pandas: a row per step, a column per metric (``curve_columns``)."""
        return curve_columns(self.curve)


def parse_stored(
    source: str,
    store: Store,
    *,
    build: Callable[..., Series] = build_series,
    keep_samples: bool = False,
    files: int = 1,
    lines: int = 0,
    size: int = 0,
    notes: Sequence[str] = (),
) -> ParsedRun:
    """Derive a run from what is stored of its logs; ``size`` is how many bytes were read.

    ``build`` makes its series, and may thin them.

    >>> from hpcrun.metrics.lines.read import Reader
    >>> store, reader = Store(), Reader()
    >>> store.begin(0)
    >>> store.add(reader.feed(b"step=1 loss=2.5\\nstep=2 loss=2.25\\n"))
    >>> parse_stored("a.log", store).points
    2
    """
    curve = derive(store, build)
    curve = structs.replace(curve, notes=(*curve.notes, *notes))
    return ParsedRun(
        source=source,
        formats=store.formats(),
        samples=Samples(store if keep_samples else Store()),
        curve=curve,
        files=files,
        lines=lines,
        bytes=size,
    )
