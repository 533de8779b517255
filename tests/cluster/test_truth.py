"""Reported states are correct at any time, and need few queries.

The tests cover accounting and its absence, forgotten jobs, and outages of slurmctld.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.site import Site, Submitted
from tests.waiting import until

COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo")


def hold(site: Site, gate: str, exit_code: int = 0) -> list[str]:
    """Return a command that waits for a file in the project."""
    path = site.project / gate
    return ["bash", "-c", f"until [ -e '{path}' ]; do sleep 0.1; done; exit {exit_code}"]


def forgotten(site: Site, *job_ids: str) -> bool:
    """Return whether squeue has forgotten jobs, after MinJobAge and the next purge."""
    rows = site.rig.run("squeue", "-h", "--states=all", "-o", "%i").stdout.split()
    return not set(job_ids) & set(rows)


@contextlib.contextmanager
def following(
    site: Site, *argv: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run an hpcrun in parallel with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", *argv],
        cwd=site.project,
        env=site.environ() | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def calls(site: Site) -> Calls:
    return Calls(site.project / "calls")


class Calls:
    """A folder for PATH with wrappers of Slurm's commands that record each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        folder.mkdir()
        for name in COMMANDS:
            self.wrap(name, f'exec {shutil.which(name)} "$@"')

    def wrap(self, name: str, body: str) -> None:
        """Replace a command."""
        script = self.folder / name
        script.write_text(f"#!/bin/sh\necho {name} >>'{self.log}'\n{body}\n")
        script.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def take(self) -> list[str]:
        """Return the calls since the last query, by name."""
        made = sorted(self.log.read_text().split()) if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return made


# ---- States ------------------------------------------------------------------------------------


@pytest.fixture(params=["accounting", "no accounting"])
def any_site(request: pytest.FixtureRequest) -> Site:
    """A project on a cluster with accounting, and one without."""
    name = "site" if request.param == "accounting" else "bare_site"
    site: Site = request.getfixturevalue(name)
    return site


def test_states_are_correct_while_slurm_knows_the_job_and_after(any_site: Site) -> None:
    site = any_site
    whole_node = ["--nodes", "1", "--gpus-per-node", "4"]
    both_nodes = ["--nodes", "2", "--gpus-per-node", "4"]

    def state(run: Submitted) -> tuple[str, bool, str | None, int | None]:
        shown = site.status(run)
        return shown["state"], shown["final"], shown["reason"], shown["exit_code"]

    def ended(run: Submitted, state: str) -> None:
        until(lambda: site.status(run)["final"], f"the end of {run.run_id}")
        assert site.status(run)["state"] == state, run.log()

    plain = site.rig.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true")
    assert plain.returncode == 0
    well = site.submit("--", "true")
    well_unseen = site.submit("--", "true")
    failed_unseen = site.submit("--", "bash", "-c", "exit 4")
    failing = site.submit(*whole_node, "--", *hold(site, "fail", exit_code=3))
    site.wait_for(failing, "attempts/0/begin.json")
    ended(well, "COMPLETED")
    assert state(failing) == ("RUNNING", False, None, None)
    after_failing = site.submit("--after", failing.run_id, "--", "touch", "never")
    running = site.submit(*whole_node, "--", *hold(site, "go"))
    site.wait_for(running, "attempts/0/begin.json")
    waiting = site.submit(*both_nodes, "--", "true")
    until(lambda: state(waiting)[2] == "Resources", "a reason")
    assert state(waiting) == ("PENDING", False, "Resources", None)
    secret = {"A_SECRET": "sesame"}
    scancelled = site.submit(*both_nodes, "--set", "secrets=[A_SECRET]", "--", "true", env=secret)
    after_running = site.submit("--after", running.job_id, "--", "touch", "after")
    assert state(after_running) == ("PENDING", False, "Dependency", None)
    assert state(after_failing) == ("PENDING", False, "Dependency", None)

    assert site.hpcrun("cancel", waiting.run_id).returncode == 0
    site.rig.run("scancel", scancelled.job_id)
    (site.project / "fail").touch()
    ended(failing, "FAILED")
    ended(after_failing, "CANCELLED")
    assert state(failing)[3] == 3
    assert state(waiting)[:2] == ("CANCELLED", True)
    assert site.hpcrun("submit", "--after", failing.run_id, "--", "true").returncode == 2

    seen = [well, failing, waiting, after_failing]
    unseen = [well_unseen, failed_unseen, scancelled]
    ids = [plain.stdout.strip(), *(run.job_id for run in seen + unseen)]
    until(lambda: forgotten(site, *ids), "squeue to forget")
    # A job that Slurm does not show is UNKNOWN for some time after its submission, then LOST.
    until(lambda: state(scancelled)[1], "a final state")
    listed = json.loads(site.hpcrun("status", "--json").stdout)["runs"]
    shown = {run["run_id"]: (run["state"], run["exit_code"], run["source"]) for run in listed}
    assert not (scancelled.folder / "secrets.env").exists()
    external = site.hpcrun("status", "--json", plain.stdout.strip())
    by_seen, by_unseen, scancelled_is = "seen", "record", "LOST"
    if site.rig.accounting:
        by_seen, by_unseen, scancelled_is = "sacct", "sacct", "CANCELLED"
        assert json.loads(external.stdout)["runs"][0]["state"] == "COMPLETED"
    else:
        assert external.returncode == 2
    # On a busy machine squeue may have forgotten it before the query.
    assert site.rig.accounting or shown[waiting.run_id][2] in (by_seen, by_unseen)
    shown[waiting.run_id] = (*shown[waiting.run_id][:2], by_seen)
    assert [shown[run.run_id] for run in seen] == [
        ("COMPLETED", 0, by_seen),
        ("FAILED", 3, by_seen),
        ("CANCELLED", None, by_seen),
        ("CANCELLED", None, by_seen),
    ]
    assert [shown[run.run_id] for run in unseen] == [
        ("COMPLETED", 0, by_unseen),
        ("FAILED", 4, by_unseen),
        (scancelled_is, None, by_unseen),
    ]

    assert state(running) == ("RUNNING", False, None, None)
    (site.project / "go").touch()
    ended(running, "COMPLETED")
    ended(after_running, "COMPLETED")
    assert (site.project / "after").exists()
    assert not (site.project / "never").exists()


