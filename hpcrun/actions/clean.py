"""Remove old finished runs: find those that may be removed, measure their size, and remove them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.actions.job_actions import is_process_alive
from hpcrun.context import Context, is_slurm_conf_missing, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.monitor import fetch_run_names, list_names, status_of
from hpcrun.remote import TRASH, Transport, quote_profile_path
from hpcrun.runs import (
    ARRAY,
    OK_STATES,
    OWN_FILES,
    RUN_ID,
    CachedState,
    JobStatus,
    RunFolder,
    SweepFolder,
    attempt_indices,
    is_final_state,
    list_successors,
    parse_creation_time,
    parse_sweep_id,
    read_mtime_ns,
    read_optional_record,
    read_submitted,
    read_task,
    sweep_folder,
    sweep_folder_name,
)
from hpcrun.slurm import client, is_final

# The number of runs in one Slurm query.
_AT_ONCE = 500
_NO_RUN = "it has the name of a run but no files of a run: hpcrun did not create it"
# The remains of an interrupted clean are removed from this age on; those of a running one are
# younger.
_MIN_TRASH_AGE_S = 600.0


class CleanupItem(Struct, kw_only=True):
    """A run, or a sweep with all its runs, which is removed as a whole.

    Attributes:
        ended_at: Seconds since the epoch.
        states: The number of its runs by state.
        kept: The reason why it may not be removed; "" if it may.
        is_silent: The reason is that Slurm does not respond.
        size: Bytes; None before it is measured.
    """

    name: str
    paths: list[Path]
    runs: list[RunFolder]
    is_sweep: bool
    ended_at: float = 0.0
    states: dict[str, int] = {}
    kept: str = ""
    is_silent: bool = False
    size: int | None = None

    @property
    def has_checkpoints(self) -> bool:
        return any((run.path / "checkpoints").is_dir() for run in self.runs)


class _PastRun(Struct, frozen=True):
    """The known end of a run; ``state`` is empty if the run is not finished."""

    state: str
    ended_at: float
    kept: str = ""
    is_silent: bool = False


def find_cleanup_items(
    context: Context,
    *,
    older_than: float,
    keep: int = 0,
    failed: bool = False,
    named: Sequence[RunFolder | SweepFolder] = (),
) -> list[CleanupItem]:
    """Find runs that ended ``older_than`` seconds ago, newest first, including those to keep.

    While Slurm does not respond, all runs are kept that Slurm may requeue.

    Args:
        keep: The number of newest runs to keep.
        failed: Only runs and sweeps without any successful run.
        named: Only these runs, whatever their age.
    """
    if silence := fetch_run_names(context):  # nothing can be removed there
        raise OutOfReach(silence)
    units = list(_list_items(context.runs_dir))
    if named:
        wanted = {one.path for one in named}
        units = [unit for unit in units if wanted & set(unit.paths)]
    else:
        limit = time.time() - older_than
        spared = {unit.name for unit in islice((unit for unit in units if not unit.kept), keep)}
        old = (unit for unit in units if parse_creation_time(unit.name) <= limit)
        units = [unit for unit in old if unit.name not in spared]
    _find_ends(context, [unit for unit in units if not unit.kept])
    if not named:
        units = [unit for unit in units if unit.kept or unit.ended_at <= limit]
    if failed:
        units = [unit for unit in units if unit.kept or not unit.states.keys() & set(OK_STATES)]
    _keep_runs_in_use(units, is_mirror=context.cluster.host is not None)
    return units


def _list_items(runs_dir: Path) -> Iterator[CleanupItem]:
    """List the user's own runs and sweeps, newest first."""
    names = list_names(runs_dir)
    tasks = {name: list[str]() for name in names if parse_sweep_id(name)}
    alone = []
    for name in names:
        if (array := sweep_folder_name(name)) in tasks:
            tasks[array].append(name)
        elif name in tasks or RUN_ID.fullmatch(name):
            alone.append(name)
    for folder in alone:
        name, is_sweep = folder.removesuffix(ARRAY), folder in tasks
        with contextlib.suppress(OSError, ValueError):
            # A name in the form of a run id without a valid date is not that of a run.
            created = parse_creation_time(name)
            info = (runs_dir / folder).lstat()
            if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode):
                continue
            folders = [RunFolder(runs_dir / run) for run in tasks.get(folder, [folder])]
            paths = [run.path for run in folders]
            # The sweep's own directory is last: while it exists, its runs are recognized as its
            # own.
            paths += [sweep_folder(runs_dir, name).path] if is_sweep else []
            # An empty directory contains nothing to lose.
            names_in = [set(os.listdir(path)) for path in paths]  # noqa: PTH208 - names alone
            is_ours = all(not names or names & OWN_FILES for names in names_in)
            yield CleanupItem(
                name=name,
                paths=paths,
                runs=folders,
                is_sweep=is_sweep,
                ended_at=created,
                kept="" if is_ours else _NO_RUN,
            )


