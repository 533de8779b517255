"""Find the program of a job, the file that Python starts with, and read it without running it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import msgspec

from hpcrun.actions.interpreter import Interpreter
from hpcrun.actions.start_folder import StartFolder
from hpcrun.context import Context
from hpcrun.plan import (
    JOINING_WORDS,
    Findings,
    ProjectScript,
    ScriptFacts,
    adopt_parser,
    is_single_process,
    read_script,
)
from hpcrun.spec import JobSpec

# In bytes: a longer text was not written by a person and is not parsed.
LONGEST = 1_000_000
# In bytes: a longer line is data, and deep nesting in it would crash the parser of Python 3.10.
LONGEST_LINE = 20_000
# The number of modules of the project that are searched.
MODULES = 40
_UNKNOWN_VERSION = (0, 0)


class ParsedScript(msgspec.Struct, frozen=True):
    """The result of parsing a script: its facts, or the error and line at which Python fails."""

    facts: ScriptFacts | None = None
    fault: str = ""
    line: int | None = None


class Program(Findings):
    """The file that Python starts with, as far as it is visible here, and what was found."""

    path: Path | None = None
    name: str = ""
    script: ProjectScript | None = None


def find_program(context: Context, spec: JobSpec, *, inside: bool) -> Program:
    """Find the file of a job's script or module; command_program() handles commands.

    Args:
        inside: The program runs in a container, of which only the project's own files are visible.
    """
    program = Program()
    if spec.script is not None:
        _find_script(context, spec.script, program, inside=inside)
    elif spec.module is not None:
        _find_module(context, spec.module, program)
    return program


def _find_script(context: Context, script: str, program: Program, *, inside: bool) -> None:
    path = context.project / script
    program.name = script
    fault = _file_fault(path)
    if not fault:
        program.path = path
        return
    if inside and script.startswith("/"):
        return
    if fault != "no such file":
        fix = "; name the Python file in it" if fault == "a folder" else ""
        program.refuse("script", f"{path}: {fault}{fix}")
        return
    near = [
        str(file.relative_to(context.project))
        for pattern in ("*.py", "*/*.py")
        for file in context.project.glob(pattern)
    ]
    close = difflib.get_close_matches(script, near, 1)
    hint = f"did you mean {close[0]}?" if close else f"paths start at {context.project}"
    program.refuse("script", f"{path}: no such file; {hint}")


def _file_fault(path: Path, *, to_run: bool = False) -> str:
    """Explain why a file cannot be read or executed; "" if it can. FIFOs are never opened."""
    try:
        info = path.stat()
        if S_ISDIR(info.st_mode):
            return "a folder"
        if to_run:
            fix = f"chmod +x {path}, or name what runs it, as in bash or python"
            return "" if os.access(path, os.X_OK) else f"not executable; {fix}"
        if not S_ISREG(info.st_mode):
            return "not a file that could be copied and read"
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return "no such file"
        return str(error.strerror) if to_run else f"cannot be read: {error.strerror}"
    except ValueError:  # a NUL byte in the path
        return "no such file"
    return ""


def _find_module(context: Context, module: str, program: Program) -> None:
    """Find a module of the project; an installed module is left to the interpreter."""
    project, parts = context.project, module.split(".")
    target = project.joinpath(*parts)
    program.name = module
    known = (project / parts[0]).is_dir() or (project / f"{parts[0]}.py").is_file()
    if not known and (project / "src" / parts[0]).is_dir():
        known, target = True, (project / "src").joinpath(*parts)
    if not known or not all(parts):
        return
    if target.with_name(f"{target.name}.py").is_file():
        program.path = target.with_name(f"{target.name}.py")
    elif (target / "__main__.py").is_file():
        program.path = target / "__main__.py"
    elif (target / "__init__.py").is_file():
        program.refuse("module", f"{module}: a package, and it has no {target}/__main__.py to run")
    elif not target.is_dir():
        near = [f"{module.rpartition('.')[0]}.{file.stem}" for file in target.parent.glob("*.py")]
        close = difflib.get_close_matches(module, near, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        program.refuse("module", f"{module}: the project has no {target}.py{hint}")


def command_program(folder: StartFolder, words: Sequence[str], program: Program) -> list[str]:
    """Check a command that is started in a folder; return the arguments of a Python file in it."""
    first = words[0] if words else ""
    path = folder.resolve(first)
    if path is not None and "/" in first and "$" not in first:
        # otherwise the file system may only be mounted on the nodes
        is_seen = Path(*path.parts[:2]).exists()
        fault = _file_fault(path, to_run=True) if is_seen else ""
        if fault:
            program.refuse("command", f"{first}: {fault}")
    if re.fullmatch(r"(.*/)?python[0-9.]*", first):
        rest = list(words[1:])
        while rest and rest[0] in ("-u", "-B", "-O", "-s", "-E", "-I"):
            del rest[0]
        if rest and rest[0].endswith(".py") and "$" not in rest[0]:
            path = folder.resolve(rest[0])
            is_here = path is not None and not _file_fault(path)
            program.path, program.name = (path if is_here else None), rest[0]
            return rest[1:]
    return []


# ---- reading -----------------------------------------------------------------------------------


def read_program(context: Context, spec: JobSpec, found: Interpreter, program: Program) -> None:
    """Parse the script like the Python that runs it, and report errors of that version."""
    path = program.path
    if path is None:
        return
    data = content_of(path)
    if data is None or path.suffix in (".pyc", ".pyz") or data.startswith(b"PK\x03\x04"):
        return
    key = "script" if spec.script is not None else "module" if spec.module else "command"
    ours = sys.version_info[:2]
    version = _python_version(found.python)
    shell = _shebang(data)
    if shell and key == "script":
        program.refuse(
            key, f"{path}: this is a script for {shell}; write command: [{shell}, {path.name}]"
        )
        return
    reading = parse_script(data, version if _UNKNOWN_VERSION < version < ours else ours)
    if not reading.fault:
        if (facts := reading.facts) is not None:
            program.script = _with_modules(context, path, ProjectScript(program.name, facts))
        return
    where = f"{path}:{reading.line}" if reading.line else str(path)
    if _UNKNOWN_VERSION < version <= ours:
        which = f" (Python {version[0]}.{version[1]} trains)" if version != ours else ""
        program.refuse(key, f"{where}: {reading.fault}{which}")
    elif not found.inside:
        program.notes.append(
            f"{where}: {reading.fault}, according to Python {ours[0]}.{ours[1]}; the training uses "
            "another Python"
        )


def content_of(path: Path) -> bytes | None:
    """Return a file's bytes; None if it is too long for a script, or unreadable."""
    try:
        # O_NONBLOCK avoids waiting for the writer of a FIFO.
        with open(path, "rb", opener=lambda at, flags: os.open(at, flags | os.O_NONBLOCK)) as file:
            data = file.read(LONGEST + 1)
    except OSError:
        return None
    return data if len(data) <= LONGEST else None


