"""Run hpcrun from submission to the end in the accounting on a rig of another release.

hpcrun runs outside of the release, as on a login host or a laptop with a newer Python (Debian 11
has 3.9): all that it knows of the cluster comes from the release's own sbatch, squeue, sacct,
scancel and scontrol, and the jobs run with the release's bash and Python.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.site import Site, Submitted
from tests.cluster.slow_training import SLOW
from tests.cluster.survive_job import insist_on_the_whole_curve, preempting, steps_of
from tests.cluster.survive_job import submit as submit_surviving
from tests.cluster.survive_runs import nodes_of, successor_of
from tests.versions.rig import ReleaseRig
from tests.waiting import until

# In seconds: what ended is soon asked for from the accounting (slurmctld forgets every minute).
MIN_JOB_AGE = 2
# Each rank meets the others at the address and port that hpcrun gave, and prints a loss.
_TRAIN = """\
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(("", meeting[1]), backlog=world)
    for _ in range(world - 1):
        server.accept()[0].sendall(b"hello")
else:
    for _ in range(100):
        try:
            with socket.create_connection(meeting) as peer:
                assert peer.recv(5) == b"hello"
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    else:
        sys.exit("rank 0 cannot be reached")
print(f"rank {rank} of {world} on {socket.gethostname()}", flush=True)
for step in range(1, 4):
    print(f"step={step} loss={1 / step:.4f}", flush=True)
"""
_JOB = "script: train.py\nlauncher: srun\nresources: {nodes: 2, gpus_per_node: 2, time: '10'}\n"
# The release's Python has no torch, and need not.
_UNCHECKED = ("--no-check", "--set", "slurm.exclusive=true")
_OUT_OF_REACH, _REFUSED = 4, 3


@dataclass(frozen=True)
class ReleaseSite(Site):
    """A project on a rig of another release."""

    rig: ReleaseRig

    @property
    def clients(self) -> Path:
        """The folder of the release's Slurm commands for hpcrun, which the release does not see."""
        return self.rig.root.parent / "clients"

    def prepare(self) -> ReleaseSite:
        """Write the project's cluster profile, and the clients."""
        self.rig.write_clients(self.clients)
        super().prepare()
        return self

    def environ(self) -> dict[str, str]:
        """Return an environment with the release's Slurm and this checkout first on the paths."""
        env = super().environ()
        checkout = str(Path(__file__).parents[2])
        return {**env, "PATH": f"{self.clients}:{env['PATH']}", "PYTHONPATH": checkout}

    def command(self, words: str, *options: str) -> Submitted:
        """Submit a line of bash, without a GPU."""
        return self.submit("--gpus-per-node", "0", *options, "--", "bash", "-c", words)

    def wait_state(self, run: Submitted, state: str) -> None:
        """Wait until hpcrun shows this state of a run."""
        until(lambda: self.status(run)["state"] == state, f"{run.run_id} to be {state}")


def drive(rig: ReleaseRig, say: Callable[[str], None]) -> None:
    """Run all scenarios; takes about six minutes. Raises AssertionError."""
    profile = {"python": "/usr/bin/python3", "cache_dir": str(rig.shared / "cache")}
    site = ReleaseSite(rig, rig.shared / "project", profile).prepare()
    (site.project / "train.py").write_text(_TRAIN)
    (site.project / "job.yaml").write_text(_JOB)
    unseen = site.command("exit 5")
    external = _external(site)
    steps = (_ends_well, _ends_badly, _is_cancelled, _is_requeued, _is_refused)
    survives = (_is_preempted, _ends_in_its_grace, _loses_its_node, _is_at_its_limit)
    for step in (*steps, *survives, _is_silent):
        began = time.monotonic()
        step(site)
        say(f"{step.__doc__} ({time.monotonic() - began:.0f} s)")
    began = time.monotonic()
    _is_forgotten(site, unseen, external)
    say(f"{_is_forgotten.__doc__} ({time.monotonic() - began:.0f} s)")


def _ends_well(site: ReleaseSite) -> None:
    """Two nodes with two ranks each train, are followed to the end, and have a loss curve."""
    run = site.submit("./job.yaml")
    followed = site.follow(run)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    log = run.log()
    names = site.rig.node_names
    for rank in range(4):
        assert f"rank {rank} of 4 on {names[rank // 2]}" in log, log
    status = site.status(run)
    assert (status["state"], status["exit_code"]) == ("COMPLETED", 0), status
    parsed = site.hpcrun("parse", "--json", run.run_id)
    assert parsed.returncode == 0, parsed.stderr
    assert '"loss"' in parsed.stdout


