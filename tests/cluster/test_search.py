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
    done = site.hpcrun("submit", "--json", "./toy.yaml", env={"HPCRUN_SEARCH_EVERY": "0.5"})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["job_id"], [Path(run["run_dir"]) for run in answer["runs"]]


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
