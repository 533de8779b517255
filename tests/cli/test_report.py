"""hpcrun report: runs with samples, jobs of Slurm alone, selections, and its files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller, replay
from tests.cli.status_runs import NOW, answers, make_run, queued, write_sweep
from tests.json_schemas import check_json

RUN, OTHER = "20261120-081455-train-7k3q", "20261121-081455-lr-ab12"
FIELDS = 17
LOG = "step=1 loss=2.5\nSaved checkpoint at step 1 in 90 s\nstep=2 loss=2.25\n"


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for Slurm's commands."""
    for name in ("squeue", "sacct", "scontrol"):
        answers(hpcrun.tools, name)
    return hpcrun.tools


def write_usage(run: RunFolder, rank: int, uses: Sequence[int], minutes: int = 30) -> None:
    """Write the samples of a node with GPUs of a constant use."""
    names = " ".join(f"nvidia:GPU-{rank}{n}:81920" for n in range(len(uses)))
    lines = [f"hpcrun-usage 1 n{rank + 1} 15 job 16 job 64000000000 {names}"]
    for minute in range(minutes + 1):
        gpus = " ".join(f"{use * 4 * minute} 1000 20480 {1200 * minute}" for use in uses)
        times = f"{NOW - 3600 + 60 * minute:.0f} {60 * minute} {480 * minute}000000000"
        lines.append(f"{times} 1000 2000000000 {4 * minute} {gpus}")
    folder = run.path / "usage" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"node-{rank}").write_text("\n".join(lines) + "\n")


@pytest.fixture
def measured(hpcrun: Caller, tools: Path) -> RunFolder:
    """Return a run of half an hour on 2 nodes, of whose 8 GPUs half were idle."""
    run = make_run(hpcrun, RUN, "15", ended=NOW - 1800, log=LOG)
    begin = json.loads((run.attempts / "0" / "begin.json").read_text())
    (run.attempts / "0" / "begin.json").write_text(json.dumps(begin | {"begun_at": NOW - 3600}))
    (run.attempts / "0" / "moved").write_text(str(NOW - 3600 + 180))
    for rank in range(2):
        write_usage(run, rank, [90, 80, 0, 0])
    answers(tools, "squeue", rest=queued(run, "15", "COMPLETED", M="30:00", l="4:00:00"))
    return run


def test_run_is_reported_with_its_losses_and_advice(hpcrun: Caller, measured: RunFolder) -> None:
    text = hpcrun("report", RUN).out
    for part in (
        "train  15 COMPLETED",
        "shape     2 nodes, 8 GPUs",
        "GPU hours 4.00",
        "goodput   85 %",
        "lost to   startup 0.40 (10 %), checkpoints 0.20 (5 %)",
        "GPU use   42 % (mean of 30:00), memory up to 20.0 GiB of 80.0 GiB",
        "energy    1.20 kWh (of the GPUs, by samples)",
        "- 15: 4 of 8 GPUs idle (under 1 % of 30 min): --gpus-per-node 2",
        "- 15: time limit 8.0 times longer than needed (4:00:00, and 0:30:00 were used)",
    ):
        assert part in text, text
    done = hpcrun("report", RUN, "--json")
    check_json("report", done.json)
    (row,) = done.json["runs"]
    assert (row["gpu_hours"], row["node_hours"], row["sampled_seconds"]) == (4.0, None, 1800.0)
    assert [gpu["utilization"] for gpu in row["gpu_use_by_gpu"]] == [90.0, 80.0, 0.0, 0.0] * 2
    options = [each["option"] for each in done.json["advice"]]
    assert options == ["--gpus-per-node 2", "--time 0:45:00", None]


def test_numbers_by_samples_of_a_part_of_the_run_say_so(
    hpcrun: Caller, measured: RunFolder
) -> None:
    (measured.path / "usage" / "0" / "node-1").unlink()
    text = hpcrun("report", RUN).out
    assert "GPU use   42 % (mean of 30:00 of 30:00, 4 of 8 GPUs sampled), memory up to" in text
    assert "15: 4 of 8 GPUs sampled; advice on GPUs needs" in text
    assert "energy" not in text and "GPUs idle" not in text and "memory 1.9 GiB" not in text
    status = hpcrun("status", RUN).out
    assert "use 42% (4 of 8 GPUs sampled)" in status and "host memory" not in status


# The model has 2 blocks of 218,112,000 weights and a head of 32,768,000.
MODEL = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 8000,
}
ARGUMENTS = "--model_name, m, --block_size, '1024', --bs, '{micro_batch_per_gpu}', --bf16, 'true'"


