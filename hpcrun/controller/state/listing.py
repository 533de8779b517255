"""The rows of a listing: the newest runs, with few files opened and one question to Slurm."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.rows import Row, is_open, kept_row, remember_row, row_of
from hpcrun.controller.state.status import Answers, Memory, ask, conf_of, forget_end, judge
from hpcrun.controller.state.sweeps import SETTLED, SweepRow
from hpcrun.controller.state.why import WhyWaiting, find_whys
from hpcrun.errors import HpcrunError
from hpcrun.runs.find import list_names
from hpcrun.runs.layout import (
    ARRAY,
    RUN_ID,
    RunFolder,
    SweepFolder,
    array_of,
    sweep_folder,
    sweep_id_of,
)
from hpcrun.runs.records import History, Seen, SeenRow, Submitted
from hpcrun.runs.store import attempts_stamp, read_brief, read_if_there
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.states import UNKNOWN, is_final


class Listing(Struct, frozen=True):
    """Rows, newest first; ``older`` counts those left out; ``out_of_reach`` why Slurm is silent."""

    rows: list[Row]
    older: int
    out_of_reach: str


def list_rows(
    context: Context,
    count: int | None,
    *,
    each_task: bool = False,
    memory: Memory | None = None,
) -> Listing:
    """Find out about the newest runs: ``count`` of them, None for all; a sweep counts as one.

    ``each_task`` gives the runs of sweeps rows of their own. Silence of Slurm is told, never
    raised. With ``memory`` a Slurm whose answer it holds is not asked again.
    """
    names = list_names(context.runs_dir)
    chosen = _entries(names, each_task=each_task)
    is_run = (name for name in chosen if RUN_ID.fullmatch(name.removesuffix(ARRAY)))
    shown = list(islice(is_run, count))
    found = _Found(context, [context.runs_dir / name for name in shown], memory)
    rows = [found.row(context.runs_dir / name) for name in shown]
    rows = _with_short_ids(rows)
    silent = next((row.out_of_reach for row in rows if row.out_of_reach), "")
    return Listing(rows, len(chosen) - len(shown), silent)


def whys_of(
    context: Context, rows: Sequence[Row], *, count_ahead: bool = False
) -> dict[str, WhyWaiting]:
    """Explain why rows wait, by their ids."""
    waiting = {row.id: row.waiting for row in rows}
    jobs = [job for job in waiting.values() if job is not None]
    found = find_whys(context, jobs, count_ahead=count_ahead) if jobs else {}
    return {id_: found[job.job_id] for id_, job in waiting.items() if job is not None}


def _entries(names: Sequence[str], *, each_task: bool) -> list[str]:
    """The folders that get rows: of sweeps either the array's or those of its runs."""
    sweeps = {name for name in names if "." in name and name.endswith(ARRAY)}

    def has_row(name: str) -> bool:
        if name in sweeps:
            return not each_task
        return each_task or array_of(name) not in sweeps

    # There may be thousands: run ids are told by their form alone at first, and only the names of
    # sweeps and of their tasks have a point (a job's own name may have one, too).
    return [name for name in names if name[:8].isdigit() and ("." not in name or has_row(name))]


def _with_short_ids(rows: Sequence[Row]) -> list[Row]:
    """The newest run of a Slurm id goes by it; others by the end of their run id."""
    taken: set[str] = set()
    tails = Counter(_tail(row) for row in rows)
    named = []
    for row in rows:
        word = row.job_id if row.job_id not in taken else None
        if word is not None:
            taken.add(word)
        tail = _tail(row)
        # Digits alone would be a Slurm id.
        is_clear = tails[tail] == 1 and not tail.isdigit() and row.sweep is None
        full = row.run.run_id if row.run else row.sweep.sweep_id if row.sweep else row.id
        named.append(structs.replace(row, id=word or (tail if is_clear else full)))
    return named


def _tail(row: Row) -> str:
    return row.id.rpartition("-")[2]


