"""The state behind the page: rows of runs, curves and logs, kept up to date in one thread."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from hpcrun.actions import (
    Checks,
    CurveLog,
    add_cause,
    cancel_evaluations,
    cancel_jobs,
    masker_of,
    prepare_again,
    read_run_facts,
    requeue_jobs,
    submit_again,
)
from hpcrun.context import Context
from hpcrun.curves import report_data
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import read_plain
from hpcrun.logs import list_log_files
from hpcrun.monitor import (
    MAX_QUERY_PAUSE_S,
    QUERY_PAUSE_S,
    Monitor,
    QueryPace,
    SlurmAnswers,
    SlurmCache,
    Source,
    WatchedJobs,
    WatchedSlurmJobs,
    add_wait_reasons,
    fetch_evaluations,
    fetch_records,
    find_slurm_conf,
    find_sources,
    find_targets,
    find_targets_by_word,
    list_rows,
    status_of,
    unknown_run_error,
)
from hpcrun.runs import (
    JobStatus,
    RunFolder,
    SweepFolder,
    read_history,
    read_node_usage,
    read_search_result,
    runs_of,
)
from hpcrun.text import format_bytes
from hpcrun.ui.log_window import find_text, read_window
from hpcrun.ui.node_use import build_use_data
from hpcrun.views import format_cost, job_json, listing_json, run_json, search_json

# Seconds between two reads of the files of live runs, and of the list of all runs if a run or
# sweep is live.
FILES_INTERVAL_S, _LIST_INTERVAL_S = 2.0, 10.0
# Without a request for so many seconds no page is open, and nothing is read or queried.
_UNUSED_AFTER_S = 15.0
# A page that is opened before all runs were listed waits for that at most so many seconds.
_FIRST_LISTING_S = 60.0
# Seconds until Slurm is queried again after the first query failed.
_RETRY_S = 30.0
# Fields that change as time passes, and the seconds between two updates of them alone.
_TIMES, _TIMES_INTERVAL_S = frozenset(("elapsed_seconds", "gpu_hours", "elapsed")), 60.0
# The number of logs whose curves stay in memory.
_MAX_OPEN_CURVES = 64
# A log that was not modified for so many seconds is read to its end.
_SETTLED_AFTER_S = 60.0
# A larger script is not shown.
_MAX_SCRIPT_BYTES = 1 << 20


class _WatchedListing(WatchedJobs):
    """All runs, as `hpcrun status --all` lists them; only live ones are read again often."""

    is_open = True

    def __init__(self) -> None:
        self.rows: list[JobStatus] = []
        self.silence = ""
        self.viewed: list[RunFolder] = []
        self.cache = SlurmCache()
        self.next_check = 0.0
        self._listed_at, self._stamp = 0.0, 0

    def query(self, context: Context, pace: QueryPace) -> Sequence[JobStatus]:
        """List all runs with new answers of Slurm; its silence is no error."""
        self.cache.clear()
        return self._list(context)

    def check_files(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Read the files of live runs again, with Slurm's last answers."""
        now = time.monotonic()
        if now < self.next_check or pace.is_due(now):
            return None
        self.next_check = now + FILES_INTERVAL_S
        live = [row for row in self.rows if not row.final]
        runs = [row.run for row in live if row.run is not None]
        pace.refresh(context, [*dict.fromkeys((*runs, *self.viewed))])
        before = [(row.id, row.state, row.states) for row in self.rows]
        is_new = _stamp_of(context.runs_dir) != self._stamp
        has_sweep = any(row.sweep is not None for row in live)
        if is_new or (has_sweep and now >= self._listed_at + _LIST_INTERVAL_S):
            self._list(context)
        elif runs:
            found = status_of(context, runs, self.cache, level="row")
            fresh: dict[RunFolder | None, JobStatus] = dict(zip(runs, found, strict=True))
            self.rows = [_update_row(row, fresh.get(row.run)) for row in self.rows]
        else:
            return None
        if [(row.id, row.state, row.states) for row in self.rows] != before:
            pace.request_query(now, apart=QUERY_PAUSE_S)
        return self.rows

    def _list(self, context: Context) -> Sequence[JobStatus]:
        self._listed_at, self._stamp = time.monotonic(), _stamp_of(context.runs_dir)
        rows, _, self.silence = list_rows(context, None, cache=self.cache)
        silent = (row.out_of_reach for row in rows if row.out_of_reach)
        self.silence = self.silence or next(silent, "")
        if not self.silence and any(row.is_waiting for row in rows):
            rows = add_wait_reasons(context, rows, self.cache, count_ahead=False)
        self.rows = rows
        return rows


