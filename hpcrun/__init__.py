"""hpcrun: from a short YAML file to a loss curve on any Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrun.api import parse

__all__ = ["parse"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what programs call when it is asked for: the command line needs none of it."""
    if name in __all__:
        from hpcrun import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
