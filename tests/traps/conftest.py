"""Creates jobs with a simulated Slurm, and ensures that none of their processes survives."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.traps.standing_in import Job
from tests.waiting import PATIENCE

Maker = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Maker]:
    """Create a job in a new folder; all its processes must end with it."""
    mark = uuid.uuid4().hex
    made: list[Job] = []

    def make(text: str = "", profile: str = "", **options: Path) -> Job:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Job(folder, text, profile, mark=mark, **options))
        return made[-1]

    yield make
    deadline = time.monotonic() + PATIENCE
    while left := _marked(mark):
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pytest.fail(f"still running after the test: {left}")
        time.sleep(0.02)


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found
