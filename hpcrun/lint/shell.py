"""The parser of bash: tree-sitter with its grammar for bash."""

from __future__ import annotations

from functools import cache
from typing import Any

from hpcrun.errors import InputError

# A node of tree-sitter's syntax tree, whose package has no types here.
Parsed = Any


@cache
def bash_parser() -> Any:
    """Return the parser. Raises InputError if it is not installed."""
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise InputError(
            "the parser of bash scripts is not installed",
            fix="pip install 'hpcrun-slurm[lint]', or: pip install tree-sitter tree-sitter-bash",
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
