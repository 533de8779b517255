"""Notifications from within a job: the facts that its own records and logs show."""

import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from hpcrun.jobside.delivery import deliver, deliver_for_sweep, read_config
from hpcrun.jobside.events import LossReader, RunFacts, SweepFacts, parse_condition
from hpcrun.jobside.progress import LogReader, read_named_step
from hpcrun.jobside.records import read_json

EVERY_S = 30.0
# How often Slurm is queried for the time limit, which may be changed.
LIMIT_EVERY_S = 900.0
# The time that the end of an attempt may take, while its nodes are still allocated.
END_TIMEOUT_S = 25.0
# The part of it for finding the cause with hpcrun.
CAUSE_TIMEOUT_S = 15

Say = Callable[[str], None]


class _TrainingLog:
    """Reads step and loss of the training from new lines of a log, in place of Progress."""

    def __init__(self) -> None:
        self.losses = LossReader()
        self.step: Optional[int] = None

    def feed(self, line: str) -> bool:
        self.losses.feed(line)
        found = read_named_step(line)
        self.step = self.step if found is None else found.step
        return False


class JobNotifier:
    """Sends the events of a run from its job, where the nodes have internet access."""

    def __init__(self, environ: Mapping[str, str], complain: Say) -> None:
        self.run = environ["HPCRUN_RUN_DIR"]
        self.attempt = int(environ.get("HPCRUN_ATTEMPT") or 0)
        self.config = read_config(self.run)
        self.every = float(environ.get("HPCRUN_NOTIFY_EVERY") or EVERY_S)  # tests use less
        self.environ, self.complain = environ, complain
        is_here, sweep = bool(self.config.get("in_job")), self.config.get("sweep")
        self.is_on = is_here and not sweep
        # The start of the sweep is sent by the first of its runs that tries.
        self.starts_sweep = is_here and bool(sweep) and "started" in (self.config.get("on") or [])
        self.thread: Optional[threading.Thread] = None
        self.logs: Dict[str, LogReader] = {}
        self.complaints: Set[str] = set()
        self.ends_at: Optional[float] = None
        self.limit_read_at = 0.0

    def check(self) -> None:
        """Send new events in a thread, because a channel may take long to answer."""
        if self.is_busy():
            return
        if self.is_on:
            self.thread = threading.Thread(target=self._send, args=(self._find_facts(),))
        elif self.starts_sweep:
            self.starts_sweep = False
            facts = SweepFacts(runs=self.config["sweep"]["runs"], begun=1, done=0, failed=0)
            self.thread = threading.Thread(target=self._deliver_for_sweep, args=(facts,))
        else:
            return
        self.thread.daemon = True
        self.thread.start()

    def is_busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def finish(self) -> None:
        """Wait until a message that is being sent has arrived."""
        if self.thread is not None:
            self.thread.join(10.0)

    def send_end(self, following: Optional[str]) -> None:
        """Send the events of the end of the attempt.

        Args:
            following: How the run continues; None if it does not.
        """
        end = read_json(self._path("end.json"))
        if self.config.get("in_job") and self.config.get("sweep"):
            self._send_for_sweep(end, following)
        if not self.is_on:
            return
        facts = self._find_facts()
        final = "" if following else name_end(end)
        facts = facts._replace(end=final, stalled_for=None)
        deadline = time.monotonic() + END_TIMEOUT_S
        self._send(facts, lambda: facts._replace(cause=self._find_cause(end)), deadline)

    def _send_for_sweep(self, end: Mapping[str, Any], following: Optional[str]) -> None:
        """Send the first failure of the sweep of this run, or the summary after its last run."""
        sweep = self.config["sweep"]
        own = "" if following else name_end(end)
        ends = [_read_end(path) for path in list_runs_of_sweep(sweep)]
        failure = "{} failed: {}".format(sweep["label"], describe_end(end))
        facts = SweepFacts(
            runs=len(ends),
            begun=1,
            done=ends.count("done"),
            failed=ends.count("failed"),
            cancelled=ends.count("cancelled"),
            pruned=ends.count("pruned"),
            first_failure=failure if own == "failed" else "a run failed",
        )
        self._deliver_for_sweep(facts)

    def _deliver_for_sweep(self, facts: SweepFacts) -> None:
        folder = self.config["sweep"]["folder"]
        config = read_config(folder)
        deadline = time.monotonic() + END_TIMEOUT_S
        for text in deliver_for_sweep(folder, config, facts, deadline=deadline, leave=["apprise"]):
            self.complain("hpcrun: warning: notification not sent by " + text)

    def _send(
        self,
        facts: RunFacts,
        details: Callable[[], RunFacts] = lambda: RunFacts(),
        deadline: Optional[float] = None,
    ) -> None:
        errors = deliver(
            *(self.run, self.config, facts), details=details, deadline=deadline, leave=["apprise"]
        )
        for text in errors:
            if text not in self.complaints:
                self.complaints.add(text)
                self.complain("hpcrun: warning: notification not sent by " + text)

    def _find_facts(self) -> RunFacts:
        on = self.config.get("on") or []
        conditions = [parse_condition(word) for word in on]
        names = [condition.name for condition in conditions if condition is not None]
        self._read_logs()
        readers = [reader.progress for reader in self.logs.values()]
        training = [one for one in readers if isinstance(one, _TrainingLog)]
        losses = max((one.losses.losses for one in training), key=len, default=[])
        steps = [one.step for one in training if one.step is not None]
        stall = read_json(self._path("stall.json"))
        ranks = stall.get("ranks")
        return RunFacts(
            attempt=self.attempt,
            preempted=self._list_preempted() if "preempted" in on else (),
            stalled_for=_number(stall.get("silent_seconds")),
            step=max(steps) if steps else None,
            losses=losses,
            time_left=self._time_left() if "time_left" in names else None,
            cause="rank {} stopped first".format(ranks[0]) if ranks else "",
        )

    def _read_logs(self) -> None:
        """Read the new lines of the first and the last rank."""
        folder = os.path.join(self.run, "logs", str(self.attempt))
        try:
            names = os.listdir(folder)
        except OSError:
            return
        kind = "node" if os.path.exists(self._path("began")) else "rank"
        logs = [name for name in names if re.match(kind + r"-[0-9]+\.log$", name)]
        logs.sort(key=lambda name: int(re.sub("[^0-9]", "", name)))
        for name in {*logs[:1], *logs[-1:]}:
            if name not in self.logs:
                self.logs[name] = LogReader(os.path.join(folder, name), _TrainingLog())
            self.logs[name].has_moved()

    def _list_preempted(self) -> Tuple[int, ...]:
        folder = os.path.join(self.run, "attempts")
        numbers = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
        ends = {n: read_json(os.path.join(folder, str(n), "end.json")) for n in numbers}
        return tuple(number for number, end in ends.items() if end.get("why") == "preempted")

    def _time_left(self) -> Optional[float]:
        now = time.time()
        if now - self.limit_read_at >= LIMIT_EVERY_S:
            from hpcrun.jobside.slurm import Job, parse_time  # deferred: it queries Slurm

            self.limit_read_at = now
            shown = Job(self.environ, self.complain).show()
            self.ends_at = parse_time(shown.get("EndTime", ""))
        return None if self.ends_at is None else self.ends_at - now

    def _find_cause(self, end: Mapping[str, Any]) -> str:
        """Find the cause with hpcrun if the nodes can run it, otherwise in the records."""
        return self._query_cause() or describe_end(end)

    def _query_cause(self) -> str:
        import json  # deferred: only a failure needs it
        import subprocess

        argv = self.config.get("why")
        if not argv or not os.access(argv[0], os.X_OK):
            return ""
        drop = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_PRELOAD")
        environ = {key: value for key, value in self.environ.items() if key not in drop}
        folder = self.config.get("project") or "/"
        try:
            done = subprocess.run(
                argv,
                cwd=folder if os.path.isdir(folder) else "/",
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=CAUSE_TIMEOUT_S,
            )
            return _read_cause(json.loads(done.stdout.decode("utf-8", "replace")))
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
            return ""

    def _path(self, name: str) -> str:
        return os.path.join(self.run, "attempts", str(self.attempt), name)


