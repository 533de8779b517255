"""Text and JSON views of jobs: listings, details, top, and state changes of watched jobs.

Pure: no access to files, processes, sockets, the environment, the clock or randomness.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
