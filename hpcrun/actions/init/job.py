"""Draft a job file for a training script of the project."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from hpcrun.actions.init.init import SCHEMAS, InitState
from hpcrun.actions.program import ParsedScript, content_of, modules_of, own_packages, parse_script
from hpcrun.context import read_text
from hpcrun.errors import InputError
from hpcrun.plan import (
    Draft,
    ScriptFacts,
    draft_job,
    format_job,
    imports_training_library,
    is_mig,
    parse_seconds,
)
from hpcrun.spec import Cluster, Partition, load_job

# The number of files that are searched for a script.
_MOST_FILES = 100
# A folder or a file, but no code, as in ../data/cora/ or vocab.txt.
_RELATIVE_PATH = re.compile(
    r"(?![/~]|\w+:)(?=.*\w)(?=.*(/|\.\w{1,10}$))(?!.*\.py$)[^\s{}$*?%]{2,200}"
)
_FIRST_TIME = "1:00:00"
_USUAL_NAMES = ("train.py", "main.py", "run.py", "finetune.py", "pretrain.py")


class JobFile(Struct, frozen=True, kw_only=True):
    """A job file that could be written: its path and text, and remarks for the user."""

    path: Path
    text: str
    draft: Draft


def find_script(project: Path) -> str | None:
    """Find the project's training script; None without exactly one candidate."""
    found: list[Path] = []
    files: list[Path] = []
    for folder in (project, project / "scripts", project / "src", project / "training"):
        with contextlib.suppress(OSError):
            files += sorted(folder.glob("*.py"))
    ours = (path for path in files if path.is_file() and path.name.isprintable())
    for path in islice(ours, _MOST_FILES):
        facts = _read_script(path).facts
        if facts is not None and imports_training_library(facts) and facts.is_program:
            found.append(path)
    for name in _USUAL_NAMES:
        if project / name in found:
            return name
    return str(found[0].relative_to(project)) if len(found) == 1 else None


def _read_script(path: Path, *, is_imported: bool = False) -> ParsedScript:
    """Parse a file, unless it is too long to parse in a moment."""
    data = content_of(path)
    if data is None:
        return ParsedScript()
    return parse_script(data, sys.version_info[:2], is_imported=is_imported)


def draft_job_file(found: InitState, cluster: Cluster, script: str) -> JobFile:
    """Draft the job file of a script, for a profile that will be written.

    Args:
        script: A path relative to the current directory or the project.

    Raises:
        InputError: The path is not a Python file of the project.
    """
    path, facts = read_named_script(found.project, script)
    module = _find_module_name(found.project, script)
    name = path.relative_to(found.project).as_posix()
    modules: dict[Path, ScriptFacts] = {}

    def imports_of(file: Path) -> list[str]:
        return list(modules[file].imports) if file in modules else []

    for file in modules_of(found.project, path, facts.imports, imports_of):
        read = _read_script(file, is_imported=True).facts
        if read is not None:
            modules[file] = read
    own = own_packages(found.project, path.parent)
    made = draft_job(name, facts, list(modules.values()), own)
    made = structs.replace(made, source_folder=_source_folder(found.project, path, module, modules))
    if not module and not made.command:
        workdir, first = _find_workdir(found.project, path, facts, modules)
        made = structs.replace(made, workdir=workdir, read_there=first)
    stem = path.stem
    if module:
        stem = script if "." not in script else module.rpartition(".")[2]
        made = _run_as_module(found, made, module, script, is_program=facts.is_program)
    resources, setup = _choose_resources(found, cluster)
    if made.is_single and resources.get("gpus_per_node", 1) > 1:
        resources["gpus_per_node"] = 1
    if made.command and cluster.python and not setup:
        made = structs.replace(made, command=[cluster.python, *made.command[1:]])
    text = format_job(made, resources, setup, f"../{SCHEMAS}/job.schema.json", stem)
    file = found.project / "jobs" / f"{stem}.yaml"
    # The draft must load; it extends no other job.
    load_job(text, source=f"jobs/{file.name}", resolve=lambda other: ("", other))
    return JobFile(path=file, text=text, draft=made)


def _source_folder(project: Path, script: Path, module: str, modules: Collection[Path]) -> str:
    """Return "src" if Python finds the modules there only with PYTHONPATH; else ""."""
    source = project / "src"
    files = [*modules, *([script] if module else [])]
    # Python searches the folder of a script, but not that of a module.
    is_beside = script.parent == source and not module
    return "src" if not is_beside and any(x.is_relative_to(source) for x in files) else ""


