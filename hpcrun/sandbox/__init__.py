"""A real Slurm on this machine, without root, to try jobs on."""

from typing import TYPE_CHECKING, Any

from hpcrun.sandbox.directory import sandbox_dir

if TYPE_CHECKING:
    from hpcrun.sandbox.lifecycle import SandboxStatus, down, status, up

__all__ = ["SandboxStatus", "down", "sandbox_dir", "status", "up"]


def __getattr__(name: str) -> Any:
    """Import what starts and stops it when it is asked for: every verb looks where it would be."""
    if name not in __all__:
        raise AttributeError(name)
    from hpcrun.sandbox import lifecycle

    return getattr(lifecycle, name)
