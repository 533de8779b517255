"""When Slurm is asked again: soon after news, in quick succession around an end, else seldom."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence

# While nothing happens Slurm is asked twice a minute at most (squeue(1), PERFORMANCE).
CALM = 30.0
# In a sweep of short runs each end is news: of all questions so many are asked as soon as there is
# a reason in so many seconds, those beyond at a distance. That is 4 a minute.
FREE, WINDOW = 8, 120.0
APART = 15.0


class Pace:
    """The time of the next question; times are those of time.monotonic(), handed in."""

    def __init__(self, succession: Sequence[float]) -> None:
        """Take the pauses of a quick succession, in seconds; the first question is due at once."""
        self.next = 0.0
        self._succession = succession
        self._pauses: Iterator[float] = iter(())
        self._asked: deque[float] = deque(maxlen=FREE)

    def is_due(self, now: float) -> bool:
        return now >= self.next

    def news(self, now: float, *, quick: bool = False, apart: float = 0.0) -> None:
        """Ask at once, as far as the bounds allow; ``quick``: and then in quick succession.

        News that are worth less keep so many seconds ``apart`` from the last question.
        """
        if quick:
            self._pauses = iter(self._succession)
        last = self._asked[-1] if self._asked else now - apart
        self.next = min(self.next, max(self._earliest(now), last + apart))

    def hurry(self) -> None:
        """Begin the quick succession with the next pause."""
        self._pauses = iter(self._succession)

    def asked(self, now: float) -> None:
        """Take note of a question, and set the time of the next one."""
        self._asked.append(now)
        pause = next(self._pauses, CALM * random.uniform(1.0, 1.2))
        self.next = max(now + pause, self._earliest(now))

    def asked_lately(self, now: float) -> int:
        """How many questions were asked in the last minute; FREE means as many or more."""
        return sum(now - at < 60 for at in self._asked)

    def _earliest(self, now: float) -> float:
        if len(self._asked) < FREE or now - self._asked[0] >= WINDOW:
            return now
        return max(now, self._asked[-1] + APART)
