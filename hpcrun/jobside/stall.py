"""Detection of stalled runs, and the response to a stall.

A run makes progress when a log shows some (hpcrun.jobside.progress) or, if no log ever does, when a
rank writes anything. It has stalled after HPCRUN_STALLED_AFTER seconds without progress. The
default limit is the maximum of ten times the median pause, twice the longest pause that ended (an
evaluation, a checkpoint, the end of an epoch) and ten minutes. Before the first step, while it
compiles, loads and connects, it is half an hour. A run that writes without progress gets twice the
limit, and is never terminated. Suspending a job also stops its watcher, so that the time between
two checks counts as two beats at most.

attempts/N/stall.json exists while the run is stalled. The stacks of all ranks are dumped once per
stall (templates/stacks.sh). With "stalled" in HPCRUN_SURVIVE the attempt is then terminated, and
the marker attempts/N/stalled contains the reason.
"""

import os
import re
import subprocess
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from hpcrun.jobside.progress import LogReader
from hpcrun.jobside.records import write_json, write_record
from hpcrun.jobside.slurm import slurm_job

BEAT_S = 30
LEAST_LIMIT_S, START_LIMIT_S = 600, 1800
# Number of further logs that are read if those of the first and last rank show no progress.
_MORE_LOGS = 4
_PAUSES = 21  # number of latest pauses whose median counts
_MAX_PACE = 200  # steps in the record of the pace; then every second one is dropped

Say = Callable[[str], None]


class Actions:
    """The watcher's actions in a stall, through Slurm's commands and the harness."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.harness = os.path.join(environ["HPCRUN_RUN_DIR"], "harness.sh")

    def take_stacks(self) -> bool:
        """Dump the stacks of all ranks, on all nodes in parallel, with a timeout of a minute."""
        argv = ["bash", "--", self.harness]
        if self.environ.get("SLURM_JOB_ID"):
            nodes = self.environ.get("SLURM_JOB_NODELIST", "")
            argv += ["beside", "60", nodes, self.environ.get("SLURM_JOB_NUM_NODES", "1")]
        return run_command([*argv, "stacks"], 90) is not None

    def list_steps(self, job: str) -> Optional[List[str]]:
        """Return the steps of a job; None if Slurm does not answer."""
        argv = ["squeue", "--noheader", "--steps", "--job=" + job, "--format=%i"]
        answer = run_command(argv, 60)
        return None if answer is None else answer.split()

    def cancel_slurm_step(self, step: str) -> bool:
        return run_command(["scancel", step], 60) is not None


def run_command(argv: Sequence[str], seconds: float) -> Optional[str]:
    """Run a command and return its output; None if it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=seconds, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def list_rank_steps(environ: Mapping[str, str], actions: Any) -> Optional[List[str]]:
    """Return the job's steps other than the batch script; None if Slurm does not answer."""
    steps = actions.list_steps(slurm_job(environ))
    return None if steps is None else [step for step in steps if re.search(r"\.[0-9]+$", step)]


class Log:
    """A log at the last check: its size, when that changed last, and how often."""

    def __init__(self) -> None:
        self.size = -1
        self.changed = 0.0
        self.changes = 0


