"""What parsed runs look like: on the terminal, as JSON, in files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from hpcrun.cli.output import (
    has_colour,
    has_unicode,
    is_terminal,
    note,
    say,
    width_and_height,
)
from hpcrun.controller.context import Context
from hpcrun.controller.curves.parse import curve_label
from hpcrun.errors import InputError
from hpcrun.metrics.parse import ParsedRun

# Option -> module of hpcrun.report and its function. Each takes the runs and a path.
WRITERS = {
    "plot": ("image", "write_image"),
    "html": ("html", "write_html"),
    "csv": ("csv", "write_csv"),
    "tensorboard": ("tensorboard", "write_tensorboard"),
}


def show(
    context: Context,
    runs: Sequence[ParsedRun],
    *,
    metric: str | None = None,
    as_json: bool = False,
    full: bool = False,
) -> None:
    """Print the report. Raises InputError for a metric that no run has."""
    if as_json:
        from hpcrun.report.json import report_text

        say(report_text(runs, full=full).rstrip("\n"))
    else:
        say(drawing(context, runs, metric=metric))


def drawing(
    context: Context,
    runs: Sequence[ParsedRun],
    *,
    metric: str | None = None,
    size: tuple[int, int] | None = None,
) -> str:
    """Draw the report for this terminal, or for a pipe.

    ``size``: columns and rows that it must keep to; without, what is too long scrolls.
    """
    from hpcrun.report.terminal import report

    width, height = size or width_and_height()
    return report(
        labelled(context, runs),
        width=width,
        height=height,
        colour=has_colour(),
        ascii_only=not has_unicode(),
        metric=known_metric(runs, metric),
        heads=[b"" if run.curve.metrics else _head(context.cwd / run.source) for run in runs],
        is_window=is_terminal(),
        crop=size is not None,
    )


def labelled(context: Context, runs: Sequence[ParsedRun]) -> list[ParsedRun]:
    """Name the runs of a sweep by their values."""
    return [structs.replace(run, source=curve_label(context, run.source)) for run in runs]


def known_metric(runs: Sequence[ParsedRun], name: str | None) -> str | None:
    """Find a metric by the name that the user typed, in whatever case. Raises InputError."""
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


_WRITTEN_BY = {"plot": "matplotlib", "html": "plotly", "tensorboard": "tensorboard"}


def check_files(context: Context, logs: Sequence[str], files: Mapping[str, str | None]) -> None:
    """Look at the files to write before anything is read: -f may take days until it writes them.

    Raises InputError for one that cannot be written, for one name of two, for a log that would be
    replaced by its own report, and where the package is missing that writes the file.
    """
    read = [path for log in logs if (path := context.cwd / log).is_file()]
    taken: dict[str, str] = {}
    for option, name in files.items():
        if name is None:
            continue
        path, said = context.cwd / name, f"--{option} {name}"
        package = _WRITTEN_BY.get(option)
        if package is not None and find_spec(package) is None:
            raise InputError(
                f"--{option} needs the package {package}", fix="pip install 'hpcrun[plot]'"
            )
        if path.is_file() and any(path.samefile(log) for log in read):
            raise InputError(f"{said}: this is the log to read", fix="name another file")
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option and not path.is_relative_to("/dev"):
            raise InputError(f"{said}: --{other} names the same file", fix="name another file")
        if option == "tensorboard":
            if path.exists() and not path.is_dir():
                raise InputError(f"{said}: a file", fix="name a folder, there or not")
        elif path.is_dir():
            raise InputError(f"{said}: a folder", fix="name a file in it")
        elif not path.parent.is_dir():
            raise InputError(f"{said}: no such folder", fix=f"mkdir -p {path.parent}")
        if option == "plot":
            from hpcrun.report.image import picture_suffix

            picture_suffix(path)


def write_files(
    context: Context,
    runs: Sequence[ParsedRun],
    files: Mapping[str, str | None],
    *,
    full: bool = False,
    by: str = "step",
) -> list[str]:
    """Write the files that were asked for; return their names. Raises InputError.

    ``by``: what a picture's curves are drawn over.

    Of runs without any metric nothing is written.
    """
    found = [run for run in labelled(context, runs) if run.curve.metrics]
    words: dict[str, dict[str, object]] = {"csv": {"full": full}, "plot": {"by": by}}
    asked = {option: name for option, name in files.items() if name is not None}
    if asked and not found:
        note("no metrics: nothing is written")
        return []
    for option, name in asked.items():
        module, function = WRITERS[option]
        write = getattr(import_module(f"hpcrun.report.{module}"), function)
        write(found, context.cwd / name, **words.get(option, {}))
    return list(asked.values())


def _head(path: Path) -> bytes:
    """Read the begin of a log in which nothing was found; "" of what is no plain file."""
    from hpcrun.report.nothing import HEAD

    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(HEAD)
    return b""
