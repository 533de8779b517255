"""JobStatus -> lines of text and JSON: listings, details, top, the changes that watchers show.

Pure: no files, processes, sockets, environment, clock or randomness; text and values in,
values out.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
