"""Slurm's interface: command lines, and parsers of their output.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in, values
out.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
