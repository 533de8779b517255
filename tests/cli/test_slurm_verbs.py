"""Commands that query Slurm, with replayed answers.

tests/cluster tests the behaviour of the real Slurm; these tests cover the queries of hpcrun, their
number, and the handling of each answer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpcrun.actions.checks import submission
from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import account_row, calls, captured, row, state, submit
from tests.json_schemas import check_json
from tests.slurm_answers import show_job


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands, and write a job to submit."""
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    return hpcrun.tools


def test_submit_submits_the_job_and_prints_next_commands(hpcrun: Caller, tools: Path) -> None:
    asked = replay(tools, "sbatch", captured("sbatch", "taken"))
    done = submit(hpcrun)
    assert done.code == 0 and done.err == "", done
    assert done.out.startswith("Submitted job to default as job 2\n")
    (run,) = hpcrun.runs.iterdir()
    assert calls(asked) == [f"{run}|--parsable job.sbatch"]
    written = json.loads((run / "submitted.json").read_text())
    assert written["job_id"] == "2"
    assert {"job.sbatch", "node.sh", "harness.sh", "plan.json", "spec.yaml"} <= {
        path.name for path in run.iterdir()
    }
    as_json = submit(hpcrun, "--json").json
    assert (as_json["job_id"], as_json["cluster"]) == ("2", "default")
    assert Path(as_json["run_dir"]).name == as_json["run_id"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["survive.when=[preempted]"], "restarts after preemption, at most 20 attempts; not after"),
        (["resources.time=30"], "restarts never (set survive.when to change this)"),
    ],
)
def test_submit_shows_what_a_run_survives(
    hpcrun: Caller, tools: Path, changes: list[str], line: str
) -> None:
    replay(tools, "sbatch", captured("sbatch", "taken"))
    (hpcrun.project / "train.py").write_text("import os\n")
    (hpcrun.project / "long.yaml").write_text("script: train.py\nlauncher: srun\n")
    done = hpcrun("submit", "./long.yaml", *(word for each in changes for word in ("--set", each)))
    assert done.code == 0, done
    out = " ".join(done.out.split())
    assert line in out
    is_noted = "each attempt would start at step 0" in out
    assert is_noted == ("survive" in changes[0])


@pytest.mark.parametrize("has_python", [True, False])
@pytest.mark.parametrize("when", ["[preempted]", "[]"])
def test_submit_notes_that_a_run_cannot_continue_without_a_python(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch, has_python: bool, when: str
) -> None:
    replay(tools, "sbatch", captured("sbatch", "taken"))
    names = submission._FIND_PYTHON
    if not has_python:
        monkeypatch.setattr(
            submission, "_FIND_PYTHON", re.sub(r"python in .*;", "python in x;", names)
        )
    done = submit(hpcrun, "--set", f"survive.when={when}")
    assert done.code == 0, done
    note = "no Python 3.6 or newer answers on the login node"
    assert (note in " ".join(done.out.split())) == (not has_python and when != "[]")


def test_refusal_of_slurm_is_reported_with_a_fix(hpcrun: Caller, tools: Path) -> None:
    replay(tools, "sbatch", captured("sbatch", "refused-invalid-partition"))
    done = submit(hpcrun)
    assert done.code == 3 and done.out == ""
    assert "error: Slurm refused the job: invalid partition specified: nowhere" in done.err
    assert "fix: name a partition of this cluster: sinfo lists them" in done.err
    assert list(hpcrun.runs.iterdir()) == []


@pytest.mark.parametrize("case", ["no-controller", "no-munge"])
def test_submission_without_response_is_reported(hpcrun: Caller, tools: Path, case: str) -> None:
    replay(tools, "sbatch", captured("sbatch", case))
    done = submit(hpcrun)
    assert done.code == 4 and done.out == ""
    assert "Slurm does not answer" in done.err
    assert list(hpcrun.runs.iterdir()) == []


