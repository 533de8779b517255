"""The way to a cluster: commands and run directories, on this machine or over SSH.

Code above this package reads run directories as local files. Where the cluster is another machine,
they are a mirror of it.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
