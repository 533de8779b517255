"""Sends the events of runs that somebody watches, as far as their jobs have not sent them."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.actions.notify_settings import list_project_channels, plan_notify, resolve_channels
from hpcrun.actions.prepare import find_job_file, load_spec
from hpcrun.assets import config_dir, user_name
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.jobside import (
    FOLDER,
    Ledger,
    RunFacts,
    SweepFacts,
    Tries,
    Try,
    deliver,
    deliver_for_sweep,
    name_channels,
    next_try,
    parse_condition,
    read_config,
    send_test,
)
from hpcrun.monitor import RunFilter, SlurmCache, Source, list_rows, parse_time
from hpcrun.remote import RunCommand
from hpcrun.runs import (
    PRUNED,
    CachedSweep,
    JobStatus,
    RunFolder,
    SweepFolder,
    read_optional_record,
    read_plan,
)
from hpcrun.spec import Notify
from hpcrun.views import describe_stall, format_cause

if TYPE_CHECKING:
    from hpcrun.actions.parse import CurveLog

# How often watched runs are checked for new events.
CHECK_EVERY_S = 30.0
# Events of runs that ended earlier are no news.
_NEWS_S = 86400.0
# How long the record of the tries on a remote cluster is used before it is read again.
_READ_AGAIN_S = 300.0


class _FarLedger(Ledger):
    """The record of the tries of a run on a remote cluster, where its job records them too.

    What was read is used for some minutes, since each query is a round trip. A claim that is based
    on an outdated answer fails, because its directory exists.
    """

    def __init__(self, context: Context, folder: str) -> None:
        super().__init__(folder)
        self._context = context
        self._known: Tries | None = None
        self._read_at = 0.0

    def read(self) -> Tries:
        """Read the tries; if the cluster does not answer, every claim will fail."""
        now = time.monotonic()
        if self._known is None or now - self._read_at > _READ_AGAIN_S:
            self._known, self._read_at = self._query(), now
        return self._known

    def _query(self) -> Tries:
        listed = self._run(
            'cd -- "$1" 2>/dev/null || exit 0; '
            "find . -mindepth 1 -maxdepth 2 -printf '%P\\t%T@\\n'"
        )
        found: dict[str, dict[int, Try]] = {}
        for line in sorted((listed or "").splitlines()):
            path, _, at = line.partition("\t")
            name, _, result = path.partition("/")
            key, _, number = name.rpartition(".")
            if not number.isdecimal() or not at:
                continue
            tries = found.setdefault(key, {})
            before = tries.get(int(number), Try(int(number), float(at), False, ""))
            error = "?" if result == "failed" else before.error
            tries[int(number)] = before._replace(
                is_sent=before.is_sent or result == "sent", error=error
            )
        return Tries({key: sorted(tries.values()) for key, tries in found.items()})

    def claim(self, key: str, tries: Tries) -> str | None:
        self._known = None
        name = next_try(key, tries)
        done = self._run('mkdir -p -m 755 -- "$1" && mkdir -m 755 -- "$1/$2" && echo yes', name)
        return name if done is not None and done.strip() == "yes" else None

    def record(self, name: str, error: str) -> None:
        result = "failed" if error else "sent"
        self._run(
            'printf "%s\\n" "$4" >"$1/$2/.part" && mv -- "$1/$2/.part" "$1/$2/$3"',
            name,
            result,
            error,
        )

    def _run(self, script: str, *words: str) -> str | None:
        argv = ("bash", "-c", script, "notify", f"{self.run}/{FOLDER}", *words)
        query = RunCommand(argv, timeout=20.0)
        with contextlib.suppress(HpcrunError):
            answer = self._context.transport().run_queries([query])[query]
            return answer.stdout if answer.exit_code == 0 else None
        return None


class NotificationSender:
    """Sends the events of watched runs as far as their jobs have not sent them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._logs: dict[RunFolder, CurveLog] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def check_if_due(self, statuses: Sequence[JobStatus]) -> None:
        """Send what is new at most every half minute; in a thread, except over SSH."""
        now = time.monotonic()
        if now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = now + CHECK_EVERY_S
        statuses = [status for status in statuses if _is_news(status)]
        if self._context.cluster.host is not None:
            self.check(statuses)
        elif statuses:
            self._thread = threading.Thread(target=self.check, args=(statuses,), daemon=True)
            self._thread.start()

    def check(self, statuses: Sequence[JobStatus]) -> list[str]:
        """Send what is new; return the failures, which ``status`` reports too. Never raises."""
        errors: list[str] = []
        for status in statuses:
            with contextlib.suppress(OSError, HpcrunError):
                if _is_news(status):
                    errors += self._send(status)
        return errors

    def finish(self, statuses: Sequence[JobStatus]) -> list[str]:
        """Send what is new at the end of watching."""
        if self._thread is not None:
            self._thread.join(30.0)
        return self.check(statuses)

    def _send(self, status: JobStatus) -> list[str]:
        folder = status.run or status.sweep
        config = read_config(str(folder.path)) if folder is not None else {}
        if folder is None or not config or (status.run is not None and config.get("sweep")):
            return []
        config = self._resolve_again(config)
        ledger = self._open_ledger(folder)
        if status.run is None:
            facts = _sweep_facts(status)
            return deliver_for_sweep(str(folder.path), config, facts, ledger=ledger)
        from hpcrun.actions.why import add_cause  # deferred: the rules take long to import

        on = [str(word) for word in config.get("on") or []]
        return deliver(
            str(folder.path),
            config,
            self._find_facts(status, on),
            details=lambda: self._find_facts(add_cause(self._context, status), on),
            image=lambda: self._draw(status),
            ledger=ledger,
        )

    def _resolve_again(self, config: dict[str, Any]) -> dict[str, Any]:
        """Replace URLs that were unknown at submission by those that are known here.

        The channels are those that this machine wrote: the cluster's records could name commands.
        """
        if all(target or kind == "mail" for kind, target in config.get("to") or []):
            return config
        asked = [(str(kind), str(target)) for kind, target in config.get("asked") or []]
        return {**config, "to": resolve_channels(self._context.environ, asked)[0]}

    def _open_ledger(self, folder: RunFolder | SweepFolder) -> Ledger:
        if self._context.cluster.host is None:
            return Ledger(str(folder.path))
        run = folder if isinstance(folder, RunFolder) else folder.run(0)
        plan = read_plan(run)
        if plan is None:
            raise HpcrunError(f"{run.plan}: corrupt")
        far = str(Path(plan.run_dir).parent / folder.path.name)
        return self._ledgers.setdefault(far, _FarLedger(self._context, far))

    def _find_facts(self, status: JobStatus, on: Sequence[str]) -> RunFacts:
        cause = describe_stall(status)
        if status.diagnosis is not None and status.diagnosis.cause is not None:
            cause = format_cause(status.diagnosis.cause)
        elif status.final:
            cause = status.failure or status.state.lower().replace("_", " ")
        step, losses = status.step, [] if status.loss is None else [status.loss]
        if status.attempts and any(_needs_losses(word) for word in on):
            losses = self._read_losses(status) or losses
        left = None
        if status.state == "RUNNING" and status.limit and status.elapsed is not None:
            left = status.limit - status.elapsed
        ends = [(each.index, each.end.why) for each in status.history.attempts if each.end]
        return RunFacts(
            attempt=status.last.index if status.last is not None else None,
            end=_name_end(status),
            preempted=tuple(index for index, why in ends if why == "preempted"),
            stalled_for=status.stalled_for if status.stall is not None else None,
            step=step,
            losses=losses,
            time_left=left,
            cause=cause,
        )

    def _open_log(self, status: JobStatus) -> CurveLog:
        run = status.folder
        from hpcrun.actions.parse import CurveLog  # deferred: slow to load, and rarely needed

        if run not in self._logs:
            self._logs[run] = CurveLog(self._context, Source(run.run_id, run=run))
        self._logs[run].read()
        return self._logs[run]

    def _read_losses(self, status: JobStatus) -> list[float]:
        from hpcrun.curves import LOSS  # deferred, as above

        curve = self._open_log(status).run().curve
        return [float(value) for value in curve.arrays(LOSS)[1]] if LOSS in curve.metrics else []

    def _draw(self, status: JobStatus) -> bytes:
        """Draw the curve; b"" without matplotlib, or without a curve."""
        from importlib.util import find_spec

        if find_spec("matplotlib") is None:
            return b""
        from hpcrun.curves import write_image

        with contextlib.suppress(OSError, HpcrunError), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "curve.png"
            write_image([self._open_log(status).run()], path)
            return path.read_bytes()
        return b""


