"""Text for terminals: numbers with units, tables, colours, widths.

Pure: no access to files, processes, sockets, the environment, the clock or randomness.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