def _read_cause(answer: Any) -> str:
    """Read the sentence of the cause in the JSON of ``hpcrun why``."""
    cause = answer["runs"][0]["cause"]
    text, rank, host = cause["title"], cause.get("rank"), cause.get("host")
    if rank is not None and "rank" not in text:
        text += " (rank {}{})".format(rank, " on " + host if host else "")
    return str(text)


def list_runs_of_sweep(sweep: Mapping[str, Any]) -> List[str]:
    """Return the directories of the runs of a sweep."""
    return [
        "{}{}{}".format(sweep["before"], index, sweep["after"]) for index in range(sweep["runs"])
    ]


def _read_end(run: str) -> str:
    """Read how a run ended, by its records; "" if it is not over, or this is not known."""
    if os.path.exists(os.path.join(run, "cancelled.json")):
        return "cancelled"
    try:
        numbers = [
            int(name) for name in os.listdir(os.path.join(run, "attempts")) if name.isdecimal()
        ]
    except OSError:
        return ""
    if not numbers:
        return ""
    end = read_json(os.path.join(run, "attempts", str(max(numbers)), "end.json"))
    return "" if end.get("next") else name_end(end)


def name_end(end: Mapping[str, Any]) -> str:
    """Name the end of a run by the record of its last attempt.

    The result is "" if Slurm may start the run again, or the user has cancelled it.

    >>> [name_end({"why": why}) for why in ("done", "pruned", "time_limit", "preempted")]
    ['done', 'pruned', 'failed', '']
    """
    why = end.get("why")
    if why in ("done", "pruned"):
        return str(why)
    return "" if why in (None, "preempted", "stopped", "requeued") else "failed"


def describe_end(end: Mapping[str, Any]) -> str:
    """Describe the end of an attempt by its record.

    >>> first = {"rank": 3, "host": "n2", "exit_code": 1, "signal": None, "why": None}
    >>> describe_end({"why": "error", "exit_code": 1, "first_failure": first})
    'rank 3 on n2 failed first, with exit code 1'
    >>> describe_end({"why": "out_of_memory", "exit_code": 137, "first_failure": None})
    'out of memory'
    """
    first = end.get("first_failure")
    if isinstance(first, dict):
        if first.get("why"):
            return "{}: {}".format(first.get("host"), first["why"])
        who = "the launcher" if first.get("rank") is None else "rank {}".format(first["rank"])
        by = "signal {}".format(first["signal"]) if first.get("signal") else ""
        how = "by " + by if by else "with exit code {}".format(first.get("exit_code"))
        return "{} on {} failed first, {}".format(who, first.get("host"), how)
    why = str(end.get("why") or "error")
    if why == "error":
        return "exit code {}".format(end.get("exit_code"))
    return "time limit reached" if why == "time_limit" else why.replace("_", " ")


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) else None
