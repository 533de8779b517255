"""The recipes of docs/survive.md on a real Slurm: interrupted runs have the complete curve."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.site import Site, Submitted
from tests.cluster.survive_job import preempt, preempting
from tests.waiting import until
from tests.workloads.recipe_parts import FRAMEWORKS, SCRIPTS, STEPS, TRAINER, Part, read, train

LAUNCHER_OF_FRAMEWORK = {"deepspeed": "deepspeed", "accelerate": "accelerate", "lightning": "srun"}


def submit(site: Site, framework: str, survive: dict[str, Any], limit: str, step: str) -> Submitted:
    """Submit a recipe on two nodes with a rank each, and a minimum time per step."""
    shutil.copytree(SCRIPTS, site.project, dirs_exist_ok=True)
    job: dict[str, Any] = {
        "script": f"survive_{framework}.py",
        "framework": framework,
        "launcher": LAUNCHER_OF_FRAMEWORK.get(framework, "torchrun"),
        "resources": {"nodes": 2, "gpus_per_node": 1, "time": limit},
        "precision": "fp32",
        "batch": {"micro_batch_per_gpu": 4},
        "survive": survive,
        "checkpoint": {"resume": "--resume {resume}"},
        "env": {"TOTAL": str(STEPS), "STEP": step},
    }
    if framework == "transformers":
        job["args"] = ["--output_dir", "{checkpoint_dir}", *TRAINER.split()]
        job["checkpoint"]["resume"] = "--resume_from_checkpoint {resume}"
    if framework == "deepspeed":
        job["deepspeed"] = {"zero_stage": 2, "config": {"zero_allow_untested_optimizer": True}}
    (site.project / f"{framework}.yaml").write_text(yaml.safe_dump(job))
    return site.submit(f"./{framework}.yaml")


def parts_of(run: Submitted) -> list[Part]:
    """Return the output of rank 0 of each attempt."""
    logs = sorted((run.folder / "logs").glob("*/rank-0.log"))
    return [read(log.read_text()) for log in logs]


def has_begun(run: Submitted) -> bool:
    """Return whether the first attempt has made some steps."""
    parts = parts_of(run)
    return bool(parts) and len(parts[0].curve) > 2


def insist_on_the_whole_curve(site: Site, run: Submitted, whole: Part) -> None:
    """Wait for the end; every step was made once, with bit-identical results."""
    done = site.hpcrun("wait", run.run_id)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    parts = parts_of(run)
    assert len(parts) >= 2
    steps = [step for part in parts for step in part.curve]
    assert steps == list(range(1, STEPS + 1)), run.log()
    curve = {step: loss for part in parts for step, loss in part.curve.items()}
    assert (curve, parts[-1].weights) == whole


def wait_for_restart_after(site: Site, run: Submitted, why: str) -> None:
    """Wait for the end of the first attempt, and start the next one."""
    site.wait_for(run, "attempts/0/end.json")
    end = run.record("end.json")
    assert (end["why"], end["next"]) == (why, "requeue"), json.dumps(end) + run.log()
    site.start_again(run.job_id)


@pytest.mark.thorough  # without Slurm: tests/workloads/test_recipes.py
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_recipe_resumes_after_preemption(site: Site, tmp_path: Path, framework: str) -> None:
    with preempting(site, "GraceTime=20 PreemptMode=REQUEUE"):
        run = submit(site, framework, {"when": ["preempted"]}, "30", "0.7")
        until(functools.partial(has_begun, run), f"steps of {framework}")
        preempt(site)
        wait_for_restart_after(site, run, "preempted")
        insist_on_the_whole_curve(site, run, train(framework, tmp_path / framework))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_all_recipes_save_before_the_time_limit(site: Site, tmp_path: Path) -> None:
    # First, because no attempt is long enough for DeepSpeed to compile its operators.
    whole = {each: train(each, tmp_path / each) for each in FRAMEWORKS}
    survive = {"when": ["time_limit"], "save_before_end": "40s"}
    # Slurm may signal up to a minute early; the second attempt ends before that.
    runs = {each: submit(site, each, survive, "5", "9") for each in FRAMEWORKS}
    for run in runs.values():
        wait_for_restart_after(site, run, "time_limit")
    for framework, run in runs.items():
        insist_on_the_whole_curve(site, run, whole[framework])
