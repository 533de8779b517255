"""Connections left open by tests are closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import paramiko
import pytest

from tests.remote.desk import desk

__all__ = ["desk"]  # a fixture


@pytest.fixture(autouse=True)
def nothing_stays_connected() -> Iterator[None]:
    """Close the connections of a test, because the test process lives on."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, paramiko.Transport):
            thread.close()
            thread.join(60)
