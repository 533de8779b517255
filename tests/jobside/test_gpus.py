"""What the facts of a node's GPUs mean."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.jobside.gpus import Facts, Findings, judge_gpus, parse_facts

FIELDS = [
    *("compute_cap", "name", "index", "pci.bus_id", "mig.mode.current", "memory.total"),
    *("memory.used", "ecc.errors.uncorrected.volatile.total", "remapped_rows.failure"),
    *("remapped_rows.pending", "retired_pages.pending", "gpu_recovery_action"),
]
H100 = "9.0, NVIDIA H100, 0, 00000000:3B:00.0, Disabled, 81559, 4, 0, No, No, [N/A], None"
HEALTHY = Findings(bad="", warnings=[], gpus=["9.0, NVIDIA H100"])
# 2**64 - 1: NVML's value for an unknown number.
UNKNOWN = "18446744073709551615"


def judge(*rows: str, wanted: int = 1, code: int = 0, **more: Any) -> Findings:
    return judge_gpus(Facts(wanted, code, FIELDS, rows)._replace(**more))


@pytest.mark.parametrize(
    "row",
    [
        H100,
        H100.replace(", 4, 0,", f", 4, {UNKNOWN},"),
        H100.replace(", 4, 0,", f", {UNKNOWN}, 0,"),
        H100.replace(", 4, 0,", ", 00009, 0,"),
        H100.replace("81559, 4,", "0, 4096,"),
        H100.replace("81559, 4,", "143771, 2048,"),
    ],
)
def test_odd_numbers_are_not_faults(row: str) -> None:
    assert judge(row) == HEALTHY


def test_numbers_with_leading_zeros_are_decimal() -> None:
    assert judge(H100.replace(", 4, 0,", ", 08192, 010,")).warnings == [
        "GPU 0: 10 uncorrected ECC errors since the driver was loaded",
        "GPU 0: 8192 of its 81559 MB are in use by something else",
    ]


def test_missing_gpus_are_the_fault_of_a_node_that_lists_too_few() -> None:
    listed = ["GPU 0: NVIDIA H100 (UUID: GPU-0)"]
    assert judge(H100, wanted=2, listed=listed).bad == "nvidia-smi shows 1 of the 2 GPUs"
    # The list did not end in time.
    late = judge(H100, wanted=2, listed=None)
    assert late.bad == "" and late.warnings == [
        "nvidia-smi shows 1 of the 2 GPUs (CUDA_VISIBLE_DEVICES=)"
    ]


def test_facts_of_any_bytes_are_parsed() -> None:
    text = "wanted=1\ncode=9\nfields=name index\nvisible=a=b\nin_image=1\nlist_timed_out=1\n"
    facts = parse_facts(text + "answer=caf\udce9\x85, 0\nanswer=\nkernel=NVRM: x\n")
    assert facts == Facts(
        1, 9, ["name", "index"], ["caf\udce9\x85, 0"], None, ["NVRM: x"], "a=b", in_image=True
    )