def test_job_not_submitted_by_hpcrun_is_shown(site: Site) -> None:
    """State and output of the job are found by its Slurm id."""
    gate = site.project / "go"
    script = f"echo hello; until [ -e '{gate}' ]; do sleep 0.1; done; exit 2"
    log = site.project / "of its own.log"
    sent = site.rig.run("sbatch", "--parsable", f"--output={log}", "--wrap", script)
    job_id = sent.stdout.strip()

    def status() -> dict[str, Any]:
        shown = json.loads(site.hpcrun("status", "--json", job_id).stdout)["runs"][0]
        assert shown["run_id"] is None
        assert shown["job_id"] == job_id
        return dict(shown)

    until(lambda: log.exists() and log.read_text(), "its output")
    assert (status()["state"], status()["final"]) == ("RUNNING", False)
    assert site.hpcrun("logs", job_id).stdout == "hello\n"
    gate.touch()
    until(lambda: status()["final"], "its end")
    assert status()["state"] == "FAILED"
    unknown = site.hpcrun("status", "--json", "999999")
    assert unknown.returncode == 2
    assert "999999" in unknown.stderr


def test_requeued_job_is_followed_to_its_end(site: Site, calls: Calls) -> None:
    (site.project / "train.py").write_text(
        "import json, os, time\n"
        "assert os.environ['A_SECRET'] == 'of both'\n"
        "first = os.environ['HPCRUN_ATTEMPT'] == '0'\n"
        "for step in range(1, 4) if first else range(2, 7):\n"
        "    print(json.dumps({'step': step, 'loss': 1 / step}), flush=True)\n"
        "time.sleep(600 if first else 0)\n"
    )
    (site.project / "job.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {gpus_per_node: 0}\n"
        "slurm: {requeue: true}\nsecrets: [A_SECRET]\n"
    )
    run = site.submit("./job.yaml", env={"A_SECRET": "of both"})
    log = run.folder / "logs/0/rank-0.log"
    until(lambda: log.exists() and '"step": 3' in log.read_text(), "the first attempt's steps")
    with following(site, "logs", "-f", run.run_id, env=calls.env) as process:
        done = site.rig.run("scontrol", "requeue", run.job_id)
        assert done.returncode == 0, done.stderr
        site.wait_for(run, "attempts/0/end.json")
        until(lambda: site.status(run)["state"] == "PENDING", "the requeue")
        assert not site.status(run)["final"]
        calls.take()
        begun = time.monotonic()
        time.sleep(5)
        assert process.poll() is None
        # The end of an attempt causes queries for some time; a pending job does not.
        assert len(calls.take()) <= 1 + time.monotonic() - begun
        site.start_again(run.job_id)
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert [json.loads(line)["step"] for line in out.splitlines() if line.startswith("{")] == [
        *(1, 2, 3),
        *(2, 3, 4, 5, 6),
    ]
    shown = site.status(run)
    assert (shown["state"], shown["exit_code"]) == ("COMPLETED", 0)
    assert [attempt["index"] for attempt in shown["attempts"]] == [0, 1]
    first, second = (attempt["end"] for attempt in shown["attempts"])
    assert (first["exit_code"], first["stopped_by"]) == (143, "TERM")
    assert (second["exit_code"], second["stopped_by"]) == (0, None)
    batch = (run.folder / "logs/batch.log").read_text()
    assert f"attempt 0 of job {run.job_id} begins" in batch
    assert f"attempt 1 of job {run.job_id} begins" in batch
    parsed = json.loads(site.hpcrun("parse", "--json", run.run_id).stdout)["runs"][0]
    assert (parsed["restarts"], parsed["points"]) == (1, 6), "a point a step"
    assert not (run.folder / "secrets.env").exists()


