"""Searches on a real Slurm: each trial has its own values, whatever happens to its job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.site import Site
from tests.waiting import until

# Each attempt prints its values, and each step an evaluation loss that depends on them.
TOY = """\
import os, sys, time
lr, layers, act, steps, pause = float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4], *sys.argv[4:]
print("values", *sys.argv[1:4], os.environ["ACT"], flush=True)
for step in range(1, int(steps) + 1):
    loss = 1 / step + abs(lr - 1e-3) * 100 + abs(layers - 6) / 10 + (act == "relu") / 10
    print(f"step {step} eval_loss {loss:.5f}", flush=True)
    time.sleep(float(pause))
"""
JOB = """\
command: [python3, "{project_dir}/toy.py", "{lr}", "{layers}", "{act}", "5", PAUSE]
env: {ACT: "{act}!"}
resources: {nodes: 1, gpus_per_node: 0, time: "10"}
slurm: {requeue: true}
sweep:
  search: tpe
  trials: TRIALS
  parallel: PARALLEL
  metric: eval_loss
  lr: {log: [1e-5, 1e-1]}
  layers: {int: [2, 12]}
  act: [relu, gelu]
"""


def submit(site: Site, **values: Any) -> tuple[str, list[Path]]:
    (site.project / "toy.py").write_text(TOY)
    text = JOB
    for name, value in values.items():
        text = text.replace(name.upper(), json.dumps(str(value)) if name == "pause" else str(value))
    (site.project / "toy.yaml").write_text(text)
    return submit_sweep(site, "./toy.yaml")


def submit_sweep(site: Site, job: str) -> tuple[str, list[Path]]:
    """Submit a sweep whose jobs read their logs more often than every half minute."""
    done = site.hpcrun("submit", "--json", job)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    runs = [Path(run["run_dir"]) for run in answer["runs"]]
    for run in runs:
        record = json.loads((run / "search.json").read_text())
        part = run / "search.part"
        part.write_text(json.dumps({**record, "every": 0.5}))
        part.rename(run / "search.json")
    return answer["job_id"], runs


def statuses(site: Site, word: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(site.hpcrun("status", "--json", word).stdout)["runs"]
    return runs


def printed(run: Path, attempt: int) -> list[str]:
    """Return the values that the script of an attempt got."""
    log = (run / "logs" / str(attempt) / "node-0.log").read_text()
    return next(line.split()[1:] for line in log.splitlines() if line.startswith("values"))


def test_each_trial_keeps_its_values_through_a_requeue(site: Site) -> None:
    job_id, runs = submit(site, trials=8, parallel=4, pause=0.5)
    log = runs[1] / "logs/0/node-0.log"
    until(lambda: log.exists() and "eval_loss" in log.read_text(), "a step of trial 1")
    assert site.rig.run("scontrol", "requeue", f"{job_id}_1").returncode == 0
    site.start_again(f"{job_id}_1")
    until(lambda: [one["state"] for one in statuses(site, job_id)] == ["COMPLETED"] * 8, "the end")
    found = statuses(site, job_id)
    trials = [json.loads((run / "trial.json").read_text()) for run in runs]
    assert len({tuple(sorted(trial["values"].items())) for trial in trials}) == 8
    for run, trial, status in zip(runs, trials, found, strict=True):
        values = trial["values"]
        words = [values["lr"], values["layers"], values["act"], f"{values['act']}!"]
        assert status["task"]["values"] == values
        for attempt in range(len(status["attempts"])):
            assert printed(run, attempt) == words, "the same after the requeue"
    assert len(found[1]["attempts"]) == 2
    assert trials[0]["based_on"] == 0 and trials[7]["based_on"] >= 3


# The first run trains to its end. Worse ones do not end by themselves.
LEVELS = """\
import sys, time
level = float(sys.argv[1])
for step in range(1, 9):
    print(f"step {step} eval_loss {level + 1 / step:.3f}", flush=True)
    time.sleep(0.2)
time.sleep(600 if level > 1 else 0)
"""
PRUNED_JOB = """\
command: [python3, "{project_dir}/levels.py", "{level}"]
resources: {nodes: 1, gpus_per_node: 0, time: "10"}
slurm: {requeue: true}
survive: {when: [node_fail, preempted]}
sweep_limit: 1
sweep:
  metric: eval_loss
  prune: asha
  prune_from: 2
  prune_factor: 2
  level: [1, 4, 2]
"""


def test_pruned_trials_end_well_and_do_not_run_again(site: Site) -> None:
    (site.project / "levels.py").write_text(LEVELS)
    (site.project / "levels.yaml").write_text(PRUNED_JOB)
    job_id, runs = submit_sweep(site, "./levels.yaml")
    # Slurm restarts completed jobs, too.
    until(lambda: _requeue(site, runs[2], f"{job_id}_2"), "the end of the last run")
    site.start_again(f"{job_id}_2")
    batch = runs[2] / "logs/batch.log"
    until(lambda: "was the last one of this run: it was pruned" in batch.read_text(), "its end")
    states = ["COMPLETED", "PRUNED", "PRUNED"]
    until(lambda: [one["state"] for one in statuses(site, job_id)] == states, "the states")

    for run, of in zip(runs[1:], (2, 3), strict=True):
        pruned = json.loads((run / "attempts/0/pruned.json").read_text())
        assert (pruned["rung"], pruned["of"], pruned["best"]) == (2, of, 1)
        assert pruned["place"] > 1 and len(pruned["others"]) == of - 1
        end = json.loads((run / "attempts/0/end.json").read_text())
        assert (end["why"], end["exit_code"], end["next"]) == ("pruned", 0, None)
        assert end["note"] == pruned["text"] and "continue" in end["note"]
        assert len(list(run.glob("attempts/*"))) == 1
    shown = site.hpcrun("status", job_id).stdout
    assert "2 PRUNED" in shown and "pruned at step" in shown, shown
    search = json.loads(site.hpcrun("status", "--json", job_id).stdout)["search"]
    assert [trial["state"] for trial in search["trials"]] == ["complete", "pruned", "pruned"]
    assert search["best"] == runs[0].name
    waited = site.hpcrun("wait", job_id)
    assert waited.returncode == 0, waited.stdout + waited.stderr


def _requeue(site: Site, run: Path, job: str) -> bool:
    """Requeue a job that has ended."""
    if not (run / "attempts/0/end.json").exists():
        return False
    return site.rig.run("scontrol", "requeue", job).returncode == 0
