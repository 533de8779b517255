"""All that can be known to go wrong with a job before it is submitted, reported at once."""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import msgspec

from hpcrun.controller.checks.places import answer_of, check_places
from hpcrun.controller.context import Context
from hpcrun.controller.interpreter import Interpreter
from hpcrun.plan import script_notes
from hpcrun.plan.job import Findings
from hpcrun.plan.limits import array_problems, find_limits, partition_notes
from hpcrun.plan.script_facts import ScriptFacts, read_script
from hpcrun.plan.types import Plan
from hpcrun.spec.job import JobSpec

# What to do where the user knows better.
OVERRIDE = "--no-check submits the job anyway"
_OUTDATED = "where the cluster has changed: hpcrun init"
# Options whose value is read, by a part of their name; and those whose value is written.
# A "file" or "path" alone may be either.
_READ = re.compile(
    r"data|input|train|valid|eval|test|vocab|corpus|config|manifest|prompt|annot", re.I
)
_WRITTEN = re.compile(
    r"out|save|log|dump|export|result|ckpt|checkpoint|write|dest|cache|name"
    r"|pred|metric|report|summary|stat|trace|profil|history|plot|figure|submission",
    re.I,
)
_ENDS = re.compile(r"\.(jsonl?|ya?ml|txt|csv|tsv|parquet|npy|npz|h5|arrow|toml|bin|gz|zst)$", re.I)
# bytes; a longer text was not written by a person, and is not read.
LONGEST = 1_000_000
# bytes; a line like that is data, and one that nests as deep would break Python 3.10's parser.
LONGEST_LINE = 20_000
# Modules of the project that are looked through.
MODULES = 40
_UNKNOWN_VERSION = (0, 0)


class Checks:
    """The checks of one submission; what the runs of a sweep share is checked once."""

    def __init__(self, *, strict: bool = True) -> None:
        """Unless ``strict`` problems are notes: the user knows better."""
        self._strict = strict
        self._programs: dict[tuple[object, ...], Program] = {}
        # What each run gives its program.
        self._given: list[tuple[Program, list[str]]] = []

    def look(
        self,
        context: Context,
        spec: JobSpec,
        found: Interpreter,
        plan: Plan | None,
        extra_args: Sequence[str] = (),
    ) -> Findings:
        """Check the program, the partition's limits and the folders; nothing is changed.

        ``plan`` is None where the job could not be planned; ``extra_args`` are the command
        line's.
        """
        program, given = self._program(context, spec, found, plan)
        findings = Findings(list(program.problems), list(program.notes))
        if plan is not None:
            source, usual = context.cluster_source, context.environ.get("SBATCH_PARTITION")
            limits = find_limits(spec, plan, context.cluster, source, default=usual)
            findings.problems += limits
            findings.fix = f"{_OUTDATED}; " if limits and context.cluster.read_on else ""
            findings.notes += partition_notes(plan, context.cluster, source)
            findings.notes += _argument_notes(context, spec, plan, program, extra_args, given)
        if not self._given:  # the runs of a sweep have the same folders
            places = check_places(context, plan.nodes if plan else 1)
            findings.problems += places.problems
            findings.notes += places.notes
        self._given.append((program, given))
        return self._graded(findings)

    def look_at_array(self, context: Context, runs: int) -> Findings:
        """Check that Slurm takes arrays of this many runs."""
        problems = array_problems(runs, context.cluster, context.cluster_source)
        return self._graded(Findings(problems, [], f"{_OUTDATED}; " if problems else ""))

    def compare_runs(self) -> list[str]:
        """Note what the runs would share, though each needs its own."""
        programs = {id(program): program for program, _ in self._given}
        script = next(iter(programs.values())).script
        if len(programs) > 1 or script is None:
            return []
        return script_notes.shared_folder_notes(script, [args for _, args in self._given])

    def _program(
        self, context: Context, spec: JobSpec, found: Interpreter, plan: Plan | None
    ) -> tuple[Program, list[str]]:
        """Find and read the program; return it with its arguments, placeholders filled."""
        key = (spec.script, spec.module, tuple(spec.command or ()), found.python, plan is None)
        program = self._programs.get(key)
        if program is not None and spec.command is None:
            return program, _given(context, spec, plan, program, inside=found.inside)
        program = self._programs[key] = find_program(context, spec, inside=found.inside)
        given = _given(context, spec, plan, program, inside=found.inside)
        read_program(context, spec, found, program)
        in_copy = spec.snapshot and spec.command is None and context.code is None
        if in_copy and program.path and is_ignored(context.project, program.path, context.environ):
            program.refuse(
                "script" if spec.script else "module",
                f"{program.name}: git ignores it, so it is not in the run's copy of the code; "
                "take it out of .gitignore, or set snapshot: false to run the code in place",
            )
        return program, given

    def _graded(self, findings: Findings) -> Findings:
        if self._strict or not findings.problems:
            findings.fix += OVERRIDE if findings.problems else ""
            return findings
        ignored = [f"--no-check: {problem}" for problem in findings.problems]
        return Findings(notes=[*ignored, *findings.notes])