# ---- outages of slurmctld ----------------------------------------------------------------------


def test_ends_during_a_controller_outage_are_known(site: Site) -> None:
    """Jobs end during an outage that is longer than slurmctld remembers jobs."""
    bad = site.submit("--", *hold(site, "go", exit_code=5))
    # Its step is running; before that, an outage would delay the launch.
    site.wait_for(bad, "logs/0/node-0.log")
    wait = ["submit", "--wait", "--json", "--", *hold(site, "go")]
    with following(site, "logs", "-f", bad.run_id) as logs, following(site, *wait) as good:
        runs = site.rig.shared / "runs"
        until(lambda: len(list(runs.glob("*/logs/0/node-0.log"))) == 2, "both to run")
        site.rig.stop_controller()
        away = time.monotonic()
        before = set(runs.iterdir())
        verbs = {
            "status": ["status", bad.run_id],
            "cancel": ["cancel", bad.run_id],
            "submit": ["submit", "--", "touch", "never"],
            "logs": ["logs", "999999"],
        }
        with contextlib.ExitStack() as stack:
            asked = {verb: stack.enter_context(following(site, *verbs[verb])) for verb in verbs}
            for verb, process in asked.items():
                out, err = process.communicate()
                assert process.returncode == 4, f"{verb}: {out}{err}"
                assert "Slurm does not answer" in err
                assert "Traceback" not in err
        (site.project / "go").touch()
        site.wait_for(bad, "attempts/0/end.json")
        done = site.hpcrun("status", "--json", bad.run_id)
        assert done.returncode == 4
        assert "Slurm cannot be reached" in done.stderr
        shown = json.loads(done.stdout)["runs"][0]
        assert (shown["state"], shown["final"]) == ("UNKNOWN", False)
        assert "ended with exit code 5" in shown["reason"]
        assert set(runs.iterdir()) == before, "what cannot have arrived leaves no run"

        time.sleep(max(0.0, site.rig.min_job_age + 2 - (time.monotonic() - away)))
        assert logs.poll() is None
        assert good.poll() is None
        site.rig.start_controller()
        end_slurmstepd(site)
        _, err = logs.communicate()
        assert logs.returncode == 1, err
        assert "UNKNOWN" in err
        assert "FAILED, exit code 5" in err
        out, err = good.communicate()
        answer = json.loads(out)
        shown = site.hpcrun("status", answer["job_id"]).stdout
        assert good.returncode == 0, err + shown
    assert (site.status(bad)["state"], site.status(bad)["exit_code"]) == ("FAILED", 5)
    assert json.loads(site.hpcrun("status", "--json", answer["job_id"]).stdout)["runs"][0][
        "state"
    ] == ("COMPLETED")
    assert not (site.project / "never").exists()


