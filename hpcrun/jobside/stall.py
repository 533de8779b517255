"""Whether the run still moves on: when it counts as stalled, and what is done then.

A run moves on when a log shows progress (hpcrun.jobside.progress); where no log shows any, when a
rank writes anything. It has stalled when nothing has moved for HPCRUN_STALLED_AFTER seconds. Unset:
ten times the median pause between moves, twice the longest pause that ended (an evaluation, a
checkpoint, an epoch's end) or ten minutes, whichever is most. Before the first step it gets half
an hour: it compiles, loads, connects. A run that writes but shows no progress gets twice as long,
and is never ended for it. A job that is suspended stops its watcher, too: a look counts for two
beats at most.

attempts/N/stall.json is there while the run stalls. The stacks of all ranks are taken once for a
stall (templates/stacks.sh). With "stalled" in HPCRUN_SURVIVE the attempt is then ended, and the
marker attempts/N/stalled says why.
"""

import json
import os
import re
import subprocess
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from hpcrun.jobside.progress import LogReader
from hpcrun.jobside.records import write_record

BEAT_S = 30
LEAST_LIMIT_S, START_LIMIT_S = 600, 1800
# Logs that are read beside those of the first and the last rank, where these show no progress.
_MORE_LOGS = 4
_PAUSES = 21  # the last ones, of which the median counts

Say = Callable[[str], None]


class Actions:
    """What the watcher does about a stall, by Slurm's commands and the harness."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.harness = os.path.join(environ["HPCRUN_RUN_DIR"], "harness.sh")

    def take_stacks(self) -> bool:
        """Have stacks of all ranks taken, on all nodes at once; it is given up after a minute."""
        argv = ["bash", "--", self.harness]
        if self.environ.get("SLURM_JOB_ID"):
            nodes = self.environ.get("SLURM_JOB_NODELIST", "")
            argv += ["beside", "60", nodes, self.environ.get("SLURM_JOB_NUM_NODES", "1")]
        return run_command([*argv, "stacks"], 90) is not None

    def list_steps(self, job: str) -> Optional[List[str]]:
        """List the steps of a job; None where Slurm does not answer."""
        argv = ["squeue", "--noheader", "--steps", "--job=" + job, "--format=%i"]
        answer = run_command(argv, 60)
        return None if answer is None else answer.split()

    def end_step(self, step: str) -> bool:
        return run_command(["scancel", step], 60) is not None


def run_command(argv: Sequence[str], seconds: float) -> Optional[str]:
    """Run a command for its output; None where it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=seconds, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


class Log:
    """A log as it was at the last look: its size, when that changed last, and how often."""

    def __init__(self) -> None:
        self.size = -1
        self.changed = 0.0
        self.changes = 0


