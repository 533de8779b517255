"""hpcrun status of a run that is requeued during or after a query."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller
from tests.cli.status_runs import NOW, answers, queued, several, tools, write_sweep
from tests.cli.status_tables import HEADED
from tests.cli.watching import Watching

__all__ = ["several", "tools"]  # fixtures
KILLED = "20261120-081452-train-7k3m"


@pytest.mark.parametrize("argv", [(), ("12",)])
def test_secrets_written_during_the_query_are_kept_for_the_next_attempt(
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
def test_secrets_written_after_the_query_are_kept_for_the_next_attempt(several: Caller) -> None:
    secrets = several.runs / KILLED / "secrets.env"
    secrets.write_text("export OLD=1\n")
    watching = Watching(several)
    watching.pictures(1)
    assert not secrets.exists()
    # Like hpcrun requeue.
    secrets.write_text("export NEW=1\n")
    seen = RunFolder(secrets.parent).seen
    seen.unlink()
    watching.pictures(3)
    watching.end()
    assert secrets.exists()
    assert not seen.exists()  # and the old end is not cached again


def test_secrets_of_a_task_missing_from_its_array_are_removed(hpcrun: Caller, tools: Path) -> None:
    """Slurm has no record of a task cancelled while pending, and never requeues it."""
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
def test_requeued_run_pending_for_days_has_not_ended(
    several: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    assert several("status").out.count("FAILED") == 1
    run = RunFolder(several.runs / KILLED)
    shown = queued(run, "12", "PENDING", "Priority")
    answers(tools, "squeue", HEADED, (",12", shown), ("=12", shown))
    several("status", *argv)
    monkeypatch.setattr(time, "time", lambda: NOW + 2 * 86400)
    # squeue shows only the queried runs.
    rows = {row["id"]: row["state"] for row in several("status", "--json").json["runs"]}
    assert rows["12"] == "PENDING"
    # The cached state remains valid for a run that is not restarted.
    assert rows["11"] == "COMPLETED"