class StallWatch:
    """Watches the logs of an attempt, by a clock that stops while the job is suspended."""

    def __init__(self, environ: Mapping[str, str], say: Say, actions: Any) -> None:
        self.environ, self.say, self.actions = environ, say, actions
        run = environ["HPCRUN_RUN_DIR"]
        attempt = environ.get("HPCRUN_ATTEMPT", "0")
        self.attempt = os.path.join(run, "attempts", attempt)
        self.folder = os.path.join(run, "logs", attempt)
        self.limit_given = int(environ.get("HPCRUN_STALLED_AFTER") or 0)
        self.beat = min(BEAT_S, max(5, self.limit_given // 4)) if self.limit_given else BEAT_S
        # tests use shorter limits
        self.least = int(environ.get("HPCRUN_STALL_LEAST") or LEAST_LIMIT_S)
        self.start = int(environ.get("HPCRUN_STALL_START") or START_LIMIT_S)
        self.ends_stalled = "stalled" in environ.get("HPCRUN_SURVIVE", "").split()
        self.clock = self.moved = self.wrote = 0.0
        self.at: Optional[float] = None
        self.is_shown = False
        self.reports = 0  # number of reports about the current stall
        self.pauses: List[float] = []
        self.longest = 0.0
        self.logs: Dict[str, Log] = {}
        self.readers: Dict[str, LogReader] = {}
        self.pace: List[Tuple[int, int]] = []  # seconds and steps

    def look(self, now: float) -> None:
        """Check the logs, and act on a stall."""
        passed = now - self.at if self.at is not None else 0.0
        self.clock += min(max(passed, 0.0), 2 * self.beat)
        self.at = now
        self._note_sizes()
        if not self.logs:
            return  # no rank has started
        if self.wrote == self.clock:
            self._read_on()
            self._note_pace()
        still, silent, limit = self.clock - self.moved, self.clock - self.wrote, self.limit()
        if still < limit:
            if self.reports:
                self.say("hpcrun: the run moves on")
                self._remove("stall.json")
            self.reports = 0
        elif self.reports:
            # Output of other nodes may become visible a minute later on a network file system.
            self.reports += 1
            if self.reports <= 3:
                self._report(now, still, limit)
            if self.ends_stalled and silent >= limit:
                self._end_stalled()
        elif silent >= limit or still >= 2 * limit:
            self.reports = 1
            self._report(now, still, limit)
            if not self.actions.take_stacks():
                self.say("hpcrun: error: not all stacks could be taken")
            self._report(now, still, limit)
            path = os.path.join(self.attempt, "stall.json")
            self.say("hpcrun: no step for {:.0f} s: {}".format(still, path))
            self._note_sizes()  # faulthandler has written to the logs
            self.wrote = self.clock - silent

    def is_near_the_start(self) -> bool:
        """Return True before the first step, while its time still includes the startup."""
        return not self.is_shown and self.clock <= 600

    def _note_sizes(self) -> None:
        """Record the sizes of the logs, but not their times, which are of other hosts' clocks."""
        pattern = re.compile(self._who_writes() + r"-[0-9]+\.log$")
        try:
            entries = [entry for entry in os.scandir(self.folder) if pattern.match(entry.name)]
        except OSError:
            return
        for entry in entries:
            try:
                size = entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
            log = self.logs.setdefault(entry.name, Log())
            if log.size != size:
                log.size, log.changed = size, self.clock
                log.changes += 1
                self.wrote = self.clock

    def _note_pace(self) -> None:
        """Record when the first rank's log showed which step: many logs have no times."""
        reader = self.readers.get("{}-0.log".format(self._who_writes()))
        step = None if reader is None else reader.progress.step
        if step is None or (self.pace and self.pace[-1][1] == step):
            return
        self.pace.append((int(self.clock), step))
        if len(self.pace) > _MAX_PACE:
            self.pace = self.pace[:-1:2] + self.pace[-1:]
        seconds, steps = zip(*self.pace)
        path = os.path.join(self.attempt, "pace.json")
        write_json(path, "pace", {"seconds": seconds, "steps": steps})

    def _who_writes(self) -> str:
        """Return the kind of logs to watch: a bare command has no ranks known to hpcrun."""
        return "node" if os.path.exists(os.path.join(self.attempt, "began")) else "rank"

    def _read_on(self) -> None:
        who = self._who_writes()
        # Rank 0's log nearly always shows progress; with Megatron and its forks the last rank's
        # does.
        names = ["{}-0.log".format(who), "{}-{}.log".format(who, len(self.logs) - 1)]
        moved = self._read(names)
        if not moved and not self._is_known():
            others = sorted(
                (name for name in self.logs if name not in names),
                key=lambda name: (-self.logs[name].changes, name),
            )
            moved = self._read(others[:_MORE_LOGS])
        has_step = any(reader.progress.step is not None for reader in self.readers.values())
        if moved and (has_step or self._is_known()):
            self._advance()
        elif not self._is_known():
            if self.is_shown:
                self._advance()
            self.moved = self.clock

    def _read(self, names: Sequence[str]) -> bool:
        moved = False
        for name in names:
            if name in self.logs:
                if name not in self.readers:
                    self.readers[name] = LogReader(os.path.join(self.folder, name))
                moved |= self.readers[name].has_moved()
        return moved

    def _is_known(self) -> bool:
        return any(reader.progress.is_known for reader in self.readers.values())

    def _advance(self) -> None:
        """Record progress. The time before the first step does not count as a pause."""
        pause = self.clock - self.moved
        if self.is_shown:
            self.pauses = [*self.pauses, pause][-_PAUSES:]
            self.longest = max(self.longest, pause)
        else:
            self.is_shown = True
            write_record(os.path.join(self.attempt, "moved"), "{:.0f}".format(self.at or 0))
        self.moved = self.clock

    def limit(self) -> float:
        """Return the limit in seconds without progress after which the run has stalled."""
        limit = float(self.limit_given)
        if not limit:
            median = sorted(self.pauses)[len(self.pauses) // 2] if self.pauses else 0.0
            limit = max(self.least, 10 * median, 2 * self.longest)
        # As before the first step, until enough pauses are known.
        if not (self.limit_given and self.is_shown) and len(self.pauses) < 3:
            limit = max(limit, self.start)
        return limit

    # ---- A stall ---------------------------------------------------------------------------------

    def _report(self, now: float, still: float, limit: float) -> None:
        """Write stall.json.

        hpcrun identifies the blocking rank by the stacks or, if they show nothing, by the log that
        stopped first.
        """
        steps = [r.progress.step for r in self.readers.values() if r.progress.step is not None]
        record = {
            "since": int(now - still),
            "silent_seconds": int(still),
            "threshold": int(limit),
            "step": max(steps) if steps else None,
            "ranks": self._first_silent(),
            "stacks": self._list_stacks(),
        }
        write_json(os.path.join(self.attempt, "stall.json"), "stall", record)

    def _list_stacks(self) -> List[str]:
        try:
            names = os.listdir(os.path.join(self.attempt, "stacks"))
        except OSError:
            return []
        return ["stacks/" + name for name in sorted(names) if re.match(r"rank-.*\.txt$", name)]

    def _first_silent(self) -> List[int]:
        """Return the rank whose log stopped two beats before all others that were written, too."""
        if self._who_writes() != "rank":
            return []
        known = [(log.changed, name) for name, log in self.logs.items() if log.changes >= 3]
        known.sort()
        if len(known) < 2 or known[1][0] - known[0][0] < 2 * self.beat:
            return []
        return [int(re.sub("[^0-9]", "", known[0][1]))]

    def _end_stalled(self) -> None:
        """Terminate the job's steps, but not the batch script, which decides how to continue."""
        path = os.path.join(self.attempt, "stalled")
        if os.path.exists(path) and os.path.getsize(path):
            return
        ours = list_rank_steps(self.environ, self.actions)
        if ours is None:
            return  # Slurm does not answer: retry at the next check
        if not os.path.exists(path):
            self.say("hpcrun: the run has stalled, so this attempt is ended")
        open(path, "w").close()
        ended = [self.actions.cancel_slurm_step(step) for step in ours]
        if all(ended):
            write_record(path, "ended")

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self.attempt, name))
        except OSError:
            pass
