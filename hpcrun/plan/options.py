"""Options of a command line and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Matches --lr, --lr=1, -v, and Hydra's optimizer.lr=1, +trainer.steps=9.
_OPTION = re.compile(r"(--?[A-Za-z][^=\s]*|\+{0,2}[A-Za-z_][\w.@/-]*(?==))(?:=(.*))?", re.DOTALL)


def split_options(key: str, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Split the arguments of a command line into options with their values, below ``key``.

    >>> list(split_options("args", ["fit", "--lr", "1e-4", "--x=1", "-v", "--n", "-1"]))
    [('args', 'fit'), ('args.--lr', '1e-4'), ('args.--x', '1'), ('args.-v', ''), ('args.--n', '-1')]
    >>> list(split_options("args", ["--env", "optim.wd=0"]))
    [('args.--env', ''), ('args.optim.wd', '0')]
    """
    found: dict[str, list[str]] = {}
    at = key
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        name = option and (f"{key}.{option[1]}" if key else option[1])
        at, value = (name, option[2]) if option and name else (at, argument)
        found.setdefault(at, []).extend([] if value is None else [value])
    for at, values in found.items():
        yield at, " ".join(values)