def test_submission_without_slurm_is_refused(hpcrun: Caller, tools: Path) -> None:
    done = submit(hpcrun)
    assert done.code == 4
    assert "sbatch: command not found" in done.err
    assert "hpcrun sandbox up" in done.err and "hpcrun run" in done.err
    assert list(hpcrun.runs.iterdir()) == []


def test_lost_reply_is_resolved_later(hpcrun: Caller, tools: Path) -> None:
    timed_out = "sbatch: error: Batch job submission failed: Socket timed out on send/recv\n"
    replay(tools, "sbatch", (1, "", timed_out))
    replay(tools, "squeue", (0, "", ""))
    done = submit(hpcrun)
    (run,) = hpcrun.runs.iterdir()
    assert done.code == 4
    assert f"Slurm may have accepted the job: hpcrun status {run.name} shows whether" in done.err
    replay(tools, "squeue", (0, row(run, "8", "FAILED", "BadConstraints"), ""))
    code, (shown,) = state(hpcrun)
    # Its absence proves nothing for some minutes: the request may still be in transit.
    assert (shown["job_id"], shown["state"]) == (None, "UNKNOWN")
    replay(tools, "squeue", (0, row(run, "8", "RUNNING"), ""))
    code, (shown,) = state(hpcrun)
    assert (code, shown["job_id"], shown["state"]) == (0, "8", "RUNNING")
    assert _job_id(run) == "8"  # now it is recorded


def test_many_runs_need_one_query(hpcrun: Caller, tools: Path) -> None:
    for job in "123":
        replay(tools, "sbatch", (0, f"{job}\n", ""))
        submit(hpcrun)
    first, second, third = sorted(hpcrun.runs.iterdir(), key=lambda run: _job_id(run))
    # The second job number belonged to another run before the cluster restarted its numbering.
    rows = row(first, "1", "PENDING", "Priority") + row(second, "9", "RUNNING")
    queue = replay(tools, "squeue", (0, rows, ""))
    accounts = account_row(second, "2", "TIMEOUT") + account_row(first, "3", "COMPLETED")
    sacct = replay(tools, "sacct", (0, accounts, ""))
    code, runs = state(hpcrun)
    assert code == 0
    states = {shown["job_id"]: shown["state"] for shown in runs}
    assert states["1"] == "PENDING" and states["2"] == "TIMEOUT"
    assert states["3"] == "UNKNOWN"  # just submitted; sacct's row belongs to another run
    assert len(calls(queue)) == 1 and "--jobs=" in calls(queue)[0]
    assert len(calls(sacct)) == 1 and calls(sacct)[0].endswith(("--jobs=3,2", "--jobs=2,3"))
    assert third.exists()


def _job_id(run: Path) -> str:
    return str(json.loads((run / "submitted.json").read_text())["job_id"])


@pytest.mark.parametrize(
    "words", ["submit job.yaml", "submit words.yaml", "status 7", "cancel 7", "top"]
)
def test_missing_slurm_conf_is_reported(hpcrun: Caller, tools: Path, words: str) -> None:
    asked = [replay(tools, name, (0, "7\n", "")) for name in ("sbatch", "squeue", "scontrol")]
    words_job = 'command: [echo, "{word}"]\nresources: {gpus_per_node: 0}\n'
    hpcrun.write("words.yaml", words_job + "sweep: {word: [a, b]}\n")
    with (hpcrun.project / "hpcrun.yaml").open("a") as profile:
        profile.write("slurm_conf: /nope.conf\n")
    done = hpcrun(*words.split())
    assert done.code == 2 and "hpcrun.yaml: slurm_conf: /nope.conf: no such file" in done.err, done
    assert not any(map(calls, asked)) and not [*hpcrun.runs.glob("*")]


