"""The examples in the docstrings of metrics and report hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hpcrun.metrics
import hpcrun.report

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (hpcrun.metrics, hpcrun.report)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
