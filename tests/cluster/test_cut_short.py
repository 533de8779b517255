"""Records that cannot be written: the state in Slurm is reported and found nevertheless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.site import Site
from tests.needs import require

# A wrapper of sbatch that afterwards kills its caller, or makes its disks unwritable.
SBATCH = """#!/usr/bin/env bash
PATH=${PATH#*:}
sbatch "$@" | tee "%s"
%s
"""
ENDS = {"killed": "kill -9 $PPID", "full": "prlimit --pid $PPID --fsize=0"}
JOB = "command: [sleep, '9']\nresources: {gpus_per_node: 0}\nslurm: {hold: true}\n"
SWEEP = JOB.replace("'9'", "'{n}'") + "sweep: {n: [8, 9]}\n"


@pytest.mark.parametrize(
    ("end", "job", "first"),
    [
        ("killed", JOB, ["status"]),
        ("killed", JOB, ["cancel"]),
        ("killed", SWEEP, ["status"]),
        ("full", JOB, ["status", "--json"]),
    ],
)
def test_job_of_an_interrupted_submission_is_recorded_later(
    site: Site, tmp_path: Path, end: str, job: str, first: list[str]
) -> None:
    """The job is held, so that it writes no records; any command may name it first."""
    (tmp_path / "sbatch").write_text(SBATCH % (tmp_path / "answer", ENDS[end]))
    (tmp_path / "sbatch").chmod(0o755)
    path = f"{tmp_path}:{site.environ()['PATH']}"
    (site.project / "held.yaml").write_text(job)
    done = site.hpcrun("submit", "held.yaml", env={"PATH": path})
    job_id = (tmp_path / "answer").read_text().split(";")[0].strip()
    assert job_id.isdigit(), done.stderr
    if end == "full":
        assert done.returncode == 0 and f"as job {job_id}" in done.stdout, done
        assert "submitted.json: File too large; hpcrun finds the job by its folder" in done.stdout
    assert not list(site.rig.shared.glob("runs/*/submitted.json"))
    try:
        shown = site.hpcrun(*first, job_id)
        assert shown.returncode == 0 and "not submitted by hpcrun" not in shown.stdout, shown
        (record,) = site.rig.shared.glob("runs/*/submitted.json")
        assert json.loads(record.read_text())["job_id"] == job_id
        assert json.loads(record.read_text())["cluster"] == "rig"
        listed = json.loads(site.hpcrun("status", "--json").stdout)["runs"]
        assert {run["job_id"].partition("_")[0] for run in listed} == {job_id}
    finally:
        site.rig.run("scancel", job_id)
    again = site.hpcrun("resubmit", "--dry-run", job_id)
    assert again.returncode == 0 and f"resubmitting job {job_id}" in again.stderr, again


def test_cancellation_is_reported_although_the_folder_is_read_only(site: Site) -> None:
    """The file system of the runs is writable for the job, and read-only for hpcrun."""
    require(os.getuid() == 0, "root, to mount a folder read-only")
    (site.project / "held.yaml").write_text(JOB)
    run = site.submit("held.yaml")
    hpcrun = [sys.executable, "-m", "hpcrun"]
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && "$@"'

    def with_it_read_only(*verb: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "-m", "bash", "-c", mount, str(run.folder.parent), *hpcrun, *verb],
            cwd=site.project,
            env=site.environ(),
            capture_output=True,
            text=True,
            check=False,
        )

    refused = with_it_read_only("submit", "held.yaml")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: {site.project}/hpcrun.yaml: runs_dir: "), refused
    assert "--no-check" not in refused.stderr, "which could not help"
    done = with_it_read_only("cancel", run.job_id)
    assert done.returncode == 0
    assert done.stdout == f"job {run.job_id} was PENDING and is being cancelled\n"
    why = f"without a record of it: {run.folder}/cancelled.json: Read-only file system"
    assert done.stderr == f"note: cancelled all the same, {why}\n"
