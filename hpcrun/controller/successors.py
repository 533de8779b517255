"""Notes in a run's folder of the later runs that use its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcrun.controller.context import Context
from hpcrun.controller.state.status import status_of
from hpcrun.errors import InputError, OutOfReach
from hpcrun.runs.layout import RUN_ID, RunFolder
from hpcrun.runs.records import Successor
from hpcrun.runs.store import read_record, write_record

# Two notes of so many seconds may be of two hpcruns that did not see each other.
_AT_ONCE = 120.0


def owner_run(checkpoint_dir: Path) -> RunFolder | None:
    """The run in whose folder checkpoints lie; None where they lie elsewhere."""
    for folder in checkpoint_dir.parents:
        if RUN_ID.fullmatch(folder.name):
            return RunFolder(folder)
    return None


def successors_of(run: RunFolder) -> list[Path]:
    """The folders of later runs that use this run's checkpoints, as far as they are there."""
    try:
        files = list(run.successors.iterdir())
    except OSError:
        return []
    found = (read_record(file, Successor) for file in files if file.suffix == ".json")
    return [Path(one.run_dir) for one in found if one is not None and Path(one.run_dir).is_dir()]


def _check_alone(context: Context, note: Path) -> None:
    """Look for the notes of others that are as new as ours, by the file server's clock."""
    ours = note.stat().st_mtime
    for other in note.parent.glob("*.json"):
        record = read_record(other, Successor) if other != note else None
        if record is None or record.reads or abs(other.stat().st_mtime - ours) > _AT_ONCE:
            continue
        run = RunFolder(Path(record.run_dir))
        if not run.path.is_dir() or not status_of(context, [run])[0].verdict.final:
            raise InputError(
                f"{note.parent.parent}: {run.run_id}, of another hpcrun at this moment, goes on "
                "from its checkpoints",
                fix=f"hpcrun status {run.run_id}; --fresh for checkpoints of its own",
            )


@contextlib.contextmanager
def linked(
    context: Context,
    runs: Sequence[Path],
    checkpoint_dirs: Sequence[str | None],
    *,
    reads: bool = False,
) -> Iterator[None]:
    """Note in each folder whose checkpoints are used that they are, before the job can begin.

    ``reads``: the runs only begin from them, and any number may. The notes are taken away again
    where nothing is submitted. Raises InputError where another hpcrun goes on from the same ones at
    this moment: of two that see each other's note none does.
    """
    written: list[Path] = []
    try:
        for run, folder in zip(runs, checkpoint_dirs, strict=True):
            owner = owner_run(Path(folder)) if folder is not None else None
            if owner is not None:
                with contextlib.suppress(FileExistsError):
                    owner.successors.mkdir()
                written.append(owner.successors / f"{run.name}.json")
                write_record(written[-1], Successor(run_dir=str(run), reads=reads))
                if not reads:
                    _check_alone(context, written[-1])
        yield
    except BaseException as error:
        if not (isinstance(error, OutOfReach) and error.maybe_done):
            for file, run in zip(written, runs, strict=False):
                if not run.is_dir():  # Ctrl-C after Slurm's answer: then the run is there
                    file.unlink(missing_ok=True)
        raise
