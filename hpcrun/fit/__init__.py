"""How much memory a training needs: model dimensions and settings -> bytes per GPU and per node.

Pure: files, commands and clusters are read elsewhere; dimensions and settings come in as arguments.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
