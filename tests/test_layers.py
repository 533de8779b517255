"""Imports point down only, and pure modules can do nothing but compute."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

from tests.source import PACKAGE, REFERENCE, imports, modules, name, part, tree

# part -> what it imports of hpcrun, besides itself and what all may: a line that is wider than what
# is would let an import slip in.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "structs": set(),
    "patterns": set(),
    "spec": set(),
    "slurm": set(),
    "secrets": set(),
    "metrics": set(),
    "signals": set(),
    "ownership": set(),
    "files": {"ownership"},
    "transport": {"signals", "ownership", "files"},
    "assets": {"ownership", "files"},
    "workloads": set(),
    "plan": {"spec", "slurm", "secrets"},
    "render": {"plan", "slurm"},
    "scheduler": {"slurm", "transport"},
    "diagnose": set(),
    "runs": {"plan", "slurm", "diagnose", "ownership", "files"},
    "logs": {"runs", "files", "ownership"},
    "views": {"runs", "diagnose", "slurm", "plan"},
    "report": {"metrics", "views", "files"},
    "sandbox": {"slurm", "assets", "ownership"},
    # Its types are those of the parts below; it does nothing that the controller does not.
    "api": {"controller", "report", "runs", "plan", "spec", "secrets", "slurm"},
}
# What reaches out of the process, or gives another answer each time.
EFFECTS = {
    *("asyncio", "ctypes", "datetime", "fcntl", "ftplib", "getpass", "glob", "http", "io"),
    *("locale", "logging", "mmap", "multiprocessing", "os", "platform", "pwd", "random"),
    *("resource", "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl"),
    *("subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid", "warnings"),
}
# The keeper is a program of its own: the line that it prints says that it is ready.
MAY_PRINT = {"hpcrun/cli/output.py", "hpcrun/sandbox/keeper.py"}
EFFECT_CALLS = {"open", "input", "print", "breakpoint", "exec", "eval", "__import__"}


def pure_parts() -> set[str]:
    """List the packages that promise, once in their ``__init__``, to compute and do no more."""
    packages = {path.parent.name: path for path in PACKAGE.glob("*/__init__.py")}
    return {
        package
        for package, path in packages.items()
        if "\nPure:" in (ast.get_docstring(tree(path)) or "")
    }


def is_pure(path: Path) -> bool:
    return part(path) in pure_parts()


def test_every_part_has_its_place() -> None:
    known = {*MAY_IMPORT, "cli", "controller", "__init__", "__main__"}
    assert {part(path) for path in modules()} <= known


def parts_imported(path: Path) -> set[str]:
    """List the other parts of hpcrun that a module imports, but those that all may."""
    inside = {full.split(".")[1] for full in imports(path) if full.startswith("hpcrun.")}
    inside -= {part(path), "errors", "structs", "patterns"}
    return {found for found in inside if (PACKAGE / found).is_dir() or _is_module(found)}


def imports_above(path: Path) -> set[str]:
    """List the parts of hpcrun that a module imports and that do not lie below it."""
    own = part(path)
    if own in ("cli", "__main__"):
        return set()
    if own == "controller":
        return parts_imported(path) & {"cli", "api"}
    return parts_imported(path) - ({"api"} if own == "__init__" else MAY_IMPORT[own])


def test_imports_point_down() -> None:
    above = {name(path): imports_above(path) for path in modules()}
    assert {path: found for path, found in above.items() if found} == {}
    # The look sees imports of hpcrun at all.
    assert any(full.startswith("hpcrun.") for full in imports(PACKAGE / "api.py"))


def test_a_part_may_import_what_it_does_and_no_more() -> None:
    found: dict[str, set[str]] = {}
    for path in modules():
        found.setdefault(part(path), set()).update(parts_imported(path))
    assert {own: found.get(own) for own in MAY_IMPORT} == MAY_IMPORT


def _is_module(found: str) -> bool:
    return (PACKAGE / f"{found}.py").is_file()


def effects(path: Path) -> set[str]:
    """Tell what a module uses that a pure one does not."""
    outside = {full.split(".")[0] for full in imports(path)}
    forbidden = EFFECTS | {"pathlib"}  # a pure part gets even paths as text
    calls = {
        node.func.id
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return outside & forbidden | calls & EFFECT_CALLS


def test_pure_modules_have_no_effects() -> None:
    found = {name(path): effects(path) for path in modules() if is_pure(path)}
    assert found and {path: used for path, used in found.items() if used} == {}
    # The look finds them where they are.
    assert {"os", "print"} <= effects(PACKAGE / "sandbox" / "keeper.py")


def test_the_parts_that_promise_to_be_pure() -> None:
    promised = {"spec", "plan", "render", "slurm", "metrics", "secrets", "diagnose", "views"}
    assert pure_parts() == promised


def test_the_reference_trainer_stands_alone() -> None:
    for path in REFERENCE.glob("*.py"):
        assert not [full for full in imports(path) if full.split(".")[0] == "hpcrun"], name(path)


def test_nothing_of_hpcrun_imports_torch() -> None:
    for path in modules():
        found = {full.split(".")[0] for full in imports(path)}
        assert not found & {"torch", "deepspeed"}, name(path)


def test_only_the_output_module_prints() -> None:
    for path in modules():
        printing = [
            node.lineno
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Call)
            and (
                (isinstance(node.func, ast.Name) and node.func.id == "print")
                or (isinstance(node.func, ast.Attribute) and node.func.attr == "echo")
            )
        ]
        assert not printing or name(path) in MAY_PRINT, f"{name(path)}: {printing}"


def test_the_guards_names_are_right() -> None:
    assert all(hasattr(builtins, call) for call in EFFECT_CALLS)
    assert set(MAY_IMPORT) >= pure_parts()
