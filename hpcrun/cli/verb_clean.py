"""hpcrun clean."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option, seconds
from hpcrun.cli.output import emit_json, note, say, show_error, table
from hpcrun.errors import HpcrunError, InputError, OutOfReach

if TYPE_CHECKING:
    from hpcrun.controller.clean import Unit

# How many are listed before the question; how long sizes are measured, in seconds.
_SHOWN = 20
_PATIENCE = 3.0


@click.command("clean")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, type=RUN)
@click.option(
    "--older-than", default="30d", metavar="T", help="Runs that ended before: 30d (default), 12h."
)
@click.option("--keep", type=click.IntRange(0), default=0, help="Keep the newest N, however old.")
@click.option("--failed", is_flag=True, help="Only runs that did not succeed.")
@click.option("--dry-run", is_flag=True, help="List what would be removed, and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@cluster_option
@json_option
def command(
    jobs: Sequence[str],
    older_than: str,
    keep: int,
    failed: bool,
    dry_run: bool,
    yes: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Remove the folders of old runs, including their logs and checkpoints.

    Only your own runs that are certainly over are removed, and a sweep only as a whole. A run whose
    checkpoints a later run uses is kept. A named JOB is removed whatever its age. Asks first.
    """
    from hpcrun.controller.clean import check_named, find_old, measure, remove
    from hpcrun.controller.targets import find_targets

    age = seconds(older_than)
    asks = not (yes or dry_run)
    if asks and (as_json or not sys.stdin or not sys.stdin.isatty()):
        raise InputError(
            "clean asks before it removes anything, and here it cannot ask",
            fix="-y removes without asking; --dry-run lists what would go",
        )
    where = context(cluster)
    named = find_targets(where, jobs) if jobs else None
    if named is not None:
        if named.jobs:
            raise InputError(f"{named.jobs[0]}: no such run", fix="hpcrun status lists the runs")
        check_named(named.runs)
    units = find_old(
        where,
        older_than=age,
        keep=keep,
        failed=failed,
        named=[*named.runs, *named.sweeps] if named is not None else (),
    )
    going = [unit for unit in units if not unit.kept]
    if dry_run or not as_json:
        deadline = time.monotonic() + _PATIENCE
        for unit in going:
            measure(unit, deadline)
    if not as_json:
        _list(units, going, all_of_them=dry_run)
    gone: list[tuple[Unit, HpcrunError | None]] = []
    if going and asks and not click.confirm("Remove them for good?", err=True):
        say("nothing is removed")
        return 0
    if going and not dry_run:
        try:
            for one in remove(where, going):
                gone.append(one)
        finally:
            if not as_json:
                done = sum(error is None for _, error in gone)
                say(f"{done} of {len(going)} removed")
            if len(gone) < len(going):
                note("no run is half removed; hpcrun clean continues where it was stopped")
    errors = [error for _, error in gone if error is not None]
    if as_json:
        emit_json(_json(units, gone, dry_run=dry_run))
    for error in errors:
        show_error(error)
    if errors:
        return 1
    if any(unit.is_silent for unit in units):
        return OutOfReach.exit_code
    return 1 if named is not None and len(going) < len(units) else 0


def _list(units: Sequence[Unit], going: Sequence[Unit], *, all_of_them: bool) -> None:
    """Say what would go, and why others stay."""
    from hpcrun.views.numbers import format_size

    shown = list(going if all_of_them else going[:_SHOWN])
    if shown:
        rows = [
            (
                unit.name,
                _states(unit),
                _age(time.time() - unit.ended_at),
                "-" if unit.size is None else format_size(unit.size),
                "checkpoints" if unit.has_checkpoints else "",
            )
            for unit in shown
        ]
        table(["RUN", "STATE", "ENDED", "SIZE", ""], rows)
        if len(going) > len(shown):
            say(f"... and {len(going) - len(shown)} more; --dry-run lists all")
        sizes = [unit.size for unit in going if unit.size is not None]
        least = "at least " if len(sizes) < len(going) else ""
        runs = sum(max(1, len(unit.runs)) for unit in going)
        say(f"{runs} run{'s' if runs != 1 else ''}, {least}{format_size(sum(sizes))}")
    else:
        say("nothing to remove")
    kept = [unit for unit in units if unit.kept]
    for unit in kept[:3]:
        note(click.style(f"stays: {unit.name}: {unit.kept}", dim=True))
    if len(kept) > 3:
        why = Counter("a later run needs it" if "uses" in u.kept else u.kept for u in kept[3:])
        reasons = ", ".join(f"{number} ({reason})" for reason, number in why.most_common(3))
        note(click.style(f"stay too: {reasons}", dim=True))


def _states(unit: Unit) -> str:
    if not unit.is_sweep:
        return next(iter(unit.states), "-")
    return ", ".join(f"{number} {state}" for state, number in unit.states.items()) or "no runs"


def _age(age: float) -> str:
    """Say how long ago something was.

    >>> _age(30), _age(7300), _age(86400 * 45)
    ('30 s ago', '2 h ago', '45 d ago')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= length:
            return f"{int(age // length)} {unit} ago"
    return f"{max(0, int(age))} s ago"


def _json(
    units: Sequence[Unit], gone: Sequence[tuple[Unit, HpcrunError | None]], *, dry_run: bool
) -> dict[str, Any]:
    errors = {unit.name: error.message for unit, error in gone if error is not None}
    removed = {unit.name for unit, error in gone if error is None}
    return {
        "dry_run": dry_run,
        "runs": [
            {
                "id": unit.name,
                "sweep": unit.is_sweep,
                "states": unit.states,
                "ended_at": round(unit.ended_at, 3),
                "bytes": unit.size,
                "removed": unit.name in removed,
                "reason": unit.kept or errors.get(unit.name),
            }
            for unit in units
        ],
    }