@pytest.mark.parametrize(
    ("changes", "gpu", "is_known"),
    [
        ({}, "NVIDIA A100-SXM4-80GB", True),
        ({}, "NVIDIA FastGPU", False),
        ({"--block_size": "--max_length"}, "NVIDIA A100-SXM4-80GB", False),
        ({"--bf16": "--use_peft"}, "NVIDIA A100-SXM4-80GB", False),
    ],
)
def test_mfu_is_shown_only_if_model_batch_and_gpu_are_known(
    hpcrun: Caller, tools: Path, changes: dict[str, str], gpu: str, is_known: bool
) -> None:
    arguments = ARGUMENTS
    for old, new in changes.items():
        assert old in arguments
        arguments = arguments.replace(old, new)
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("m/config.json", json.dumps(MODEL))
    job = f"script: train.py\nargs: [{arguments}]\nframework: torch\n"
    hpcrun.write("job.yaml", f"{job}batch: {{micro_batch_per_gpu: 4}}\n")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    words = ("--no-check", "--gpus-per-node", "2", "--set", "resources.nodes=1")
    done = hpcrun("submit", "job.yaml", "--json", *words)
    assert done.code == 0, done
    run = RunFolder(Path(done.json["run_dir"]))
    attempt = run.attempts / "0"
    (attempt / "usage").mkdir(parents=True)
    begin = {"attempt": 0, "job_id": "7", "host": "n1", "pid": 1, "nodes": "n1"}
    (attempt / "begin.json").write_text(json.dumps(begin | {"begun_at": NOW - 3700}))
    end = {"attempt": 0, "job_id": "7", "exit_code": 0, "signal": None, "stopped_by": None}
    end |= {"first_failure": None, "begun_at": NOW - 3700, "ended_at": NOW - 60}
    (attempt / "end.json").write_text(json.dumps(end))
    (attempt / "moved").write_text(str(NOW - 3660))
    for rank in range(2):
        (attempt / "usage" / f"rank-{rank}.json").write_text(json.dumps({"gpu": gpu}))
    (run.logs / "0").mkdir()
    (run.logs / "0" / "rank-0.log").write_text("step=0 loss=2.5\nstep=12000 loss=2.25\n")
    found = hpcrun("report", run.run_id, "--json").json["runs"][0]["mfu"]
    weights = 2 * 218112000 + 8000 * 4096
    per_token = 6 * weights + 12 * 2 * 4096 * 1024
    expected = per_token * 1024 * 8 * 12000 / (3600 * 2 * 311.9e12)
    assert found == (pytest.approx(expected, rel=1e-3) if is_known else None)


def test_cost_follows_the_factors_of_the_profile(hpcrun: Caller, measured: RunFolder) -> None:
    profile = hpcrun.project / "hpcrun.yaml"
    text = profile.read_text() + "cost: {per_gpu_hour: 1.5, currency: EUR, kg_co2_per_kwh: 0.25}\n"
    profile.write_text(text)
    done = hpcrun("report", RUN)
    assert "cost      6.00 EUR" in done.out and "CO2       0.30 kg" in done.out
    assert hpcrun("report", RUN, "--json").json["currency"] == "EUR"


def test_several_runs_have_a_row_each_and_a_total(
    hpcrun: Caller, measured: RunFolder, tmp_path: Path
) -> None:
    make_run(hpcrun, OTHER, "16", ended=NOW - 60, exit_code=1)
    table, page = tmp_path / "runs.csv", tmp_path / "runs.html"
    done = hpcrun("report", "--since", "2026-11-01", "--csv", str(table), "--html", str(page))
    lines = done.out.splitlines()
    assert lines[0].split() == ["ID", "JOB", "STATE", "TIME", "GPU-H", *lines[0].split()[5:]]
    assert [line.split()[0] for line in lines[1:4]] == ["16", "15", "total"]
    assert "8.00" in lines[3]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["name"] for row in rows] == ["train", "train"]
    assert float(rows[1]["lost_startup_hours"]) == pytest.approx(0.4)
    assert rows[0]["lost_startup_hours"] == ""
    text = page.read_text()
    assert "<script" not in text and "GPU-00" in text and "4 of 8 GPUs idle" in text
    only = hpcrun("report", "--name", "nothing", "--json").json
    assert only["runs"] == [] and only["total"]["runs"] == 0
    check_json("report", only)


def test_html_shows_hostile_names_as_text(
    hpcrun: Caller, measured: RunFolder, tmp_path: Path
) -> None:
    node = measured.path / "usage" / "0" / "node-0"
    node.write_text(node.read_text().replace("GPU-00", "<img/src=x>"))
    page = tmp_path / "run.html"
    assert hpcrun("report", RUN, "--html", str(page)).code == 0
    assert "<img" not in page.read_text() and "&lt;img/src=x&gt;" in page.read_text()


