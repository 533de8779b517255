"""hpcrun status of a run that is started again while, or after, it is looked at."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller
from tests.cli.test_status import NOW, answers, queued, several, tools, write_sweep
from tests.cli.test_status_files import HEADED
from tests.cli.test_status_looks import Watching

__all__ = ["several", "tools"]  # fixtures
KILLED = "20261120-081452-train-7k3m"


@pytest.mark.parametrize("argv", [(), ("12",)])
def test_secrets_that_come_while_slurm_is_asked_are_the_next_attempts(
    several: Caller, tools: Path, argv: tuple[str, ...]
) -> None:
    secrets = several.runs / KILLED / "secrets.env"
    secrets.write_text("export OLD=1\n")
    text = (tools / "squeue").read_text()
    slow = text.replace("case", f'echo "export NEW=1" >"{secrets}"\ncase', 1)
    (tools / "squeue").write_text(slow)
    several("status", *argv)
    assert secrets.read_text() == "export NEW=1\n"
    (tools / "squeue").write_text(text)
    several("status", "12")
    assert not secrets.exists()


@pytest.mark.slow
def test_secrets_that_come_after_slurm_was_asked_are_the_next_attempts(several: Caller) -> None:
    secrets = several.runs / KILLED / "secrets.env"
    secrets.write_text("export OLD=1\n")
    watching = Watching(several)
    watching.pictures(1)
    assert not secrets.exists()
    # As hpcrun requeue does.
    secrets.write_text("export NEW=1\n")
    seen = RunFolder(secrets.parent).seen
    seen.unlink()
    watching.pictures(3)
    watching.end()
    assert secrets.exists()
    assert not seen.exists()  # nor is the old end remembered again


def test_a_task_missing_from_its_array_keeps_no_secrets(hpcrun: Caller, tools: Path) -> None:
    """Slurm keeps no record of a task that is cancelled while it waits, and never requeues it."""
    sweep = RunFolder(write_sweep(hpcrun, 2))
    secrets = hpcrun.runs / "20261121-000000-lr.1-7k3q" / "secrets.env"
    secrets.write_text("export OLD=1\n")
    answers(
        tools, "squeue", rest=queued(sweep, "40", "CANCELLED") + queued(sweep, "40_0", "FAILED")
    )
    answers(tools, "sacct")
    submitted = sweep.path / "submitted.json"
    submitted.write_text(submitted.read_text().replace(str(NOW), str(NOW - 60)))
    hpcrun("status")
    assert not secrets.exists()


@pytest.mark.parametrize("argv", [(), ("12",)])
def test_a_requeued_run_that_waits_for_days_is_not_over(
    several: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    assert several("status").out.count("FAILED") == 1
    run = RunFolder(several.runs / KILLED)
    shown = queued(run, "12", "PENDING", "Priority")
    answers(tools, "squeue", HEADED, (",12", shown), ("=12", shown))
    several("status", *argv)
    monkeypatch.setattr(time, "time", lambda: NOW + 2 * 86400)
    # Of all runs squeue shows only those that it is asked about.
    rows = {row["id"]: row["state"] for row in several("status", "--json").json["runs"]}
    assert rows["12"] == "PENDING"
    # What it was remembered for stays true of a run that is not started again.
    assert rows["11"] == "COMPLETED"