def _is_news(status: JobStatus) -> bool:
    """Return True for an own run, or a sweep, that may have events that nobody has sent."""
    folder = status.run or status.sweep
    if folder is None or not folder.notify.is_file():
        return False
    if not status.final:
        return True
    ended = _find_end_time(status)
    return ended is None or time.time() - ended < _NEWS_S


def _find_end_time(status: JobStatus) -> float | None:
    """Return when a job ended, by its own record, Slurm or the cache; None if none of them knows.

    A node that died wrote no record.
    """
    if status.ended_at is not None:
        return status.ended_at
    if status.job is not None and (end := parse_time(status.job.end)) is not None:
        return end.timestamp()
    if status.sweep is not None:
        sweep = read_optional_record(status.sweep.seen, CachedSweep)
        return sweep.ended_at if sweep is not None else None
    seen = status.history.seen
    return seen.kept.ended_at if seen is not None and seen.kept is not None else None


def _needs_losses(word: str) -> bool:
    condition = parse_condition(word)
    return word in ("nan", "diverged") or (condition is not None and condition.name == "loss")


def _name_end(status: JobStatus) -> str:
    if not status.final:
        return ""
    if status.ok:
        return "pruned" if status.state == PRUNED else "done"
    return "cancelled" if status.state in ("CANCELLED", "NOT_SUBMITTED") else "failed"


