"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, settings

from tests.environ import make_environ
from tests.order import order_slow_first
from tests.torch_extensions import clear_stale_locks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that updates golden files."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden again; review the difference before you commit it",
    )


# How long an example takes says more of what else the machine does than of hpcrun. Each run draws
# others: half of Hypothesis' hundred, but for make test-all.
settings.register_profile(
    "busy",
    deadline=None,
    max_examples=100 if os.environ.get("HPCRUN_TEST_ALL") else 50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy")


def pytest_configure() -> None:
    """Let signals end what tests start: nohup, or a shell's ``&``, has every child ignore them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    clear_stale_locks()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and leave what was collected out of its sight.

    Nothing of it is ever garbage, and to look through it takes a good part of the time.
    """
    gc.disable()
    had_torch = "torch" in sys.modules
    try:
        collected = yield
    finally:
        gc.freeze()
        gc.enable()
    # In each worker that would take as long as the rest of the collection, and 250 MB.
    if "torch" in sys.modules and not had_torch:
        raise pytest.UsageError(
            "a module imports torch when it is collected; see --ignore in setup.cfg"
        )
    return collected


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests except in `make test-all`; order the others for several workers."""
    if not os.environ.get("HPCRUN_TEST_ALL"):
        left = [item for item in items if item.get_closest_marker("thorough")]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = order_slow_first(items, workers)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once, where the progress is shown, and not only after all others."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nfailed: {report.nodeid}", flush=True)


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Cache compiled Jinja templates in memory: each test has its own home and cache folder."""
    compiles = jinja2.Environment.compile
    kept: dict[tuple[Any, ...], Any] = {}

    def compile(self: jinja2.Environment, source: Any, *names: Any, **options: Any) -> Any:
        if options or not isinstance(source, str):
            return compiles(self, source, *names, **options)
        key = (self.sandboxed, source, names)
        if key not in kept:
            kept[key] = compiles(self, source, *names)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", compile)
        yield


@pytest.fixture
def clean_environ(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home directory, no cluster and no sandbox."""
    return make_environ(tmp_path)