@pytest.mark.parametrize("case", ["no-controller", "no-munge", "no-slurm-conf"])
def test_status_shows_known_states_while_slurm_is_silent(
    hpcrun: Caller, tools: Path, case: str
) -> None:
    replay(tools, "sbatch", (0, "7\n", ""))
    submit(hpcrun)
    replay(tools, "squeue", captured("squeue", case))
    replay(tools, "sacct", (1, "", "sacct: error\n"))
    code, (shown,) = state(hpcrun)
    assert (code, shown["state"], shown["final"]) == (4, "UNKNOWN", False)
    done = hpcrun("status")
    assert done.code == 4 and "Slurm cannot be reached" in done.err
    # Final states remain known.
    (run,) = hpcrun.runs.iterdir()
    replay(tools, "sacct", (0, account_row(run, "7", "FAILED"), ""))
    code, (shown,) = state(hpcrun)
    assert (code, shown["state"], shown["source"]) == (0, "FAILED", "sacct")


def test_cancel_cancels_runs(hpcrun: Caller, tools: Path) -> None:
    replay(tools, "sbatch", (0, "7\n", ""))
    submit(hpcrun)
    (run,) = hpcrun.runs.iterdir()
    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    asked = replay(tools, "scancel", captured("scancel", "no-controller"))
    done = hpcrun("cancel", "7")
    assert done.code == 4 and not (run / "cancelled.json").exists()
    asked.unlink()
    replay(tools, "scancel", captured("scancel", "taken"))
    done = hpcrun("cancel", "7", "--json")
    assert done.code == 0
    check_json("cancel", done.json)
    (reported,) = done.json["runs"]
    assert (reported["job_id"], reported["cancelled"]) == ("7", True)
    assert [line.partition("|")[2] for line in calls(asked)] == ["7"]
    assert (run / "cancelled.json").exists()
    replay(tools, "squeue", (0, row(run, "7", "CANCELLED"), ""))
    assert "has already ended: CANCELLED" in hpcrun("cancel", "7").out
    assert len(calls(asked)) == 1


def test_ids_in_the_notation_of_squeue_are_accepted(hpcrun: Caller, tools: Path) -> None:
    """Users paste components of heterogeneous jobs and pending array tasks from squeue."""
    asked = replay(tools, "squeue", (0, row(Path("/w"), "5+1", "RUNNING"), ""))
    code, (shown,) = state(hpcrun, "5+1")
    assert (code, shown["job_id"], shown["state"]) == (0, "5+1", "RUNNING")
    assert calls(asked)[0].endswith("--jobs=5+1")
    rows = row(Path("/w"), "7_3", "COMPLETED") + row(Path("/w"), "7_4", "COMPLETED")
    replay(tools, "squeue", (0, rows, ""))
    reported = hpcrun("cancel", "7_[3-4%2]")
    assert reported.out.count("has already ended") == 2, reported


@pytest.mark.slow
def test_status_of_a_job_not_submitted_by_hpcrun(
    hpcrun: Caller, tools: Path, tmp_path: Path
) -> None:
    asked = replay(tools, "squeue", captured("squeue", "one"))
    code, (shown,) = state(hpcrun, "2")
    assert (code, shown["run_id"], shown["state"]) == (0, None, "RUNNING")
    assert shown["name"] == "two words"
    assert calls(asked)[0].endswith("--jobs=2")
    assert "not submitted by hpcrun" in hpcrun("status", "2").out
    replay(tools, "squeue", captured("squeue", "unknown"))
    replay(tools, "sacct", captured("sacct", "no-accounting"))
    done = hpcrun("status", "999999")
    assert done.code == 2 and "999999: neither a run of hpcrun nor a job" in done.err
    log = tmp_path / "its output"
    log.write_bytes(b"step=1 loss=2.5\nstep=2 loss=2.25\nlast line")
    reported = show_job("7", "COMPLETED", StdIn="/dev/null", StdOut=str(log), Power="")
    replay(tools, "scontrol", (0, reported, ""))
    assert hpcrun("logs", "7").out == log.read_text() + "\n"
    assert hpcrun("parse", "7").code == 0
    assert hpcrun("logs", "7", "-f").code == 0
    replay(tools, "scontrol", captured("scontrol", "unknown"))
    assert hpcrun("logs", "7").code == 2


