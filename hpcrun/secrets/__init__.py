"""What secrets look like: tokens, keys, and values after names that hint at them; marks and masks.

Pure: this package computes and does no more; tests/test_layers.py holds it to that.
"""

from __future__ import annotations

from hpcrun.lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
