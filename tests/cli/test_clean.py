"""hpcrun clean, with replayed answers of Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.life_runs import submitted
from tests.cli.slurm_rows import captured, row
from tests.json_schemas import check_json


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands, and write a job to submit."""
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    return hpcrun.tools


@pytest.mark.slow
def test_clean_shows_progress(hpcrun: Caller, tools: Path) -> None:
    runs = submitted(hpcrun, tools, "1", "2", "3", "4")
    rows = [row(run, str(job_id), "FAILED") for job_id, run in enumerate(runs, 1)]
    replay(tools, "squeue", (0, "".join(rows), ""))
    hpcrun.insist_on_bar("removing", "clean", "-y", runs[0].name)
    for words in (["-y"], ["-y", "--json"]):
        assert "removing" not in hpcrun.process("clean", *words, "--older-than", "0s").err
    assert not [run for run in runs if run.exists()]


def test_clean_removes_only_runs_that_have_certainly_ended(hpcrun: Caller, tools: Path) -> None:
    over, live, used, later, link = submitted(hpcrun, tools, "1", "2", "3", "4", "5")
    rows = row(over, "1", "COMPLETED") + row(live, "2", "RUNNING") + row(used, "3", "FAILED")
    replay(tools, "squeue", (0, rows + row(later, "4", "PENDING") + row(link, "5", "FAILED"), ""))
    precious = hpcrun.write("checkpoints/best.pt", "weights")
    (over / "checkpoints").symlink_to(precious.parent)
    (used / "successors").mkdir()
    (used / "successors/x.json").write_text(json.dumps({"run_dir": str(later)}))
    link.rename(hpcrun.project / "moved")
    link.symlink_to(hpcrun.project / "moved")
    dateless = ["99999999-999999-x-abcd", "20261399-000000-x-abcd", "00000101-000000-x-abcd"]
    for name in dateless:
        (hpcrun.runs / name).mkdir()
    (hpcrun.runs / "notes").mkdir()
    locked = over / "logs" / "locked"
    locked.mkdir()
    (locked / "file").touch()
    locked.chmod(0o500)

    assert "there is no terminal" in hpcrun("clean").err
    assert "x: not a time" in hpcrun("clean", "--older-than", "x").err
    done = hpcrun("clean", "--older-than", "0s", "--dry-run", "--json")
    check_json("clean", done.json)
    reasons = {run["id"]: run["reason"] for run in done.json["runs"]}
    assert reasons == {
        over.name: None,
        live.name: "it is RUNNING",
        used.name: f"{later.name} uses its checkpoints",
        later.name: "it is PENDING",
    }
    assert hpcrun("clean", "-y").out == "nothing to remove\n"  # 30 days
    assert hpcrun("clean", "-y", "--older-than", "0s", "--keep", "9").out == "nothing to remove\n"
    done = hpcrun("clean", "--older-than", "0s", "-y", "--json")
    check_json("clean", done.json)
    assert done.code == 0 and [run["removed"] for run in done.json["runs"]].count(True) == 1
    assert precious.read_text() == "weights"
    left = {path.name for path in hpcrun.runs.iterdir()}
    assert left == {
        *(live.name, used.name, later.name, link.name),
        *(*dateless, "notes"),
    }


def test_clean_keeps_folders_that_are_not_runs(hpcrun: Caller, tools: Path) -> None:
    over, kept = submitted(hpcrun, tools, "1", "2")
    replay(tools, "squeue", (0, row(over, "1", "FAILED") + row(kept, "2", "FAILED"), ""))
    replay(tools, "sacct", (0, "", ""))
    data = hpcrun.runs / "20261101-000000-data-keep"
    data.mkdir()
    (data / "notes.txt").write_text("precious")
    later = data.rename(hpcrun.runs / f"20991101-{data.name[9:]}")
    data.mkdir()
    (data / "notes.txt").write_text("precious")
    half = hpcrun.runs / "20261101-000000-half-keep"  # left by a killed submission
    (half / "attempts").mkdir(parents=True)
    bare = hpcrun.runs / "20261101-000000-bare-keep"
    bare.mkdir()

    for argv in (("--older-than", "0s", "--keep", "1"), (data.name,), (later.name,)):
        done = hpcrun("clean", "-y", *argv)
        assert done.code == (0 if len(argv) > 1 else 1)
        name = argv[0] if len(argv) == 1 else data.name
        why = "it has the name of a run but no files of a run: hpcrun did not create it"
        assert f"kept: {name}: {why}" in done.err, done
    left = sorted(path.name for path in hpcrun.runs.iterdir() if not path.name.startswith("."))
    # --keep counts only runs.
    assert left == sorted([kept.name, data.name, later.name])
    assert (data / "notes.txt").read_text() == "precious"


def test_clean_keeps_runs_if_slurm_does_not_respond(hpcrun: Caller, tools: Path) -> None:
    seen, unseen = submitted(hpcrun, tools, "1", "2")
    rows = row(seen, "1", "COMPLETED") + row(unseen, "2", "RUNNING")
    replay(tools, "squeue", (0, rows, ""))
    assert hpcrun("status").code == 0
    replay(tools, "squeue", captured("squeue", "no-controller"))
    done = hpcrun("clean", "--older-than", "0s", "-y", "--json")
    assert done.code == 4
    shown = {run["id"]: (run["removed"], run["reason"]) for run in done.json["runs"]}
    assert shown.pop(unseen.name) == (False, "it is UNKNOWN")
    # An ended job may have been requeued meanwhile with scontrol.
    ((removed, reason),) = shown.values()
    assert not removed and reason.startswith("Slurm may restart it, and does not respond: squeue")
    replay(tools, "squeue", (0, rows, ""))
    done = hpcrun("clean", "--older-than", "0s", "-y", "--json")
    shown = {run["id"]: (run["removed"], run["reason"]) for run in done.json["runs"]}
    assert shown == {seen.name: (True, None), unseen.name: (False, "it is RUNNING")}


def test_clean_keeps_requeued_runs(hpcrun: Caller, tools: Path) -> None:
    (run,) = submitted(hpcrun, tools, "1")
    replay(tools, "squeue", (0, row(run, "1", "FAILED"), ""))
    assert hpcrun("status", "1").code == 0
    replay(tools, "squeue", (0, row(run, "1", "PENDING", "BeginTime"), ""))
    done = hpcrun("clean", "1", "-y")
    assert done.code == 1 and f"kept: {run.name}: it is PENDING" in done.err and run.exists()


def test_clean_keeps_runs_of_other_users(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = submitted(hpcrun, tools, "1")
    replay(tools, "squeue", (0, row(run, "1", "FAILED"), ""))
    monkeypatch.setattr(os, "getuid", lambda: Path("/proc/self").stat().st_uid + 1)
    assert "nothing to remove" in hpcrun("clean", "--older-than", "0s", "-y").out
    assert run.exists()
