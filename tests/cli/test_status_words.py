"""hpcrun status, wait and top: explanations of Slurm's codes and special values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.monitor import disk
from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller, replay
from tests.cli.status_runs import answers, make_run, queued

RUN = "20261120-081455-train-7k3q"


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for Slurm's commands."""
    folder = hpcrun.tools
    for name in ("sacct", "scontrol"):
        answers(folder, name)
    return folder


def test_failed_dependency_is_explained(hpcrun: Caller, tools: Path) -> None:
    run = make_run(hpcrun, RUN, "15", attempts=0)
    answers(tools, "squeue", rest=queued(run, "15", "CANCELLED", "DependencyNeverSatisfied"))
    for words in (("status", "15"), ("status",), ("wait", "15"), ("logs", "-f", "15")):
        done = hpcrun(*words)
        assert "the job that it depends on did not end as required" in done.out + done.err, done
        assert "DependencyNeverSatisfied" not in done.out + done.err
        assert "--err" not in done.out + done.err
    assert "  hpcrun status 15\n" in done.err


@pytest.mark.parametrize("state", ["FAILED", "RUNNING", "COMPLETED", "PENDING"])
def test_full_disk_is_reported_for_one_run(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    run = make_run(hpcrun, RUN, "15", log="step 1\n")
    answers(tools, "squeue", rest=queued(run, "15", state))
    shown = f"disk: the file system of {run.path} is full: no space is left"
    assert shown not in hpcrun("status", "15").out
    monkeypatch.setattr(disk, "free_space", lambda folder: (0, None))
    is_shown = state in ("FAILED", "RUNNING")
    assert (f"  note      {shown}" in hpcrun("status", "15").out) == is_shown
    notes = hpcrun("status", "15", "--json").json["runs"][0]["notes"]
    assert any(note.startswith(shown) for note in notes) == is_shown
    assert shown not in hpcrun("status").out and shown in hpcrun("logs", "--err", "15").err
    assert shown not in hpcrun("logs", "15").err


@pytest.mark.parametrize("limit", ["365-00:00:00", "UNLIMITED"])
def test_unlimited_job_shows_no_limit(hpcrun: Caller, tools: Path, limit: str) -> None:
    run = make_run(hpcrun, RUN, "15")
    row = queued(run, "15", "RUNNING", l=limit, u=str(os.getuid()))
    answers(tools, "squeue", rest=row)
    assert " without a limit" in hpcrun("status", "15").out
    assert "LIMIT" not in hpcrun("status").out and "365d" not in hpcrun("top", "--no-usage").out
    assert hpcrun("status", "--json").json["runs"][0]["limit_seconds"] is None
    assert hpcrun("top", "--no-usage", "--json").json["jobs"][0]["limit_seconds"] is None


def test_start_time_in_another_century_is_ignored(hpcrun: Caller, tools: Path) -> None:
    run = make_run(hpcrun, RUN, "15", attempts=0)
    row = queued(run, "15", "PENDING", "Resources", S="2282-01-31T00:00:00")
    answers(tools, "squeue", rest=row)
    for words in (("status", "15"), ("status",)):
        shown = hpcrun(*words).out
        assert (
            "waits for nodes to become free; no start is estimated" in shown and "2282" not in shown
        )


def test_estimate_in_another_century_is_ignored(hpcrun: Caller, tools: Path) -> None:
    text = "sbatch: Job 7 to start at 2282-01-31T00:00:00 using 4 processors on nodes n1\n"
    replay(tools, "sbatch", (0, "", text))
    shown = hpcrun("submit", "--test-only", "--", "true").out
    assert "start     no start is estimated" in shown and "2282" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "name"), [("", "Größe"), ("ascii", "Gr??e")])
def test_names_are_ascii_in_a_c_locale(
    hpcrun: Caller, tools: Path, encoding: str, name: str
) -> None:
    run = make_run(hpcrun, RUN, "15")
    row = queued(run, "15", "RUNNING", j="Größe", u=str(os.getuid()))
    run.submitted.write_text(run.submitted.read_text().replace('"train"', '"Größe"'))
    answers(tools, "squeue", rest=row)
    hpcrun.environ["LC_ALL"] = "C"
    if encoding:
        hpcrun.environ["PYTHONIOENCODING"] = encoding
    else:
        assert name in hpcrun.process("status").out
    assert f"15   {name} " in hpcrun.process("top", "--no-usage").out


@pytest.mark.parametrize(
    ("reason", "words", "fix"),
    [
        ("JobArrayTaskLimit", "waits for other tasks of its array", ""),
        ("DependencyNeverSatisfied", "it will never start", "submit it without this dependency"),
    ],
)
def test_other_jobs_are_not_offered_options_of_hpcrun(
    hpcrun: Caller, tools: Path, reason: str, words: str, fix: str
) -> None:
    elsewhere = RunFolder(Path("/elsewhere"))
    row = queued(elsewhere, "7_3", "PENDING", reason, u=str(os.getuid()), A="9")
    answers(tools, "squeue", rest=row)
    shown = hpcrun("status", "7_3").out
    assert words in shown and fix in shown and "--after" not in shown and "sweep" not in shown
    assert words in hpcrun("top", "--no-usage").out
