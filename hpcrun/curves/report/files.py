"""Write reports to files; a single table defines the supported formats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpcrun.errors import InputError

if TYPE_CHECKING:
    from hpcrun.curves.report.parsed import ParsedRun


class Format(Struct, frozen=True):
    """A file format.

    Attributes:
        writer: Module of this package and name of its function, which accepts runs and a path.
        package: Optional dependency that the writer requires; "" for none.
        suffixes: Permitted file name suffixes; empty to permit all.
        is_folder: Whether the output is a folder instead of a file.
        options: Names of the keyword arguments that the writer accepts.
    """

    writer: tuple[str, str]
    package: str = ""
    suffixes: tuple[str, ...] = ()
    is_folder: bool = False
    options: tuple[str, ...] = ()


FORMATS = {
    "plot": Format(
        ("image", "write_image"), "matplotlib", (".png", ".svg", ".pdf"), options=("by",)
    ),
    "html": Format(("html", "write_html"), options=("sections",)),
    "csv": Format(("data", "write_csv"), options=("full",)),
    "tensorboard": Format(("tensorboard", "write_tensorboard"), "tensorboard", is_folder=True),
}


def check_files(cwd: Path, logs: Sequence[str], files: Mapping[str, str | None]) -> None:
    """Validate the output files before any log is read, since following a log may take days.

    Raises:
        InputError: A file cannot be written, or its format's package is not installed.
    """
    read = [path for log in logs if (path := cwd / log).is_file()]
    taken: dict[str, str] = {}
    for name, form in FORMATS.items():
        file = files.get(name)
        if file is None:
            continue
        path, option = cwd / file, f"--{name} {file}"
        if form.package and find_spec(form.package) is None:
            raise _missing_package(name)
        if path.is_file() and any(path.samefile(log) for log in read):
            raise InputError(f"{option}: this is the log to read", fix="name another file")
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name and not path.is_relative_to("/dev"):
            raise InputError(f"{option}: --{other} names the same file", fix="name another file")
        if form.is_folder:
            if path.exists() and not path.is_dir():
                raise InputError(f"{option}: a file", fix="name a folder, new or existing")
        elif path.is_dir():
            raise InputError(f"{option}: a folder", fix="name a file in it")
        elif not path.parent.is_dir():
            raise InputError(f"{option}: no such folder", fix=f"mkdir -p {path.parent}")
        elif form.suffixes:
            checked_suffix(path, name)


def checked_suffix(path: Path, name: str) -> str:
    """Return the suffix of an output file.

    Raises:
        InputError: The format does not permit the suffix.
    """
    suffix, known = path.suffix.lower(), FORMATS[name].suffixes
    if suffix not in known:
        raise InputError(
            f"{path}: not a kind of picture: {suffix or 'no suffix'}",
            fix=f"end its name in one of {', '.join(known)}",
        )
    return suffix


def write_files(
    cwd: Path, runs: Sequence[ParsedRun], files: Mapping[str, str | None], **options: Any
) -> list[str]:
    """Write the requested files and return their names.

    Args:
        cwd: Folder that relative paths refer to.
        runs: The runs to report.
        files: Output path by format; None for formats that were not requested.
        **options: Options of the writers; each writer receives only those that it accepts.

    Raises:
        InputError: A file cannot be written.
    """
    written = []
    for name, form in FORMATS.items():
        file = files.get(name)
        if file is not None:
            module, function = form.writer
            write = getattr(import_module(f"hpcrun.curves.report.{module}"), function)
            own = {key: options[key] for key in form.options if key in options}
            write(runs, cwd / file, **own)
            written.append(file)
    return written


@contextmanager
def package_of(name: str) -> Iterator[None]:
    """Convert the ImportError of a format's optional package in the block to an InputError."""
    try:
        yield
    except ImportError as error:
        raise _missing_package(name, f" ({error})") from error


def _missing_package(name: str, why: str = "") -> InputError:
    package = FORMATS[name].package
    return InputError(f"--{name} needs the package {package}{why}", fix=f"pip install {package}")
