"""Sweeps on a real Slurm: arrays of two-node jobs whose tasks end independently."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.site import Site
from tests.waiting import until


def submit(site: Site, *args: str, **env: str) -> tuple[str, Path, list[Path]]:
    """Submit a sweep; return the array's job id, its folder, and the folders of its runs."""
    done = site.hpcrun("submit", "--json", *args, env=env)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    runs = [Path(run["run_dir"]) for run in answer["runs"]]
    assert [run["job_id"] for run in answer["runs"]] == [
        f"{answer['job_id']}_{index}" for index in range(len(runs))
    ]
    return answer["job_id"], Path(answer["sweep_dir"]), runs


def shown(site: Site, word: str) -> dict[str, dict[str, Any]]:
    """Return the status of each run, by job id."""
    done = site.hpcrun("status", "--json", word)
    assert done.returncode == 0, done.stderr
    return {run["job_id"]: run for run in json.loads(done.stdout)["runs"]}


def states(site: Site, word: str) -> list[str]:
    return [run["state"] for run in shown(site, word).values()]


def most_at_once(runs: list[dict[str, Any]]) -> int:
    """Return the largest number of runs that were active at the same time."""
    moments = []
    for run in runs:
        for attempt in run["attempts"]:
            moments.append((attempt["end"]["begun_at"], 1))
            moments.append((attempt["end"]["ended_at"], -1))
    now = most = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


@pytest.mark.thorough  # in CI its worlds are those of test_worlds.py
def test_every_run_of_a_two_node_array_trains(site: Site) -> None:
    done = site.hpcrun(
        *("submit", "sweep-lr", "--wait", "--json", "--nodes", "2", "--time", "10"),
        *("--set", "sweep={lr: [1e-4, 1e-3, 1e-2], seed: [1]}", "--set", "sweep_limit=2"),
        # As many ranks by torchrun would start torch twice as often.
        *("--set", "launcher=srun"),
        *("--set", "precision=fp32"),  # CPUs are slow with bf16
        *("--", "--steps", "10", "--seq-len", "32"),
    )
    answer = json.loads(done.stdout)
    job_id = answer["job_id"]
    runs = list(shown(site, job_id).values())
    logs = [path.read_text() for path in site.rig.shared.glob("runs/*/logs/batch.log")]
    assert done.returncode == 0, "\n".join([done.stderr, *logs])
    assert [run["state"] for run in runs] == ["COMPLETED"] * 3
    assert most_at_once(runs) == 2, "the limit, and no less"

    parsed = json.loads(site.hpcrun("parse", "--json", job_id).stdout)["runs"]
    assert [run["source"] for run in parsed] == [run["run_id"] for run in runs]
    loss = [run["metrics"]["loss"] for run in parsed]
    assert [each["count"] for each in loss] == [10] * 3
    # One seed, so one first loss; three learning rates, so three last ones.
    assert len({each["first"]["value"] for each in loss}) == 1
    assert len({each["last"]["value"] for each in loss}) == 3
    ports = set()
    for run in runs:
        folder = Path(run["run_dir"])
        assert {path.name for path in (folder / "logs/0").glob("rank-*")} == {
            "rank-0.log",
            "rank-1.log",
        }
        assert not (folder / "code").exists(), "the array has the one copy of the code"
        begins = (folder / "logs/batch.log").read_text().splitlines()
        ports.add(next(line.split()[-1] for line in begins if " port " in line))
    assert len(ports) == 3

    drawn = site.hpcrun("parse", job_id).stdout
    assert all(f"{index}: lr=" in drawn for index in range(3))
    listed = site.hpcrun("status", job_id).stdout
    assert listed.startswith("sweep-lr: 3 runs, at most 2 at a time: 3 COMPLETED\n")
    assert site.hpcrun("logs", f"{job_id}_2").stdout.count('"loss"') >= 10
    lines = site.hpcrun("logs", job_id).stdout.splitlines()
    for index in range(3):
        own = [line for line in lines if line.startswith(f"[task{index}]: ") and '"loss"' in line]
        assert len(own) >= 10, index
    assert json.loads(
        site.hpcrun("submit", "--dry-run", "--json", "--after", job_id, "--", "true").stdout
    )


