"""The web page of hpcrun ui: all runs, their curves and logs, served on this machine only."""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
