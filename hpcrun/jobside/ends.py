"""Rules for the end of an attempt: why it ended, and whether and when its run continues."""

import json
import os
import re
from typing import Collection, Dict, List, Mapping, NamedTuple, Optional

from hpcrun.jobside.records import (
    IDLE_ATTEMPTS_NOTE,
    MAX_IDLE_ATTEMPTS,
    read_line,
    write_record,
)

# Slurm's own state has precedence over all records.
_BY_STATE = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "OUT_OF_MEMORY": "out_of_memory",
    "REQUEUED": "requeued",
}
# Delay before another attempt, doubled after each idle one that lasted less than QUICK_S, in
# seconds.
PAUSE_S, QUICK_S = 60, 120
# How much of the beginning and end of a rank's log is searched for steps.
_HEAD_BYTES, _TAIL_BYTES = 1 << 20, 4 << 20


def classify_end(
    state: str,
    *,
    preempted: bool = False,
    told: str = "",
    mark: str = "",
    exit_code: int,
    phase: str = "ranks",
) -> str:
    """Return why an attempt ended.

    Args:
        state: The job's current state in Slurm.
        preempted: Slurm has started to preempt it.
        told: The processes were asked to end; ``limit`` means because of the time limit.
        mark: The run's own finding: ``pruned`` by its search; ``stalled``; ``node``, one of its
            nodes is bad or gone; ``memory``, a process was killed because the host was out of
            memory.
        phase: How far it came, ``setup`` or ``ranks``.
    """
    # Whatever has happened to the job meanwhile.
    if mark == "pruned" and not state.startswith("CANCELLED"):
        return "pruned"
    for name, why in _BY_STATE.items():
        if state.startswith(name):
            return why
    if mark == "stalled":
        return "stalled"
    if preempted and (told or exit_code == 143):
        return "preempted"
    if told == "limit":
        return "time_limit"
    if mark == "node":
        return "node_fail"
    if told:
        return "stopped"
    if exit_code == 0:
        return "done"
    if mark == "memory":
        return "out_of_memory"
    return "setup" if phase == "setup" else "error"


def decide_continuation(
    why: str,
    when: Collection[str],
    *,
    attempt: int,
    max_attempts: int,
    idle: int,
    failed_in_setup: bool = False,
) -> str:
    """Return "yes", or the reason why a run does not continue after an end in ``when``, else "".

    A failed setup is retried once, since its causes outside the program may have changed.

    Args:
        attempt: The number of this attempt, from 0.
        idle: Number of consecutive attempts without progress, including this one.
    """
    if why == "requeued":  # requested by the user
        return "yes"
    if why not in when and not (when and why == "setup" and not failed_in_setup):
        return ""
    if attempt + 1 >= max_attempts:
        return "it has had its {} attempts (survive.max_attempts)".format(max_attempts)
    if idle >= MAX_IDLE_ATTEMPTS:
        return IDLE_ATTEMPTS_NOTE
    return "yes"


def pause_before(idle: int, seconds: float) -> int:
    """Return the delay in seconds before the next attempt, after one that lasted ``seconds``.

    >>> pause_before(0, 30), pause_before(1, 30), pause_before(3, 30), pause_before(3, 600)
    (0, 60, 240, 0)
    """
    return PAUSE_S << (idle - 1) if idle and seconds < QUICK_S else 0


# ---- Progress of attempts ------------------------------------------------------------------------


class Steps(NamedTuple):
    """The first and the last step in the log of an attempt."""

    first: int
    last: int


