"""Public names of a package, each imported when it is first used.

A package's ``__init__.pyi`` lists what other packages may import from it. Type checkers and editors
read that file; so does this module, which imports only the module that defines a requested name.
This is the pattern of ``attach_stub`` in SPEC 1 of Scientific Python.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package, from the stub of its ``__init__``.

    Args:
        package: The package's ``__name__``.
        file: The package's ``__file__``.
    """
    modules = read_stub(f"{file}i")

    def get_name(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module == package:  # the name is that of a module, public as a whole
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_name, lambda: sorted(modules)


def read_stub(path: str) -> dict[str, str]:
    """Return the module that defines each name of a stub.

    Every import in the stub is one line, ``from MODULE import NAME as NAME``.
    """
    with open(path, encoding="utf-8") as file:  # noqa: PTH123, pathlib takes long to import
        lines = [line.split() for line in file if line.startswith("from ")]
    return {words[3]: words[1] for words in lines}
