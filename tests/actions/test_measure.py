"""Measurements of a few steps: what they calibrate, how they are shown, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.actions.job_memory import JobMemory
from hpcrun.actions.measure import _find_pace, _parse_records, replace_outputs
from hpcrun.actions.measurements import (
    Measurement,
    NodePeak,
    RankMeasurement,
    find_calibration,
    list_measurements,
)
from hpcrun.cli.measure_job import show_measurement
from hpcrun.fit import (
    MeasuredMemory,
    Training,
    build_shape,
    compute_calibration,
    estimate_memory,
    list_candidates,
)
from hpcrun.runs import write_record

GIB = 2**30
SHAPE = build_shape(layers=24, hidden=2048, heads=16, ffn=5632, vocab=32000)
TRAINING = Training(
    strategy="zero",
    zero_stage=2,
    weights="master",
    gpus=4,
    gpus_per_node=4,
    micro_batch=8,
    sequence=2048,
)


def measure(factor: float = 1.2, **changes: Any) -> Measurement:
    """Build the measurement of a training whose activations are larger than computed."""
    estimate = estimate_memory(SHAPE, TRAINING)
    activations = sum(
        part.bytes for part in estimate.parts if part.name in ("activations", "logits and loss")
    )
    allocated = round(estimate.allocated + (factor - 1) * activations)
    rank = RankMeasurement(
        rank=0,
        seconds=[30.0, 1.5, 1.6, 9.0],
        host_peak=3 * GIB,
        parts={"parameters": 2 * GIB, "optimizer": 3 * GIB},
        gpu="NVIDIA H100",
        gpu_memory=80 * GIB,
        peak_allocated=allocated,
        peak_reserved=round(1.1 * allocated),
        outside=2 * GIB,
    )
    memory = MeasuredMemory(
        allocated=allocated, reserved=rank.peak_reserved or 0, outside=rank.outside or 0
    )
    given: dict[str, Any] = {
        "run_id": "20261129-000000-measure-job-aaaa",
        "at": 0.0,
        "spec": "",
        "size": 4,
        "unit": "GPU",
        "world_size": 4,
        "effective_batch": 32,
        "partition": None,
        "steps": 4,
        "seconds_per_step": 1.6,
        "total_steps": 1000,
        "ranks": [rank],
        "nodes": [NodePeak(node="n1", host_peak=9 * GIB, gpu_peaks=[70 * GIB])],
        "shape": SHAPE,
        "training": TRAINING,
        "calibration": compute_calibration(SHAPE, TRAINING, memory, "run"),
    }
    return Measurement(**{**given, **changes})


def test_calibration_scales_activations_and_replaces_rules_of_thumb() -> None:
    calibration = measure().calibration
    assert calibration is not None and calibration.activations == pytest.approx(1.2, abs=0.005)
    before = estimate_memory(SHAPE, TRAINING)
    after = estimate_memory(SHAPE, TRAINING, calibration)
    was, now = ({part.name: part.bytes for part in each.parts} for each in (before, after))
    assert now["optimizer"] == was["optimizer"]
    assert now["activations"] == pytest.approx(1.2 * was["activations"], rel=0.01)
    assert now["CUDA and NCCL"] == 2 * GIB
    assert now["fragmentation"] == pytest.approx(0.1 * after.allocated, rel=0.01)
    assert "calibrated with run: activations x 1.20" in after.notes[-1]
    one_gpu = estimate_memory(SHAPE, structs.replace(TRAINING, gpus=1), calibration)
    assert {part.name: part.bytes for part in one_gpu.parts}["CUDA and NCCL"] < 2 * GIB


def test_calibration_does_not_apply_to_other_checkpointing() -> None:
    rows = list_candidates(SHAPE, TRAINING, measure().calibration)
    calibrated = {each.name for each in rows if "calibrated" in " ".join(each.estimate.notes)}
    assert "ZeRO-3" in calibrated and "ZeRO-3, checkpointing" not in calibrated


def test_measured_memory_that_contradicts_the_settings_calibrates_nothing() -> None:
    assert measure(factor=9.0).calibration is None
    states = MeasuredMemory(allocated=GIB, reserved=GIB, outside=GIB)
    assert compute_calibration(SHAPE, TRAINING, states, "run") is None


def test_calibration_is_found_for_the_same_model_and_kind_of_training(tmp_path: Path) -> None:
    folder = tmp_path / "measurements"
    folder.mkdir()
    assert find_calibration(tmp_path, SHAPE, TRAINING) is None
    write_record(folder / "20261129-1.json", measure())
    write_record(folder / "20261129-2.json", measure(calibration=None))
    (folder / "20261129-3.json").write_text("{")
    assert [each.calibration is None for each in list_measurements(tmp_path)] == [True, False]
    found = find_calibration(tmp_path, structs.replace(SHAPE, notes=["a note"]), TRAINING)
    assert found == measure().calibration
    other = structs.replace(TRAINING, zero_stage=3, gpus=8, micro_batch=2)
    assert find_calibration(tmp_path, SHAPE, other) is not None
    for changes in ({"checkpointing": True}, {"precision": "fp16"}, {"trainable": 1000}):
        assert find_calibration(tmp_path, SHAPE, structs.replace(TRAINING, **changes)) is None
    larger = build_shape(layers=32, hidden=2048, heads=16, ffn=5632, vocab=32000)
    assert find_calibration(tmp_path, larger, TRAINING) is None
    assert find_calibration(None, SHAPE, TRAINING) is None


def test_measured_memory_is_shown_beside_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    estimate = estimate_memory(SHAPE, TRAINING)
    memory = JobMemory(
        model="m",
        shape=SHAPE,
        training=TRAINING,
        estimate=estimate,
        capacity=None,
        is_certain=True,
    )
    show_measurement(measure(), memory, 79.1 * GIB)
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines() if line]
    rows = {" ".join(words[:-2]): words[-2:] for words in lines}
    computed = {part.name: f"{part.most / GIB:.2f}" for part in estimate.parts}
    assert rows["optimizer"] == [computed["optimizer"], "3.00"]
    assert rows["CUDA and NCCL"] == ["1.40", "2.00"]
    assert rows["total"][0] == f"{estimate.total / GIB:.2f}"
    assert "1 rank of 4 (without 1-3), NVIDIA H100" in shown.out
    assert "1.60 s (4 steps; the first after 30.0 s)" in shown.out
    assert "highest sample of a GPU by the driver: 70" in shown.err
    assert "of the 79.1 GiB of the GPU were used" in shown.err
    assert "activations x 1.20" in shown.err
    assert "all 1000 steps take about 26 min" in shown.err


def test_host_memory_is_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    rank = RankMeasurement(rank=0, seconds=[2.0, 0.1], host_peak=GIB, parts={"optimizer": 8 * GIB})
    show_measurement(measure(ranks=[rank], world_size=1, calibration=None), None, None)
    shown = capsys.readouterr()
    assert "IN HOST MEMORY: NO GPU" in shown.out and "8.00" in shown.out
    assert "these nodes have no GPU" in shown.err


def test_records_of_ranks_and_nodes_are_parsed_and_others_ignored() -> None:
    text = (
        '\n==> measured/rank-1.json\n{"rank": 1, "seconds": [1, 2]}\n'
        "\n==> measured/rank-0.json\n{broken\n"
        "\n==> measured/refused-1\n/home/ada/out/model.pt\n"
        "\n==> usage/0/node-0\nhpcrun-usage 1 n1 15 job 4 job 1000 nvidia:GPU-1:80\n"
        "10 5 0 100 100 1 50 7 7 300\n25 20 30000000000 200 300 2 150 8 9 700\n"
    )
    ranks, nodes, refused = _parse_records(text)
    assert [each.rank for each in ranks] == [1] and refused == ["/home/ada/out/model.pt"]
    assert nodes == [NodePeak(node="n1", host_peak=300, gpu_peaks=[9 << 20])]


def test_pace_is_that_of_the_slowest_rank_without_its_first_step() -> None:
    fast, slow = ([50.0, 1.0, 1.2, 1.1], [40.0, 2.0])
    ranks = [RankMeasurement(rank=index, seconds=each) for index, each in enumerate((fast, slow))]
    assert _find_pace(ranks) == 2.0
    assert _find_pace([RankMeasurement(rank=0, seconds=[5.0])]) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--output", "--verbose"], ["--output", "--verbose"]),
        (["--save-dir", "/r/checkpoints"], ["--save-dir", "/r/checkpoints"]),
        (["hydra.x=1", "output_dir=out"], ["hydra.x=1", "output_dir=/r/outputs/output_dir"]),
        (["output", "x"], ["output", "x"]),
    ],
)
def test_only_values_of_output_options_are_replaced(words: list[str], expected: list[str]) -> None:
    assert replace_outputs(words, "/r")[0] == expected