class _Found:
    """What the folders and Slurm say of the runs of a listing."""

    def __init__(self, context: Context, folders: Sequence[Path], memory: Memory | None) -> None:
        self.context = context
        self.memory = Memory() if memory is None else memory
        self.news: set[str | None] = set()
        self.kept: dict[Path, tuple[Seen, SeenRow]] = {}
        self.histories: dict[Path, History] = {}
        self.sweeps: dict[Path, SweepRow] = {}
        self.broken: dict[Path, str] = {}
        for folder in folders:
            if sweep_id_of(folder.name) is None:
                self._read(RunFolder(folder))
                continue
            try:
                self.sweeps[folder] = SweepRow(folder)
            except (OSError, HpcrunError) as error:
                self.broken[folder] = str(error)
        self._ask()

    def _read(self, run: RunFolder) -> None:
        """Read what there is; one folder that cannot be read must not hide the others."""
        try:
            seen = read_if_there(run.seen, Seen)
            if seen is not None and seen.row is not None and _is_kept(run, seen.row):
                self.kept[run.path] = seen, seen.row
            else:
                self.histories[run.path] = read_brief(run, seen)
        except (OSError, HpcrunError) as error:
            self.broken[run.path] = str(error)

    def _ask(self) -> None:
        """Ask each Slurm once: about the runs that are not over, and those that may be requeued."""
        default = conf_of(self.context, History(run_id=""))
        runs: dict[str | None, list[tuple[RunFolder, History]]] = {}
        also: dict[str | None, list[str]] = {}
        for path, history in self.histories.items():
            runs.setdefault(conf_of(self.context, history), []).append((RunFolder(path), history))
        for path, (seen, kept) in self.kept.items():
            if is_open(seen, kept):
                pair = (RunFolder(path), _as_history(path.name, seen, kept))
                runs.setdefault(kept.slurm_conf, []).append(pair)
                continue
            is_recent = (kept.ended_at or 0.0) > time.time() - SETTLED
            if is_recent and kept.job_id is not None:
                also.setdefault(kept.slurm_conf, []).append(kept.job_id)
        for sweep in self.sweeps.values():
            if sweep.is_settled:
                continue
            history, submitted = sweep.history, sweep.submitted
            conf = conf_of(self.context, history)
            if sweep.is_told and submitted is not None and submitted.job_id is not None:
                also.setdefault(conf, []).append(submitted.job_id)
            else:
                pair = (RunFolder(sweep.folder.path), history)
                runs.setdefault(conf, []).append(pair)
        confs = dict.fromkeys([*runs, *also]) or {default: None}
        self.news = {conf for conf in confs if conf not in self.memory}
        for conf in self.news:
            self.memory[conf] = ask(self.context, conf, runs.get(conf, []), also.get(conf, ()))

    def row(self, folder: Path) -> Row:
        """The row of a run or a sweep, remembered when it is over."""
        if folder in self.broken:
            return _broken_row(folder, self.broken[folder])
        try:
            sweep = self.sweeps.get(folder)
            if sweep is not None:
                return sweep.row(self.memory.get(conf_of(self.context, sweep.history)))
            return self._run_row(folder)
        except (OSError, HpcrunError) as error:
            return _broken_row(folder, str(error))

    def _run_row(self, folder: Path) -> Row:
        run = RunFolder(folder)
        if folder in self.kept:
            seen, kept = self.kept[folder]
            answers: Answers | None = self.memory.get(kept.slurm_conf)
            told = answers.rows.get(_tag(run, kept.sweep_id), []) if answers else []
            shown = [row for row in told if row.job_id == kept.job_id]
            again = [row for row in shown if not is_final(row.state)]
            # What the run's own records said is no longer needed where Slurm tells.
            late = answers.accounts.get(kept.job_id or "") if answers else None
            is_told = seen.by_record and (bool(shown) or (late and is_final(late.state)))
            if not again and not is_told:
                return kept_row(run, seen, kept)
            if again and kept.slurm_conf in self.news:
                forget_end(run)
            self.histories[folder] = read_brief(run)  # requeued since, or told
        history = self.histories[folder]
        conf = conf_of(self.context, history)
        status = judge(self.memory[conf], run, history)
        row = row_of(status)
        if conf in self.news:
            remember_row(status, row)
        return row


def _is_kept(run: RunFolder, kept: SeenRow) -> bool:
    """Tell whether a row that is remembered is this run's, with all its attempts."""
    return kept.run_id in (None, run.run_id) and kept.stamp == attempts_stamp(run)


def _as_history(run_id: str, seen: Seen, kept: SeenRow) -> History:
    """What is remembered of a run, as far as Slurm is asked by it."""
    submitted = Submitted(
        job_id=kept.job_id,
        cluster="",
        slurm_conf=kept.slurm_conf,
        submitted_at=kept.submitted_at or 0.0,
        host="",
        user="",
    )
    return History(run_id=run_id, submitted=submitted, seen=seen)


def _broken_row(folder: Path, why: str) -> Row:
    sweep_id = sweep_id_of(folder.name)
    return Row(
        id=sweep_id or folder.name,
        run=None if sweep_id else RunFolder(folder),
        sweep=SweepFolder(folder) if sweep_id else None,
        job_id=None,
        slurm_conf=None,
        name=folder.name[16:].removesuffix(ARRAY).rpartition("-")[0],
        # Nothing can be found out by asking again soon.
        verdict=Verdict(state=UNKNOWN, final=True, source="record", reason=f"unreadable: {why}"),
        submitted_at=None,
        states={} if sweep_id else None,
    )


def _tag(run: RunFolder, sweep_id: str | None) -> str:
    return sweep_folder(run.path.parent, sweep_id).path.name if sweep_id else run.run_id
