"""Several runs of a sweep in one job: share.sh starts them side by side, each with its own end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from tests.needs import require

SHOW = r"""printf '{"gpus": "%s", "slurm": "%s", "cpus": "%s"}' \
    "${CUDA_VISIBLE_DEVICES-unset}" "${SLURM_JOB_ID-unset}" \
    "$(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status)"
"""


def share(
    folder: Path, runs: int, gpus: int, each: int, task: int = 0, env: dict[str, str] | None = None
) -> int:
    """Start a task of the array; each run's number is its exit code."""
    for index in range(runs):
        run = folder / f"x.{index}-y"
        (run / "logs").mkdir(parents=True, exist_ok=True)
        for name in ("hardware.sh", "clean.sh"):
            (run / name).write_bytes((shipped_folder("templates") / name).read_bytes())
        (run / "job.sbatch").write_text(f"{SHOW}exit {index}\n")
    argv = ["bash", str(shipped_folder("templates") / "share.sh"), str(each), str(runs), str(gpus)]
    done = subprocess.run(
        [*argv, f"{folder}/x.", "-y"],
        env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(task), **(env or {})},
        check=False,
    )
    return done.returncode


def shown(folder: Path, index: int) -> dict[str, str]:
    return dict(json.loads((folder / f"x.{index}-y/logs/batch.log").read_text()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "it's a $(sweep)"


def test_runs_that_share_a_job_have_gpus_of_their_own(folder: Path) -> None:
    given = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "3,1,GPU-aa,0"}
    assert share(folder, 2, gpus=2, each=2, env=given) == 1, "the second one fails, as the job then"
    assert [shown(folder, index)["gpus"] for index in (0, 1)] == ["3,1", "GPU-aa,0"]
    # Without Slurm's name for the job nothing that a run starts is a step of it.
    assert {shown(folder, index)["slurm"] for index in (0, 1)} == {"unset"}


def test_where_slurm_counts_no_gpus_they_are_counted_here(folder: Path) -> None:
    assert share(folder, 3, gpus=1, each=2, task=1) == 1
    assert shown(folder, 2)["gpus"] == "0"
    assert not (folder / "x.0-y/logs/batch.log").exists(), "the other task's"
    assert share(folder, 1, gpus=0, each=1) == 0
    assert shown(folder, 0)["gpus"] == "unset"


def test_a_run_that_was_cancelled_does_not_begin(folder: Path) -> None:
    (folder / "x.1-y").mkdir(parents=True)
    (folder / "x.1-y/cancelled.json").touch()
    assert share(folder, 2, gpus=1, each=2) == 0
    assert not (folder / "x.1-y/logs/batch.log").exists()


def test_the_cores_are_shared_out(folder: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    require(len(cpus) >= 2, "two CPUs")
    share(folder, 2, gpus=0, each=2)
    first, second = (shown(folder, index)["cpus"] for index in (0, 1))
    assert first != second and str(cpus[0]) in first and str(cpus[-1]) in second
