"""Output of parsed runs: on the terminal, as JSON, and in files."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from hpcrun.cli.output import drawing_display, print_note
from hpcrun.context import Context
from hpcrun.curves import ParsedRun
from hpcrun.errors import HpcrunError, InputError
from hpcrun.plan import format_label
from hpcrun.runs import RunFolder, read_task

if TYPE_CHECKING:
    from hpcrun.curves import PageSection  # loads the code of HTML reports

# Longer logs without metrics are not searched for the cause of a failure.
_MAX_DIAGNOSED_BYTES = 1 << 26


def draw_report(
    context: Context,
    runs: Sequence[ParsedRun],
    *,
    metric: str | None = None,
    size: tuple[int, int] | None = None,
) -> str:
    """Draw the report for this terminal, or for a pipe.

    ``size`` limits columns and rows; without it a long report scrolls.
    """
    from hpcrun.curves import format_report

    runs = [run if run.curve.metrics else _add_failure(context, run) for run in runs]
    look = drawing_display()
    if size is not None:
        look = structs.replace(look, width=size[0], height=size[1])
    return format_report(
        label_sweep_runs(context, runs),
        look,
        metric=match_metric(runs, metric),
        heads=[b"" if run.curve.metrics else _read_head(context, run.source) for run in runs],
        crop=size is not None,
    )


def _add_failure(context: Context, run: ParsedRun) -> ParsedRun:
    """Add the cause of failure to a plain log without metrics, if the log shows one."""
    path = context.cwd / run.source
    if run.failure or run.bytes > _MAX_DIAGNOSED_BYTES or not path.is_file():
        return run
    from hpcrun.actions import explain_jobs
    from hpcrun.views import format_cause

    with contextlib.suppress(HpcrunError):  # an unreadable log has been reported before
        for answer in explain_jobs(context, [run.source]):
            if answer.diagnosis.cause is not None:
                return structs.replace(run, failure=format_cause(answer.diagnosis.cause))
    return run


def label_sweep_runs(context: Context, runs: Sequence[ParsedRun]) -> list[ParsedRun]:
    """Label the runs of a sweep with their values; runs of several sweeps with their names too."""
    tasks = [read_task(RunFolder(context.runs_dir / run.source)) for run in runs]
    has_several = len({task.sweep_id for task in tasks if task}) > 1
    labelled = []
    for run, task in zip(runs, tasks, strict=True):
        label = f"{task.index}: {format_label(task.values)}" if task else run.source
        if task and has_several:
            name = run.source.split("-", 2)[2].rpartition("-")[0]
            label = f"{name}: {format_label(task.values)}"  # the name has the index
        labelled.append(structs.replace(run, source=label))
    return labelled


def match_metric(runs: Sequence[ParsedRun], name: str | None) -> str | None:
    """Find a metric by the name that the user typed, ignoring case. Raises InputError."""
    known = list(dict.fromkeys(each for run in runs for each in run.curve.metrics))
    if name is None or name in known or not known:
        return name if name in known else None
    for each in known:
        if each.lower() == name.lower():
            return each
    import difflib

    close = difflib.get_close_matches(name, known, 3, 0.4)
    named = ", ".join(close or sorted(known)[:12])
    raise InputError(f"--metric {name}: not in the log", fix=f"there is {named}")


def write_report_files(
    context: Context,
    runs: Sequence[ParsedRun],
    files: Mapping[str, str | None],
    *,
    full: bool = False,
    by: str = "step",
    sections: Sequence[PageSection] = (),
) -> None:
    """Write the requested report files and return their names; none if there is no metric.

    ``by`` selects the x axis of pictures, and ``sections`` are added to HTML. Raises InputError.
    """
    from hpcrun.curves import write_files

    found = [run for run in label_sweep_runs(context, runs) if run.curve.metrics]
    if not found and any(files.values()):
        print_note("no metrics: nothing written")
        return
    for written in write_files(context.cwd, found, files, full=full, by=by, sections=sections):
        print_note(f"wrote {written}")


def _read_head(context: Context, source: str) -> bytes:
    """Return the first bytes of a log, or of rank 0 of a run; b"" if there is no regular file."""
    pattern = f"{glob.escape(source)}/logs/*/rank-0.log"
    logs = [] if "/" in source else sorted(context.runs_dir.glob(pattern))
    path = logs[-1] if logs else context.cwd / source
    from hpcrun.curves import HEAD

    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(HEAD)
    return b""
