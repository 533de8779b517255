"""Translates hpcrun's own templates to Python, so that a submission needs no template engine.

Importing Jinja and compiling three templates takes longer than all else of a submission. What they
say is therefore kept as plain functions too, in hpcrun/render/shipped.py, which a test holds to the
templates. Only a project with templates of its own has Jinja render them.

``make templates`` writes that file anew, by ``python -m tests.render.translate``.
"""

from __future__ import annotations

from collections.abc import Iterable

import jinja2
from jinja2 import nodes

from tests.source import PACKAGE, ROOT

SHIPPED = PACKAGE / "render" / "shipped.py"
TEMPLATES = ("array.sbatch", "job.sbatch", "node.sh")
_HEAD = '''\
"""What hpcrun's templates say, as Python; written by ``make templates``, not by hand.

Pure.
"""

# fmt: off
# ruff: noqa
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.plan.setup import uses_modules
from hpcrun.render.quoting import FILTERS, indent

'''
_BINARY = {"eq": "==", "ne": "!=", "in": "in", "notin": "not in", "gt": ">", "lt": "<"}
_CONSTANTS = (str, int, bool, type(None))


def translate(loader: jinja2.BaseLoader) -> str:
    """Write the module. Raises NotImplementedError for what this knows no Python for."""
    environment = jinja2.Environment(
        loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    functions = "\n\n".join(_Template(environment, name).function() for name in TEMPLATES)
    table = ", ".join(f'"{name}": _{_identifier(name)}' for name in TEMPLATES)
    return f"{_HEAD}\n{functions}\n\nRENDER = {{{table}}}\n"


def _identifier(name: str) -> str:
    return name.replace(".", "_")


class _Template:
    """One template with those that it extends and imports from, on its way to a function."""

    def __init__(self, environment: jinja2.Environment, name: str) -> None:
        self.environment = environment
        self.name = name
        self.lines: list[str] = []
        self.blocks: dict[str, nodes.Block] = {}  # of the templates that extend this one

    def function(self) -> str:
        tree = self._parse(f"{self.name}.j2")
        while extends := next(tree.find_all(nodes.Extends), None):
            for block in tree.find_all(nodes.Block):
                self.blocks.setdefault(block.name, block)
            assert isinstance(extends.template, nodes.Const)
            tree = self._parse(str(extends.template.value))
        self._line(0, f"def _{_identifier(self.name)}(values: Mapping[str, Any]) -> str:")
        used = sorted(self._free_names(tree))
        for name in used:
            self._line(1, f'{name} = values["{name}"]')
        self._line(1, "said: list[str] = []")
        self._body(tree.body, 1)
        self._line(1, 'return "".join(said)')
        return "\n".join(self.lines) + "\n"

    def _parse(self, name: str) -> nodes.Template:
        assert self.environment.loader is not None
        # A name that begins with hpcrun/ is the shipped template, as all here are.
        name = name.removeprefix("hpcrun/")
        source, _, _ = self.environment.loader.get_source(self.environment, name)
        return self.environment.parse(source)

    def _free_names(self, tree: nodes.Template) -> set[str]:
        """What the template takes from outside: all that it names but does not make."""
        trees: list[nodes.Node] = [tree, *self.blocks.values()]
        named: set[str] = set()
        made: set[str] = set()
        for each in trees:
            replaced = {
                id(inner)
                for block in (each.find_all(nodes.Block) if each is tree else ())
                if block.name in self.blocks
                for inner in block.find_all(nodes.Name)
            }
            for name in each.find_all(nodes.Name):
                (made if name.ctx != "load" else named).add(
                    name.name if id(name) not in replaced else ""
                )
            made |= {macro.name for macro in each.find_all(nodes.Macro)}
            for imported in each.find_all(nodes.FromImport):
                made |= {one if isinstance(one, str) else one[1] for one in imported.names}
        return named - made - {""}

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _body(self, body: Iterable[nodes.Node], depth: int) -> None:
        before = len(self.lines)
        for node in body:
            self._statement(node, depth)
        if len(self.lines) == before:
            self._line(depth, "pass")

    def _statement(self, node: nodes.Node, depth: int) -> None:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    if isinstance(part, nodes.TemplateData):
                        self._line(depth, f"said.append({part.data!r})")
                    else:
                        self._line(depth, f"said.append(str({self._value(part)}))")
            case nodes.If():
                self._line(depth, f"if {self._value(node.test)}:")
                self._body(node.body, depth + 1)
                for other in node.elif_:
                    self._line(depth, f"elif {self._value(other.test)}:")
                    self._body(other.body, depth + 1)
                if node.else_:
                    self._line(depth, "else:")
                    self._body(node.else_, depth + 1)
            case nodes.For() if not (node.else_ or node.recursive):
                target = self._value(node.target)
                self._line(depth, f"for {target} in {self._value(node.iter)}:")
                if node.test:
                    self._line(depth + 1, f"if not ({self._value(node.test)}):")
                    self._line(depth + 2, "continue")
                self._body(node.body, depth + 1)
            case nodes.Assign():
                self._line(depth, f"{self._value(node.target)} = {self._value(node.node)}")
            case nodes.Block():
                self._body(self.blocks.get(node.name, node).body, depth)
            case nodes.Macro() if not node.defaults:
                self._macro(node, depth)
            case nodes.FromImport():
                assert isinstance(node.template, nodes.Const)
                for macro in self._parse(str(node.template.value)).find_all(nodes.Macro):
                    self._macro(macro, depth)
            case nodes.FilterBlock():
                self._line(depth, "outside, said = said, []")
                self._body(node.body, depth)
                self._line(depth, 'inside, said = "".join(said), outside')
                self._line(depth, f"said.append({self._filter(node.filter, 'inside')})")
            case _:
                raise NotImplementedError(f"{self.name}:{node.lineno}: {type(node).__name__}")

    def _macro(self, node: nodes.Macro, depth: int) -> None:
        arguments = ", ".join(f"{arg.name}: Any" for arg in node.args)
        self._line(depth, f"def {node.name}({arguments}) -> str:")
        self._line(depth + 1, "said: list[str] = []")
        self._body(node.body, depth + 1)
        self._line(depth + 1, 'return "".join(said)')

    def _value(self, node: nodes.Node | None) -> str:
        match node:
            case nodes.Const() if isinstance(node.value, _CONSTANTS):
                return repr(node.value)
            case nodes.Name():
                return node.name
            case nodes.Getattr():
                return f"{self._value(node.node)}.{node.attr}"
            case nodes.Getitem():
                return f"{self._value(node.node)}[{self._value(node.arg)}]"
            case nodes.Tuple() | nodes.List():
                inner = ", ".join(map(self._value, node.items))
                return f"[{inner}]" if isinstance(node, nodes.List) else f"({inner},)"
            case nodes.Call() if not (node.kwargs or node.dyn_args or node.dyn_kwargs):
                return f"{self._value(node.node)}({', '.join(map(self._value, node.args))})"
            case nodes.Filter() if node.node is not None:
                return self._filter(node, self._value(node.node))
            case nodes.Not():
                return f"(not {self._value(node.node)})"
            case nodes.And() | nodes.Or():
                word = "and" if isinstance(node, nodes.And) else "or"
                return f"({self._value(node.left)} {word} {self._value(node.right)})"
            case nodes.Add():
                return f"({self._value(node.left)} + {self._value(node.right)})"
            case nodes.CondExpr() if node.expr2 is not None:
                chosen, other = self._value(node.expr1), self._value(node.expr2)
                return f"({chosen} if {self._value(node.test)} else {other})"
            case nodes.Compare() if len(node.ops) == 1 and node.ops[0].op in _BINARY:
                operand = node.ops[0]
                return (
                    f"({self._value(node.expr)} {_BINARY[operand.op]} {self._value(operand.expr)})"
                )
            case nodes.Test() if node.name == "none":
                return f"({self._value(node.node)} is None)"
            case _:
                what = type(node).__name__ if node else "nothing"
                raise NotImplementedError(f"{self.name}:{getattr(node, 'lineno', 0)}: {what}")

    def _filter(self, node: nodes.Filter, value: str) -> str:
        words = [self._value(arg) for arg in node.args]
        words += [f"{pair.key}={self._value(pair.value)}" for pair in node.kwargs]
        if node.name == "join":
            return f"{words[0]}.join({value})"
        if node.name == "map":
            return f"[FILTERS[{words[0]}](one) for one in {value}]"
        if node.name == "indent":
            return f"indent({', '.join([value, *words])})"
        if node.name == "uses_modules":
            return f"uses_modules({value})"
        return f'FILTERS["{node.name}"]({value})'


if __name__ == "__main__":
    SHIPPED.write_text(translate(jinja2.FileSystemLoader(ROOT / "templates")))
