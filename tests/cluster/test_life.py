"""wait, requeue, shell, cancel, resubmit and clean on a real Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.site import Site
from tests.json_schemas import check_json
from tests.waiting import until


def answer(site: Site, verb: str, *args: str, code: int = 0) -> Any:
    """Return the JSON of a command, validated by its schema."""
    done = site.hpcrun(verb, "--json", *args)
    assert done.returncode == code, done.stdout + done.stderr
    reported = json.loads(done.stdout)
    check_json(verb, reported)
    return reported


@contextlib.contextmanager
def started(site: Site, *args: str) -> Iterator[subprocess.Popen[str]]:
    """An hpcrun process that runs in parallel with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", *args],
        cwd=site.project,
        env=site.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def shown(site: Site, job_id: str) -> str:
    return site.rig.run("scontrol", "--oneliner", "show", "job", job_id).stdout


AGAIN = """\
command: [bash, -c, 'echo $A_WORD; [ "$HPCRUN_ATTEMPT" = 1 ] || sleep 600']
resources: {nodes: 2, gpus_per_node: 1, time: "10"}
env: {A_WORD: "of the job"}
"""


def test_requeue_is_not_an_end_and_shell_has_the_job_environment(site: Site) -> None:
    (site.project / "again.yaml").write_text(AGAIN)
    run = site.submit("./again.yaml")
    # A job that hpcrun did not submit, which remains pending.
    external = site.rig.run("sbatch", "--parsable", "--hold", "--wrap", "true").stdout.strip()
    until(lambda: len(list((run.folder / "logs/0").glob("node-*.log"))) == 2, "both nodes")

    inside = "echo $A_WORD, $SLURMD_NODENAME, $HPCRUN_NODE_RANK, $PWD; exit 7"
    for number, name in enumerate(site.rig.node_names):
        done = site.hpcrun("shell", run.job_id, "--node", str(number), "--", "bash", "-c", inside)
        reported = f"of the job, {name}, {number}, {site.project}\n"
        assert (done.returncode, done.stdout) == (7, reported), done.stderr
    assert site.hpcrun("shell", run.job_id, "--", "true").returncode == 0
    for args, words in (
        ((run.job_id,), "a shell needs a terminal"),
        ((run.job_id, "--node", "nowhere", "--", "true"), "--node nowhere: job"),
        ((external, "--", "true"), f"job {external} is PENDING (JobHeldUser)"),
    ):
        done = site.hpcrun("shell", *args)
        assert done.returncode == 2 and words in done.stderr, done.stderr

    late = answer(site, "wait", "--timeout", "0.1s", external, run.run_id, code=124)
    assert late["timed_out"] and {one["state"] for one in late["runs"]} == {"RUNNING", "PENDING"}
    with started(site, "wait", run.job_id) as waiting:
        (reported,) = answer(site, "requeue", run.job_id)["runs"]
        assert reported["requeued"] and reported["state_before"] == "RUNNING"
        until(lambda: " JobState=PENDING " in shown(site, run.job_id), "the job to wait again")
        # Unrequested restarts remain forbidden.
        assert " Requeue=0 Restarts=1 " in shown(site, run.job_id)
        (reported,) = answer(site, "requeue", run.job_id)["runs"]
        assert not reported["requeued"] and reported["reason"] == "it is already pending"
        assert waiting.poll() is None
        site.start_again(run.job_id)
        out, err = waiting.communicate()
    reported = out + err + run.log() + site.hpcrun("status", run.job_id).stdout
    assert (waiting.returncode, out) == (0, f"job {run.job_id}: COMPLETED\n"), reported
    attempts = [attempt["end"]["exit_code"] for attempt in site.status(run)["attempts"]]
    assert attempts == [143, 0]

    done = site.hpcrun("requeue", run.job_id)
    # 2: on a busy machine Slurm may no longer know the job.
    assert done.returncode in (2, 3) and f"hpcrun resubmit {run.job_id}" in done.stderr, done.stderr
    reported = answer(site, "cancel", external, run.job_id)["runs"]
    assert [(one["job_id"], one["cancelled"]) for one in reported] == [
        (run.job_id, False),
        (external, True),
    ]
    assert "COMPLETED" in site.hpcrun("cancel", run.job_id).stdout


SCRIPT = """\
import os, pathlib, sys
print("HPCRUN_RESUME", os.environ.get("HPCRUN_RESUME", ""))
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
step = len(list(folder.iterdir()))
(folder / str(step)).touch()
print(f"VERSION begins at {step}", flush=True)
sys.exit(int(sys.argv[2]) if step == 0 else 0)
"""
JOB = """\
script: train.py
launcher: srun
args: ["{checkpoint_dir}", "{code}"]
resources: {gpus_per_node: 1, time: "10"}
sweep: {code: [0, 3, 4]}
"""