def test_sweep_is_reported_by_task(hpcrun: Caller, tools: Path) -> None:
    sweep = write_sweep(hpcrun, 3)
    row = queued(RunFolder(sweep), "40_1", "RUNNING", M="1:00")
    answers(tools, "squeue", rest=row)
    done = hpcrun("report", "20261121-000000-lr-7k3q", "--json")
    check_json("report", done.json)
    assert [row["run_id"].split("-")[2] for row in done.json["runs"]] == ["lr.0", "lr.1", "lr.2"]


def test_job_that_several_runs_share_counts_for_none_of_them(
    hpcrun: Caller, measured: RunFolder
) -> None:
    """The energy and memory of the job would otherwise be counted once for each run."""
    record = json.loads(measured.submitted.read_text()) | {"runs_per_job": 2}
    measured.submitted.write_text(json.dumps(record))
    own = ["15", "COMPLETED", "7", "me", "0:0", "1:00", "60", "1", "2", "128G", "mem=128G"]
    own += ["", "", "", "18000000", "2026-11-20T07:30:00", "2026-11-20T08:00:00"]
    answers(hpcrun.tools, "sacct", ("ConsumedEnergyRaw", accounting(own)))
    (row,) = hpcrun("report", RUN, "--json").json["runs"]
    assert (row["energy_of"], row["memory_asked_bytes"]) == ("gpus", None)
    host = ("memory_used_bytes", "node_memory_peak_bytes", "cpus", "cpu_share")
    assert [row[name] for name in host] == [None] * 4
    assert "host memory" not in hpcrun("status", RUN).out


def accounting(*rows: Sequence[str]) -> str:
    return "".join("\x1f".join(row) + "\n" for row in rows)


def test_job_that_hpcrun_did_not_submit_is_reported_from_slurm(hpcrun: Caller, tools: Path) -> None:
    job = ["77", "77", "COMPLETED", "0:0", "2:00:00", "10:00:00", "2026-11-20T08:00:00"]
    job += ["2026-11-20T10:00:00", "2", "32", "n[1-2]", "gpu", "me", "lab", "normal"]
    job += ["cpu=32,mem=128G,node=2,gres/gpu=8", "theirs", "/home/me"]
    own = ["77", "COMPLETED", "7", "me", "0:0", "10:00:00", "230400", "32", "2", "128G"]
    own += ["cpu=32,mem=128G,node=2", "", "", "", "18000000"]
    own += ["2026-11-20T07:30:00", "2026-11-20T08:00:00"]
    step = ["77.0", "COMPLETED", "", "", "", "10:00:00", "230400", "32", "2", "", "", "2"]
    step += ["8G", "mem=16G", "18000000", "", ""]
    assert len(own) == len(step) == FIELDS
    answers(tools, "squeue", ("--format=%i", "JOBID\n"))
    answers(tools, "sacct", ("ConsumedEnergyRaw", accounting(own, step)), rest=accounting(job))
    done = hpcrun("report", "77", "--json")
    check_json("report", done.json)
    (row,) = done.json["runs"]
    assert (row["run_id"], row["gpu_hours"], row["queue_seconds"]) == (None, 16.0, 1800.0)
    assert (row["energy_kwh"], row["energy_of"], row["goodput"]) == (5.0, "nodes", None)
    assert row["memory_used_bytes"] == 16 << 30
    assert [each["kind"] for each in done.json["advice"]] == ["memory", "time_limit"]
    assert "no samples of the nodes' use" in hpcrun("report", "77").out


def test_runs_are_reported_without_accounting(hpcrun: Caller, measured: RunFolder) -> None:
    sacct = hpcrun.tools / "sacct"
    sacct.write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    row = hpcrun("report", RUN, "--json").json["runs"][0]
    assert (row["gpu_hours"], row["energy_of"], row["memory_used_bytes"]) == (
        4.0,
        "gpus",
        4 * 10**9,
    )


def test_report_refuses_runs_and_a_selection_together(hpcrun: Caller, tools: Path) -> None:
    done = hpcrun("report", "15", "--since", "7d")
    assert done.code == 2 and "leave out JOB, or the options" in done.err
    done = hpcrun("report", "nothing")
    assert done.code == 2 and "nothing: no such run" in done.err


def test_report_refuses_a_file_in_a_missing_folder(hpcrun: Caller, measured: RunFolder) -> None:
    done = hpcrun("report", RUN, "--csv", "missing/runs.csv")
    assert done.code == 2 and "no such folder" in done.err and done.out == ""