def _given(
    context: Context, spec: JobSpec, plan: Plan | None, program: Program, *, inside: bool
) -> list[str]:
    """Return the program's arguments, placeholders filled."""
    if plan is None:
        return []
    if spec.command is None:
        # python SCRIPT, python -m MODULE or python -c TEXT MODULE.
        start = 2 if spec.script is not None or plan.reference_trainer else None
        start = start or plan.program.index(spec.module or "", 2) + 1
        return plan.program[start:]
    if inside or _makes_files(plan) or plan.setup.uv:
        return []  # what is not here may be there
    return command_program(context, plan.program, program)


def _makes_files(plan: Plan) -> bool:
    """Return whether the setup may make files that are not here yet."""
    return bool(plan.setup.commands or plan.setup.node_commands or plan.setup.stage)


def _argument_notes(
    context: Context,
    spec: JobSpec,
    plan: Plan,
    program: Program,
    extra_args: Sequence[str],
    given: Sequence[str],
) -> list[str]:
    """Compare what the program is given with what it takes and what there is."""
    notes: list[str] = []
    typed = [*spec.args, *extra_args]
    script = program.script
    if script is not None:
        notes += script_notes.argument_notes(script, given)
    if script is not None and spec.command is None:
        notes += script_notes.deepspeed_notes(spec, script, typed, plan.effective_batch)
        notes += script_notes.batch_notes(spec, script, typed, given, plan.effective_batch)
        notes += script_notes.backend_notes(
            spec, script, accelerator=plan.accelerator, world_size=plan.world_size
        )
    setup = spec.setup
    inside = setup.container is not None or context.cluster.setup.container is not None
    if not inside and not _makes_files(plan):
        notes += _missing_files(context.project, given)
    return notes + script_notes.secret_notes(
        spec.env,
        [*typed, *(spec.command or [])],
        [*setup.commands, *setup.node_commands],
        context.cluster.env,
    )


def _missing_files(project: Path, args: Sequence[str]) -> Iterator[str]:
    """Note arguments that name a file in a folder of the project, where there is none."""
    option = ""
    for arg in args:
        name, equals, value = arg.partition("=")
        if equals:
            option = name
        elif arg.startswith("-"):
            option = arg
            continue
        else:
            value = arg
        asked, option = option, ""
        if not _names_file(asked, value):
            continue
        path = Path(os.path.normpath(project / value))
        if not path.is_relative_to(project) or path == project or os.path.lexists(path):
            continue
        # A model of a hub is named like a path too: the folder must be one of the project's.
        if not path.parent.is_dir() or ("/" not in value and not asked):
            continue
        beside = [file.name for file in itertools.islice(path.parent.iterdir(), 1000)]
        close = difflib.get_close_matches(path.name, beside, 1, 0.75)
        hint = f"; did you mean {path.parent.relative_to(project) / close[0]}?" if close else ""
        where = f"args: {asked} " if asked else "args: "
        yield f"{where}{value}: the project has no such file{hint}"


def _names_file(option: str, value: str) -> bool:
    if re.search(r"[\s{}$*?:,\[\]<>|]", value) or value.endswith("/"):
        return False
    if _WRITTEN.search(option or value) or (option and not _READ.search(option)):
        return False
    return _ENDS.search(value) is not None