def _find_workdir(
    project: Path, script: Path, facts: ScriptFacts, modules: Mapping[Path, ScriptFacts]
) -> tuple[str, str]:
    """Return the script's folder and a path that exists from there, but not from the project.

    Both are "" if the script reads no such path, or others that exist only from the project.
    """
    if script.parent == project:
        return "", ""
    texts: set[str] = set()
    for file in (script, *modules):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            nodes = ast.walk(ast.parse(content_of(file) or b""))
            texts |= {
                n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is str
            }
    # Paths that the script builds from __file__ are the same from any folder.
    from_file = [f"/{path}" for one in (facts, *modules.values()) for path in one.sibling_paths]
    beside: list[str] = []
    for text in sorted(filter(_RELATIVE_PATH.fullmatch, texts)):
        path = os.path.normpath(text)
        places = [folder / path for folder in (script.parent, project)]
        if any(path.endswith(end) or end.endswith(f"/{path}") for end in from_file):
            continue
        is_beside, is_in_project = (_exists_in(project, place) for place in places)
        if is_in_project and not is_beside:
            return "", ""
        if is_beside and not is_in_project:
            beside.append(text)
    return (script.parent.relative_to(project).as_posix(), beside[0]) if beside else ("", "")


def _exists_in(project: Path, path: Path) -> bool:
    """Return True if a path exists and is inside the project."""
    path = Path(os.path.normpath(path))
    with contextlib.suppress(OSError):
        return path != project and path.is_relative_to(project) and path.exists()
    return False


def _run_as_module(
    found: InitState, made: Draft, module: str, script: str, *, is_program: bool
) -> Draft:
    """Return the draft that runs a module with -m, or the installed command of a package."""
    if is_program or made.command:
        command = ["python", "-m", module] if made.command else []
        return structs.replace(made, module=module, command=command)
    for python in found.seen.pythons:
        installed = Path(python.path).parent / script
        if script != module and installed.is_file():
            return structs.replace(made, script=str(installed))
    note = (
        f"{made.script} does nothing when it is run with -m: end it with "
        "if __name__ == '__main__': and the call of its main function"
    )
    return structs.replace(made, module=module, notes=[*made.notes, note])


def _find_module_name(project: Path, script: str) -> str:
    """Return the module that a dotted name or a console script names; "" for a file."""
    if any(path.exists() for path in (Path(script).absolute(), project / script)):
        return ""
    name = _list_console_scripts(project).get(script, script)
    is_dotted = all(part.isidentifier() for part in name.split(".")) and "." in name
    return name if is_dotted and _module_file(project, name) is not None else ""


def _module_file(project: Path, module: str) -> Path | None:
    """Return the file that Python runs for a module of the project."""
    parts = module.split(".")
    for top in (project, project / "src"):
        target = top.joinpath(*parts)
        for file in (target.with_name(f"{target.name}.py"), target / "__main__.py"):
            if file.is_file():
                return file
    return None


def _list_console_scripts(project: Path) -> dict[str, str]:
    """Return the module of each command that the project's packaging installs."""
    found: dict[str, str] = {}
    row = r"""(?m)^[ \t]*["']?([\w.-]+)["']?[ \t]*=[ \t]*["']?([\w.]+):[\w.]+["']?[ \t]*,?[ \t]*$"""
    for name, head in (
        ("pyproject.toml", r"(?m)^\[(?:project|tool\.poetry)\.scripts\]"),
        ("setup.cfg", r"(?m)^console_scripts[ \t]*="),
    ):
        with contextlib.suppress(OSError):
            text = (project / name).read_bytes()[:100_000].decode("utf-8", "replace")
            for start in re.finditer(head, text):
                section = re.split(r"(?m)^\[", text[start.end() :])[0]
                found |= dict(re.findall(row, section))
    with contextlib.suppress(OSError):
        text = (project / "setup.py").read_bytes()[:100_000].decode("utf-8", "replace")
        if "console_scripts" in text:
            found |= dict(re.findall(r"""["']([\w.-]+)[ \t]*=[ \t]*([\w.]+):[\w.]+["']""", text))
    return found


