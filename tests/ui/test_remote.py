"""hpcrun ui on a laptop, for a cluster behind a real sshd."""

from __future__ import annotations

import json
import threading
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest

from tests.remote.desk import Desk, desk
from tests.ui.project import served
from tests.waiting import PATIENCE, until

__all__ = ["desk"]  # a fixture
pytestmark = pytest.mark.slow


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}api/{path}", timeout=PATIENCE) as answer:
        return json.load(answer)


def hold_open(address: str, key: str) -> None:
    """Read the events of a page until the server ends."""
    url = f"{address}api/events?key={quote(key)}"
    with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=PATIENCE) as events:
        while events.readline():
            pass


def test_run_on_another_host_is_followed(desk: Desk) -> None:
    run = desk.submit()
    log = desk.begin(run)
    with served(desk.hpcrun) as address:
        page = threading.Thread(target=hold_open, args=(address, run.name), daemon=True)
        page.start()

        def row() -> Any:
            return next((row for row in get(address, "rows")["rows"]), None)

        def steps() -> Any:
            (curve,) = get(address, f"curves?key={run.name}")["runs"]
            return curve["axes"][0]["step"] if curve["axes"] else []

        assert until(row, "the run")["state"] == "RUNNING"
        assert until(lambda: steps() == [1], "the first step")
        with log.open("a") as file:
            file.write("step 2 loss 2.25\n")
        assert until(lambda: steps() == [1, 2], "the second step")
        (shown,) = get(address, f"detail?key={run.name}")["files"]
        window = get(address, f"log?key={run.name}&file={shown['name']}&at=0")
        assert window["lines"] == ["step 1 loss 2.5", "step 2 loss 2.25"]
    page.join(PATIENCE)