def steps_in(*parts: str) -> Optional[Steps]:
    """Parse the first and the last step from parts of a log.

    Of the counters in the log, the one with the most lines is used. Returns None if there is none,
    or if its number is constant (a setting) or decreases (a counter that restarts with each epoch).
    Without a line that names a step, the progress bar that is drawn most often counts.

    >>> steps_in("step 1\\nstep 1,950"), steps_in("step 9\\nstep 5"), steps_in("max_steps=5")
    (Steps(first=1, last=1950), None, None)
    >>> steps_in("max_steps: 900\\nstep 1 loss 9\\nstep 2 loss 8")
    Steps(first=1, last=2)
    """
    from hpcrun.jobside.progress import read_named_step, read_training_bar  # deferred: slow

    steps: List[int] = []
    counters: Dict[str, List[int]] = {}
    bars: Dict[int, List[int]] = {}
    for line in re.split("[\r\n]+", "\n".join(parts)):
        found = read_named_step(line[-2000:])
        if found is not None:
            steps.append(found.step)
            counters.setdefault(found.label, []).append(found.step)
        elif not steps:
            bar = read_training_bar(line[-2000:])
            if bar is not None:
                bars.setdefault(bar[1], []).append(bar[0])
    if counters:
        longest = max(counters.values(), key=len)
        # One line of each kind, in any case: the kinds are compared with each other.
        steps = longest if len(longest) > 1 else steps
    elif bars:
        total = max(bars, key=lambda total: (len(bars[total]), total))
        steps = _without_start(bars[total])
    if not steps or sorted(steps) != steps or steps[0] == steps[-1]:
        return None
    return Steps(steps[0], steps[-1])


def _without_start(counts: List[int]) -> List[int]:
    """Return the counts of a bar without the 0 that is drawn before a training resumes.

    The Trainer of transformers draws the bar at 0, and next at the first step after the checkpoint.

    >>> _without_start([0, 43, 45, 50]), _without_start([0, 3, 5, 9])
    ([43, 45, 50], [0, 3, 5, 9])
    """
    gains = [counts[n + 1] - counts[n] for n in range(1, len(counts) - 1)]
    jumps = len(gains) > 1 and counts[0] == 0 and counts[1] > 3 * max(gains)
    return counts[1:] if jumps else counts


class Attempts:
    """The attempts of a run, with the files that they have written."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.run = environ["HPCRUN_RUN_DIR"]
        self.current = int(environ.get("HPCRUN_ATTEMPT") or 0)
        self.world = int(environ.get("HPCRUN_WORLD_SIZE") or 1)
        self.resumes = bool(environ.get("HPCRUN_RESUMES"))

    def path(self, attempt: int, name: str) -> str:
        return os.path.join(self.run, "attempts", str(attempt), name)

    def steps(self, attempt: int) -> Optional[Steps]:
        """Return the steps in the log of an attempt; each log is parsed once."""
        kept = self.path(attempt, "steps")
        try:
            with open(kept) as file:
                words = file.read().split()
            return Steps(int(words[0]), int(words[1])) if words else None
        except (OSError, ValueError, IndexError):
            pass
        found = None
        for rank in (0, self.world - 1):  # the log of the first or of the last rank has it
            name = "rank-{}.log".format(rank)
            found = found or self._read_steps(os.path.join(self.run, "logs", str(attempt), name))
        try:
            write_record(kept, "{} {}".format(found.first, found.last) if found else "")
        except OSError:
            pass
        return found

    def _read_steps(self, path: str) -> Optional[Steps]:
        try:
            with open(path, "rb") as file:
                head = file.read(_HEAD_BYTES)
                size = os.fstat(file.fileno()).st_size
                file.seek(max(len(head), size - _TAIL_BYTES))
                tail = file.read(_TAIL_BYTES)
        except OSError:
            return None
        joint = "" if len(head) + len(tail) >= size else "\n"
        return steps_in(head.decode("utf-8", "replace") + joint + tail.decode("utf-8", "replace"))

    def mark(self, attempt: int) -> Optional[str]:
        """Return the fingerprint of an attempt's first checkpoint; None before its launch."""
        path = self.path(attempt, "mark")
        return read_line(path) if os.path.exists(path) else None

    def has_begun(self, attempt: int) -> bool:
        return attempt >= 0 and os.path.exists(self.path(attempt, "begin.json"))

    def lasted(self, attempt: int) -> float:
        """Return the duration of an attempt so far, in seconds."""
        begun = os.stat(self.path(attempt, "begin.json")).st_mtime
        for name in ("end.json", "beat"):
            try:
                return os.stat(self.path(attempt, name)).st_mtime - begun
            except OSError:
                continue
        return 0.0

    def has_gained(self, attempt: int, mark: str) -> bool:
        """Return True if an attempt made progress.

        It did if ``mark``, the current checkpoint's fingerprint, differs from the one that it
        resumed from, or if the next attempt started at a later step. An overwritten checkpoint
        counts as progress unless the log shows that the attempt started where the previous one did
        and came no further than all before. If no checkpoint was ever seen and the job declares
        none, the program may save elsewhere; then attempts of some length are judged by their steps
        in this way.
        """
        saved = self.mark(attempt)
        if saved is None:
            return False  # it ended before its launch
        if _without_time(saved) != _without_time(mark):
            return True
        steps = self.steps(attempt)
        if attempt < self.current:
            later = self.steps(attempt + 1)
            if steps and later and later.first > steps.first:
                return True
        if saved == mark and (mark or self.resumes or self.lasted(attempt) < QUICK_S):
            return False
        before = [self.steps(number) for number in range(attempt)]
        best = max([-1, *(each.last for each in before if each)])
        if steps is None or steps.last > best:
            return True
        previous = before[-1].first if before and before[-1] else -1
        return steps.first > previous

    def count_idle(self, mark: str) -> int:
        """Count the consecutive attempts without progress up to this one, at most the maximum.

        ``mark`` is the fingerprint (mark_of) of the current checkpoint.
        """
        count = 0
        while count < MAX_IDLE_ATTEMPTS and self.has_begun(self.current - count):
            if self.has_gained(self.current - count, mark):
                break
            count += 1
        return count

    def failed_in_setup(self, attempt: int) -> bool:
        try:
            with open(self.path(attempt, "end.json")) as file:
                return bool(json.load(file).get("why") == "setup")
        except (OSError, ValueError, AttributeError):
            return False

    def began_over(self) -> str:
        """Return why further attempts are useless if this one restarted at the first step.

        There was a checkpoint, but as far as submit could see nothing makes the program resume.
        Each further attempt would restart as well, and overwrite the saved progress.
        """
        resume = read_line(self.path(self.current, "resume"))
        if not resume or self.current == 0:
            return ""
        first, steps = self.steps(0), self.steps(self.current)
        if not first or not steps or steps.first > first.first:
            return ""
        return (
            "attempt {} began at step {} again, although there was the checkpoint {}: nothing has"
            ' the program resume; set checkpoint.resume, as in "--resume {{resume}}"'
        ).format(self.current, steps.first, os.path.basename(resume))


