"""``hpcrun when``: Slurm's estimates for several shapes, without submitting a job."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions.when import StartEstimate, rank_estimate
from hpcrun.remote import LocalTransport
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


# An sbatch that accepts jobs, and commands that know the limits of two accounts.
ACCEPTING = SBATCH.replace('{ echo "submitted" >>"$0.calls"; exit 1; }', "{ echo 7; exit; }")
SCONTROL = """\
#!/bin/bash
[ "$*" = "show assoc_mgr flags=assoc,qos users=ada" ] || exit 1
cat <<'.'
ClusterName=c Account=ml UserName= Partition= ID=3
    ParentAccount=root(1) GrpTRESMins=cpu=N(5),gres/gpu=6000(1500)
ClusterName=c Account=ml UserName=ada(7) Partition= ID=4
    ParentAccount= GrpTRESMins=cpu=N(5),gres/gpu=N(60)
.
"""
SACCTMGR = "#!/bin/bash\necho 'c|ml||ml|normal|normal|||'\n"
TRAINING = """\
script: train.py
args: [--steps, "1000", --deepspeed, "{deepspeed_config}"]
framework: deepspeed
deepspeed: {zero_stage: 2}
batch: {effective: 64}
resources: {gpus_per_node: 4, time: 2h}
"""


def _train(hpcrun: Caller, nodes: int, step_seconds: float, *more: str) -> str:
    """Submit a training that has logged 200 of its 1000 steps; return its id."""
    done = hpcrun("submit", "job.yaml", "--no-check", "--set", f"resources.nodes={nodes}", *more)
    assert done.code == 0, done
    run = max(hpcrun.runs.iterdir(), key=lambda path: path.name)
    logs = run / "logs" / "0"
    logs.mkdir(parents=True)
    start = datetime(2026, 11, 20)
    (logs / "rank-0.log").write_text(
        "".join(
            f"{start + timedelta(seconds=step * step_seconds):%Y-%m-%d %H:%M:%S} "
            f"step {step}/1000 loss {2 - step / 1000}\n"
            for step in range(0, 201, 10)
        )
    )
    return run.name


@pytest.fixture
def training(hpcrun: Caller, sbatch: Path) -> Path:
    """A training job, on a cluster that accepts jobs."""
    sbatch.write_text(ACCEPTING)
    hpcrun.write("train.py", "")
    return hpcrun.write("job.yaml", TRAINING)


def _when(hpcrun: Caller, *nodes: str) -> dict[int, dict[str, Any]]:
    answer = hpcrun("when", "job.yaml", "--nodes", ",".join(nodes), "--json").json
    check_json("when", answer)
    return {shape["nodes"]: shape for shape in answer["shapes"]}


def test_when_predicts_the_end_by_earlier_runs(hpcrun: Caller, training: Path) -> None:
    first = _train(hpcrun, 1, 4.0)
    shapes = _when(hpcrun, "1", "2")
    assert (shapes[1]["basis"], shapes[1]["expected_seconds"]) == ("measured", 4000)
    assert shapes[1]["expected_end"] == "2026-11-22T01:06:40"
    assert (shapes[2]["basis"], shapes[2]["expected_seconds"]) == ("linear", 2000)
    second = _train(hpcrun, 2, 2.5)
    _train(hpcrun, 2, 1.0, "--set", "args=[--steps, 5, --deepspeed, '{deepspeed_config}']")
    answer = hpcrun("when", "job.yaml", "--nodes", "1,2", "--json").json
    assert [each["run_id"] for each in answer["earlier_runs"]] == [first, second]
    assert answer["shapes"][0]["expected_seconds"] == 2500
    shown = hpcrun("when", "job.yaml", "--nodes", "1,2")
    assert "all steps take 41 min 40 s on 8 GPUs, efficiency 80%" in shown.err, shown
    assert "END AT MOST" in shown.out and "00:41" in shown.out, shown


def test_when_says_that_a_training_needs_more_than_its_limit(
    hpcrun: Caller, training: Path
) -> None:
    _train(hpcrun, 1, 9.0)
    shown = hpcrun("when", "job.yaml")
    assert "needs 2 h 30 min, more than the time limit" in shown.out, shown
    shape = hpcrun("when", "job.yaml", "--json").json["shapes"][0]
    assert shape["expected_end"] == shape["latest_end"]


def test_shapes_that_end_unfinished_follow_those_that_finish() -> None:
    cut = StartEstimate(
        nodes=1,
        expected_seconds=9000,
        limit_seconds=3600,
        expected_end="2026-11-22T01:00:00",
        latest_end="2026-11-22T01:00:00",
    )
    finished = StartEstimate(
        nodes=2, expected_seconds=3000, limit_seconds=3600, expected_end="2026-11-22T09:00:00"
    )
    refused = StartEstimate(nodes=4, refused="too large")
    assert sorted([refused, cut, finished], key=rank_estimate) == [finished, cut, refused]


def test_when_assumes_no_scaling_for_an_unknown_batch(hpcrun: Caller, training: Path) -> None:
    training.write_text(TRAINING.replace("batch: {effective: 64}\n", ""))
    _train(hpcrun, 1, 4.0)
    assert _when(hpcrun, "2")[2]["basis"] is None


def test_when_shows_what_the_account_has_left(hpcrun: Caller, sbatch: Path) -> None:
    for name, text in (
        ("scontrol", SCONTROL),
        ("sacctmgr", SACCTMGR),
        ("id", "#!/bin/bash\necho ada\n"),
    ):
        (hpcrun.tools / name).write_text(text)
        (hpcrun.tools / name).chmod(0o755)
    done = hpcrun("when", "job.yaml", "--nodes", "1")
    assert "account ml has 75 of 100 GPU-hours left" in done.err, done
    limits = hpcrun("when", "job.yaml", "--nodes", "1", "--json").json["limits"]
    assert limits == [
        {"owner": "account ml", "resource": "GPU", "allowed_hours": 100, "used_hours": 25}
    ]


def test_when_queries_all_shapes_in_one_trip(
    hpcrun: Caller, sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = []
    usual = LocalTransport.run_queries

    def record(transport: LocalTransport, queries: Any) -> Any:
        found = [each for each in queries if "--test-only" in getattr(each, "argv", ())]
        trips.extend([len(found)] if found else [])
        return usual(transport, queries)

    monkeypatch.setattr(LocalTransport, "run_queries", record)
    hpcrun("when", "job.yaml", "--nodes", "1,2", "--partition", "gpu,long")
    assert trips == [4]
