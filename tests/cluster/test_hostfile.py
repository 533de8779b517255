"""hpcrun hostfile of real jobs: their resources on each node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.site import Site

HOSTFILE = [sys.executable, "-m", "hpcrun", "hostfile"]


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        (["--gres=gpu:2"], [2, 2]),
        (["--gpus=3", "--ntasks=3"], [2, 1]),
        (["--ntasks-per-node=3"], [3, 3]),
        (["--ntasks=5"], [4, 1]),
    ],
)
def test_hostfile_of_an_allocation_matches_slurm(
    site: Site, options: list[str], slots: list[int]
) -> None:
    """It agrees with SLURM_TASKS_PER_NODE and CUDA devices inside the job."""
    done = subprocess.run(
        [
            *("salloc", "--quiet", "--nodes=2", "--time=1", *options, "bash", "-ec"),
            '"$@"; echo "$SLURM_TASKS_PER_NODE"',
            *("_", *HOSTFILE),
        ],
        cwd=site.project,
        env=site.environ() | site.rig.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, tasks = done.stdout.splitlines()
    names = site.rig.node_names
    assert lines == [f"{name} slots={n}" for name, n in zip(names, slots, strict=True)]
    if "--gres=gpu:2" not in options:  # there, too, the number of tasks follows that of the GPUs
        assert tasks == (f"{slots[0]}(x2)" if slots[0] == slots[1] else "{},{}".format(*slots))


def test_hostfile_of_pending_and_unknown_jobs_is_refused(site: Site) -> None:
    waiting = site.submit("--nodes", "2", "--set", "slurm.begin=now+1hour", "--", "true")
    done = site.hpcrun("hostfile", waiting.job_id)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"job {waiting.job_id} has no nodes yet (PENDING" in done.stderr
    assert site.hpcrun("cancel", waiting.run_id).returncode == 0
    done = site.hpcrun("hostfile", "99999")
    assert done.returncode == 2 and "99999: Slurm knows no such job" in done.stderr


def test_hostfile_of_an_ended_run_is_written(site: Site) -> None:
    run = site.submit("--nodes", "2", "--gpus-per-node", "3", "--", "true")
    assert site.follow(run).returncode == 0
    done = site.hpcrun("hostfile", run.run_id)
    assert done.stdout == "".join(f"{name} slots=3\n" for name in site.rig.node_names)
    assert f"job {run.job_id} has ended (COMPLETED)" in done.stderr
