"""The memory of GPUs by the names that drivers, sites and Slurm give them."""

from __future__ import annotations

import pytest

from hpcrun.fit.gpus import find_gpu_memory
from hpcrun.text import GIB


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("NVIDIA H100 NVL", 93.0),
        ("nvidia_h100_nvl", 93.0),
        ("h100-94g", 93.0),
        ("NVIDIA H100 80GB HBM3", 79.1),
        ("NVIDIA H100 PCIe", 79.1),
        ("h100-96gb", 94.5),
        ("h100-64gb", None),
        ("NVIDIA H200 NVL", 139.7),
        ("h20-96g", 95.0),
        ("h20_141gb", 139.7),
        ("NVIDIA H20", None),
        ("NVIDIA A100X", None),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA RTX 6000 Ada Generation", 47.41),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX A6000", 47.41),
        ("l40s-48g", 44.39),
        ("a10-24gb", 22.06),
        ("l4-24g", 22.03),
        ("NVIDIA B200", 178.35),
        ("b200-192gb", 178.35),
        ("AMD Instinct MI250X", 63.98),
        ("mi250x-64gb", 63.98),
        ("mi300x-192g", 191.7),
    ],
)
def test_memory_is_that_of_the_named_gpu(name: str, gib: float | None) -> None:
    found = find_gpu_memory(name)
    assert (None if found is None else found / GIB) == gib
