"""Operations of a training step, and the peak speed of GPUs."""

from __future__ import annotations

import re

from hpcrun.fit.shape import ModelShape

# Dense operations per second in bf16 or fp16, by the name of the GPU as torch and nvidia-smi print
# it; the first match counts. Sources: the data sheets of NVIDIA and AMD, without sparsity. Of an
# MI250X each of the two dies is a GPU.
_PEAKS = (
    (r"B200\b", 2.25e15),
    (r"GH200\b", 989.4e12),
    (r"H200 NVL\b", 835.5e12),
    (r"H200\b", 989.4e12),
    (r"H100 PCIe\b", 756.5e12),
    (r"H100 NVL\b", 835.5e12),
    (r"H100 80GB HBM3\b", 989.4e12),
    (r"A100[- ]", 311.9e12),
    (r"L40S\b", 362.05e12),
    (r"A40\b", 149.7e12),
    (r"MI300X\b", 1307.4e12),
    (r"MI250X\b", 191.5e12),
)
_SLICE = re.compile(r"\bMIG\b|[0-9]g\.[0-9]+gb", re.I)


def find_peak_flops(name: str) -> float | None:
    """Return the peak operations per second of a GPU in 16 bits; None if its name is unknown.

    >>> find_peak_flops("NVIDIA A100-SXM4-80GB") / 1e12, find_peak_flops("NVIDIA H100 PCIe") / 1e12
    (311.9, 756.5)
    >>> find_peak_flops("NVIDIA A100-SXM4-40GB MIG 3g.20gb"), find_peak_flops("FastGPU 9")
    (None, None)
    """
    if _SLICE.search(name):
        return None
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def count_token_flops(shape: ModelShape, sequence: int) -> float | None:
    """Return the operations of a training step for one token; None if the shape leaves them open.

    Six operations per weight of the blocks and the head (a multiplication and an addition, forwards
    once and backwards twice), and 12 × layers × width × sequence for the attention, as in appendix
    B of the PaLM paper (arXiv:2204.02311). Operations that are repeated for activation
    checkpointing do not count.

    >>> from hpcrun.fit.shape import Stack
    >>> stack = Stack(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336)
    >>> shape = ModelShape(stacks=[stack], vocab=128256)
    >>> count_token_flops(shape, 8192) / 1e9
    57.914425344
    """
    if len(shape.stacks) != 1 or not shape.vocab or shape.notes:
        return None
    (stack,) = shape.stacks
    if not stack.causal or stack.experts > 1 or stack.length is not None:
        return None
    weights = stack.layers * stack.layer_parameters + shape.vocab * stack.hidden
    return 6.0 * weights + 12.0 * stack.layers * stack.heads * stack.head_dim * sequence
