"""Recognise and mask secrets: tokens, private keys, and values after names such as API_KEY.

Pure: this package computes and does no more; tests/test_layers.py holds it to that.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
