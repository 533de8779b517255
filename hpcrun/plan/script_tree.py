"""A script as a tree: its nodes by their types, what they stand in, and what they say."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

T = TypeVar("T", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
# A name, and the function in which it means one thing; None: the module.
Scoped = tuple[ast.AST | None, str]
# What stands in one of these is not always done.
_PERHAPS = (
    *(ast.If, ast.Try, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Lambda, ast.Match),
    getattr(ast, "TryStar", ast.Try),
)


class Nodes:
    """The nodes of a tree by their types, and what each stands in: one walk serves all."""

    def __init__(self, tree: ast.Module) -> None:
        self._by_type: dict[type[ast.AST], list[Any]] = {}
        self._above: dict[ast.AST, ast.AST] = {}
        found: list[ast.AST] = [tree]
        for node in found:
            self._by_type.setdefault(type(node), []).append(node)
            inside = list(ast.iter_child_nodes(node))
            self._above |= dict.fromkeys(inside, node)
            found += inside
        self._left = self._first_ways_out()

    def of(self, kind: type[T]) -> list[T]:
        return self._by_type.get(kind, [])

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, the innermost first."""
        while node in self._above:
            node = self._above[node]
            yield node

    def function_around(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node; None: the module itself."""
        return next((each for each in self.around(node) if isinstance(each, Function)), None)

    def name_given(self, value: ast.expr) -> str:
        """Return the plain name that a value is assigned to; "" for any other use of it."""
        above = self._above[value]
        targets: list[ast.expr] = []
        if isinstance(above, ast.Assign) and above.value is value:
            targets = above.targets
        elif isinstance(above, ast.AnnAssign) and above.value is value:
            targets = [above.target]
        return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""

    def scoped(self, name: str, where: ast.AST) -> Scoped:
        """Return a name as it is in the function around a node, or in the module."""
        return self.function_around(where), name

    def is_one_of(self, names: Collection[Scoped], node: ast.expr) -> bool:
        """Return whether an expression is one of some names, where it means the same."""
        scopes = (None, *self.around(node))
        return isinstance(node, ast.Name) and any((scope, node.id) in names for scope in scopes)

    def _first_ways_out(self) -> dict[ast.AST | None, int]:
        """Return the line in which each function, or the module, may first be left as a success."""
        ways: list[ast.stmt | ast.expr] = [*self.of(ast.Return)]
        for call in self.of(ast.Call):
            code = call.args[0] if call.args else ast.Constant(0)
            if called(call) in ("exit", "_exit") and constant(code) == 0:
                ways.append(call)
        first: dict[ast.AST | None, int] = {}
        for way in sorted(ways, key=lambda way: -way.lineno):
            if not any(map(_asks_words, self.around(way))):
                first[self.function_around(way)] = way.end_lineno or way.lineno
        return first

    def is_made(self, call: ast.expr, seen: Collection[str] = ()) -> bool:
        """Return whether a call is made whenever the script is run, as far as can be seen.

        What depends on whether the first word is a file counts as made.
        """
        if self._left.get(self.function_around(call), call.lineno) < call.lineno:
            return False
        for node in self.around(call):
            if isinstance(node, _PERHAPS) and not (is_main_guard(node) or _asks_words(node)):
                return False
            if isinstance(node, ast.With) and "suppress(" in ast.unparse(node.items[0]):
                return False
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                above = self._above[node]
                is_init = node.name == "__init__" and isinstance(above, ast.ClassDef)
                name = above.name if is_init and isinstance(above, ast.ClassDef) else node.name
                calls = [each for each in self.of(ast.Call) if called(each) == name]
                more = (*seen, name)
                return name not in seen and any(self.is_made(each, more) for each in calls)
        return True

    def is_called(self, function: ast.expr) -> bool:
        """Return whether an expression is what a call calls."""
        above = self._above[function]
        return isinstance(above, ast.Call) and above.func is function


def _asks_words(node: ast.AST) -> bool:
    """Return whether a node asks for a first word that is no option.

    As ``if sys.argv[1].endswith(".json"):`` does, and ``if "--yaml" in sys.argv:`` does not.
    """
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    return "argv" in test and "'-" not in test


def called(call: ast.Call) -> str:
    """Name what is called, by its last part: ``argparse.ArgumentParser`` is ArgumentParser."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def constant(node: ast.expr | None) -> Any:
    """Return the value of a constant; None for all else."""
    return node.value if isinstance(node, ast.Constant) else None


def text_of(node: ast.expr | None) -> str:
    """Return the text that an expression is, also as Path("..."); "" for all else."""
    if isinstance(node, ast.Call) and called(node) == "Path" and len(node.args) == 1:
        node = node.args[0]
    value = constant(node)
    return value if isinstance(value, str) else ""


def is_main_guard(node: ast.AST) -> bool:
    """Return whether a node is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