def _shebang(data: bytes) -> str:
    """Return the program named by a first line #!... unless it is Python."""
    match = re.match(rb"#!\s*(\S+)(?:[ \t]+(?:-S[ \t]+)?(\S+))?", data)
    if match is None:
        return ""
    words = [word.decode("utf-8", "replace").rpartition("/")[2] for word in match.groups() if word]
    name = words[1] if words[0] == "env" and len(words) > 1 else words[0]
    return name if name in ("bash", "sh", "zsh", "ksh", "dash", "perl", "Rscript", "ruby") else ""


def parse_script(
    data: bytes, version: tuple[int, ...], *, is_imported: bool = False
) -> ParsedScript:
    """Parse a script as this version of Python; ignore text not written by a person.

    Args:
        is_imported: The file is a module that the script imports.
    """
    if max(map(len, data.split(b"\n"))) > LONGEST_LINE:
        return ParsedScript()
    if b"\0" in data:
        return ParsedScript(fault="not Python: it has a NUL byte")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the script, not about hpcrun
        try:
            tree = ast.parse(data, feature_version=(version[0], version[1]))
            return ParsedScript(facts=read_script(tree, is_imported=is_imported))
        except SyntaxError as error:
            return ParsedScript(fault=f"{error.msg or 'invalid syntax'}", line=error.lineno)
        except ValueError as error:
            return ParsedScript(fault=str(error))
        except (RecursionError, MemoryError):
            return ParsedScript()


def _python_version(python: str) -> tuple[int, ...]:
    """Determine an interpreter's version from its files; (0, 0) if they do not show it."""
    if python == sys.executable:
        return tuple(sys.version_info[:2])
    if "/" not in python:
        return _UNKNOWN_VERSION
    prefix = Path(python).parent.parent
    with contextlib.suppress(OSError):
        text = (prefix / "pyvenv.cfg").read_text(errors="replace")
        match = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
        if match:
            return int(match[1]), int(match[2])
    match = re.search(r"python(\d+)\.(\d+)$", os.path.realpath(python))
    return (int(match[1]), int(match[2])) if match else _UNKNOWN_VERSION


_LOADING = re.compile(
    rb"\b(load_checkpoint|load_state|load_sharded|load_state_dict|get_last_checkpoint"
    rb"|load_from_checkpoint|load_file|restore|(?:torch|dcp|np|numpy|pickle|joblib)\.load)[ \t]*\("
    rb"|\b(resume_from_checkpoint|ckpt_path)[ \t]*=[ \t]*(?!None|False|[\"']{2})[^=\s]"
)
_JOINING = re.compile(JOINING_WORDS.encode())
_PARSERS = re.compile(
    rb"\bArgumentParser\(|\bHfArgumentParser\(|\bclick\b|\btyper\b|\bfire\.Fire\(|\btyro\b"
)
_SLURM_RANKS = re.compile(rb"\bSLURM_(?:PROCID|NTASKS|LOCALID)\b")


