"""What hpcrun status shows: a listing, a run, a sweep, or a job that hpcrun did not submit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct, structs

from hpcrun.cli.output import emit_json, say
from hpcrun.cli.show_list import listing_json, print_list
from hpcrun.cli.show_status import show_one, status_json
from hpcrun.controller.context import Context
from hpcrun.controller.state.listing import list_rows, whys_of
from hpcrun.controller.state.rows import row_of
from hpcrun.controller.state.status import Memory, RunStatus, resolve_any, status_of
from hpcrun.controller.state.why import Waiting, find_whys
from hpcrun.runs.find import find, is_job_id, no_runs_in, plain_id
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.store import read_sweep, runs_of
from hpcrun.scheduler import TIMEOUT
from hpcrun.slurm.states import WAITING


class Shown(Struct, frozen=True):
    """What was shown: whether all of it is over, and why Slurm was silent where it was needed.

    ``states`` are those of its rows.
    """

    is_over: bool
    silent: str = ""
    is_needed: bool = False
    states: Sequence[object] = ()

    @property
    def exit_code(self) -> int:
        """4 when Slurm's word is missing: what is final stays known without it."""
        return 4 if self.silent and self.is_needed else 0


def show(
    context: Context,
    word: str | None,
    count: int | None,
    *,
    each_task: bool = False,
    as_json: bool = False,
    memory: Memory | None = None,
) -> Shown:
    """Show what a word names; without one the newest runs. Raises InputError, OutOfReach.

    What ``memory`` holds of Slurm's answers is not asked again. All questions to Slurm together
    take no longer than one may.
    """
    memory = Memory() if memory is None else memory
    context = structs.replace(context, deadline=time.monotonic() + TIMEOUT)
    if word is None:
        return _show_listing(context, count, each_task=each_task, as_json=as_json, memory=memory)
    word = plain_id(word)
    found = find(context.runs_dir, word)
    if found is None and is_job_id(word):
        from hpcrun.controller.state.foreign import own_names  # here: seldom needed

        names = memory.once("names", partial(own_names, context, [word]))
        word = names.get(word, word)
        found = find(context.runs_dir, word)
        if found is None:
            return _show_foreign(context, word, as_json=as_json, memory=memory)
    found = found or resolve_any(context, word)
    runs = runs_of(found) if isinstance(found, SweepFolder) else [found]
    statuses = status_of(context, runs, memory)
    silent = next((status.out_of_reach for status in statuses if status.out_of_reach), "")
    is_one = not isinstance(found, SweepFolder)
    if is_one:
        statuses = [_with_disk(statuses[0])]
    rows = [row_of(status) for status in statuses]
    ask_whys = partial(whys_of, context, rows, count_ahead=is_one)
    whys = memory.once("whys", ask_whys) if not silent else {}
    if as_json:
        pairs = zip(statuses, rows, strict=True)
        emit_json({"runs": [status_json(status, row, whys.get(row.id)) for status, row in pairs]})
    elif isinstance(found, SweepFolder):
        from hpcrun.cli.show_sweep import show_sweep

        show_sweep(read_sweep(found), statuses)
    else:
        show_one(statuses[0], rows[0], whys.get(rows[0].id))
    final = [status.verdict.final for status in statuses]
    states = [(row.id, row.verdict.state) for row in rows]
    return Shown(all(final), silent, is_needed=not all(final), states=states)


def _with_disk(status: RunStatus) -> RunStatus:
    """Note a full disk, of which a run that cannot write its output says nothing."""
    verdict = status.verdict
    if verdict.ok or verdict.state in WAITING:
        return status
    from hpcrun.controller.checks.places import say_full  # here: most runs end well

    said = say_full(status.run.path)
    notes = [*verdict.notes, *([said] if said else [])]
    return structs.replace(status, verdict=structs.replace(verdict, notes=notes))


def _show_listing(
    context: Context, count: int | None, *, each_task: bool, as_json: bool, memory: Memory
) -> Shown:
    listing = list_rows(context, count, each_task=each_task, memory=memory)
    ask_whys = partial(whys_of, context, listing.rows)
    whys = memory.once("whys", ask_whys) if not listing.out_of_reach else {}
    if as_json:
        emit_json(listing_json(listing, whys))
    elif listing.rows:
        print_list(listing, whys)
    else:
        say(f"{no_runs_in(context.runs_dir)}; hpcrun jobs lists what can be submitted")
    is_over = all(row.verdict.final for row in listing.rows)
    states = [(row.id, row.verdict.state, row.states) for row in listing.rows]
    return Shown(is_over, listing.out_of_reach, is_needed=not is_over, states=states)


def _show_foreign(context: Context, job_id: str, *, as_json: bool, memory: Memory) -> Shown:
    from hpcrun.cli.show_foreign import foreign_json, show_foreign
    from hpcrun.controller.state.foreign import foreign_in_detail

    statuses = memory.once("job", partial(foreign_in_detail, context, job_id))
    waiting = [
        Waiting(status.job_id, status.queue.reason, status.queue.start, None, own=False)
        for status in statuses
        if status.queue is not None and status.queue.state in WAITING
    ]
    ask_whys = partial(find_whys, context, waiting, count_ahead=len(statuses) == 1)
    whys = memory.once("whys", ask_whys) if waiting else {}
    if as_json:
        runs: list[Any] = [foreign_json(one, whys.get(one.job_id)) for one in statuses]
        emit_json({"runs": runs})
    else:
        show_foreign(job_id, statuses, whys)
    states = [(one.job_id, one.verdict.state) for one in statuses]
    return Shown(all(status.verdict.final for status in statuses), states=states)