FATES = """\
command: [bash, -c, '
  echo "$A_SECRET" | wc -c;
  case {fate} in
    well) exit 0 ;;
    fails) exit 7 ;;
    again) [ "$HPCRUN_ATTEMPT" = 1 ] || sleep 600 ;;
    *) sleep 600 ;;
  esac']
resources: {nodes: 2, gpus_per_node: 0, time: "10"}
sweep: {fate: [fails, again, ended, well, waits, struck, waits]}
sweep_limit: 2
secrets: [A_SECRET]
slurm: {requeue: true}
"""


def test_every_run_has_its_own_state(site: Site) -> None:
    (site.project / "fates.yaml").write_text(FATES)
    job_id, folder, runs = submit(site, "./fates.yaml", A_SECRET="of all")

    def state(index: int) -> str:
        return str(shown(site, f"{job_id}_{index}")[f"{job_id}_{index}"]["state"])

    def waits_to_be(index: int, wanted: str) -> None:
        until(lambda: state(index) == wanted, f"task {index} to be {wanted}")

    # Waiting: one ended by hpcrun, one by its user behind hpcrun's back.
    assert states(site, job_id)[4:] == ["PENDING"] * 3
    done = site.hpcrun("cancel", f"{job_id}_4")
    assert done.returncode == 0 and "was PENDING" in done.stdout, done.stdout + done.stderr
    assert site.rig.run("scancel", f"{job_id}_5").returncode == 0
    waits_to_be(4, "CANCELLED")
    assert state(5) in ("UNKNOWN", "CANCELLED"), "a moment, and no loss"

    waits_to_be(0, "FAILED")
    failed = shown(site, f"{job_id}_0")[f"{job_id}_0"]
    log = next(path for path in runs[0].glob("logs/batch*.log"))
    assert failed["exit_code"] == 7, (failed, log.read_text(), *runs[0].glob("attempts/*/*"))
    until(lambda: (runs[1] / "attempts/0/launched").exists(), "the one that runs again")
    assert site.rig.run("scontrol", "requeue", f"{job_id}_1").returncode == 0
    waits_to_be(1, "PENDING")
    site.start_again(f"{job_id}_1")

    until(lambda: (runs[2] / "attempts/0/launched").exists(), "the one that is ended")
    assert site.hpcrun("cancel", runs[2].name).returncode == 0
    waits_to_be(2, "CANCELLED")
    waits_to_be(3, "COMPLETED")
    waits_to_be(1, "COMPLETED")
    again = shown(site, f"{job_id}_1")[f"{job_id}_1"]["attempts"]
    assert [(attempt["index"], attempt["end"]["exit_code"]) for attempt in again] == [
        (0, 143),
        (1, 0),
    ]
    begins = [attempt["begin"] for attempt in again]
    assert [begin["job_id"] for begin in begins] == [f"{job_id}_1"] * 2

    # What is left goes with the whole array; what is over stays as it was.
    queued = ("squeue", "--noheader", "--states=all", "--array", f"--jobs={job_id}", "--format=%i")
    until(lambda: len(site.rig.run(*queued).stdout.split()) == 1, "squeue to forget the others")
    waits_to_be(5, "CANCELLED")
    done = site.hpcrun("cancel", "--json", job_id)
    assert [run["cancelled"] for run in json.loads(done.stdout)["runs"]] == [
        *(False, False, False, False, False, False, True)
    ]
    waits_to_be(6, "CANCELLED")
    wanted = ["FAILED", "COMPLETED", "CANCELLED", "COMPLETED", *["CANCELLED"] * 3]
    assert states(site, job_id) == states(site, folder.name) == wanted
    assert not list(folder.parent.rglob("secrets.env"))
    listed = site.hpcrun("status", job_id).stdout
    assert "3 CANCELLED" not in listed and "4 CANCELLED, 2 COMPLETED, 1 FAILED" in listed
    refused = site.hpcrun("submit", "--after", job_id, "--dry-run", "--", "true")
    assert refused.returncode == 2 and f"run {job_id}_0 is FAILED" in refused.stderr


