"""hpcrun's source code, as tests of its structure read it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hpcrun"
# A program of its own, which is copied into runs and never imports hpcrun.
REFERENCE = PACKAGE / "workloads" / "reference"
# Another one, which runs a job's script in the job's Python.
TRACER = PACKAGE / "workloads" / "trace_step.py"


@cache
def modules() -> list[Path]:
    """List hpcrun's modules, but not those of programs that never import hpcrun."""
    return sorted(
        path for path in PACKAGE.rglob("*.py") if REFERENCE not in path.parents and path != TRACER
    )


def name(path: Path) -> str:
    """Return the path of a file as messages show it."""
    return str(path.relative_to(ROOT))


def part(path: Path) -> str:
    """Return the top-level package or module that a file belongs to.

    >>> part(PACKAGE / "runs" / "store.py"), part(PACKAGE / "errors.py")
    ('runs', 'errors')
    """
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def tree(path: Path) -> ast.Module:
    """Parse a module."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(path: Path, *, at_start: bool = False) -> set[str]:
    """List the full names that a module imports; ``at_start``: only when it is imported itself."""
    found = set()
    nodes: list[ast.AST] = [tree(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: a relative import"
            module = node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        is_type_checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not (at_start and (isinstance(node, functions) or is_type_checking)):
            nodes += ast.iter_child_nodes(node)
    return found
