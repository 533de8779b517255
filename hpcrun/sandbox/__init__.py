"""A real Slurm on this machine, without root, to try jobs on.

Effects: processes, files.
"""

from hpcrun.sandbox.directory import sandbox_dir
from hpcrun.sandbox.lifecycle import SandboxStatus, down, status, up

__all__ = ["SandboxStatus", "down", "sandbox_dir", "status", "up"]
