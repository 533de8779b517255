"""Continuous updates of the mirror, by a script that runs on the cluster."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable

from hpcrun.errors import HpcrunError, OutOfReach
from hpcrun.remote.connection import Connection
from hpcrun.remote.mirror import Mirror, MirrorMismatch, Receiver

# Interval of polls on the cluster. Many runs are polled less often, since each poll reads their
# folders.
_EVERY, _RUNS_A_SECOND = 0.25, 50
# Above this number of runs, single requests are used instead.
MOST_RUNS = 100
# A connection without data for this many seconds is broken: every poll sends an answer.
_SILENCE_LIMIT_S = 20.0
# Backoff before a new connection, in seconds: doubles from the first value to the last.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
# A run is no longer followed this many seconds after the last call for it.
_FOLLOW_FOR_S = 60.0


class Feed:
    """Keeps runs in the mirror up to date with the cluster."""

    def __init__(self, connection: Connection, mirror: Mirror, runs_dir: str) -> None:
        self.connection, self.mirror, self.runs_dir = connection, mirror, runs_dir
        self._followed: dict[str, float] = {}  # runs, and the time of the last call for each
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._rounds = 0  # number of answered polls
        self._is_up = False
        self._fault: HpcrunError | None = None

    def follow_runs(self, runs: Iterable[str]) -> None:
        """Keep runs up to date from now on; call this again at least once a minute.

        Raises:
            OutOfReach: No updates arrive; raised at least once for each interruption, and on every
                call if the error is final.
        """
        with self._change:
            self._followed |= dict.fromkeys(runs, time.monotonic())
            is_final = self._fault is not None and not _is_retryable(self._fault)
            if self._thread is None and not is_final:
                self._thread = threading.Thread(target=self._follow_until_stopped, daemon=True)
                self._thread.start()
            fault = self._fault
            if self._is_up:
                self._fault = None
        if fault is not None:
            raise fault

    def wait_for_changes(self, runs: Iterable[str], timeout: float) -> bool:
        """Wait until the mirror has everything that the runs had when the call began.

        Returns:
            False for runs that are not followed.

        Raises:
            OutOfReach: No updates arrive.
        """
        with self._change:
            if self._thread is None or not self._followed.keys() >= set(runs):
                return False
            # The next answer may belong to a poll that started before this call.
            wanted, until = self._rounds + 2, time.monotonic() + timeout
            while self._rounds < wanted:
                if self._fault is not None and not self._is_up:
                    raise self._fault
                if self._thread is None:
                    return False
                if not self._change.wait(until - time.monotonic()):
                    raise OutOfReach(f"{self.connection.host}: no response within {timeout:.3g} s")
            return True

    def stop(self) -> None:
        """Stop following runs; return once received data is written."""
        with self._change:
            self._followed.clear()
            while self._thread is not None and self._change.wait(_SILENCE_LIMIT_S):
                pass

    def _follow_until_stopped(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._change:
                self._is_up = False
                runs = self._followed_runs()
                is_final = self._fault is not None and not _is_retryable(self._fault)
                if not runs or is_final or self.connection.is_full:
                    self._thread = None
                    self._change.notify_all()
                    return
            before = self._rounds
            try:
                self._stream_changes(runs)
            except _FollowedRunsChanged:
                continue
            except MirrorMismatch:
                time.sleep(_EVERY)
                continue
            except HpcrunError as error:
                fault = error
            except OSError as error:
                fault = self.mirror.not_written(error)
            else:
                fault = OutOfReach(f"{self.connection.host}: the remote script has ended")
            pause = _FIRST_PAUSE if self._rounds > before else min(2 * pause, _LONGEST_PAUSE)
            with self._change:
                self._is_up, self._fault = False, fault
                self._change.notify_all()
            if _is_retryable(fault):
                time.sleep(pause * random.uniform(0.8, 1.2))

    def _stream_changes(self, runs: frozenset[str]) -> None:
        """Process answers until the script ends.

        Raises:
            _FollowedRunsChanged: Other runs are followed now.
            HpcrunError, OSError: The reason why the script ended.
        """
        pause = max(_EVERY, len(runs) / _RUNS_A_SECOND)
        whole = self.mirror.is_whole(runs)
        script = self.mirror.build_script(self.runs_dir, runs, whole=whole, pause=f"{pause:.2f}")
        receiver = Receiver(self.mirror, runs, whole=whole, host=self.connection.host)

        def receive(data: bytes) -> None:
            before = receiver.rounds
            receiver.receive(data)
            with self._change:
                if receiver.rounds > before:
                    self._rounds += receiver.rounds - before
                    self._is_up = True
                    self._change.notify_all()
                wanted = self._followed_runs()
                if not wanted or not wanted <= runs or self.connection.is_full:
                    raise _FollowedRunsChanged

        try:
            self.connection.run(script, timeout=_SILENCE_LIMIT_S, on_output=receive)
        finally:
            receiver.close()

    def _followed_runs(self) -> frozenset[str]:
        since = time.monotonic() - _FOLLOW_FOR_S
        return frozenset(name for name, asked in self._followed.items() if asked > since)


class _FollowedRunsChanged(Exception):
    """Other runs are followed now, or none; or another script needs the only session."""


def _is_retryable(fault: HpcrunError) -> bool:
    return isinstance(fault, OutOfReach) and not fault.is_final