def test_spare_nodes_count_as_gpu_hours(hpcrun: Caller, tools: Path) -> None:
    """Listing, detail view and curve agree: an hour of two nodes with two GPUs."""
    replay(tools, "sbatch", (0, "7\n", ""))
    for command in ("squeue", "sacct"):
        replay(tools, command, (0, "", ""))
    text = "script: train.py\nlauncher: srun\nresources: {nodes: 1, gpus_per_node: 2}\n"
    hpcrun.write("job.yaml", text + "survive: {when: [node_fail], spare_nodes: 1}\n")
    hpcrun.write("train.py", "")
    assert submit(hpcrun, "--no-check").code == 0
    (run,) = hpcrun.runs.iterdir()
    (run / "attempts/0").mkdir(parents=True)
    (run / "logs/0").mkdir(parents=True)
    (run / "logs/0/rank-0.log").write_text("step=1 loss=2.5\n")
    begin = {"attempt": 0, "job_id": "7", "begun_at": 1000.0}
    end = begin | {"ended_at": 4600.0, "exit_code": 0, "signal": None, "stopped_by": None}
    begin |= {"host": "n1", "pid": 1, "nodes": "n1"}
    (run / "attempts/0/begin.json").write_text(json.dumps(begin))
    (run / "attempts/0/end.json").write_text(json.dumps(end | {"first_failure": None}))
    (listed,), (detailed,) = state(hpcrun)[1], state(hpcrun, "7")[1]
    assert listed["gpu_hours"] == detailed["gpu_hours"] == 4
    text = hpcrun("status", "7").out
    assert "1 × 2 GPUs, srun, and 1 spare node" in text
    assert "saves to" not in text, "it never has"
    (run / "checkpoints/step-1").mkdir(parents=True)
    assert "saves to" in hpcrun("status", "7").out
    assert "4.000 (4 GPUs)" in " ".join(hpcrun("parse", "7").out.split())


def test_after_adds_a_dependency(hpcrun: Caller, tools: Path) -> None:
    replay(tools, "sbatch", (0, "7\n", ""))
    submit(hpcrun)
    (run,) = hpcrun.runs.iterdir()

    def dependency(word: str) -> str | None:
        files = submit(hpcrun, "--after", word, "--dry-run", "--json").json
        found = dict(json.loads(files["plan.json"])["directives"]).get("dependency")
        return None if found is None else str(found)

    replay(tools, "squeue", (0, row(run, "7", "RUNNING"), ""))
    assert dependency(run.name) == dependency("7") == "afterok:7"
    replay(tools, "squeue", (0, row(run, "4711", "RUNNING"), ""))
    assert dependency("4711") == "afterok:4711"  # a job that hpcrun did not submit
    never = row(run, "7", "PENDING", reason="DependencyNeverSatisfied")
    replay(tools, "squeue", (0, never, ""))
    refused = submit(hpcrun, "--after", "7")
    assert refused.code == 2 and "will never start" in refused.err
    replay(tools, "squeue", (0, row(run, "7", "COMPLETED"), ""))
    assert dependency("7") is None
    replay(tools, "squeue", (0, row(run, "7", "FAILED"), ""))
    refused = submit(hpcrun, "--after", "7")
    assert refused.code == 2 and "--after 7: that run is FAILED" in refused.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["7", "8"], "afterok:7:8"),
        (["7,8"], "afterok:7:8"),
        (["7, 8", "7"], "afterok:7:8"),
        (["7", "9_[1,3]"], "afterok:7:9"),
        (["7", "10"], "afterok:7"),
        (["10,10"], None),
    ],
)
def test_after_accepts_several_runs(
    hpcrun: Caller, tools: Path, words: list[str], expected: str | None
) -> None:
    folder = hpcrun.runs / "none"
    rows = [row(folder, name, "RUNNING") for name in ("7", "8", "9_1", "9_3")]
    replay(tools, "squeue", (0, "".join([*rows, row(folder, "10", "COMPLETED")]), ""))
    options = [option for word in words for option in ("--after", word)]
    done = submit(hpcrun, *options, "--dry-run", "--json")
    assert done.code == 0, done
    found = dict(json.loads(done.json["plan.json"])["directives"]).get("dependency")
    assert found == expected


