"""The user's actions: submit, resubmit, cancel, logs, fetch, parse and others, one module each."""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