def _find_ends(context: Context, units: Sequence[CleanupItem]) -> None:
    runs = [run for unit in units for run in unit.runs]
    past: dict[Path, _PastRun] = {}
    asked: list[RunFolder] = []
    live = LiveJobs(context)
    for run in runs:
        seen = _read_cached_end(run)
        if seen is None:
            asked.append(run)
        else:
            kept, is_silent = live.reason(run)
            past[run.path] = structs.replace(seen, kept=kept, is_silent=is_silent)
    for start in range(0, len(asked), _AT_ONCE):
        for status in status_of(context, asked[start : start + _AT_ONCE]):
            past[status.folder.path] = _summarize_end(status)
    for unit in units:
        ends = [past[run.path] for run in unit.runs]
        unit.states = dict(Counter(end.state for end in ends))
        unit.ended_at = max((end.ended_at for end in ends), default=parse_creation_time(unit.name))
        unit.kept = next((end.kept for end in ends if end.kept), "")
        unit.is_silent = any(end.is_silent for end in ends)


def _read_cached_end(run: RunFolder) -> _PastRun | None:
    """Read a cached final state; None if there is none of the last attempt."""
    seen, attempts = read_optional_record(run.seen, CachedState), attempt_indices(run)
    if seen is None or seen.attempts != len(attempts) or not is_final_state(seen.state):
        return None
    ended_at = seen.kept.ended_at if seen.kept is not None else None
    # The end is the modification time of the run's last own record, or else of the cached state.
    last = run.attempts / str(max(attempts, default=0))
    for path in (last / "end.json", last / "beat", last / "begin.json", run.seen):
        ended_at = ended_at or read_mtime_ns(path) / 1e9
    return _PastRun(seen.state, ended_at or 0.0)


def _summarize_end(status: JobStatus) -> _PastRun:
    begin = status.last.begin if status.last else None
    ended_at = status.end.ended_at if status.end else status.history.last_sign
    kept = ""
    if not status.final:
        kept = f"it is {status.state}"
    elif begin is not None and status.end is None and is_process_alive(status.folder, begin):
        kept = f"process {begin.pid} of it still exists"
    is_by_record = status.verdict.source == "record"  # Slurm may have requeued it
    is_silent = bool(status.out_of_reach) and (not status.final or is_by_record)
    return _PastRun(status.state, ended_at, kept, is_silent)


def _keep_runs_in_use(units: Sequence[CleanupItem], *, is_mirror: bool) -> None:
    """Keep runs whose checkpoints are used by a later run that is kept; units are newest first."""
    going = {path for unit in units if not unit.kept for path in unit.paths}
    for unit in units:
        user = None if unit.kept else _find_user(unit, going, is_mirror=is_mirror)
        if user is not None:
            unit.kept = f"{user.name} uses its checkpoints"
            going.difference_update(unit.paths)


def _find_user(unit: CleanupItem, going: set[Path], *, is_mirror: bool) -> Path | None:
    """Return a later run that uses a unit's checkpoints and is kept, or None."""
    users = (path for run in unit.runs for path in list_successors(run, is_mirror=is_mirror))
    return next((path for path in users if path not in going), None)


def measure_sizes(context: Context, units: Sequence[CleanupItem], deadline: float) -> None:
    """Measure the sizes of units without following links; leave them None after ``deadline``.

    On a remote cluster they are those of the runs there, not of the copies of their records.

    Args:
        deadline: A time.monotonic() value.
    """
    if context.cluster.host is None:
        for unit in units:
            _measure_size(unit, deadline)
        return
    by_name = {path.name: unit for unit in units for path in unit.paths}
    script = f"cd -- {quote_profile_path(context.cluster.runs_dir)} && exec xargs -0 du -sk --\n"
    argv, left = ["bash", "-c", script], max(0.1, deadline - time.monotonic())
    try:
        names = "\0".join(f"./{name}" for name in by_name)
        found = context.transport().run(argv, stdin=names, timeout=left).stdout
    except OutOfReach:  # too slow
        return
    sizes = {name: int(size) for size, name in re.findall(r"(?m)^([0-9]{1,15})\t\./(.+)$", found)}
    for unit in units:
        if all(path.name in sizes for path in unit.paths):
            unit.size = sum(sizes[path.name] << 10 for path in unit.paths)


