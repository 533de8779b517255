"""Pipelines on a real Slurm: order, preemption of the training, stages that are skipped."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.laptop import Laptop
from tests.cluster.laptop import laptop as laptop
from tests.cluster.site import Site, Submitted
from tests.cluster.survive_job import (
    JOB,
    TRAIN,
    insist_on_the_whole_curve,
    preempt,
    preempting,
    steps_of,
)
from tests.cluster.survive_runs import NEEDS, SECRET, WHOLE
from tests.waiting import until

PIPELINE = """
prepare: {job: mark}
train: {job: train, after: prepare}
export: {job: mark, after: train}
report: {job: mark, after: train, when: failure}
tidy: {job: mark, after: [train, export], when: always}
broken: {job: broken, after: prepare}
never: {job: mark, after: broken}
repair: {job: mark, after: [train, broken], when: failure}
"""
MARK = """
command: [bash, -c, 'date +%s.%N; sleep 1']
resources: {gpus_per_node: 0, time: "10"}
"""


def times(run: Submitted) -> tuple[float, float]:
    """Return when the only attempt of a run began and ended."""
    end = run.record("end.json")
    return end["begun_at"], end["ended_at"]


def submit(site: Site, *options: str) -> tuple[str, dict[str, Submitted]]:
    """Submit the pipeline; return its id and the runs of its stages."""
    done = site.hpcrun("submit", "--json", "main", *options, env=SECRET)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    runs = {one["stage"]: one["submission"] for one in answer["stages"]}
    return answer["group"], {
        name: Submitted(run["run_id"], run["job_id"], Path(run["run_dir"]))
        for name, run in runs.items()
    }


def test_pipeline_waits_for_a_training_that_is_preempted(wide_site: Site) -> None:
    """Slurm may not requeue the training: another job continues it."""
    site = wide_site
    for name in ("jobs", "pipelines"):
        (site.project / name).mkdir()
    (site.project / "train.py").write_text(TRAIN)
    text = JOB
    values = {"NODES": 11, "LIMIT": 30, "SURVIVE": "when: [preempted]", "STEPS": 40}
    for name, value in values.items():
        text = text.replace(name, str(value), 1)
    (site.project / "jobs/train.yaml").write_text(text)
    (site.project / "jobs/mark.yaml").write_text(MARK)
    (site.project / "jobs/broken.yaml").write_text(MARK.replace("sleep 1", "exit 3"))
    (site.project / "pipelines/main.yaml").write_text(PIPELINE)
    own = [word.replace("env.", "train.env.") for word in (*WHOLE, *NEEDS)]
    own = [
        f"train.{word}" if "=" in word and not word.startswith("train.") else word for word in own
    ]
    with preempting(site, "GraceTime=30 PreemptMode=CANCEL"):
        group, runs = submit(site, *own, "--set", "train.name=forbidden")
        train = runs["train"]
        until(lambda: len(steps_of(train, 0)) >= 6, "some steps")
        preempt(site)
        site.wait_for(train, "attempts/0/end.json")
        until(lambda: train.record("end.json")["next"] not in (None, "requeue"), "another job")
        for name in ("export", "report", "tidy"):
            assert not list((runs[name].folder / "attempts").glob("*")), name
        again = site.hpcrun("submit", "main", *own, "--set", "train.name=forbidden", env=SECRET)
        assert again.returncode == 2 and "has not ended" in again.stderr, again.stderr
        shown = insist_on_the_whole_curve(site, train, 40)
    assert len(shown["attempts"]) == 2
    waited = site.hpcrun("wait", group)
    assert waited.returncode == 1, waited.stdout
    answer = json.loads(site.hpcrun("status", "--json", group).stdout)
    states = {one["stage"]: (one["state"], one["skipped"]) for one in answer["pipeline"]["stages"]}
    assert states == {
        **dict.fromkeys(("prepare", "train", "export", "tidy", "repair"), ("COMPLETED", None)),
        "report": ("SKIPPED", "train succeeded"),
        "broken": ("FAILED", None),
        "never": ("SKIPPED", "broken FAILED"),
    }
    ended = json.loads((train.folder / "attempts/1/end.json").read_text())["ended_at"]
    assert times(runs["export"])[0] >= ended
    assert times(runs["tidy"])[0] >= times(runs["export"])[1]
    # One failure is enough, while the training runs.
    assert times(runs["repair"])[0] < ended
    logs = site.hpcrun("logs", f"{group}.export")
    assert logs.returncode == 0 and logs.stdout, logs.stderr
    why = site.hpcrun("why", group)
    assert "exit code 3" in why.stdout, why.stdout
    done = site.hpcrun("resubmit", group, "--from", "broken", "--set", "broken.command=[true]")
    assert done.returncode == 0, done.stderr
    assert site.hpcrun("wait", group).returncode == 0


EACH = 'for_each_checkpoint_of: train, args: ["{checkpoint}"], parallel: 2'
WITH_EVALUATIONS = f"train: {{job: train}}\neval: {{job: eval, {EACH}}}\n"


# Prints 0.8 as the score of step-8.pt.
SCORE = (
    """[bash, -c, 'echo evaluated "$1"; basename "$1" .pt | sed "s/.*-/[EVAL] acc: 0./"', bash]"""
)


def write_evaluations(folder: Path, steps: int) -> None:
    """Write a pipeline with a training that saves every fourth step, and its evaluation."""
    text = JOB
    values = {"NODES": 1, "LIMIT": 30, "SURVIVE": "when: [preempted]", "STEPS": steps}
    for name, value in values.items():
        text = text.replace(name, str(value), 1)
    files = {
        "train.py": TRAIN,
        "jobs/train.yaml": text,
        "jobs/eval.yaml": MARK.replace("[bash, -c, 'date +%s.%N; sleep 1']", SCORE),
        "pipelines/main.yaml": WITH_EVALUATIONS,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.thorough
def test_each_of_five_checkpoints_is_evaluated_once(wide_site: Site) -> None:
    """The jobs submit the evaluations; meanwhile two commands wait for the pipeline."""
    site = wide_site
    write_evaluations(site.project, 20)
    group, runs = submit(site)
    folder = runs["train"].folder

    def stage() -> dict[str, Any]:
        answer = json.loads(site.hpcrun("status", "--json", group).stdout)
        found: dict[str, Any] = answer["pipeline"]["stages"][1]
        return found

    # Nobody but the jobs themselves submits anything.
    until(lambda: len(stage()["run_ids"]) == 5 and stage()["final"], lambda: str(stage()))
    assert stage()["state"] == "COMPLETED"
    logs = [site.hpcrun("logs", run).stdout for run in stage()["run_ids"]]
    for step in (4, 8, 12, 16, 20):
        wanted = f"evaluated {folder}/checkpoints/step-{step}.pt\n"
        assert sum(wanted in log for log in logs) == 1, logs
    assert site.hpcrun("wait", group).returncode == 0
    assert len(stage()["run_ids"]) == 5
    (curve,) = json.loads(site.hpcrun("parse", "--json", group).stdout)["runs"]
    score = curve["metrics"]["eval.eval_acc"]
    assert (score["count"], score["first"], score["last"]) == (
        5,
        {"step": 4, "value": 0.4},
        {"step": 20, "value": 0.2},
    )
    again = site.hpcrun("resubmit", stage()["run_ids"][0])
    assert again.returncode == 0, again.stderr


@pytest.mark.thorough
def test_watchers_submit_evaluations_where_jobs_may_not(wide_site: Site) -> None:
    site = wide_site
    write_evaluations(site.project, 12)
    group, runs = submit(site)
    site.wait_for(runs["train"], "attempts/0/begin.json")
    partition = ["scontrol", "update", "PartitionName=debug"]
    # All hosts of the rig have the same name for Slurm, so the rule is lifted for the watchers.
    assert site.rig.run(*partition, "AllocNodes=elsewhere").returncode == 0
    try:
        shown = ""

        def is_refused() -> bool:
            nonlocal shown
            shown = site.hpcrun("status", group).stdout
            return "the training's job cannot submit it" in shown

        until(is_refused, lambda: shown)
    finally:
        site.rig.run(*partition, "AllocNodes=ALL")
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(site.hpcrun, "wait", group) for _ in range(2)]
        assert [one.result().returncode for one in waits] == [0, 0], [o.result() for o in waits]
    (stage,) = json.loads(site.hpcrun("status", "--json", group).stdout)["pipeline"]["stages"][1:]
    assert (stage["state"], len(stage["run_ids"]), stage["refused"]) == ("COMPLETED", 3, None)


@pytest.mark.thorough
def test_pipeline_works_over_ssh(laptop: Laptop) -> None:
    for name, command in {"mark": "[hostname]", "broken": "[bash, -c, exit 3]"}.items():
        text = f"command: {command}\nresources: {{gpus_per_node: 0, time: 5}}\n"
        laptop.write(f"jobs/{name}.yaml", text)
    stages = "a: {job: mark}\nb: {job: broken, after: a}\nc: {job: mark, after: b}\n"
    laptop.write("pipelines/main.yaml", stages + "d: {job: mark, after: b, when: failure}\n")
    group = laptop.json("submit", "main")["group"]
    assert laptop.hpcrun("submit", "main").returncode == 2, "it is active"
    assert laptop.hpcrun("wait", group).returncode == 1
    found = laptop.json("status", group)["pipeline"]["stages"]
    states = [one["state"] for one in found]
    assert states == ["COMPLETED", "FAILED", "SKIPPED", "COMPLETED"]
    again = laptop.json("resubmit", group, "--from", "b", "--set", "b.command=[hostname]")
    assert [one["stage"] for one in again["stages"]] == ["b", "c", "d"]
    laptop.does("wait", group)
    assert laptop.does("logs", f"{group}.c")


@pytest.mark.thorough
def test_checkpoints_are_evaluated_over_ssh(laptop: Laptop) -> None:
    """The path of the runs has spaces."""
    write_evaluations(laptop.project, 12)
    group = laptop.json("submit", "main")["group"]
    laptop.does("wait", group)
    (stage,) = laptop.json("status", group)["pipeline"]["stages"][1:]
    assert (stage["state"], len(stage["run_ids"])) == ("COMPLETED", 3)
    (curve,) = laptop.json("parse", group)["runs"]
    assert curve["metrics"]["eval.eval_acc"]["last"] == {"step": 12, "value": 0.12}
    logs = [laptop.does("logs", run) for run in stage["run_ids"]]
    for step in (4, 8, 12):
        assert sum(f"/checkpoints/step-{step}.pt" in log for log in logs) == 1, logs


@pytest.mark.thorough
def test_each_run_of_a_sweep_starts_after_its_counterpart(wide_site: Site) -> None:
    site = wide_site
    job = "command: [bash, -c, 'COMMAND']\nresources: {gpus_per_node: 0, time: 10}\n"
    job += "sweep: {env.TASK: ['0', '1', '2']}\n"
    jobs = {"train": "sleep $((TASK * 3)); [ $TASK != 1 ]", "eval": "echo evaluated $TASK"}
    for name, command in jobs.items():
        site.project.joinpath("jobs").mkdir(exist_ok=True)
        (site.project / f"jobs/{name}.yaml").write_text(job.replace("COMMAND", command))
    (site.project / "pipelines").mkdir()
    pipeline = "train: {job: train}\neval: {job: eval, after: train, when: each}\n"
    (site.project / "pipelines/main.yaml").write_text(pipeline)
    answer = json.loads(site.hpcrun("submit", "--json", "main").stdout)
    assert site.hpcrun("wait", answer["group"]).returncode == 1
    found = json.loads(site.hpcrun("status", "--json", answer["group"]).stdout)
    states = [(run["name"], run["state"]) for run in found["runs"]]
    assert states == [
        *(("train", "COMPLETED"), ("train", "FAILED"), ("train", "COMPLETED")),
        *(("eval", "COMPLETED"), ("eval", "CANCELLED"), ("eval", "COMPLETED")),
    ]