def _with_modules(context: Context, path: Path, script: ProjectScript) -> ProjectScript:
    """Add the facts of the project's modules that a script imports."""
    facts = script.facts
    variables, loads, slurm = (
        set(facts.variables),
        set(facts.checkpoint_loads),
        set(facts.slurm_rank_variables),
    )
    imports, names_ranks = [*facts.imports], facts.names_ranks
    calls_backward = facts.calls_backward
    texts: dict[Path, bytes] = {}
    parsers: list[ScriptFacts] = []

    def imports_of(file: Path) -> Iterator[str]:
        return _imported_modules(texts[file])

    for file in modules_of(context.project, path, facts.imports, imports_of):
        text = texts[file] = content_of(file) or b""
        variables |= {name.decode() for name in re.findall(rb"\bHPCRUN_[A-Z_]*", text)}
        loads |= {(call or keyword).decode() for call, keyword in _LOADING.findall(text)}
        imports += _imported_modules(text)
        names_ranks = names_ranks or _JOINING.search(text) is not None
        calls_backward = calls_backward or b".backward(" in text
        slurm |= {name.decode() for name in _SLURM_RANKS.findall(text)}
        if b"ConfigStore" in text:  # a part of Hydra's configuration is in Python
            facts = msgspec.structs.replace(facts, hydra_config=None)
        if not facts.parser and not parsers and _PARSERS.search(text):
            read = parse_script(text, sys.version_info[:2], is_imported=True).facts
            parsers += [read] if read is not None and read.parses else []
    return msgspec.structs.replace(
        script,
        is_single=not names_ranks
        and is_single_process(
            imports, own_packages(context.project, path.parent), calls_backward=calls_backward
        ),
        facts=adopt_parser(facts, parsers),
        variables=frozenset(variables),
        checkpoint_loads=frozenset(loads),
        slurm_rank_variables=frozenset(slurm),
    )


def modules_of(
    project: Path, script: Path, imports: Sequence[str], imports_of: Callable[[Path], Iterable[str]]
) -> Iterator[Path]:
    """Yield the project's own modules that a script imports, directly or not; 40 at most.

    Args:
        imports_of: Called with a module after it was yielded.
    """
    waiting = [(script.parent, name) for name in imports]
    seen = {script}
    while waiting and len(seen) <= MODULES:
        folder, name = waiting.pop(0)
        for file in _module_files(project, folder, name):
            if file not in seen:
                seen.add(file)
                yield file
                waiting += [(file.parent, inner) for inner in imports_of(file)]


def read_sources(project: Path, script: Path) -> str:
    """Return the text of a script and of the project's modules that it imports."""
    texts = {script: content_of(script) or b""}

    def imports_of(file: Path) -> Iterator[str]:
        texts[file] = content_of(file) or b""
        return _imported_modules(texts[file])

    for _ in modules_of(project, script, list(_imported_modules(texts[script])), imports_of):
        pass  # imports_of() keeps the text of each
    return "\n".join(text.decode("utf-8", "replace") for text in texts.values())


def own_packages(project: Path, folder: Path) -> set[str]:
    """Return the packages of the project and of the standard library that a script can import.

    Args:
        folder: The script's folder.
    """
    found: set[str] = set(sys.stdlib_module_names)
    for top in {folder, project, project / "src"}:
        with contextlib.suppress(OSError):
            found |= {path.name.removesuffix(".py") for path in top.iterdir()}
    return found


def _module_files(project: Path, folder: Path, name: str) -> Iterator[Path]:
    """Find a module of the project by the name under which a file in ``folder`` imports it."""
    dots = len(name) - len(name.lstrip("."))
    parts = [part for part in name.split(".") if part]
    if not all(part.isidentifier() for part in parts):
        return
    tops: Sequence[Path] = (folder, project, project / "src")
    if dots:
        tops = (folder, *folder.parents)[dots - 1 : dots]
    for top in dict.fromkeys(tops):
        target = top.joinpath(*parts)
        files = [target.with_suffix(".py")] if parts else []
        for file in (*files, target / "__init__.py"):
            if file.is_relative_to(project) and file.is_file():
                yield file


def _imported_modules(data: bytes) -> Iterator[str]:
    pattern = rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([.\w]+))"
    for start, names, module in re.findall(pattern, data, re.MULTILINE):
        found = (start or module).decode("ascii", "replace")
        yield found
        dot = "" if found.endswith(".") else "."
        for name in names.split(b","):
            if name.split():
                yield f"{found}{dot}{name.split()[0].decode('ascii', 'replace')}"


def split_python_program(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Split a command into its Python and the script with its arguments.

    >>> split_python_program(["/env/bin/python", "-u", "train.py", "--lr", "1"])
    ('/env/bin/python', ['train.py', '--lr', '1'])
    >>> split_python_program(["bash", "train.sh"])
    """
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    rest = list(words[1:])
    while rest and rest[0] in ("-u", "-O", "-I", "-s"):
        rest = rest[1:]
    if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        return None
    return words[0], rest
