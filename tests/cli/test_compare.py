"""hpcrun compare with logs, and with run folders as submit writes them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Caller, replay
from tests.curves.report.runs import noise
from tests.json_schemas import check_json


def log(floor: float, step_seconds: float, *, seed: int = 0) -> str:
    """Return the output of a training of 400 steps."""
    lines = []
    for step in range(1, 401):
        loss = floor + 4 * math.exp(-step / 60) + 0.05 * noise(step + seed)
        lines.append(
            f"step {step}: loss={loss:.4f} lr=0.0003 step_time={step_seconds * 1000:.1f}ms\n"
        )
    return "".join(lines)


@pytest.fixture
def logs(hpcrun: Caller) -> Caller:
    for name, floor, seconds in (("a", 2.0, 1.0), ("b", 1.8, 0.5), ("same", 2.0, 1.0)):
        hpcrun.write(f"{name}.log", log(floor, seconds, seed=len(name) * 1000))
    return hpcrun


def compared(hpcrun: Caller, *words: str) -> Any:
    done = hpcrun("compare", *words, "--json")
    assert (done.code, done.err) == (0, ""), done
    check_json("compare", done.json)
    return done.json


def test_compare_shows_two_logs(logs: Caller) -> None:
    shown = compared(logs, "a.log", "b.log")
    assert [run["source"] for run in shown["runs"]] == ["a.log", "b.log"]
    step = shown["equal"][0]
    assert (step["by"], step["to"], step["best"]) == ("step", 400, 1)
    assert step["behind"][0]["value"] == pytest.approx(0.2, abs=0.02) and step["behind"][0]["clear"]
    assert [run["speedup"] for run in shown["runs"]] == [1.0, 2.0]
    done = logs("compare", "a.log", "b.log")
    assert done.code == 0 and done.out.startswith("loss by step")
    assert "b.log 1.8" in done.out and "is lowest; higher: a.log by 0.2" in done.out
    assert "settings" not in done.out


def test_runs_are_sorted_by_their_best_loss(logs: Caller) -> None:
    logs.write("nan.log", "step 1: loss=nan\nstep 2: loss=nan\n")
    shown = compared(logs, "a.log", "nan.log", "b.log")
    assert [run["source"] for run in shown["runs"]] == ["a.log", "nan.log", "b.log"]
    assert [run["rank"] for run in shown["runs"]] == [2, None, 1]
    lows = [run["min"] and run["min"]["value"] for run in shown["runs"]]
    difference = lows[0] - lows[2]
    assert [run["difference"] for run in shown["runs"]] == [pytest.approx(difference), None, 0.0]
    done = logs("compare", "a.log", "nan.log", "b.log", "--html", "c.html")
    table = done.out[done.out.index("difference") :].splitlines()
    assert [line.split()[1] for line in table[1:4]] == ["b.log", "a.log", "nan.log"], done
    assert f"+{difference:.3g}" in table[2]
    page = (logs.project / "c.html").read_text()
    names = [page.index(f"</span>{name}.log</label>") for name in ("b", "a", "nan")]
    assert names == sorted(names) and f"<td>+{difference:.3g}</td>" in page


def test_equal_logs_have_no_difference(logs: Caller) -> None:
    done = logs("compare", "a.log", "same.log")
    assert "loss at step 400: no difference beyond noise: " in done.out, done


def test_gpus_of_plain_logs_come_from_the_option(logs: Caller) -> None:
    shown = compared(logs, "a.log", "b.log", "same.log", "--gpus", "1,4,2")
    assert [run["efficiency"] for run in shown["runs"]] == [1.0, 0.5, 0.5]
    assert "--gpus" in logs("compare", "a.log", "b.log").out
    assert "--gpus" not in logs("compare", "a.log", "b.log", "--gpus", "1,4").out


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        ([], "nothing to compare", "two or more"),
        (["a.log"], "a.log: one run; two or more can be compared", "hpcrun parse a.log"),
        (["a.log", "b.log", "--gpus", "1"], "--gpus 1: 1 numbers for 2 runs", "a.log, b.log"),
        (["a.log", "b.log", "--gpus", "1,x"], "--gpus 1,x: not whole numbers", "1,2,4,8"),
        (["a.log", "b.log", "--gpus", "1,0"], "--gpus 1,0: not whole numbers", "1,2,4,8"),
        (["a.log", "b.log", "--metric", "los"], "--metric los: not in the log", "loss"),
        (["a.log", "none.log"], "none.log: no such file", ""),
    ],
)
def test_invalid_comparisons_are_refused(
    logs: Caller, words: list[str], message: str, fix: str
) -> None:
    done = logs("compare", *words)
    assert done.code == 2 and message in done.err and fix in done.err, done
    assert done.out == ""


def test_metric_and_target_can_be_requested(logs: Caller) -> None:
    shown = compared(logs, "a.log", "b.log", "--metric", "LR")
    assert shown["metric"] == "lr"
    done = logs("compare", "a.log", "b.log", "--target", "nan")
    assert done.code == 2 and "--target nan: not a finite number" in done.err
    shown = compared(logs, "a.log", "b.log", "--target", "2.4")
    assert shown["target"]["level"] == 2.4
    steps = [reached["step"] for reached in shown["target"]["reached"]]
    truth = [-60 * math.log((2.4 - floor) / 4) for floor in (2.0, 1.8)]
    assert steps == pytest.approx(truth, abs=10)


@pytest.mark.slow
def test_comparison_by_time(logs: Caller) -> None:
    done = logs("compare", "a.log", "b.log", "--by", "time", "--plot", "c.svg")
    assert done.out.startswith("loss by minutes"), done
    assert ">minutes<" in (logs.project / "c.svg").read_text()


@pytest.mark.slow
def test_compare_writes_image_and_html(logs: Caller) -> None:
    done = logs("compare", "a.log", "b.log", "--plot", "c.svg", "--html", "c.html")
    assert done.code == 0 and done.err == "wrote c.svg\nwrote c.html\n", done
    picture = (logs.project / "c.svg").read_text()
    assert "b.log" in picture and ">step<" in picture
    assert "b.log" in (logs.project / "c.html").read_text()


def test_logs_without_metrics_have_exit_code_1(hpcrun: Caller) -> None:
    for name in "ab":
        hpcrun.write(f"{name}.log", "hello\n")
    done = hpcrun("compare", "a.log", "b.log")
    assert done.code == 1 and "nothing" not in done.err, done


# ---- runs


def submitted(hpcrun: Caller, gpus: int, job_id: int) -> Path:
    """Submit a job with a replayed answer of Slurm, and write logs of 400 steps."""
    replay(hpcrun.tools, "sbatch", (0, f"{job_id}\n", ""))
    done = hpcrun("submit", "job.yaml", "--gpus-per-node", f"{gpus}", "--json")
    assert done.code == 0, done
    run = Path(done.json["run_dir"])
    (run / "logs" / "0").mkdir()
    (run / "logs" / "0" / "rank-0.log").write_text(log(2.0, 1 / gpus**0.5, seed=job_id))
    attempt = run / "attempts" / "0"
    attempt.mkdir()
    times = {"begun_at": 1e9, "ended_at": 1e9 + 400 / gpus**0.5}
    end = {"attempt": 0, "job_id": f"{job_id}", "exit_code": 0, "signal": None}
    end |= {"stopped_by": None, "first_failure": None}
    (attempt / "end.json").write_text(json.dumps(end | times))
    return run


@pytest.fixture
def scaling(hpcrun: Caller) -> Caller:
    """Submit a job on 1 and on 4 GPUs, with the same batch size per GPU."""
    python = f"setup: {{python: {sys.executable}}}"
    hpcrun.write(
        "job.yaml",
        f"script: train.py\nbatch: {{micro_batch_per_gpu: 8}}\n{python}\n"
        "args: ['{micro_batch_per_gpu}']\n",
    )
    hpcrun.write("train.py", "print(1)\n")
    submitted(hpcrun, 1, 17)
    submitted(hpcrun, 4, 18)
    return hpcrun


@pytest.mark.slow
def test_runs_provide_gpus_and_settings(scaling: Caller) -> None:
    shown = compared(scaling, "17", "18")
    assert [(run["gpus"], run["batch"]) for run in shown["runs"]] == [(1, 8), (4, 32)]
    assert shown["scaling"]["unit"] == "samples/s" and shown["scaling"]["kind"] == "weak"
    assert [run["speedup"] for run in shown["runs"]] == [1.0, 8.0]
    assert [run["gpu_hours"] for run in shown["runs"]] == pytest.approx([400 / 3600, 800 / 3600])
    assert shown["settings"] == {
        "effective_batch": ["8", "32"],
        "resources.gpus_per_node": ["1", "4"],
        "world_size": ["1", "4"],
    }
    done = scaling("compare", "17", "18")
    assert "weak scaling, the batch grows with the GPUs" in " ".join(done.out.split())
    assert "settings that differ" in done.out and "the code differs" not in done.out


def record_usage(run: Path, peaks: list[int | None], waits: float = 1.0) -> None:
    """Write what the ranks of a run measured, as hook.pyz does."""
    folder = run / "attempts" / "0" / "usage"
    folder.mkdir()
    for rank, peak in enumerate(peaks):
        usage = {"batches": 400, "data_seconds": waits, "loop_seconds": 200.0}
        if peak is not None:
            usage |= {"peak_allocated": (peak - 1) << 30, "peak_reserved": peak << 30}
            usage |= {"gpu_memory": 80 << 30}
        (folder / f"rank-{rank}.json").write_text(json.dumps(usage))


@pytest.mark.slow
def test_peak_memory_and_rates_are_columns(scaling: Caller) -> None:
    for job_id, peaks in (("17", [30]), ("18", [20, 25, 24, 25])):
        shown = scaling("show", job_id, "--json")
        record_usage(Path(shown.json["run_dir"]), [*peaks])
    shown = compared(scaling, "17", "18")
    assert [run["peak_memory"] for run in shown["runs"]] == [30 << 30, 25 << 30]
    assert [run["gpu_memory"] for run in shown["runs"]] == [80 << 30, 80 << 30]
    assert [run["steps_per_second"] for run in shown["runs"]] == [1.0, 2.0]
    assert [run["samples_per_second"] for run in shown["runs"]] == [8.0, 64.0]
    out = scaling("compare", "17", "18").out
    assert "peak memory" in out and "30.0 GiB" in out and "25.0 GiB" in out
    assert "25.0 GiB of 80.0 GiB" in scaling("parse", "18").out
    assert "estimated" not in out
    parsed = scaling("parse", "18", "--json").json["runs"][0]
    assert parsed["peak_memory_bytes"] == 25 << 30


@pytest.mark.slow
def test_estimated_memory_is_beside_the_measured_peak(scaling: Caller) -> None:
    folder = Path(scaling("show", "18", "--json").json["run_dir"])
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "estimated_memory": 27 << 30}))
    assert "estimated" not in scaling("compare", "17", "18").out  # nothing was measured
    record_usage(folder, [20, 25])
    assert "25.0 GiB of 80.0 GiB, 27.0 GiB estimated" in scaling("parse", "18").out
    out = scaling("compare", "17", "18").out
    assert "estimated" in out and "27.0 GiB" in out


@pytest.mark.slow
def test_markdown_table_has_a_row_per_run(scaling: Caller) -> None:
    done = scaling("compare", "17", "18", "--markdown")
    head, rule, *rows, empty, basis = done.out.split("\n")[:6]
    assert head.startswith("| run | GPUs | batch | step time | steps/s | samples/s | speed-up | ")
    assert rule.count("---") == head.count("|") - 1 == rows[0].count("|") - 1
    assert [row.split(" | ")[1:7] for row in rows] == [
        ["1", "8", "1.00 s", "1.000", "8.000", "1.00x"],
        ["4", "32", "500 ms", "2.000", "64.00", "8.00x"],
    ]
    assert (done.code, empty) == (0, "") and basis.startswith("speed-up over job-")


@pytest.mark.slow
def test_changed_code_is_reported(scaling: Caller) -> None:
    scaling.write("train.py", "print(2)\n")
    submitted(scaling, 4, 19)
    shown = compared(scaling, "18", "19")
    assert list(shown["settings"]) == ["code"]
    assert "the code differs in train.py" in shown["notes"]


@pytest.mark.slow
def test_run_is_compared_with_a_plain_log(scaling: Caller) -> None:
    scaling.write("old.log", log(2.0, 2.0, seed=5))
    shown = compared(scaling, "17", "old.log")
    assert shown["settings"] == {} and shown["runs"][1]["gpus"] is None
    done = scaling("compare", "17", "old.log")
    assert "note: settings are not known for old.log" in done.out


@pytest.mark.slow
def test_sweep_is_compared_run_by_run(hpcrun: Caller) -> None:
    hpcrun.write("job.yaml", "command: [echo, '{lr}']\nsweep: {lr: [1e-4, 3e-4]}\n")
    replay(hpcrun.tools, "sbatch", (0, "20\n", ""))
    done = hpcrun("submit", "job.yaml", "--json")
    for number, run in enumerate(done.json["runs"]):
        logs = Path(run["run_dir"]) / "logs" / "0"
        logs.mkdir()
        (logs / "rank-0.log").write_text(log(2.0 - number, 1.0))
    shown = compared(hpcrun, "20")
    assert shown["settings"]["sweep.lr"] == ["1e-4", "3e-4"]
    text = hpcrun("compare", "20").out
    assert "1: lr=3e-4 1.0" in text and "is lowest; higher: 0: lr=1e-4 by 1.0" in text
