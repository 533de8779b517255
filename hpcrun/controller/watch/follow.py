"""Follows runs and jobs to their end: their logs as they grow, their states as they change.

Never changes or cancels anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from hpcrun.controller.watch.watched import Status, Watched
from hpcrun.logs.files import LogFile
from hpcrun.logs.tail import Tail

# A line shows this much after it is written at most, in seconds; also after hours of silence.
LOOK_EVERY = 0.1
# Each look at a file is a request to the file server: hundreds of ranks take turns, but those that
# spoke last, rank 0 and the batch script are looked at each time.
FILES_A_TURN = 24
LIVELY = 8
# New files are looked for so often; where there are many, more seldom.
LIST_EVERY = 0.2
LIST_EACH = 0.003

Choose = Callable[[Sequence[LogFile]], list[LogFile]]


class State:
    """The state of a run or job changed (also at the start and at the end)."""

    def __init__(self, status: Status) -> None:
        self.status = status


class Lines:
    """New lines of a log."""

    def __init__(self, file: LogFile, data: bytes) -> None:
        self.file = file
        self.data = data


class Begins:
    """What follows is another attempt's, or the file was begun anew; said in ``words``."""

    def __init__(self, file: LogFile, words: str) -> None:
        self.file = file
        self.words = words


Event = State | Lines | Begins


def follow(
    watched: Watched,
    *,
    choose: Choose | None = list,
    tail: Tail | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Follow until all is over; the last events are the final States.

    ``choose`` picks the files that are shown, None: states alone. While Slurm is out of reach the
    state is UNKNOWN and the following goes on.
    """
    logs = _Logs(watched, choose, tail or Tail())
    while True:
        changed = watched.look()
        yield from logs.rest() if watched.is_over else logs.news()
        yield from (State(each) for each in changed)
        if watched.is_over:
            return
        sleep(LOOK_EVERY)


def wait_all(
    watched: Sequence[Watched],
    *,
    deadline: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Status]:
    """Give each status when it changes, until all are over or ``deadline`` (by time.monotonic).

    While Slurm is silent states are UNKNOWN, and the waiting goes on. An end is given once.
    """
    while True:
        for one in watched:
            yield from one.look()
        live = [one for one in watched if not one.is_over]
        left = None if deadline is None else deadline - time.monotonic()
        if not live:
            return
        if left is not None and left <= 0:
            for one in live:
                yield from one.look(last=True)
            return
        pause = min(one.pause for one in live)
        sleep(pause if left is None else min(pause, left))


class _Logs:
    """The files that are followed, whose turn it is, and which attempt each has come to."""

    def __init__(self, watched: Watched, choose: Choose | None, tail: Tail) -> None:
        self._watched, self._choose, self._tail = watched, choose, tail
        self._files: list[LogFile] = []
        self._attempts: dict[tuple[str | None, bool], int] = {}
        self._lively: list[LogFile] = []
        self._turn = 0
        self._next_list = 0.0

    def news(self) -> Iterator[Event]:
        """Give what is new in the files whose turn it is."""
        if self._choose is None:
            return
        if time.monotonic() >= self._next_list:
            files = self._choose(self._watched.files())
            fresh = self._fresh(files)
            self._files = files
            self._next_list = time.monotonic() + max(LIST_EVERY, LIST_EACH * len(files))
            yield from self._begin(fresh)
        yield from self._read(self._due())

    def rest(self) -> Iterator[Event]:
        """Give all that is left, to the last line without an end."""
        if self._choose is None:
            return
        files = self._choose(self._watched.files())
        yield from self._begin(self._fresh(files))
        for file, data in self._tail.finish(files):
            yield Lines(file, data)

    def _fresh(self, files: Sequence[LogFile]) -> list[LogFile]:
        known = set(self._files)  # a sweep has thousands
        return [file for file in files if file not in known]

    def _begin(self, fresh: Sequence[LogFile]) -> Iterator[Event]:
        """Go through new files, with a word where a new attempt begins."""
        for file in fresh:
            if file.attempt is not None:
                key = (file.job_id, file.is_err)
                before = self._attempts.get(key)
                if before is not None and file.attempt > before:
                    # What the last attempt still had to say comes first.
                    old = [each for each in self._files if each.attempt == before]
                    yield from self._read(old)
                    yield Begins(file, self._watched.attempt_line(file))
                self._attempts[key] = max(before or 0, file.attempt)
            yield from self._read([file])

    def _read(self, files: Sequence[LogFile]) -> Iterator[Event]:
        for file, data in self._tail.poll(files):
            if file.path in self._tail.rewritten:
                self._tail.rewritten.discard(file.path)
                self._watched.heard(file, None)
                yield Begins(file, f"{file.path} was begun anew")
            self._watched.heard(file, data)
            if file not in self._lively[:1]:
                self._lively = [file, *(each for each in self._lively if each != file)][:LIVELY]
            yield Lines(file, data)

    def _due(self) -> list[LogFile]:
        if len(self._files) <= FILES_A_TURN:
            return self._files
        always = [f for f in self._files if f.rank == 0 or f.attempt is None][-LIVELY:]
        always += [file for file in self._lively if file in self._files]
        self._turn += 1
        room = max(1, FILES_A_TURN - len(always))
        first = self._turn * room % len(self._files)
        others = (self._files[first:] + self._files[:first])[:room]
        return list(dict.fromkeys([*always, *others]))