def read_named_script(project: Path, script: str) -> tuple[Path, ScriptFacts]:
    """Read a script, a module or a console script that the user named.

    Raises:
        InputError: It is not in the project.
    """
    if not script.isprintable():  # a YAML line also ends at U+0085, U+2028 and U+2029
        raise InputError(
            f"{script!a}: a name with a character that cannot be printed",
            fix="rename the script",
        )
    module = _find_module_name(project, script)
    found = _module_file(project, module) if module else None
    path = found or _script_path(project, script)
    name = path.relative_to(project).as_posix()
    reading = _read_script(path)
    if module and reading.facts is not None and not reading.facts.is_program:
        reading = _read_script(path, is_imported=True)  # the installed command calls a function
    if reading.facts is not None:
        return path, reading.facts
    read_text(path)  # raises an error for bytes that are not text
    if not reading.fault:
        raise InputError(f"{name}: too long to be a training script")
    if path.suffix == ".py":
        ours = ".".join(map(str, sys.version_info[:2]))
        raise InputError(
            f"{name}:{reading.line or 1}: cannot be read as Python {ours}: {reading.fault}",
            fix=f"fix that line, then hpcrun init {name}",
        )
    raise InputError(
        f"{name}:{reading.line or 1}: invalid Python: {reading.fault}",
        fix="init drafts jobs of Python scripts; a shell script is a command: "
        f"hpcrun submit {name} submits it as sbatch would",
    )


def _script_path(project: Path, script: str) -> Path:
    named = [Path(script), *([Path(f"{script}.py")] if script.isidentifier() else [])]
    for path in [one for name in named for one in (name.absolute(), project / name)]:
        if path.is_dir():
            raise InputError(f"{script}: a folder", fix="name the Python file in it")
        if path.is_file():
            # The path is not resolved, because a link in the project may lead anywhere.
            parts = Path(*path.parts)
            try:
                inside = parts.relative_to(project)
            except ValueError:
                inside = None
            if inside is None or ".." in inside.parts:
                real, top = path.resolve(), project.resolve()
                if not real.is_relative_to(top):
                    raise InputError(
                        f"{script}: outside the project {project}",
                        fix="run hpcrun init in the script's own folder",
                    )
                return project / real.relative_to(top)
            return path
    commands = ", ".join(_list_console_scripts(project))
    fix = "name a Python file of the project, or a module, as in package.module"
    raise InputError(
        f"{script}: no such script",
        fix=f"{fix}, or a command of it: {commands}" if commands else fix,
    )


# ---- resources ---------------------------------------------------------------------------------


def _choose_resources(found: InitState, cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return resources and setup: one node's GPUs for an hour, or as much as is available."""
    name = cluster.partition or (next(iter(cluster.partitions)) if cluster.partitions else None)
    facts = cluster.partitions.get(name or "", Partition())
    gpus, gpu_type = _choose_gpus(facts)
    # The project's environment is used unless the profile names the Python for trainings.
    own, best = cluster.setup, next(iter(found.seen.pythons), None)
    named = own.venv or own.conda or own.python or own.container or own.uv or cluster.python
    takes_best = best is not None and best.key != "python" and (found.for_user or not named)
    limit = facts.max_time
    time = _FIRST_TIME
    if limit is not None and parse_seconds(limit) < parse_seconds(_FIRST_TIME):
        time = limit
    nodes = facts.min_nodes or 1
    asked = {"nodes": nodes, "gpus_per_node": gpus, "gpu_type": gpu_type, "time": time}
    setup: dict[str, Any] = {}
    if best is not None and takes_best:
        setup = {best.key: True if best.key == "uv" else best.value}
    return {key: value for key, value in asked.items() if value is not None}, setup


def _choose_gpus(facts: Partition) -> tuple[int, str | None]:
    """Return all GPUs of a node of one type; slices of GPUs cannot train together."""
    count = facts.gpus_per_node
    if count is None:
        return 1, None
    gpu_type = None
    whole = {kind: many for kind, many in facts.gpu_types.items() if not is_mig(kind)}
    if len(whole) < len(facts.gpu_types):
        if not whole:
            return 1, min(facts.gpu_types)
        gpu_type = max(whole, key=lambda kind: whole[kind])
        count = whole[gpu_type]
    each = facts.max_gpus // (facts.min_nodes or 1) if facts.max_gpus else count
    return max(min(count, each), min(count, 1)), gpu_type
