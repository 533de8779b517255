"""The process that watches an attempt while its ranks run, on the job's first node."""

import os
import select
import signal
import subprocess
import threading
import time
import traceback
from typing import Callable, Mapping, Set

from hpcrun.jobside.checkpoints import newest_checkpoint, prune, size_of, warn_of_room
from hpcrun.jobside.lone_ranks import CHECK_S, LoneRanks
from hpcrun.jobside.records import read_line, write_record
from hpcrun.jobside.slurm import Job
from hpcrun.jobside.stall import Actions, StallWatch
from hpcrun.jobside.successors import Continuation, SpareGuard

CHECKPOINTS_EVERY_S = 60.0
GUARD_EVERY_S, SECURE_EVERY_S = 60.0, 300.0
START_BEAT_S = 5.0

Say = Callable[[str], None]


class CheckpointKeeper:
    """Prunes checkpoints as new ones appear, and warns if the disk may lack space for the next."""

    def __init__(self, environ: Mapping[str, str], say: Say, complain: Say) -> None:
        self.environ, self.say, self.complain = environ, say, complain
        self.folder = environ.get("HPCRUN_CHECKPOINT_DIR", "")
        self.marker = environ.get("HPCRUN_CHECKPOINT_MARKER", "")
        self.world = int(environ.get("HPCRUN_WORLD_SIZE") or 1)
        self.newest = ""

    def look(self) -> None:
        newest = newest_checkpoint(self.folder, self.world, self.marker)
        if newest == self.newest:
            return
        self.newest = newest
        prune_checkpoints(self.environ, self.say)
        if newest:
            warn_of_room(os.path.dirname(newest), size_of(newest), self.complain)


def prune_checkpoints(environ: Mapping[str, str], say: Say) -> None:
    """Keep the number of checkpoints that the job requests (``checkpoint.keep``)."""
    keep, run = environ.get("HPCRUN_CHECKPOINT_KEEP"), environ.get("HPCRUN_RUN_DIR", "")
    if keep:
        attempt = os.path.join(run, "attempts", environ.get("HPCRUN_ATTEMPT", "0"))
        prune(
            environ.get("HPCRUN_CHECKPOINT_DIR", ""),
            int(environ.get("HPCRUN_WORLD_SIZE") or 1),
            int(keep),
            marker=environ.get("HPCRUN_CHECKPOINT_MARKER", ""),
            newer_than=os.path.join(run, "spec.yaml"),
            resumed=read_line(os.path.join(attempt, "resume")),
            say=say,
        )


class Successors:
    """Keeps a way for the run to continue if a dead node ends the batch script."""

    def __init__(self, job: Job, before: str) -> None:
        self.job, self.before = job, before
        self.is_secured = False

    def secure(self) -> None:
        if not self.is_secured:
            # A request to stop must not prevent the record of a submitted job.
            handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                self.is_secured = Continuation(self.job).secure(self.before)
            finally:
                signal.signal(signal.SIGTERM, handler)

    def note_kill_wait(self) -> None:
        """Record how long a stopped job may live: as it ends slurmctld may be silent."""
        if self.job.is_slurm and not os.path.exists(self.job.path("kill_wait")):
            write_record(self.job.path("kill_wait"), str(self.job.kill_wait()))


def start_guard(job: Job, node: str) -> "subprocess.Popen[bytes]":
    """Start a watchdog on another node. Its input ends with this process."""
    harness = os.path.join(job.run, "harness.sh")
    process = subprocess.Popen(
        ["bash", "--", harness, "beside", "0", node, "1", "guard", job.host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    def wait_for_guard() -> None:
        if process.stdout is not None:
            process.stdout.readline()
            write_record(job.path("guarded"), "")
            process.stdout.read()

    threading.Thread(target=wait_for_guard, daemon=True).start()
    return process


def watch(environ: Mapping[str, str], before: str, say: Say, complain: Say) -> None:
    """Watch the attempt until stdin ends, as it does with the batch script.

    Args:
        before: The job that had the run before this one, or "".
    """
    keeper = CheckpointKeeper(environ, say, complain)
    job = Job(environ, complain)
    successors = Successors(job, before)
    guard = SpareGuard(job, lambda node: start_guard(job, node))
    stalls = StallWatch(environ, say, Actions(environ))
    lone = LoneRanks(environ, complain)
    notifier = None
    if os.path.exists(os.path.join(job.run, "notify.json")):
        from hpcrun.jobside.notifier import JobNotifier  # other jobs' archives lack it

        notifier = JobNotifier(environ, complain)
    trial = None
    if os.path.exists(os.path.join(job.run, "search.json")):
        from hpcrun.jobside.search import TrialWatch  # other jobs' archives lack it

        trial = TrialWatch(environ, say, Actions(environ))
    every = float(environ.get("HPCRUN_CHECKPOINTS_EVERY") or CHECKPOINTS_EVERY_S)
    duties = [
        *([Duty(guard.look, lambda: GUARD_EVERY_S, 0.0)] if job.allocated else []),
        Duty(successors.note_kill_wait, lambda: SECURE_EVERY_S, 0.0),
        Duty(successors.secure, lambda: SECURE_EVERY_S, 0.0),
        Duty(keeper.look, lambda: every, every),
        *([Duty(lone.check, lambda: CHECK_S, CHECK_S)] if lone.is_on else []),
        Duty(
            lambda: stalls.look(time.time()),
            lambda: min(stalls.beat, START_BEAT_S) if stalls.is_near_the_start() else stalls.beat,
            0.0,
        ),
    ]
    if os.path.exists(os.path.join(job.run, "evaluations.json")):
        from hpcrun.jobside.evaluations import EvaluationWatch

        evaluations = EvaluationWatch(environ, complain)
        duties.append(Duty(evaluations.check, lambda: every, every))
    if notifier is not None and (notifier.is_on or notifier.starts_sweep):
        pause = notifier.every
        duties.append(Duty(notifier.check, lambda: pause, 0.0))
    if trial is not None:
        duties.append(Duty(trial.check, lambda: trial.every, 0.0))
    while True:
        due = min(duty.due for duty in duties)
        if _has_ended(0, max(0.0, due - time.monotonic())):
            if notifier is not None:
                notifier.finish()
            return
        for duty in duties:
            if duty.due <= time.monotonic():
                duty.perform_and_reschedule(complain)


class Duty:
    """A periodic action."""

    def __init__(
        self, action: Callable[[], None], pause: Callable[[], float], first: float
    ) -> None:
        self.action, self.pause = action, pause
        self.due = time.monotonic() + first
        self.failures: Set[str] = set()

    def perform_and_reschedule(self, complain: Say) -> None:
        """Perform the action now, report each kind of failure once, and set the next time."""
        try:
            self.action()
        except Exception:  # other duties continue, and this one is retried
            text = traceback.format_exc()
            if text not in self.failures:
                self.failures.add(text)
                complain("hpcrun: error in the watcher:\n" + text)
        self.due = time.monotonic() + self.pause()


def _has_ended(descriptor: int, seconds: float) -> bool:
    """Wait; return True if the input has ended."""
    ready, _, _ = select.select([descriptor], [], [], seconds)
    return bool(ready) and not os.read(descriptor, 4096)