def end_slurmstepd(site: Site) -> None:
    """Skip the minute that slurmstepd waits before it reports the end of a step again."""
    rig, names = site.rig, ",".join(site.rig.node_names)

    def completing() -> bool:
        asked = rig.run("squeue", "-h", "--states=all", "-o", "%T")
        states = set(asked.stdout.split())
        return asked.returncode == 0 and states <= {"COMPLETING", "FAILED", "COMPLETED"}

    until(completing, "slurmctld to hear of the jobs' ends")
    for pid, command in (process for name in rig.node_names for process in rig.processes(name)):
        if command.startswith("slurmstepd"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    rig.run("scontrol", "update", f"nodename={names}", "state=down", "reason=slurmstepd sleeps")
    rig.run("scontrol", "update", f"nodename={names}", "state=resume")


# ---- Submitting --------------------------------------------------------------------------------


def test_lost_reply_is_resolved_by_the_run_folder(site: Site, calls: Calls) -> None:
    """The job is found, not submitted again, if sbatch's reply is lost."""
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    calls.wrap("sbatch", f'{shutil.which("sbatch")} "$@" >/dev/null; echo "{lost}" >&2; exit 1')
    run = site.submit("--", *hold(site, "go"), env=calls.env)
    assert calls.take().count("sbatch") == 1
    queued = site.rig.run("squeue", "-h", "-o", "%i").stdout.split()
    assert queued == [run.job_id]
    (site.project / "go").touch()
    assert site.follow(run).returncode == 0
    assert site.status(run)["state"] == "COMPLETED"


def test_lost_reply_without_a_job_is_resolved_later(site: Site, calls: Calls) -> None:
    """The folder is kept, and the next status resolves the state."""
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    calls.wrap("sbatch", f'echo "{lost}" >&2; exit 1')
    done = site.hpcrun("submit", "--", "true", env=calls.env)
    assert done.returncode == 4
    assert calls.take().count("sbatch") == 1
    (folder,) = (site.rig.shared / "runs").iterdir()
    assert folder.name in done.stderr
    shown = json.loads(site.hpcrun("status", "--json", folder.name).stdout)["runs"][0]
    assert shown["state"] in ("UNKNOWN", "NOT_SUBMITTED")
    assert shown["job_id"] is None


def test_refusal_leaves_no_run(site: Site) -> None:
    for options, fix in (
        ("--partition=nosuch", "name a partition of this cluster"),
        ("--set=resources.memory_per_node=900T", "memory_per_node"),
    ):
        done = site.hpcrun("submit", options, "--", "true")
        assert (done.returncode, done.stdout) == (3, ""), options
        assert "Slurm refused the job" in done.stderr
        assert fix in done.stderr.partition("fix")[2]
        assert list((site.rig.shared / "runs").iterdir()) == []


# ---- Number of queries -------------------------------------------------------------------------


def test_number_of_slurm_queries_is_bounded(site: Site, calls: Calls) -> None:
    long = site.hpcrun("submit", "--json", "--", *hold(site, "go"), env=calls.env)
    assert long.returncode == 0, long.stderr
    run_id = json.loads(long.stdout)["run_id"]
    folder = site.rig.shared / "runs" / run_id
    until(lambda: (folder / "attempts/0/hostfile").exists(), "the long job")
    # The scontrol and squeue of the job itself are on this PATH, too.
    assert [call for call in calls.take() if call not in ("scontrol", "squeue")] == ["sbatch"]
    with following(site, "logs", "-f", run_id, env=calls.env) as process:
        begun = time.monotonic()
        ended = [site.submit("--", "true") for _ in range(3)]
        until(lambda: forgotten(site, *(run.job_id for run in ended)), "squeue to forget")
        assert process.poll() is None
        minutes = (time.monotonic() - begun) / 60
        assert len(calls.take()) <= 4 * max(1.0, minutes)

        done = site.hpcrun("status", "--json", env=calls.env)
        assert len(json.loads(done.stdout)["runs"]) == 4
        assert calls.take() == ["sacct", "squeue"]
        site.hpcrun("status", "--json", run_id, env=calls.env)
        assert calls.take() == ["squeue"]
        (site.project / "go").touch()
        process.communicate()
    assert process.returncode == 0
