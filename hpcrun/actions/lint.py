"""Check sbatch scripts, and fix them."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.files import read_plain, write_atomically, write_error
from hpcrun.lint import Finding, SourcedFile, apply_fixes, lint_request, lint_script

# Files of a folder that may be sbatch scripts.
_SUFFIXES = {".sh", ".bash", ".sbatch", ".slurm", ".sl", ".job", ".cmd", ".batch", ""}
_LARGEST = 1 << 20


class LintedScript(Struct, frozen=True):
    """A script with its findings.

    Attributes:
        name: The name as given, or ``stdin``.
        path: The file; None for standard input.
    """

    name: str
    path: Path | None
    text: str
    findings: list[Finding]

    @property
    def fixed(self) -> str:
        """The text with all safe fixes."""
        return apply_fixes(self.text, self.findings)

    @property
    def diff(self) -> list[str]:
        """The lines of the unified diff between the text and the fixed one."""
        before, after = self.text.splitlines(), self.fixed.splitlines()
        return list(
            difflib.unified_diff(before, after, self.name, f"{self.name} (fixed)", lineterm="")
        )


def lint_paths(names: Sequence[str], context: Context | None = None) -> list[LintedScript]:
    """Check files, the sbatch scripts in folders, and standard input for "-".

    Args:
        context: Compare the requests with the profile of its cluster, too.

    Raises:
        InputError: A file does not exist or is not a text.
    """
    return [lint_file(name, path, context) for name, path in _list_files(names)]


def lint_file(
    name: str,
    path: Path | None,
    context: Context | None = None,
    options: Mapping[str, str] | None = None,
) -> LintedScript:
    """Check a file, or standard input. Raises InputError.

    Args:
        options: Options of sbatch that replace those of the script.
    """
    if path is None:
        data = sys.stdin.buffer.read()
    else:
        try:
            data = read_plain(path, _LARGEST)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}", fix="name a script") from error
    if b"\0" in data[:4096]:
        raise InputError(f"{name}: not a script: it contains bytes that are no text")
    text = data.decode("utf-8", "surrogateescape")
    folders = [Path(), *([path.parent] if path is not None else [])]

    def read_sourced(word: str) -> SourcedFile | None:
        return read_sourced_file(word, folders)

    findings = lint_script(text, name, syntax=_check_syntax(data), read_sourced=read_sourced)
    if context is not None:
        source = context.cluster_source
        findings += lint_request(text, name, context.cluster, source, options)
        findings.sort(key=lambda one: (one.line, one.column))
    return LintedScript(name, path, text, findings)


def find_script_errors(context: Context, name: str, options: Mapping[str, str]) -> list[Finding]:
    """Return the errors in a script that is about to be submitted; none without the parser."""
    try:
        found = lint_file(name, Path(name), context, options).findings
    except InputError:
        return []
    except Exception as error:  # a bug of the checks must not stop the submission
        message = f"not checked: internal error of hpcrun lint: {type(error).__name__}: {error}"
        fix = "report it with the script"
        return [Finding("internal-error", "error", name, 1, 1, message, "", fix)]
    return [one for one in found if one.severity == "error"]


def write_fixed(script: LintedScript) -> None:
    """Write the fixed text to the script's file. Raises InputError."""
    assert script.path is not None
    try:
        with write_atomically(script.path, follows=True) as file:
            file.write(script.fixed.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise write_error(script.path, error) from error


def _list_files(names: Sequence[str]) -> Iterator[tuple[str, Path | None]]:
    for name in names:
        path = Path(name)
        if name == "-":
            yield "stdin", None
        elif path.is_dir():
            found = [one for one in _walk(path) if _is_batch_script(one)]
            if not found:
                raise InputError(
                    f"{name}: no sbatch script in this folder",
                    fix="name a file; in folders, files with a #SBATCH line are checked",
                )
            yield from ((str(one), one) for one in found)
        else:
            yield name, path


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in sorted(files):
            path = Path(root, file)
            if path.suffix in _SUFFIXES and not file.startswith("."):
                yield path


def _is_batch_script(path: Path) -> bool:
    try:
        data = read_plain(path, _LARGEST)
    except (OSError, InputError):
        return False
    return data.startswith(b"#!") and b"\n#SBATCH" in data


def read_sourced_file(word: str, folders: Sequence[Path]) -> SourcedFile | None:
    """Read a file beside the script, or below the directory of submission; None if there is none.

    Environments are left to the rules for activation.
    """
    inner = Path(word)
    if inner.is_absolute() or ".." in inner.parts or inner.name in ("activate", "conda.sh"):
        return None
    for folder in folders:
        path = folder / inner
        try:
            data = read_plain(path, _LARGEST)
        except (OSError, ValueError, InputError):
            continue
        if b"\0" in data or _run_bash(data).stderr:  # a warning, too: of an open here-document
            return None
        return SourcedFile(str(path), data.decode("utf-8", "surrogateescape"))
    return None


def _run_bash(data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Check the syntax of a script, without warnings about the locale."""
    return subprocess.run(
        ["bash", "-O", "extglob", "-n"],
        input=data,
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


def _check_syntax(data: bytes) -> str:
    """Return the message of ``bash -n``, or ""."""
    run = _run_bash(data)
    if run.returncode == 0:
        return ""
    return run.stderr.decode("utf-8", "replace").strip().split("\n")[0]
