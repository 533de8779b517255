"""Parsing of a usage step's output: formats of real drivers, gaps and garbage."""

from __future__ import annotations

import random

import pytest

from hpcrun.actions.usage import UsageLines
from hpcrun.runs.status import GpuUse, NodeUse

# nvidia-smi csv,noheader,nounits: MiB, watts, degrees; missing values are in brackets.
A100 = "0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 97, 61234, 81920, 311.42, 64"
MIG = "1, GPU-1f2e3d4c-0000-1111-2222-333344445555, [N/A], 512, 40960, [Not Supported], 33"
LOST = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost."
MIB = 1 << 20


def uses(*lines: str, node: str = "n1") -> list[NodeUse]:
    reader = UsageLines()
    for line in lines:
        reader.feed(f"hpcrun-top {node} {line}\n")
    return reader.uses()


def gpus(*lines: str) -> tuple[GpuUse, ...]:
    (use,) = uses("begin 1", *lines, "end")
    return use.gpus


def test_nvidia_smi_output_is_parsed() -> None:
    full, part = gpus("visible ", f"gpu {A100}", f"gpu {MIG}", f"gpu {LOST}")
    assert full == GpuUse(
        index=0,
        utilization=97,
        memory_used=61234 * MIB,
        memory_total=81920 * MIB,
        power_watts=311.42,
        temperature_celsius=64,
    )
    assert (part.index, part.utilization, part.power_watts) == (1, None, None)
    assert part.memory_total == 40960 * MIB


def test_amd_driver_output_is_parsed() -> None:
    (gpu,) = gpus("visible 1", "amd 0 99 1 2", "amd 1 42 68702699520 137438953472", "amd x y")
    assert (gpu.index, gpu.utilization, gpu.memory_total) == (1, 42, 137438953472)
    (unknown,) = gpus("amd 0 7 - -")
    assert unknown.memory_used is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", [1]), ("0,1", [0, 1]), ("GPU-8932f937", [0]), ("", [0, 1]), ("MIG-7", [0, 1])],
)
def test_only_gpus_of_the_job_are_reported(visible: str, expected: list[int]) -> None:
    found = gpus(f"visible {visible}", f"gpu {A100}", f"gpu {MIG}")
    assert [gpu.index for gpu in found] == expected


def test_cpu_use_is_the_difference_of_two_samples() -> None:
    first = ["begin 100.0", "cpu job 5000000000 8", "memory job 100 200", "end"]
    (use,) = uses(*first)
    assert (use.cpus_busy, use.cpus, use.cpu_of, use.memory_of) == (None, 8, "job", "job")
    (use,) = uses(*first, "begin 102.0", "cpu job 11000000000 8", "memory job 150 200", "end")
    assert (use.cpus_busy, use.memory_used) == (3.0, 150)


def test_node_ticks_exclude_idle_and_duplicate_guest_time() -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    first = ["begin 10", "stat 4 100 0 0 9000 50 0 0 0 77 0", "end"]
    (use,) = uses(*first, "begin 12", "stat 4 300 50 50 9800 90 50 50 0 177 0", "end")
    assert (use.cpus_busy, use.cpus, use.cpu_of) == (2.0, 4, "node")


def test_stopped_clock_or_falling_counter_yields_no_use() -> None:
    (use,) = uses("begin 5", "cpu job 9 1", "end", "begin 5", "cpu job 99 1", "end")
    assert use.cpus_busy is None
    (use,) = uses("begin 5", "cpu job 9000000000 1", "end", "begin 6", "cpu job 0 1", "end")
    assert use.cpus_busy == 0.0


def test_interleaved_node_lines_are_separated_and_sorted() -> None:
    reader = UsageLines()
    for line in ("n10 begin 1", "n2 begin 1", "n10 memory node 1 2", "n2 end", "n10 end"):
        reader.feed(f"hpcrun-top {line}\n")
    assert [(use.node, use.memory_used) for use in reader.uses()] == [("n2", None), ("n10", 1)]


def test_usage_lines_are_parsed_in_any_chunks() -> None:
    text = f"hpcrun-top n1 begin 1\nhpcrun-top n1 gpu {A100}\nhpcrun-top n1 end\n"
    whole, parted = UsageLines(), UsageLines()
    whole.feed(text)
    for char in text:
        parted.feed(char)
    assert parted.uses() == whole.uses() != []


def test_garbage_is_ignored() -> None:
    chance = random.Random(7)
    words = ["hpcrun-top", "n1", "begin", "end", "stat", "cpu", "gpu", "memory", "visible", "-1"]
    words += ["1e9", "nan", "٣", "", ",,,,,,", "0, a, 1, 2, 3, 4, 5", "9" * 400, "\x1b[2J", "job"]
    reader = UsageLines()
    for _ in range(3000):
        line = " ".join(chance.choices(words, k=chance.randrange(9)))
        reader.feed(line + chance.choice(["\n", "", "\r\n"]))
    reader.feed("x" * 1_000_000)
    for use in reader.uses():
        assert use.cpus_busy is None or use.cpus_busy >= 0
    reader.feed("\nhpcrun-top n7 begin 1\nhpcrun-top n7 end\n")
    assert any(use.node == "n7" for use in reader.uses())