def _ends_badly(site: ReleaseSite) -> None:
    """The exit code and node of a failed rank are reported, and waiting ends with code 1."""
    script = "import os, sys; sys.exit(7 if os.environ['RANK'] == '3' else 0)\n"
    (site.project / "fail.py").write_text(script)
    (site.project / "fail.yaml").write_text(_JOB.replace("train.py", "fail.py"))
    run = site.submit("./fail.yaml")
    followed = site.follow(run)
    assert followed.returncode == 1, followed.stdout + followed.stderr
    status = site.status(run)
    assert (status["state"], status["exit_code"]) == ("FAILED", 7), status
    assert site.rig.node_names[1] in followed.stdout + followed.stderr


def _is_cancelled(site: ReleaseSite) -> None:
    """Running and pending jobs are cancelled; a job that has ended is reported as such."""
    run, held = site.command("sleep 600"), site.command("sleep 600")
    site.rig.run("scontrol", "hold", held.job_id)
    site.wait_state(run, "RUNNING")
    for one in (run, held):
        done = site.hpcrun("cancel", one.run_id)
        assert done.returncode == 0, done.stderr
        site.wait_state(one, "CANCELLED")
    done = site.hpcrun("cancel", run.run_id)
    assert done.returncode == 0, done.stderr
    assert "CANCELLED" in done.stdout + done.stderr, done


def _is_requeued(site: ReleaseSite) -> None:
    """A job that Slurm requeues has a second attempt, whose end counts."""
    script = '[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || sleep 600'
    run = site.command(script, "--set", "slurm.requeue=true")
    site.wait_for(run, "attempts/0/begin.json")
    done = site.rig.run("scontrol", "requeue", run.job_id)
    assert done.returncode == 0, done.stderr
    followed = site.follow(run)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    status = site.status(run)
    assert (status["state"], len(status["attempts"])) == ("COMPLETED", 2), status


def _is_preempted(site: ReleaseSite) -> None:
    """Preempted runs save and continue, in another job if the site forbids requeueing."""
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        runs = {}
        for name, node in zip(("allowed", "forbidden"), site.rig.node_names, strict=True):
            options = ("--set", f"name={name}", "--set", f"slurm.nodelist={node}")
            runs[name] = submit_surviving(site, "when: [preempted]", *options, *_UNCHECKED)
        for run in runs.values():
            until(lambda: len(steps_of(run, 0)) >= 3, "some steps")  # noqa: B023
        argv = ["sbatch", "-phigh", "-N2", "--exclusive", "-t1", "-o/dev/null", "--wrap", "sleep 1"]
        assert site.rig.run(*argv).returncode == 0
        for name, run in runs.items():
            site.wait_for(run, "attempts/0/end.json")
            shown = insist_on_the_whole_curve(site, run, 30)
            end = run.record("end.json")
            assert end["why"] == "preempted", end
            assert (end["next"] == "requeue") is (name == "allowed"), end
            assert len(shown["attempts"]) == 2, shown
            assert steps_of(run, 1)[0] == steps_of(run, 0)[-1] + 1, "what was asked to save did"


def _ends_in_its_grace(site: ReleaseSite) -> None:
    """Runs cancelled during the grace time do not restart, nor do jobs that depend on them."""
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        runs = {}
        for name, node in zip(("allowed", "forbidden"), site.rig.node_names, strict=True):
            options = (f"name={name}", f"slurm.nodelist={node}", "env.SAVES='5'")
            words = [word for option in options for word in ("--set", option)]
            when = "when: [preempted, node_fail]"
            runs[name] = submit_surviving(site, when, *words, *_UNCHECKED, train=SLOW)
        until(lambda: successor_of(runs["forbidden"]), "the job that waits")
        for run in runs.values():
            until(lambda: len(steps_of(run, 0)) >= 3, "some steps")  # noqa: B023
        argv = ["sbatch", "-phigh", "-N2", "--exclusive", "-t1", "-o/dev/null", "--wrap", "sleep 1"]
        assert site.rig.run(*argv).returncode == 0
        for run in runs.values():
            site.wait_for(run, "attempts/0/told-0")
            assert site.rig.run("scancel", run.job_id).returncode == 0
        for name, run in runs.items():
            assert site.hpcrun("wait", run.run_id).returncode == 1
            shown = site.status(run)
            assert (shown["state"], len(shown["attempts"])) == ("CANCELLED", 1), (name, shown)
        until(lambda: not site.rig.run("squeue", "-h", "-pdebug").stdout, "the queue to be empty")


