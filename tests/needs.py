"""Requirements of tests: a developer's machine may lack them, CI's may not."""

from __future__ import annotations

import os
import shutil

import pytest


def require(there: object, what: str) -> None:
    """Skip the test if a requirement is not met; in CI (CI=true), fail it."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run this test, but it needs {what}")
    pytest.skip(f"needs {what}")


def require_command(name: str, path: str | None = None) -> None:
    """Require a program on the PATH, or on another path."""
    require(shutil.which(name, path=path), name)


def require_root() -> None:
    """Require root."""
    require(os.geteuid() == 0, "root")
