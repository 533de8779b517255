"""Rehearsals on a real Slurm: correct scripts, and scripts with common mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.spec.load import load_cluster
from tests.cluster.survive_job import TRAIN
from tests.json_schemas import check_json
from tests.needs import require_command

pytestmark = pytest.mark.cluster

JOB = """
script: train.py
launcher: srun
framework: torch
resources: {nodes: 1, gpus_per_node: 1, time: "30"}
survive: {when: [preempted]}
checkpoint: {resume: "--resume {resume}"}
env: {TOTAL: "300", STEP: "0.3"}
"""


def rehearse(
    folder: Path, environ: dict[str, str], train: str, *options: str, code: int
) -> tuple[list[dict[str, Any]], str]:
    """Rehearse a job with this script; everything is removed afterwards."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    require_command("slurmctld", path)
    (folder / "train.py").write_text(train)
    (folder / "job.yaml").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "hpcrun", "rehearse", "./job.yaml", "--json", *options],
        cwd=folder, env=environ | {"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    check_json("rehearse", answer)
    folders = [Path(trial["run_dir"]) for trial in answer["trials"]]
    assert not any(folder.parent.exists() for folder in folders)
    assert not [left for folder in folders for left in Path("/tmp").glob(f"hpcrun-{folder.name}.*")]
    return answer["trials"], done.stderr


@pytest.mark.thorough
def test_correct_script_passes_all_faults(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    (undisturbed, *others), said = rehearse(tmp_path, clean_environ, TRAIN, code=0)
    assert undisturbed["ok"] and undisturbed["checkpoint"] == "step-4.pt"
    assert [(trial["fault"], trial["same"]) for trial in others] == [
        ("preempt", True), ("limit", True), ("node", True),
    ]  # fmt: skip
    assert all(trial["compared"] >= 5 and trial["spread"] == 0 for trial in others)
    assert "node: now, on node" in said


# The first two in CI; the others with `make test-all`.
# fmt: off
MISTAKES = [
        ('"--resume" in sys.argv', "False", ["--fault", "preempt"], "at its first step again"),
        ("(asked or step % 4 == 0)", "False", ["--within", "4"], "no complete checkpoint within 4"),
        ("import json", "raise SystemExit(7)\nimport json", [], "exit code 7"),
        ("zipfile.ZipFile(sys.argv[", "zipfile.Zip(sys.argv[",
         ["--fault", "preempt"], "has no attribute 'Zip'"),
        ('"loss": 1 / step', '"loss": len(sys.argv) / step', ["--fault", "preempt"],
         "with a different curve"),
        ("", "", ["--fault", "limit", "--set", "env.TOTAL=20"], "it ended before the interruption"),
    ]
# fmt: on


@pytest.mark.parametrize(
    ("old", "new", "options", "why"),
    [
        pytest.param(*mistake, marks=() if mistake in MISTAKES[:2] else pytest.mark.thorough)
        for mistake in MISTAKES
    ],
)
def test_script_mistakes_are_reported(
    tmp_path: Path, clean_environ: dict[str, str], old: str, new: str, options: list[str], why: str
) -> None:
    assert old in TRAIN
    trials, _ = rehearse(tmp_path, clean_environ, TRAIN.replace(old, new), *options, code=1)
    assert why in trials[-1]["why"]


@pytest.mark.thorough
def test_script_killed_by_sigterm_repeats_steps(
    tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    train = TRAIN.replace("signal.signal(signal.SIGTERM, ", "print(")
    (_, trial), _ = rehearse(tmp_path, clean_environ, train, "--fault", "preempt", code=0)
    assert trial["same"]
    assert trial["resumed_at"] + trial["replayed"] == trial["lost_at"] + 1


@pytest.mark.thorough
def test_rehearsal_never_fails_a_spare_node(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    spare = ["--set", "survive={when: [node_fail], spare_nodes: 1}"]
    (_, trial), said = rehearse(tmp_path, clean_environ, TRAIN, "--fault", "node", *spare, code=0)
    assert trial["same"] and "now, on node[" not in said


@pytest.mark.thorough
def test_log_without_steps_is_not_compared(tmp_path: Path, clean_environ: dict[str, str]) -> None:
    # Like the Trainer's output without its bar.
    train = TRAIN.replace('json.dumps({"step": step, "loss": 1 / step})', '{"loss": 1 / step}')
    assert train != TRAIN
    (_, trial), _ = rehearse(tmp_path, clean_environ, train, "--fault", "node", code=0)
    assert (trial["same"], trial["resumed_at"]) == (None, None)
    assert "not compared" in trial["why"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "site", sorted(file.stem for file in shipped_folder("sites").glob("*.yaml"))
)
def test_slurm_accepts_the_presets_in_the_shape_of_every_site(
    place: Path, tmp_path: Path, site: str
) -> None:
    """Includes multi-node, array and container jobs, with the shipped profiles."""
    profile = shipped_folder("sites") / f"{site}.yaml"
    env = {**os.environ, "HPCRUN_SANDBOX_DIR": str(place), "HOME": str(tmp_path)}

    def hpcrun(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrun", *argv],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    up = hpcrun("sandbox", "up", "--like", str(profile), "--nodes", "4")
    assert f"like {profile}, up in" in up
    test = ("submit", "--cluster", "sandbox", "--test-only")
    known = load_cluster(profile.read_text(), source=site)
    usual = known.partitions[known.partition or next(iter(known.partitions))]
    for preset in sorted(shipped_folder("jobs").glob("*.yaml")):
        several, shape = preset.stem.endswith("node"), []
        if preset.stem == "zero3-16gpu-2node" and usual.gpus_per_node == 4:
            shape = ["--gpus-per-node", "4", "--nodes", "4"]
        if site == "roihu" and several:  # its other partition has 4 GPUs for a job
            shape += ["--partition", "gpularge"]
        assert ("node[" in hpcrun(*test, preset.stem, *shape)) == several, preset.stem
    image = tmp_path / "a.sif"
    image.touch()
    hpcrun(*test, "ddp-4gpu", "--set", f"setup.container={{image: {image}, runtime: apptainer}}")
    if site == "perlmutter":
        hpcrun(
            *test, "ddp-4gpu", "--set", "resources.gpu_type=a100-80gb"
        )  # its constraint is joined with gpu
