"""A Chromium that the tests of a module share."""

from __future__ import annotations

from tests.curves.report.browser import browser

__all__ = ["browser"]  # a fixture