class StallWatch:
    """Looks at the logs of an attempt. Times are of a clock that stops while the job does."""

    def __init__(self, environ: Mapping[str, str], say: Say, actions: Any) -> None:
        self.environ, self.say, self.actions = environ, say, actions
        run = environ["HPCRUN_RUN_DIR"]
        attempt = environ.get("HPCRUN_ATTEMPT", "0")
        self.attempt = os.path.join(run, "attempts", attempt)
        self.folder = os.path.join(run, "logs", attempt)
        self.limit_given = int(environ.get("HPCRUN_STALLED_AFTER") or 0)
        self.beat = min(BEAT_S, max(5, self.limit_given // 4)) if self.limit_given else BEAT_S
        self.least = int(environ.get("HPCRUN_STALL_LEAST") or LEAST_LIMIT_S)  # tests have less time
        self.start = int(environ.get("HPCRUN_STALL_START") or START_LIMIT_S)
        self.ends_stalled = "stalled" in environ.get("HPCRUN_SURVIVE", "").split()
        self.clock = self.moved = self.wrote = 0.0
        self.at: Optional[float] = None
        self.is_shown = False
        self.reports = 0  # of the stall that lasts
        self.pauses: List[float] = []
        self.longest = 0.0
        self.logs: Dict[str, Log] = {}
        self.readers: Dict[str, LogReader] = {}

    def look(self, now: float) -> None:
        """Look at the logs, and do what has to be done about them."""
        passed = now - self.at if self.at is not None else 0.0
        self.clock += min(max(passed, 0.0), 2 * self.beat)
        self.at = now
        self._note_sizes()
        if not self.logs:
            return  # no rank has begun
        if self.wrote == self.clock:
            self._read_on()
        still, silent, limit = self.clock - self.moved, self.clock - self.wrote, self.limit()
        if still < limit:
            if self.reports:
                self.say("hpcrun: the run moves on")
                self._remove("stall.json")
            self.reports = 0
        elif self.reports:
            # What other nodes wrote may take a minute to show on a network file system.
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
            self._note_sizes()  # faulthandler has written there
            self.wrote = self.clock - silent

    def is_near_the_start(self) -> bool:
        """Tell whether the first step is still to come: its time tells what it took to start."""
        return not self.is_shown and self.clock <= 600

    def _note_sizes(self) -> None:
        """Note the sizes of the logs; not their times, which are other clocks'."""
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

    def _who_writes(self) -> str:
        """Name whose logs count: a bare command has no ranks that hpcrun knows of."""
        return "node" if os.path.exists(os.path.join(self.attempt, "began")) else "rank"

    def _read_on(self) -> None:
        who = self._who_writes()
        # Rank 0's log nearly always shows progress; in Megatron's family it is the last rank's.
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
        """Note a move. The time before the first step is no pause."""
        pause = self.clock - self.moved
        if self.is_shown:
            self.pauses = [*self.pauses, pause][-_PAUSES:]
            self.longest = max(self.longest, pause)
        else:
            self.is_shown = True
            write_record(os.path.join(self.attempt, "moved"), "{:.0f}".format(self.at or 0))
        self.moved = self.clock

    def limit(self) -> float:
        """Return after how many seconds without a move the run has stalled."""
        limit = float(self.limit_given)
        if not limit:
            median = sorted(self.pauses)[len(self.pauses) // 2] if self.pauses else 0.0
            limit = max(self.least, 10 * median, 2 * self.longest)
        # Until its pace is known, as before the first step.
        if not (self.limit_given and self.is_shown) and len(self.pauses) < 3:
            limit = max(limit, self.start)
        return limit

    # ---- A stall ---------------------------------------------------------------------------------

    def _report(self, now: float, still: float, limit: float) -> None:
        """Write stall.json.

        hpcrun judges by the stacks who holds up the run, and where they show nothing by the rank
        whose log stopped first.
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
        write_record(os.path.join(self.attempt, "stall.json"), json.dumps(record))

    def _list_stacks(self) -> List[str]:
        try:
            names = os.listdir(os.path.join(self.attempt, "stacks"))
        except OSError:
            return []
        return ["stacks/" + name for name in sorted(names) if re.match(r"rank-.*\.txt$", name)]

    def _first_silent(self) -> List[int]:
        """Find the rank whose log stopped two looks before all others that were written, too."""
        if self._who_writes() != "rank":
            return []
        known = [(log.changed, name) for name, log in self.logs.items() if log.changes >= 3]
        known.sort()
        if len(known) < 2 or known[1][0] - known[0][0] < 2 * self.beat:
            return []
        return [int(re.sub("[^0-9]", "", known[0][1]))]

    def _end_stalled(self) -> None:
        """End the job's steps; the batch script is none of them, and decides what comes next."""
        path = os.path.join(self.attempt, "stalled")
        if os.path.exists(path) and os.path.getsize(path):
            return
        steps = self.actions.list_steps(slurm_job(self.environ))
        if steps is None:
            return  # Slurm does not answer: at the next look
        if not os.path.exists(path):
            self.say("hpcrun: the run has stalled, so this attempt is ended")
        open(path, "w").close()
        ours = [step for step in steps if re.search(r"\.[0-9]+$", step)]
        ended = [self.actions.end_step(step) for step in ours]
        if all(ended):
            write_record(path, "ended")

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self.attempt, name))
        except OSError:
            pass


def slurm_job(environ: Mapping[str, str]) -> str:
    """Name the job for Slurm's commands: the number of one task is also that of its whole array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        array = environ.get("SLURM_ARRAY_JOB_ID", "")
        return "{}_{}".format(array, environ["SLURM_ARRAY_TASK_ID"])
    return environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", "")