def test_after_refuses_a_failed_run_among_several(hpcrun: Caller, tools: Path) -> None:
    folder = hpcrun.runs / "none"
    rows = row(folder, "7", "RUNNING") + row(folder, "8", "FAILED")
    replay(tools, "squeue", (0, rows, ""))
    for options in (["--after", "7", "--after", "8"], ["--after", "8,7"]):
        done = submit(hpcrun, *options, "--dry-run")
        assert done.code == 2 and "--after 8: that run is FAILED" in done.err, done
    assert "expected a run or a job id" in submit(hpcrun, "--after", "7,,8", "--dry-run").err


def test_job_does_not_inherit_variables_of_another_job(hpcrun: Caller, tools: Path) -> None:
    (tools / "sbatch").write_text('#!/bin/sh\nenv >"$PWD/seen"; echo 7\n')
    (tools / "sbatch").chmod(0o755)
    hpcrun.environ |= {"SLURM_JOB_ID": "1", "RANK": "3", "SBATCH_GRES": "x", "MINE": "yes"}
    hpcrun.environ |= {"LOCAL_SCRATCH": "/l", "GROUP_HOME": "/g", "SBATCH_ACCOUNT": "lab"}
    hpcrun.environ["XDG_RUNTIME_DIR"] = "/run/user/1000"
    assert submit(hpcrun).code == 0
    seen = (next(hpcrun.runs.iterdir()) / "seen").read_text()
    for line in ("MINE=yes", "LOCAL_SCRATCH=/l", "GROUP_HOME=/g", "SBATCH_ACCOUNT=lab"):
        assert f"\n{line}\n" in f"\n{seen}"
    for name in ("SLURM_JOB_ID", "RANK", "SBATCH_GRES", "HPCRUN_TEST", "XDG_RUNTIME_DIR"):
        assert f"\n{name}=" not in f"\n{seen}"
    assert submit(hpcrun, "--account", "mine").code == 0
    for run in hpcrun.runs.iterdir():
        text = (run / "seen").read_text()
        assert ("SBATCH_ACCOUNT=" in text) == ("--account" not in (run / "job.sbatch").read_text())


@pytest.mark.parametrize("name", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
@pytest.mark.parametrize(
    "words",
    [
        "submit job.yaml",
        "submit job.yaml --dry-run",
        "status 7",
        "cancel 7",
        "top",
        "init --yes",
        "logs 7",
    ],
)
def test_another_cluster_in_the_environment_is_an_error(
    hpcrun: Caller, tools: Path, name: str, words: str
) -> None:
    """Slurm's own commands would ask that one, and hpcrun would not."""
    commands = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacct")
    asked = [replay(tools, command, (0, "7\n", "")) for command in commands]
    hpcrun.environ[name] = "hpda"
    done = hpcrun(*words.split())
    assert done.code == 2 and f"{name} is set to hpda" in done.err and f"unset {name}" in done.err
    assert not any(map(calls, asked))


def test_the_own_cluster_in_the_environment_is_none(hpcrun: Caller, tools: Path) -> None:
    conf = hpcrun.write("slurm.conf", "# ClusterName=no\nclustername = mine # the name\n")
    replay(tools, "squeue", (0, "", ""))
    hpcrun.environ |= {"SLURM_CLUSTERS": "mine", "SLURM_CONF": str(conf)}
    assert hpcrun("top", "--json").code == 0
    hpcrun.environ["SLURM_CLUSTERS"] = "mine,hpda"
    assert "set to mine,hpda" in hpcrun("top", "--json").err
    # A profile that names its Slurm is asked for by itself.
    with (hpcrun.project / "hpcrun.yaml").open("a") as profile:
        profile.write(f"slurm_conf: {conf}\n")
    hpcrun.environ["HPCRUN_TRUST"] = str(hpcrun.project)
    assert hpcrun("top", "--json").code == 0