def _without_time(mark: str) -> str:
    return mark.rpartition(" ")[0] if " " in mark else mark


def newest_of(environ: Mapping[str, str]) -> str:
    """Return the newest complete checkpoint of the run."""
    folder = environ.get("HPCRUN_CHECKPOINT_DIR", "")
    if not os.path.isdir(folder):
        return ""
    from hpcrun.jobside.checkpoints import newest_checkpoint  # deferred: slow to load

    return newest_checkpoint(
        folder,
        int(environ.get("HPCRUN_WORLD_SIZE") or 1),
        environ.get("HPCRUN_CHECKPOINT_MARKER", ""),
    )


class Decision(NamedTuple):
    """Whether a run continues ("yes", a reason against it, or ""), and the delay in seconds."""

    note: str
    pause: int


def decide(environ: Mapping[str, str], why: str, newest: str, seconds: float) -> Decision:
    """Decide whether a run continues after this attempt, which lasted ``seconds``."""
    if not environ.get("SLURM_JOB_ID") or why in ("done", "error", "cancelled", "pruned"):
        return Decision("", 0)
    from hpcrun.jobside.checkpoints import mark_of  # deferred: slow to load

    attempts = Attempts(environ)
    when = environ.get("HPCRUN_SURVIVE", "").split()
    idle = 0
    if why in when:
        if environ.get("HPCRUN_NEVER_RESUMES"):
            note = attempts.began_over()
            if note:
                return Decision(note, 0)
        idle = attempts.count_idle(mark_of(newest))
    note = decide_continuation(
        why,
        when,
        attempt=attempts.current,
        max_attempts=int(environ.get("HPCRUN_MAX_ATTEMPTS") or 1),
        idle=idle,
        failed_in_setup=attempts.failed_in_setup(attempts.current - 1),
    )
    if note == "yes" and why not in when:
        idle = attempts.count_idle(mark_of(newest))
    return Decision(note, pause_before(idle, seconds))
