"""Text for terminals: numbers with units, tables, colours, widths.

The package is pure: it accesses no files, processes, sockets, environment, clock or randomness.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