def _stamp_of(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _update_row(row: JobStatus, fresh: JobStatus | None) -> JobStatus:
    if fresh is None:
        return row
    return structs.replace(
        fresh, short_id=row.short_id, cluster=row.cluster, why=fresh.why or row.why
    )


class _OpenCurve:
    """A log that is read as it grows, and the number of times that it did."""

    def __init__(self, log: CurveLog) -> None:
        self.log = log
        self.lock = threading.Lock()
        self.version = 0
        self.checked_at = 0.0


class _PublishedRow(NamedTuple):
    """A row of the page, and the version and the time (monotonic) since which it is the same."""

    version: int
    at: float
    row: dict[str, Any]

    def is_current(self, row: dict[str, Any], now: float) -> bool:
        """Return True if a row need not be sent again.

        The time of a running job alone changes with each reading, and is sent once a minute.
        """
        if row is self.row or row == self.row:
            return True
        return now < self.at + _TIMES_INTERVAL_S and all(
            row.get(name) == self.row.get(name) for name in {*row, *self.row} - _TIMES
        )


class Board:
    """Runs, jobs and logs of one context, for any number of pages.

    Slurm is queried as by `hpcrun status --watch`, whatever the number of pages, and not at all
    while no page is open.

    Attributes:
        first: The id of the first run, job or log that the user named; "" without one.
        version: Increases with each change of the rows.
    """

    def __init__(
        self, context: Context, words: Sequence[str] = (), *, has_actions: bool = False
    ) -> None:
        """Find what the words name. Raises InputError for a word that names nothing.

        ``has_actions``: act() is permitted.
        """
        self._context = context
        self.has_actions = has_actions
        self._action_lock = threading.Lock()
        self.version = 0
        self.first = ""
        self._listing = _WatchedListing()
        self._files: dict[str, Source] = {}
        self._named_runs: dict[str, RunFolder] = {}
        job_ids = self._resolve(words)
        self._jobs = WatchedSlurmJobs(job_ids, strict=False)
        self._monitor = Monitor(context, [self._listing, self._jobs], calmest=MAX_QUERY_PAUSE_S)
        self._rows: dict[str, _PublishedRow] = {}
        self._order_version = 0
        # The JSON of each status by its identity; the status is kept, so that its id is not reused.
        self._built: dict[int, tuple[JobStatus, dict[str, Any]]] = {}
        self._trouble = ""
        self._curves: OrderedDict[str, _OpenCurve] = OrderedDict()
        self._curves_lock = threading.Lock()
        # One trip at a time to a cluster on another host.
        is_far = context.cluster.host is not None
        self._trip: AbstractContextManager[object] = threading.Lock() if is_far else nullcontext()
        self._is_listed = threading.Event()  # set once all runs were listed
        self._wanted_until = 0.0
        self._wake = threading.Event()
        self._is_closed = False

    def _resolve(self, words: Sequence[str]) -> list[str]:
        """Register the log files and runs among the words; return the ids of other jobs."""
        job_ids = []
        names = [word for word in words if not (self._context.cwd / word).is_file()]
        targets = find_targets_by_word(self._context, names) if names else {}
        for word in words:
            if word not in names:
                path = (self._context.cwd / word).resolve()
                key = f"file:{path}"
                self._files[key] = Source(word, (path,))
            else:
                target = targets[word]
                if target is None:
                    raise unknown_run_error(self._context, word, or_file=True)
                if isinstance(target, RunFolder):
                    key = target.run_id
                elif isinstance(target, SweepFolder):
                    key = target.sweep_id
                else:
                    key = target
                    job_ids.append(target)
            self.first = self.first or key
        return job_ids

    # ---- keeping up to date

    def start(self) -> None:
        """Start the thread that follows the runs."""
        threading.Thread(target=self._follow, daemon=True).start()

    def close(self) -> None:
        """Stop following; an action that has begun is completed."""
        self._is_closed = True
        self._wake.set()
        with self._action_lock:
            pass

    def want(self) -> None:
        """Note that a page is open."""
        self._wanted_until = time.monotonic() + _UNUSED_AFTER_S
        self._wake.set()

    def _follow(self) -> None:
        while not self._is_closed:
            if time.monotonic() > self._wanted_until:
                self._wake.clear()
                self._wake.wait()
                continue
            try:
                pause = self._poll()
                self._publish()
            except Exception as error:  # otherwise the page would show old states as current
                self._trouble = f"internal error: {type(error).__name__}: {error}"
                pause = _RETRY_S
            self._is_listed.set()
            time.sleep(max(0.1, min(pause, self._monitor.pause)) if not self._trouble else pause)

    def _poll(self) -> float:
        """Read and query what is due; return the seconds until the next time."""
        try:
            with self._trip:
                self._monitor.poll()
            self._trouble = self._listing.silence
        except HpcrunError as error:
            self._trouble = error.message
            return _RETRY_S
        return FILES_INTERVAL_S

    def _publish(self) -> None:
        """Number the rows that have changed."""
        # The row of a status that is still the same object need not be built again.
        statuses = self._listing.rows
        built = self._built
        new = [status for status in statuses if id(status) not in built]
        for status, row in zip(new, listing_json(new, 0, "")["runs"], strict=True):
            key = row["run_id"] or row["sweep_id"] or row["id"]
            built[id(status)] = (status, {"key": key, **row, "remark": status.remark})
        self._built = {id(status): (status, built[id(status)][1]) for status in statuses}
        rows = self._file_rows()
        for _, row in self._built.values():
            rows[row["key"]] = row
        for statuses in self._jobs.known.values():
            rows |= {
                key: {"key": key, **job_json(status)}
                for status in statuses
                if (key := status.job_id or "")
            }
        known, now = self._rows, time.monotonic()
        changed = {
            key: known[key]
            if key in known and known[key].is_current(row, now)
            else _PublishedRow(0, now, row)
            for key, row in rows.items()
        }
        is_reordered = [*changed] != [*known]
        if is_reordered or any(row.version == 0 for row in changed.values()):
            next_version = self.version + 1
            self._rows = {
                key: row if row.version else row._replace(version=next_version)
                for key, row in changed.items()
            }
            if is_reordered:
                self._order_version = next_version
            self.version = next_version

    def _file_rows(self) -> dict[str, dict[str, Any]]:
        return {
            key: {
                "key": key,
                "kind": "log",
                "id": source.name,
                "name": source.name,
                "state": "",
                "final": True,
            }
            for key, source in self._files.items()
        }

    def news(self, since: int) -> dict[str, Any]:
        """Return the rows that changed after a version.

        ``keys`` are those of all rows in order, or None if the order has not changed.
        """
        if not self._rows and self._files:
            self._publish()
        version, rows, is_reordered = self.version, self._rows, since < self._order_version
        is_new = since != version
        return {
            "version": version,
            "rows": [each.row for each in rows.values() if each.version > since] if is_new else [],
            "keys": [*rows] if is_reordered or not since else None,
            "is_ready": version > 0,
            "trouble": self._trouble or None,
            "actions": self.has_actions,
            "host": self._context.cluster.host,
            "cluster": self._context.cluster.name,
            "next_query_s": round(self._monitor.seconds_until_query),
        }

    # ---- one run

    def detail(self, key: str) -> dict[str, Any]:
        """Return everything about a run, sweep, job or log but its curve and its log.

        Raises InputError, OutOfReach.
        """
        self.want()
        if key in self._files:
            return {"kind": "log", "key": key, "runs": [], "facts": {}, "files": [], "script": ""}
        self._is_listed.wait(_FIRST_LISTING_S)  # the first listing has Slurm's answers
        for statuses in self._jobs.known.values():
            for status in statuses:
                if status.job_id == key:
                    return self._job_detail(key, status)
        target = self._find(key)
        with self._trip:
            statuses = self._status_of(runs_of(target))
            if len(statuses) == 1:
                statuses = [add_cause(self._context, statuses[0])]
        found: dict[str, Any] = {
            "key": key,
            "kind": "sweep" if isinstance(target, SweepFolder) else "run",
            "runs": [run_json(status) for status in statuses],
            "facts": {},
            "files": [],
            "script": "",
            "has_use": False,
            "cost": "",
            "price": "",
            "search": None,
        }
        if isinstance(target, SweepFolder):
            result = read_search_result(runs_of(target))
            found["search"] = None if result is None else search_json(result, None)
        if isinstance(target, RunFolder):
            hours, factors = statuses[0].gpu_hours, self._context.cluster.cost
            found["cost"] = format_cost(statuses[0].cost, has_gpus=bool(hours))
            if hours and factors.per_gpu_hour is not None:
                found["price"] = f"{hours * factors.per_gpu_hour:.2f} {factors.currency}".strip()
            found["facts"] = read_run_facts(target)[0]
            found["script"] = self._masked_text(target, target.script)
            found["files"] = self._log_files(target)
            found["has_use"] = bool(read_node_usage(target, with_series=False))
        return found

    def node_use(self, key: str) -> dict[str, Any]:
        """Return the use of a run's nodes and GPUs over its last attempt. Raises InputError."""
        self.want()
        run = self._find(key)
        if isinstance(run, SweepFolder):
            raise InputError(f"{key}: a sweep", fix="select one of its runs")
        return build_use_data(read_node_usage(run))

    def _job_detail(self, key: str, status: JobStatus) -> dict[str, Any]:
        try:
            files = [
                {"name": path, "size": _size(file)} for path, file in _named(self._source(key))
            ]
        except HpcrunError:  # a job that has not started, or that Slurm has forgotten
            files = []
        shown = job_json(status)
        return {
            "key": key, "kind": "job", "runs": [shown], "facts": {}, "files": files, "script": ""
        }  # fmt: skip

    def _status_of(self, runs: Sequence[RunFolder]) -> list[JobStatus]:
        """Determine states with Slurm's last answers, without another query."""
        answers = dict(self._listing.cache.answers)
        for run in runs:
            conf = find_slurm_conf(self._context, read_history(run))
            answers.setdefault(conf, SlurmAnswers())
        level: Any = "detail" if len(runs) == 1 else "row"
        return status_of(self._context, runs, SlurmCache(answers=answers), level=level)

    def _find(self, key: str) -> RunFolder | SweepFolder:
        """Find a run or sweep by its id. Raises InputError."""
        for row in self._listing.rows:
            if row.run is not None and row.run.run_id == key:
                return row.run
            if row.sweep is not None and row.sweep.sweep_id == key:
                return row.sweep
        if not self._is_run(key):  # a request cannot name folders and files
            raise unknown_run_error(self._context, key)
        target = find_targets_by_word(self._context, [key])[key]
        if target is None or isinstance(target, str):
            raise unknown_run_error(self._context, key)
        return target

    def _log_files(self, run: RunFolder) -> list[dict[str, Any]]:
        return [
            {"name": str(file.path.relative_to(run.logs)), "size": _size(file.path)}
            for file in list_log_files(run)
        ]

    def _masked_text(self, run: RunFolder, path: Path) -> str:
        try:
            data = read_plain(path)[:_MAX_SCRIPT_BYTES]
        except OSError:
            return ""
        return masker_of(self._context, [run]).mask(data).decode("utf-8", "replace")

    # ---- actions

    def act(self, verb: str, key: str) -> str:
        """Cancel, requeue or resubmit a run, sweep or job; return what was done.

        Raises InputError, SchedulerRefused, OutOfReach.
        """
        if not self.has_actions:
            raise InputError("the page is read-only", fix="hpcrun ui --actions")
        with self._action_lock, self._trip:
            if verb == "resubmit":
                again = prepare_again(self._context, self._find(key), checks=Checks(strict=True))
                return f"submitted as job {submit_again(again).job_id}"
            if verb not in ("cancel", "requeue"):
                raise InputError(f"{verb}: no such action")
            targets = find_targets(self._context, [key])
            if verb == "cancel":
                cancel_evaluations(self._context, targets)
            apply = cancel_jobs if verb == "cancel" else requeue_jobs
            results = apply(self._context, targets)
            for result in results:
                if result.error is not None:
                    raise result.error
        done = sum(result.done for result in results)
        words = {"cancel": "cancelled", "requeue": "requeued"}
        left = next((result.left for result in results if result.left), "")
        if not done:
            return left or "nothing was changed: already ended"
        return f"{words[verb]}: {done} of {len(results)} jobs" if len(results) > 1 else words[verb]

    # ---- curves

    def curves(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the curves of runs and logs as the HTML report has them. Raises InputError."""
        self.want()
        parsed = []
        for key in self._expand(keys):
            open_curve = self._open_curve(key)
            with open_curve.lock:
                self._read(open_curve)
                run = open_curve.log.run()
            parsed.append(structs.replace(run, source=self._label(key, run.source)))
        return report_data(parsed) | {"keys": self._expand(keys)}

    def curve_version(self, keys: Sequence[str]) -> int:
        """Read what was appended to logs; return a number that increases whenever they grew."""
        self.want()
        total = 0
        for key in self._expand(keys):
            open_curve = self._open_curve(key)
            with open_curve.lock:
                self._read(open_curve)
                total += open_curve.version
        return total

    def _expand(self, keys: Sequence[str]) -> list[str]:
        """Replace sweeps by their runs."""
        sweeps = {row.sweep.sweep_id: row.sweep for row in self._listing.rows if row.sweep}
        found = []
        for key in keys:
            sweep = sweeps.get(key)
            found += [run.run_id for run in runs_of(sweep)] if sweep is not None else [key]
        return list(dict.fromkeys(found))

    def _label(self, key: str, default: str) -> str:
        published = self._rows.get(key)
        row = published.row if published is not None else {}
        name, job = row.get("name"), row.get("job_id")
        return f"{name} ({job or key[-4:]})" if name and row.get("kind") == "run" else default

    def _open_curve(self, key: str) -> _OpenCurve:
        with self._curves_lock:
            known = self._curves.get(key)
            if known is None:
                source = self._source(key)
                known = self._curves[key] = _OpenCurve(CurveLog(self._context, source))
            self._curves.move_to_end(key)
            while len(self._curves) > _MAX_OPEN_CURVES:
                self._curves.popitem(last=False)
            viewed = [one.log.source.run for one in self._curves.values()]
            live = {row.run for row in self._listing.rows if not row.final}
            self._listing.viewed = [run for run in viewed if run is not None and run in live]
            return known

    def _source(self, key: str) -> Source:
        if key in self._files:
            return self._files[key]
        if self._is_job(key):
            with self._trip:
                (source,) = find_sources(self._context, [key], is_awaited=True)
            return source
        run = self._find(key)
        if isinstance(run, SweepFolder):
            raise InputError(f"{key}: a sweep", fix="select one of its runs")
        with self._trip:
            fetch_records(self._context, [run], by_word=True, whole=True)
            fetch_evaluations(self._context, run)
        return Source(run.run_id, run=run)

    def _is_job(self, key: str) -> bool:
        """Return True for a job that the user named, or a task of one."""
        known = self._jobs.known
        ids = {status.job_id for statuses in list(known.values()) for status in statuses}
        return key in known or key in ids

    def _is_run(self, key: str) -> bool:
        return bool(key[:8].isdecimal() and "-" in key and "/" not in key)

    def _read(self, curve: _OpenCurve) -> None:
        now = time.monotonic()
        if now < curve.checked_at + 0.5:
            return
        if curve.version and curve.log.is_over:
            return
        if curve.version == 0 and self._is_over(curve.log.source):
            curve.log.read()  # with a last line that has no line end
            curve.version = 1
        elif curve.log.read_new():
            curve.version += 1
        curve.checked_at = time.monotonic()

    def _is_over(self, source: Source) -> bool:
        """Return True if nothing more is expected in a log."""
        if source.run is not None:
            return any(row.run == source.run and row.final for row in self._listing.rows)
        modified = (_modified_at(path) for path in source.files)
        return all(time.time() - moment > _SETTLED_AFTER_S for moment in modified)

    # ---- logs

    def log(
        self, key: str, name: str, at: int, *, before: bool, find: str, backward: bool
    ) -> dict[str, Any]:
        """Return a window of a log: at an offset, before it, or at the next match of ``find``.

        Raises InputError.
        """
        self.want()
        path, run = self._log_path(key, name)
        masker = masker_of(self._context, [] if run is None else [run])
        try:
            match = find_text(path, find, at, backward=backward) if find else None
            if find and match is None:
                return {"match": None}
            window = read_window(path, masker, at if match is None else match, before=before)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        return {"match": match, **structs.asdict(window), "size_text": format_bytes(window.size)}

    def _log_path(self, key: str, name: str) -> tuple[Path, RunFolder | None]:
        if self._is_run(key) and key not in self._files:
            run = self._find(key)
            if isinstance(run, RunFolder):
                for file in list_log_files(run):
                    if str(file.path.relative_to(run.logs)) == name:
                        return file.path, run
            raise InputError(f"{key}: no log {name}")
        for shown, path in _named(self._open_curve(key).log.source):
            if name in ("", shown):
                return path, None
        raise InputError(f"{key}: no log {name}")


def _named(source: Source) -> list[tuple[str, Path]]:
    """Return the files of a log or job, by the names that are shown."""
    names = source.paths or [str(path) for path in source.files]
    return list(zip(names, source.files, strict=True))


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
