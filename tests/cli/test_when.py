"""``hpcrun when``: Slurm's estimates for several shapes, without submitting a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.json_schemas import check_json

# An sbatch whose start depends on the number of nodes, and which refuses four of them.
SBATCH = """\
#!/bin/bash
[ "$1" = --test-only ] || { echo "submitted" >>"$0.calls"; exit 1; }
script=$(cat)
nodes=$(sed -n 's/^#SBATCH --nodes=//p' <<<"$script")
partition=$(sed -n 's/^#SBATCH --partition=//p' <<<"$script")
case $nodes in
1) day=2026-11-22 ;;
2) day=2026-11-21 ;;
3) day=2282-01-31 ;;
*) echo "sbatch: error: Requested node configuration is not available" >&2; exit 1 ;;
esac
echo "sbatch: Job 7 to start at ${day}T00:00:00 using 4 processors on nodes n1" \\
    "in partition ${partition:-gpu}" >&2
"""
JOB = "command: [hostname]\nresources: {gpus_per_node: 4, time: 2h}\n"


@pytest.fixture
def sbatch(hpcrun: Caller) -> Path:
    """A job, and a program in place of sbatch."""
    path = hpcrun.tools / "sbatch"
    path.write_text(SBATCH)
    path.chmod(0o755)
    hpcrun.write("job.yaml", JOB)
    return path


def test_when_sorts_shapes_by_their_end(hpcrun: Caller, sbatch: Path) -> None:
    answer = hpcrun("when", "job.yaml", "--nodes", "1,2", "--json").json
    check_json("when", answer)
    assert [shape["nodes"] for shape in answer["shapes"]] == [2, 1]
    first = answer["shapes"][0]
    assert first["start"] == "2026-11-21T00:00:00"
    assert first["latest_end"] == "2026-11-21T02:00:00"
    assert (first["limit_seconds"], first["gpu_hours"]) == (7200, 16.0)


def test_when_never_submits(hpcrun: Caller, sbatch: Path) -> None:
    assert hpcrun("when", "job.yaml", "--nodes", "1,2,4").code == 0
    assert not sbatch.with_name("sbatch.calls").exists()
    assert not hpcrun.runs.exists() or not list(hpcrun.runs.iterdir())


def test_when_shows_refused_shapes_last_with_the_reason(hpcrun: Caller, sbatch: Path) -> None:
    done = hpcrun("when", "job.yaml", "--nodes", "4,1")
    rows = done.out.splitlines()
    assert rows[1].split()[:2] == ["1", "gpu"] and "8.0" in rows[1]
    assert "refused: Slurm would refuse the job: " in rows[2]
    assert "Slurm's current estimates" in done.err
    only = hpcrun("when", "job.yaml", "--nodes", "4", "--json")
    assert only.code == 1 and only.json["shapes"][0]["start"] is None


def test_when_has_no_start_in_another_century(hpcrun: Caller, sbatch: Path) -> None:
    shape = hpcrun("when", "job.yaml", "--nodes", "3", "--json").json["shapes"][0]
    assert shape["start"] is None and shape["latest_end"] is None and shape["refused"] == ""


def test_when_compares_partitions(hpcrun: Caller, sbatch: Path) -> None:
    answer = hpcrun("when", "job.yaml", "--partition", "gpu,long", "-t", "30m", "--json").json
    assert [shape["partition"] for shape in answer["shapes"]] == ["gpu", "long"]
    assert {shape["gpu_hours"] for shape in answer["shapes"]} == {2.0}


def test_when_refuses_bad_input(hpcrun: Caller, sbatch: Path) -> None:
    for argv, message in (
        (["job.yaml", "--nodes", "two"], "not a list of numbers"),
        (["nothing"], "nothing: no such job"),
        (["job.yaml", "--set", "sweep={lr: [1, 2]}"], "a sweep has no single start"),
    ):
        done = hpcrun("when", *argv)
        assert done.code == 2 and message in done.err and done.out == ""