def test_failed_run_is_resubmitted_from_its_checkpoints_and_kept(site: Site) -> None:
    (site.project / "train.py").write_text(SCRIPT.replace("VERSION", "old"))
    (site.project / "job.yaml").write_text(JOB)
    done = site.hpcrun("submit", "./job.yaml", "--wait", "--json")
    assert done.returncode == 1, done.stderr
    first = json.loads(done.stdout)
    (site.project / "train.py").write_text(SCRIPT.replace("VERSION", "new"))

    again = answer(site, "resubmit", first["job_id"], "--failed")
    earlier = [run["run_id"] for run in first["runs"]]
    assert [run["resubmitted_from"] for run in again["runs"]] == earlier[1:]
    assert answer(site, "wait", again["sweep_id"])["runs"][0]["state"] == "COMPLETED"
    for run, old in zip(again["runs"], first["runs"][1:], strict=True):
        assert run["goes_on"] and run["checkpoint_dir"] == f"{old['run_dir']}/checkpoints"
        assert "old begins at 1" in site.hpcrun("logs", run["run_id"]).stdout
    nothing = site.hpcrun("resubmit", again["job_id"], "--failed")
    assert nothing.returncode == 2 and "no run that failed: COMPLETED" in nothing.stderr

    one = answer(site, "resubmit", earlier[2], "--fresh", "--code", "now", "--time", "5")
    assert answer(site, "wait", one["job_id"], code=1)["runs"][0]["exit_code"] == 4
    assert "new begins at 0" in site.hpcrun("logs", one["job_id"]).stdout
    assert "TimeLimit=00:05:00" in shown(site, one["job_id"])

    # Checkpoints from which a later run resumes are kept as long as that run.
    reported = answer(site, "clean", "-y", first["sweep_id"], code=1)["runs"]
    assert "uses its checkpoints" in reported[0]["reason"] and not reported[0]["removed"]
    left = answer(site, "clean", "--dry-run", "--older-than", "0s")["runs"]
    assert {run["id"] for run in left} == {
        first["sweep_id"],
        again["sweep_id"],
        one["runs"][0]["run_id"],
    }
    assert all(run["reason"] is None and run["bytes"] > 0 for run in left)
    done = site.hpcrun("clean", "--older-than", "0s", "-y")
    assert done.returncode == 0 and "3 of 3 removed" in done.stdout, done.stdout + done.stderr
    assert os.listdir(site.rig.shared / "runs") == []  # noqa: PTH208


def test_concurrent_commands_do_not_interfere(site: Site) -> None:
    running = site.submit("--gpus-per-node", "0", "--", "sleep", "600")
    over = site.submit("--gpus-per-node", "0", "--", "true")
    assert site.hpcrun("wait", over.job_id).returncode == 0
    until(lambda: (running.folder / "attempts/0/launched").exists(), "the run")
    with contextlib.ExitStack() as stack:
        calls = [
            ("wait", running.job_id),
            ("clean", "-y", "--older-than", "0s"),
            ("clean", "-y", "--older-than", "0s"),
            ("cancel", running.job_id, over.job_id),
            ("status",),
            ("cancel", running.run_id),
        ]
        together = [stack.enter_context(started(site, *call)) for call in calls]
        ends = [(call, *one.communicate()) for call, one in zip(calls, together)]  # noqa: B905
        codes = [one.returncode for one in together]
    message = "\n".join(map(str, ends))
    assert "Traceback" not in message, message
    assert codes[0] == 1 and f"job {running.job_id}: CANCELLED" in ends[0][1], message
    assert codes[1:3] == [0, 0], message
    # Commands that ran before the clean found the ended run.
    assert codes[4] == 0 and codes[3] in (0, 2) and codes[5] in (0, 2), message
    # No partially deleted run, and no deleted file of a live run.
    names = {path.name for path in Path(running.folder.parent).iterdir()}
    assert names <= {running.run_id}, message
    if names:
        assert site.status(running)["state"] == "CANCELLED"


def test_job_of_roles_ends_with_its_first_node(site: Site) -> None:
    """The driver sleeps until status was read; the worker would run for ten minutes."""
    role = 'if [ "$HPCRUN_NODE_RANK" = 1 ]; then exec sleep 600; fi; echo driver; sleep'
    for end, seconds in (("all_nodes", 0), ("first_node", 1)):
        site.project.joinpath("roles.yaml").write_text(
            f"command: [bash, -c, '{role} {seconds}']\nends_with: {end}\n"
            "resources: {nodes: 2, gpus_per_node: 0, time: 10}\n"
        )
        run = site.submit("roles.yaml")
        if end == "all_nodes":
            site.wait_for(run, "attempts/0/ended/node-0")
            status = site.status(run)
            assert status["state"] == "RUNNING"
            assert any(
                note.startswith("the command has ended on node 0 and still runs on 1 of 2")
                for note in status["notes"]
            ), status
            assert site.hpcrun("cancel", run.run_id).returncode == 0
        else:
            done = site.hpcrun("wait", run.run_id)
            assert done.returncode == 0, run.log()
            assert "the command has succeeded on node 0, so it is ended here" in run.log()
