"""How far a job has come, by the end of its log, read on as it grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.controller.curves.growing import GrowingLog
from hpcrun.controller.curves.parse import Source
from hpcrun.errors import InputError
from hpcrun.metrics.curve import Curve, quantile
from hpcrun.metrics.names import EVAL_LOSS, LOSS, SAMPLES_PER_SECOND, TOKENS_PER_SECOND
from hpcrun.report.facts import seconds_per_step, steps_left
from hpcrun.runs.layout import RunFolder

# So many bytes of a log are read at first, from its end.
TAIL = 2 << 20
# So many of the last values are drawn.
RECENT = 200
# The last values of a rate: one alone may be that of a checkpoint.
_RATES = 5
# Seconds over which a rate is observed where the log tells none; and the fewest.
_WINDOW, _LEAST = 120.0, 5.0


class Progress(Struct, frozen=True, kw_only=True):
    """How far a job has come; None: not known.

    ``metric`` is the one that ``value`` and ``recent`` are of: the loss, where there is one.
    ``steps`` are those of ``recent``. ``rate`` is in ``unit``: tokens_per_second,
    samples_per_second or steps_per_second.
    """

    step: int | None = None
    total_steps: int | None = None
    metric: str | None = None
    value: float | None = None
    recent: list[float] = []
    steps: list[int | None] = []
    rate: float | None = None
    unit: str | None = None
    seconds_left: float | None = None


class TopLog:
    """The log of one job, however long: its end is read, and then what is new."""

    def __init__(self, name: str, run: RunFolder | None, outputs: Sequence[Path]) -> None:
        """Nothing is read yet. Without a ``run`` the log is that in the files ``outputs``."""
        source = Source(name, run=run) if run is not None else Source(name, tuple(outputs))
        self._log: GrowingLog | None = None
        try:
            self._log = GrowingLog(source, tail=TAIL)
        except InputError:  # a run's own pattern that this hpcrun cannot read
            return
        self._progress = Progress()
        self._seen: deque[tuple[float, int]] = deque(maxlen=500)

    def look(self, now: float) -> bool:
        """Read on; tell whether there is news. A log that cannot be read has none."""
        try:
            if self._log is None or not self._log.look():
                return False
        except InputError:
            self._log = None
            return True
        self._progress = self._now(self._log.curve(), now)
        return True

    def progress(self) -> Progress:
        """What is known."""
        return self._progress if self._log is not None else Progress()

    def _now(self, curve: Curve, now: float) -> Progress:
        metric = next((name for name in (LOSS, EVAL_LOSS) if name in curve.metrics), None)
        lasts = [series.summary.last.step for series in curve.metrics.values()]
        step = max((last for last in lasts if last is not None), default=None)
        if metric is not None and curve.metrics[metric].summary.last.step is not None:
            step = curve.metrics[metric].summary.last.step
        self._note(now, step)
        pace = seconds_per_step(curve) or self._observed()
        rate, unit = _rate(curve, pace)
        left = steps_left(curve)
        return Progress(
            step=step,
            total_steps=curve.total_steps,
            metric=metric,
            value=None if metric is None else curve.metrics[metric].summary.last.value,
            recent=curve.values(metric)[-RECENT:] if metric else [],
            steps=curve.steps(metric)[-RECENT:] if metric else [],
            rate=rate,
            unit=unit,
            seconds_left=None if left is None or pace is None else left * pace,
        )

    def _note(self, now: float, step: int | None) -> None:
        if step is None or (self._seen and step < self._seen[-1][1]):
            self._seen.clear()
        if step is not None:
            self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()

    def _observed(self) -> float | None:
        """The seconds of a step, as they were seen to pass."""
        if len(self._seen) < 3:
            return None
        # The first look found what had been there already.
        (begun, first), (ended, last) = self._seen[1], self._seen[-1]
        return (ended - begun) / (last - first) if ended - begun > _LEAST and last > first else None


def _rate(curve: Curve, seconds: float | None) -> tuple[float | None, str | None]:
    for name in (TOKENS_PER_SECOND, SAMPLES_PER_SECOND):
        rate = quantile(curve.values(name)[-_RATES:], 0.5)
        if rate is not None:
            return rate, name
    return (None, None) if not seconds else (1 / seconds, "steps_per_second")