def _sweep_facts(status: JobStatus) -> SweepFacts:
    """Return the numbers of runs of a sweep by the states that a listing counts."""
    states = status.states or {}
    total = sum(states.values())
    waiting = (
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "UNKNOWN",
        "REQUEUED",
    )
    pending = sum(count for state, count in states.items() if state in waiting)
    done, pruned = states.get("COMPLETED", 0), states.get(PRUNED, 0)
    cancelled = states.get("CANCELLED", 0)
    failed = total - pending - done - pruned - cancelled
    return SweepFacts(
        runs=total,
        begun=total - states.get("PENDING", 0),
        done=done,
        failed=failed,
        cancelled=cancelled,
        pruned=pruned,
        first_failure="a run failed" if failed else "",
    )


# ---- hpcrun notify -----------------------------------------------------------------------------

_DAYS_S, _MAX_RUNS = 31 * 86400.0, 1000


def send_new_notifications(context: Context) -> list[str]:
    """Send the new events of all runs of the last month; return the failures. Raises InputError."""
    recent = RunFilter(since=time.time() - _DAYS_S)
    rows, _, _ = list_rows(context, _MAX_RUNS, only=recent, cache=SlurmCache())
    return NotificationSender(context).check(rows)


def send_test_messages(
    context: Context, job: str | None, *, confirm: Callable[[str], bool] | None = None
) -> dict[str, str]:
    """Send a test message to the channels of a job, or of the profile and the user's settings.

    Args:
        confirm: Asks the user whether to run the commands, and to send the variables, that a
            project names; None refuses those of a project that is not trusted.

    Returns:
        The error of each channel, "" if the message was accepted.

    Raises:
        InputError: No channel is configured, or the project is not trusted.
    """
    own, path = Notify(), None
    if job is not None:
        own, path = load_spec(context, job).notify, find_job_file(context, job)
    plan, notes = plan_notify(context, own)
    if plan is None:
        raise InputError(
            "no channel is configured",
            fix="notify: {to: [...]} in the job, in the profile or in "
            f"{config_dir(context.environ) / 'config.yaml'}; see docs/notify.md",
        )
    foreign = list_project_channels(context, own, path)
    if foreign and not (confirm is not None and confirm(", ".join(foreign))):
        folder = path.parent if path is not None and own.to is not None else context.project
        raise InputError(
            f"notify: {', '.join(foreign)}: named by the project, which is not trusted to run "
            "commands or to send values of yours; nothing was sent",
            fix=f"if you trust the project: export HPCRUN_TRUST={folder.resolve()}",
        )
    channels = name_channels(resolve_channels(context.environ, plan.to)[0])
    known = [one for one in channels if one.target or one.kind == "mail"]
    results = send_test(known, str(context.project), user_name(context.environ))
    reasons = iter(note.removeprefix("notify: ") for note in notes)
    return {one.name: results[one.name] if one in known else next(reasons) for one in channels}