# ---- the program --------------------------------------------------------------------------------


class Reading(msgspec.Struct, frozen=True):
    """A script as read: its facts, or why Python cannot read it and in which line."""

    facts: ScriptFacts | None = None
    fault: str = ""
    line: int | None = None


class Program(Findings):
    """The file that Python starts with, as far as it is seen from here, and what was found."""

    path: Path | None = None
    name: str = ""
    script: script_notes.Script | None = None


def find_program(context: Context, spec: JobSpec, *, inside: bool) -> Program:
    """Find the file of a job's script or module, or that of a command ``python FILE``.

    ``inside``: it runs in a container, of which only the project's own files can be seen.
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
    """Explain why a file cannot be read, or run; "" where it can. A FIFO is never opened."""
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
    except ValueError:  # a NUL byte
        return "no such file"
    return ""


def _find_module(context: Context, module: str, program: Program) -> None:
    """Find a module of the project; an installed one is left to the interpreter."""
    project, parts = context.project, module.split(".")
    target = project.joinpath(*parts)
    program.name = module
    known = (project / parts[0]).is_dir() or (project / f"{parts[0]}.py").is_file()
    if not known or not all(parts):
        return
    if target.with_name(f"{target.name}.py").is_file():
        program.path = target.with_name(f"{target.name}.py")
    elif (target / "__main__.py").is_file():
        program.path = target / "__main__.py"
    elif (target / "__init__.py").is_file():
        program.refuse("module", f"{module}: a package, and it has no {target}/__main__.py to run")
    elif not target.is_dir():
        program.refuse("module", f"{module}: the project has no {target}.py")


def command_program(context: Context, words: Sequence[str], program: Program) -> list[str]:
    """Check a command that is started as it is: what it names by a path must exist.

    Returns the arguments of a Python file in it; the file becomes the program's.
    """
    first = words[0] if words else ""
    if "/" in first and "$" not in first:
        path = context.project / first
        is_seen = Path(*path.parts[:2]).exists()  # else a file system of the nodes alone
        fault = _file_fault(path, to_run=True) if is_seen else ""
        if fault:
            program.refuse("command", f"{first}: {fault}")
    if re.fullmatch(r"(.*/)?python[0-9.]*", first):
        rest = list(words[1:])
        while rest and rest[0] in ("-u", "-B", "-O", "-s", "-E", "-I"):
            del rest[0]
        if rest and rest[0].endswith(".py") and "$" not in rest[0]:
            path = context.project / rest[0]
            program.path, program.name = (path if not _file_fault(path) else None), rest[0]
            return rest[1:]
    return []


# ---- reading -----------------------------------------------------------------------------------


def read_program(context: Context, spec: JobSpec, found: Interpreter, program: Program) -> None:
    """Read the script as the Python that trains would, and report what that one would refuse."""
    path = program.path
    if path is None:
        return
    data = content_of(path)
    if data is None or path.suffix in (".pyc", ".pyz") or data.startswith(b"PK\x03\x04"):
        return
    key = "script" if spec.script is not None else "module" if spec.module else "command"
    ours = sys.version_info[:2]
    version = python_version(found.python)
    shell = _shebang(data)
    if shell and key == "script":
        program.refuse(key, f"{path}: a script for {shell}; write command: [{shell}, {path.name}]")
        return
    reading = parse_script(data, version if _UNKNOWN_VERSION < version < ours else ours)
    if not reading.fault:
        if (facts := reading.facts) is not None:
            reads_variables = _reads_variables(context, path, facts)
            program.script = script_notes.Script(program.name, facts, reads_variables)
        return
    where = f"{path}:{reading.line}" if reading.line else str(path)
    if _UNKNOWN_VERSION < version <= ours:
        which = f" (Python {version[0]}.{version[1]} trains)" if version != ours else ""
        program.refuse(key, f"{where}: {reading.fault}{which}")
    elif not found.inside:
        program.notes.append(
            f"{where}: {reading.fault}, says Python {ours[0]}.{ours[1]}; another one trains"
        )


def content_of(path: Path) -> bytes | None:
    """Return a file's bytes; None for one too long for a script, or unreadable."""
    try:
        # Without waiting for the other end of a FIFO.
        with open(path, "rb", opener=lambda at, flags: os.open(at, flags | os.O_NONBLOCK)) as file:
            data = file.read(LONGEST + 1)
    except OSError:
        return None
    return data if len(data) <= LONGEST else None