def _loses_its_node(site: ReleaseSite) -> None:
    """A run whose job may not be requeued continues as its successor job on another node.

    Jobs that depend on the run wait for both jobs, whenever they were submitted.
    """
    slow = ("--set", "env.STEP='3'")  # it is not done before its node dies
    run = submit_surviving(site, "when: [node_fail]", "--set", "name=forbidden", *slow, *_UNCHECKED)
    later = [site.command("true", "--after", run.run_id)]
    heir = until(lambda: successor_of(run), "the job that waits")
    later.append(site.command("true", "--after", run.run_id))
    until(lambda: len(steps_of(run, 0)) >= 5, "a checkpoint")
    (lost,) = nodes_of(run, 0)
    site.rig.kill_node(lost)
    try:
        shown = insist_on_the_whole_curve(site, run, 30)
        assert (shown["job_id"], len(shown["attempts"])) == (heir, 2), shown
        assert steps_of(run, 1)[0] % 4 == 1, "from a checkpoint on"
        for one in later:
            site.wait_state(one, "COMPLETED")
    finally:
        site.rig.revive_node(lost)


def _is_at_its_limit(site: ReleaseSite) -> None:
    """The ranks are signalled once before the time limit to save, and the run continues."""
    survive = "when: [time_limit], save_before_end: 30s"
    run = submit_surviving(site, survive, *_UNCHECKED, limit="1", steps=110)
    site.wait_for(run, "attempts/0/end.json")
    end = run.record("end.json")
    assert end["why"] == "time_limit", run.log()
    assert "asked 1 True\n" in run.log(), run.log()
    insist_on_the_whole_curve(site, run, 110)
    assert steps_of(run, 1)[0] == steps_of(run, 0)[-1] + 1


def _is_refused(site: ReleaseSite) -> None:
    """A refusal by Slurm is reported with its message and a fix, and leaves no run."""
    before = len(list((site.rig.shared / "runs").iterdir()))
    done = site.hpcrun("submit", "--partition", "nowhere", "--", "true")
    assert done.returncode == _REFUSED, done.stderr
    assert "nvalid partition" in done.stderr, done.stderr
    assert "fix:" in done.stderr, done.stderr
    assert len(list((site.rig.shared / "runs").iterdir())) == before


def _is_silent(site: ReleaseSite) -> None:
    """The end of a job while slurmctld is down is shown later, and nothing is shown as failed."""
    began, go = site.rig.shared / "began", site.rig.shared / "go"
    run = site.command(f"touch {began}; until [ -e {go} ]; do sleep 0.2; done")
    site.wait_state(run, "RUNNING")
    until(began.exists, "srun to have asked slurmctld for its step")
    site.rig.stop_controller()
    try:
        status = site.status(run)
        assert (status["state"], status["final"]) == ("UNKNOWN", False), status
        done = site.hpcrun("submit", "--", "true")
        assert done.returncode == _OUT_OF_REACH, done.stderr
        go.touch()
        time.sleep(3)
        assert not site.status(run)["final"]
    finally:
        site.rig.start_controller()
    # slurmstepd may sleep for a minute before it tells slurmctld of the end again.
    site.wait_state(run, "COMPLETED")


def _external(site: ReleaseSite) -> dict[str, str]:
    """Submit jobs without hpcrun; return the state that each will have."""
    place = site.rig.shared / "foreign"
    place.mkdir()
    jobs = {}
    for state, line in (("COMPLETED", "exit 0"), ("FAILED", "exit 3"), ("CANCELLED", "sleep 99")):
        (place / "job.sh").write_text(f"#!/bin/bash\n{line}\n")
        done = site.rig.ask(["sbatch", "--parsable", "--mem=100", "job.sh"], cwd=str(place))
        jobs[done.stdout.strip()] = state
        if state == "CANCELLED":
            site.rig.run("scancel", done.stdout.strip())
    (place / "job.sh").write_text("#!/bin/bash\nexit $((SLURM_ARRAY_TASK_ID % 2))\n")
    argv = ["sbatch", "--parsable", "--mem=100", "--array=1-2", "job.sh"]
    array = site.rig.ask(argv, cwd=str(place)).stdout.strip()
    return {**jobs, f"{array}_1": "FAILED", f"{array}_2": "COMPLETED"}


def _is_forgotten(site: ReleaseSite, unseen: Submitted, external: dict[str, str]) -> None:
    """Jobs and array tasks that squeue no longer has are read from the accounting."""

    def remembered() -> str:
        return site.rig.run("squeue", "--noheader", "--states=all", "--format=%i").stdout

    until(lambda: not remembered().strip(), "slurmctld to forget")
    status = site.status(unseen)
    shown = (status["state"], status["source"], status["exit_code"])
    assert shown == ("FAILED", "sacct", 5), status
    for job_id, state in external.items():
        done = site.hpcrun("status", "--json", job_id)
        assert done.returncode == 0, f"{job_id}: {done.stderr}"
        row = json.loads(done.stdout)["runs"][0]
        assert (row["state"], row["source"]) == (state, "sacct"), row
