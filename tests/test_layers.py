"""The structure of the package: layers, entry points, no import cycles, and pure modules."""

from __future__ import annotations

import ast
import builtins
from functools import cache
from pathlib import Path

from hpcrun.lazy import read_stub
from tests.source import PACKAGE, REFERENCE, ROOT, TRACER, imports, modules, name, part, tree

# The parts of hpcrun, the highest first: each may import only what stands below it.
LAYERS = (
    *(
        "__main__",
        "cli",
        "__init__",
        "api",
        "ui",
        "actions",
        "monitor",
        "views",
        "logs",
        "runs",
        "trackers",
    ),
    *(
        "context",
        "sandbox",
        "render",
        "assets",
        "convert",
        "lint",
        "plan",
        "curves",
        "slurm",
        "spec",
        "why",
    ),
    *("fit", "remote", "secrets", "text", "files", "ownership", "signals", "patterns", "structs"),
    *("workloads", "jobside", "errors", "lazy", "version"),
)
# Parts that know nothing of some that are below them.
MAY_NOT_IMPORT = {
    "curves": {"slurm", "spec", "why", "remote"},
    "why": {"remote", "files"},
    "spec": {"remote", "files", "secrets"},
}
# Modules of packages that are pure otherwise.
IMPURE = {"hpcrun/slurm/client.py", "hpcrun/render/environment.py"}
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


@cache
def dotted(path: Path) -> str:
    """Return the name by which a module is imported.

    >>> dotted(PACKAGE / "plan" / "build.py"), dotted(PACKAGE / "plan" / "__init__.py")
    ('hpcrun.plan.build', 'hpcrun.plan')
    """
    words = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


@cache
def stubs() -> dict[str, dict[str, str]]:
    """Return the public names of each package and the modules that define them."""
    return {dotted(path.parent / "__init__.py"): read_stub(str(path)) for path in PUBLIC}


PUBLIC = sorted(PACKAGE.glob("*/__init__.pyi"))


@cache
def names_imported_modules(path: Path) -> frozenset[tuple[str, str]]:
    """Return (module, name) of everything that a module imports from hpcrun, at any place."""
    return frozenset(
        (node.module, alias.name)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hpcrun"
        for alias in node.names
        if node.module is not None
    )


@cache
def known_modules() -> frozenset[str]:
    """Return the names of all modules of hpcrun."""
    return frozenset(map(dotted, modules()))


def modules_imported_modules(path: Path) -> set[str]:
    """Return the modules of hpcrun that a module imports, entry points resolved."""
    found = set()
    for module, imported in names_imported_modules(path):
        target = stubs().get(module, {}).get(imported, module)
        inside = f"{target}.{imported}"
        found.add(inside if inside in known_modules() else target)
    return found - {dotted(path)}


def test_every_part_has_a_layer() -> None:
    assert {part(path) for path in modules()} == set(LAYERS)


def parts_imported_modules(path: Path) -> set[str]:
    """Return the other parts of hpcrun that a module imports."""
    parts = {module.split(".")[1] for module in modules_imported_modules(path) if "." in module}
    return parts - {part(path)}


def test_imports_point_down() -> None:
    upwards = {
        f"{name(path)}: {imported}"
        for path in modules()
        for imported in parts_imported_modules(path)
        if LAYERS.index(imported) < LAYERS.index(part(path))
        or imported in MAY_NOT_IMPORT.get(part(path), ())
    }
    assert upwards == set()
    assert parts_imported_modules(PACKAGE / "api.py") > {
        "actions",
        "monitor",
    }  # imports are found at all


def test_packages_are_imported_through_their_entry_point() -> None:
    """Other packages name a package, never a module inside it; the stub lists what is public."""
    inside = {
        f"{name(path)}: from {module} import {imported}"
        for path in modules()
        for module, imported in names_imported_modules(path)
        if module.count(".") > 0
        and module.split(".")[1] != part(path)
        and (PACKAGE / module.split(".")[1]).is_dir()
        and imported not in stubs().get(module, ())
    }
    assert inside == {"hpcrun/__main__.py: from hpcrun.cli.start import main"}


def test_no_public_name_is_that_of_a_module() -> None:
    """Python would put the module in its place as soon as anybody imports it."""
    for package, names in stubs().items():
        folder = ROOT / package.replace(".", "/")
        inside = {path.stem for path in folder.iterdir()}
        hidden = {one for one, module in names.items() if one in inside and module != package}
        assert hidden == set(), package


def test_every_public_name_is_used_outside_its_package() -> None:
    used = {
        (module, imported)
        for path in modules()
        for module, imported in names_imported_modules(path)
    }
    unused = {
        f"{package}: {one}"
        for package, names in stubs().items()
        for one in names
        if (package, one) not in used
    }
    assert unused == set()


def test_modules_import_each_other_in_no_cycle() -> None:
    graph = {dotted(path): modules_imported_modules(path) for path in modules()}
    done: set[str] = set()

    def visit(module: str, way: list[str]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for imported in sorted(graph.get(module, ())):
                visit(imported, [*way, module])
            done.add(module)

    for module in graph:
        visit(module, [])


def is_pure(path: Path) -> bool:
    """Return True for a module that promises to compute and do nothing else."""
    if part(path) == "curves":
        inside = path.relative_to(PACKAGE / "curves").parts
        return inside[0] not in ("report", "read_log.py")
    init = PACKAGE / part(path) / "__init__.py"
    promises = init.is_file() and "\nPure:" in (ast.get_docstring(tree(init)) or "")
    return promises and name(path) not in IMPURE


def effects(path: Path) -> set[str]:
    """Return what a module uses that a pure one does not."""
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
    # Effects are found where they are.
    assert {"os", "print"} <= effects(PACKAGE / "sandbox" / "keeper.py")


def test_the_parts_that_promise_to_be_pure() -> None:
    promised = {
        "spec",
        "plan",
        "render",
        "slurm",
        "secrets",
        "why",
        "views",
        "text",
        "curves",
        "fit",
        "lint",
        "convert",
    }
    assert {part(path) for path in modules() if is_pure(path)} == promised


def test_the_reference_trainer_stands_alone() -> None:
    for path in (TRACER, *REFERENCE.glob("*.py")):
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
    assert set(LAYERS) >= MAY_NOT_IMPORT.keys()