def test_ctrl_c_while_writing_a_sweep_leaves_nothing(site: Site) -> None:
    (site.project / "many.yaml").write_text(
        "command: [echo, '{a}{b}']\nresources: {gpus_per_node: 0}\n"
        f"sweep: {{a: {list(range(10))}, b: {list(range(20))}}}\n"
    )
    runs = site.rig.shared / "runs"
    for many in (1, 5, 50):
        process = subprocess.Popen(
            [sys.executable, "-m", "hpcrun", "submit", "./many.yaml"],
            cwd=site.project,
            env=site.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                until(lambda: len(list(runs.glob("*-many.*"))) >= many, "the runs' folders")  # noqa: B023
                process.send_signal(signal.SIGINT)
                out, err = process.communicate()
            finally:
                process.kill()
        submitted = list(runs.glob("*.array/submitted.json"))
        # After the answer Python may be on its way out, without handlers: the signal ends it.
        late = (0, 130, -signal.SIGINT)
        assert process.returncode in (late if submitted else (130,)), out + err
        if submitted:  # it came too late: then Slurm has the job, and hpcrun knows it
            job_id = json.loads(submitted[0].read_text())["job_id"]
            assert len(shown(site, job_id)) == 200
            assert site.hpcrun("cancel", job_id).returncode == 0
            shutil.rmtree(runs)
        else:
            assert out == "" and list(runs.iterdir()) == []
            assert site.rig.run("squeue", "-h", "-t", "PD,R").stdout == ""


def test_lost_reply_is_resolved_for_the_whole_array(site: Site) -> None:
    sbatch = site.project / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        '#!/bin/sh\nPATH=${PATH#*:} sbatch "$@" >/dev/null\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv' >&2\n"
        "exit 1\n"
    )
    sbatch.chmod(0o755)
    job_id, _, runs = submit(
        site,
        *("--gpus-per-node", "0", "--set", "sweep.word=[a, b]", "--", "echo", "{word}"),
        PATH=f"{sbatch.parent}:{site.environ()['PATH']}",
    )
    until(lambda: states(site, job_id) == ["COMPLETED"] * 2, "both runs")
    assert [(run / "logs/0/node-0.log").read_text().splitlines()[-1] for run in runs] == ["a", "b"]


SHARED = """\
command:
  - bash
  - -c
  - echo "{word} has $CUDA_VISIBLE_DEVICES"; case {word} in bad) exit 3 ;; slow) sleep 600 ;; esac
launcher: torchrun
resources: {gpus_per_node: 1, cpus_per_gpu: 1, time: 10}
sweep: {word: [a, bad, slow, d, e]}
sweep_per_node: 4
sweep_limit: 8
"""


@pytest.mark.thorough
def test_runs_that_share_a_job_end_independently(bare_site: Site) -> None:
    """One fails, one is cancelled, and the others are unaffected."""
    (bare_site.project / "shared.yaml").write_text(SHARED)
    done = bare_site.hpcrun("submit", "--json", "./shared.yaml")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    runs = [Path(run["run_dir"]) for run in answer["runs"]]

    def found() -> list[str]:
        shown = bare_site.hpcrun("status", "--json", answer["job_id"])
        return [run["state"] for run in json.loads(shown.stdout)["runs"]]

    # The second job waits for no GPU: all but the slow one end while its job goes on.
    others = ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"]
    until(lambda: (now := found())[:2] + now[3:] == others, "all others to end")
    assert found()[2] == "RUNNING"
    log = runs[2] / "logs/0/rank-0.log"
    assert log.read_text().startswith("slow has "), log.read_text()
    assert bare_site.hpcrun("cancel", runs[2].name).returncode == 0
    until(lambda: found()[2] == "CANCELLED", "the slow one to end")
    gpus = [(run / "logs/0/rank-0.log").read_text().split()[-1] for run in runs]
    assert sorted(gpus[:4]) == ["0", "1", "2", "3"], "each has its own"
    why = bare_site.hpcrun("status", runs[1].name)
    assert "FAILED" in why.stdout and "exit code 3" in why.stdout, why.stdout
    words = bare_site.hpcrun("logs", runs[3].name)
    assert f"d has {gpus[3]}" in words.stdout, words.stdout + words.stderr
