"""Render a Plan to the text of every file that a job receives.

Pure: except for loading templates, this package uses no files, processes, sockets, environment
variables, clocks or random numbers.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