def _measure_size(unit: CleanupItem, deadline: float) -> None:
    total, folders = 0, [str(path) for path in unit.paths]
    while folders:
        if time.monotonic() > deadline:
            return
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    unit.size = total


def remove_items(
    context: Context, units: Sequence[CleanupItem]
) -> Iterator[tuple[CleanupItem, HpcrunError | None]]:
    """Remove units, newest first; yield each with its error, if any.

    Each is first renamed to a hidden name and then removed, so that an interruption leaves no
    partial run. Units that changed since they were listed are kept.
    """
    transport = context.transport()
    going = {path for unit in units for path in unit.paths}
    live = LiveJobs(context)
    for unit in units:
        reason = next((why for why, _ in map(live.reason, unit.runs) if why), "")
        user = _find_user(unit, going, is_mirror=context.cluster.host is not None)
        error = None
        if reason:
            error = HpcrunError(f"{unit.name} is kept: {reason}")
        elif user is not None:
            error = HpcrunError(f"{unit.name}: {user.name} uses its checkpoints: it is kept")
        else:
            try:
                transport.remove_directories(unit.paths)
            except OSError as failure:
                where = failure.filename or unit.name
                error = HpcrunError(f"{where}: {failure.strerror or failure}")
        if error is not None:
            going -= set(unit.paths)
        yield unit, error
    _remove_leftovers(transport, context.runs_dir)


def _remove_leftovers(transport: Transport, runs_dir: Path) -> None:
    limit = time.time() - _MIN_TRASH_AGE_S
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(runs_dir)):
            if not re.fullmatch(re.escape(TRASH) + "[0-9a-f]{16}", entry.name):
                continue
            info = entry.stat(follow_symlinks=False)
            is_own = info.st_uid == os.getuid() and stat.S_ISDIR(info.st_mode)
            if is_own and info.st_mtime < limit:
                transport.remove_directories([Path(entry.path)])


def refuse_sweep_members(named: Sequence[RunFolder]) -> None:
    """Refuse single runs of a sweep, which can only be removed as a whole. Raises InputError."""
    for run in named:
        if (task := read_task(run)) is not None:
            raise InputError(
                f"{run.run_id}: a run of a sweep is deleted only with its sweep",
                fix=f"hpcrun clean {task.sweep_id}",
            )


# ---- finished runs that were requeued


class LiveJobs:
    """The user's unfinished jobs by their working directory, queried once when needed.

    A finished run is checked against them, because any scontrol requeue can restart it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        # The states by directory for each slurm.conf, or the reason why Slurm did not respond.
        self._states: dict[str | None, dict[str, str] | str] = {}

    def reason(self, run: RunFolder) -> tuple[str, bool]:
        """Return why a run may not be finished ("" if it is), and whether Slurm did not respond."""
        task = read_task(run)
        submitted = read_submitted(run, task)
        if submitted is None or submitted.job_id is None:
            return "", False
        conf = submitted.slurm_conf
        if is_slurm_conf_missing(self._context, conf):
            # That Slurm no longer exists, such as a sandbox, or the run was submitted on another
            # machine.
            is_here = submitted.host == os.uname().nodename
            away = f"{conf}, with which it was submitted, is not on this machine"
            return "" if is_here else away, False
        if conf not in self._states:
            self._states[conf] = self._query_states(conf)
        known = self._states[conf]
        if isinstance(known, str):
            return f"Slurm may restart it, and does not respond: {known}", True
        state = known.get(run.run_id if task is None else f"{task.sweep_id}{ARRAY}")
        return f"it is {state}" if state else "", False

    def _query_states(self, conf: str | None) -> dict[str, str] | str:
        try:
            rows = client.query_queue(slurm_transport(self._context, conf), strict=True)
        except OutOfReach as silence:
            return silence.message
        return {row.folder: row.state for row in rows if not is_final(row.state)}