def _shebang(data: bytes) -> str:
    """Return the program that a first line #!... names, if it is not Python."""
    match = re.match(rb"#!\s*(\S+)(?:[ \t]+(?:-S[ \t]+)?(\S+))?", data)
    if match is None:
        return ""
    words = [word.decode("utf-8", "replace").rpartition("/")[2] for word in match.groups() if word]
    name = words[1] if words[0] == "env" and len(words) > 1 else words[0]
    return name if name in ("bash", "sh", "zsh", "ksh", "dash", "perl", "Rscript", "ruby") else ""


def parse_script(data: bytes, version: tuple[int, ...]) -> Reading:
    """Read a script as this version of Python would; nothing of one that no person wrote."""
    if max(map(len, data.split(b"\n"))) > LONGEST_LINE:
        return Reading()
    if b"\0" in data:
        return Reading(fault="not Python: it has a NUL byte")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the script, not of ours
        try:
            tree = ast.parse(data, feature_version=(version[0], version[1]))
            return Reading(facts=read_script(tree))
        except SyntaxError as error:
            return Reading(fault=f"{error.msg or 'invalid syntax'}", line=error.lineno)
        except ValueError as error:
            return Reading(fault=str(error))
        except (RecursionError, MemoryError):
            return Reading()


def python_version(python: str) -> tuple[int, ...]:
    """Read an interpreter's version off its files; (0, 0) where they do not show it."""
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


def _reads_variables(context: Context, path: Path, facts: ScriptFacts) -> bool:
    """Return whether the script, or a module of the project that it imports, names HPCRUN_*."""
    if facts.variables:
        return True
    texts: dict[Path, bytes] = {}

    def imports_of(file: Path) -> Iterator[str]:
        return _imported(texts[file])

    for file in modules_of(context.project, path, facts.imports, imports_of):
        texts[file] = content_of(file) or b""
        if b"HPCRUN_" in texts[file]:
            return True
    return False


def modules_of(
    project: Path, script: Path, imports: Sequence[str], imports_of: Callable[[Path], Iterable[str]]
) -> Iterator[Path]:
    """Yield the project's own modules that a script imports, and theirs; 40 at most.

    ``imports_of`` is asked about a module after it was yielded.
    """
    waiting = [(script.parent, name) for name in imports]
    seen = {script}
    while waiting and len(seen) <= MODULES:
        folder, name = waiting.pop(0)
        for file in module_files(project, folder, name):
            if file not in seen:
                seen.add(file)
                yield file
                waiting += [(file.parent, inner) for inner in imports_of(file)]


def module_files(project: Path, folder: Path, name: str) -> Iterator[Path]:
    """Find a module of the project by the name that a file in ``folder`` imports it by.

    Leading dots count from the folder. Nothing outside the project is looked at.
    """
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


def _imported(data: bytes) -> Iterator[str]:
    pattern = rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([.\w]+))"
    for start, names, module in re.findall(pattern, data, re.MULTILINE):
        found = (start or module).decode("ascii", "replace")
        yield found
        dot = "" if found.endswith(".") else "."
        for name in names.split(b","):
            if name.split():
                yield f"{found}{dot}{name.split()[0].decode('ascii', 'replace')}"


def is_ignored(project: Path, path: Path, environ: Mapping[str, str]) -> bool:
    """Return whether git ignores a file of the project."""
    path = Path(os.path.normpath(path))
    is_known = any((folder / ".git").exists() for folder in path.parents)
    if not is_known or not path.is_relative_to(project):
        return False
    argv = ["git", "-C", str(path.parent), "check-ignore", "-q", "--", path.name]
    return answer_of(argv, environ)[0] == 0
