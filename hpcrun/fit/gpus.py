"""The memory of GPUs by the name of their type."""

from __future__ import annotations

import difflib
import re

from hpcrun.errors import InputError
from hpcrun.text import GIB

# GiB that torch can use: "total capacity of" in messages of torch.OutOfMemoryError. They are less
# than the advertised size, because of ECC and of memory that the driver reserves.
_CAPACITIES = {
    "v100-16g": 15.77,
    "v100-32g": 31.73,
    "t4": 14.56,
    "p100": 15.89,
    "a10": 22.06,
    "a10g": 22.06,
    "a30": 23.5,
    "l4": 22.03,
    "rtx3090": 23.5,
    "rtx4090": 23.5,
    "a40": 44.4,
    "a6000": 47.41,
    "rtx6000ada": 47.41,
    "l40": 44.39,
    "l40s": 44.39,
    "a100-40g": 39.38,
    "a100-80g": 79.14,
    "h100": 79.1,
    "h100-94g": 93.0,
    "h100nvl": 93.0,
    "h100-96g": 94.5,
    "h20-96g": 95.0,
    "h20-141g": 139.7,
    "gh200": 94.5,
    "h200": 139.7,
    "b200": 178.35,
    "mi250x": 63.98,
    "mi300x": 191.7,
}
# Types with several sizes: the name alone does not tell which.
_AMBIGUOUS = {
    "v100": ("v100-16g", "v100-32g"),
    "a100": ("a100-40g", "a100-80g"),
    "h20": ("h20-96g", "h20-141g"),
}
# How far the advertised GB may be from the usable GiB: an A10 has 24 GB and 22.06 GiB. The next
# sizes of a type are further apart, such as H100 with 64, 80 and 94 GB.
_SIZE_TOLERANCE = 0.1
_SIZE = re.compile(r"(?<![0-9a-z])([0-9]{2,3})\s*g(i?b)?(?![a-z0-9])", re.I)


def find_gpu_memory(name: str) -> float | None:
    """Return the usable bytes of a GPU type; None if the name does not determine them.

    >>> find_gpu_memory("nvidia_a100-sxm4-80gb") / GIB, find_gpu_memory("A100-40G") / GIB
    (79.14, 39.38)
    >>> find_gpu_memory("h100") / GIB, find_gpu_memory("h100-96gb") / GIB
    (79.1, 94.5)
    >>> find_gpu_memory("nvidia_h100_nvl") / GIB, find_gpu_memory("h100-94gb") / GIB
    (93.0, 93.0)
    >>> find_gpu_memory("a100"), find_gpu_memory("fastgpu"), find_gpu_memory("a100_3g.20gb")
    (None, None, None)
    """
    lowered = name.lower()
    if re.search(r"[0-9]g\.[0-9]+gb|mig", lowered):
        return None  # a slice
    words = re.findall(r"[a-z0-9]+", re.sub(_SIZE, " ", lowered.replace("_", "-")))
    size = _SIZE.search(lowered.replace("_", "-"))
    joined = ["".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    for known, gib in sorted(_CAPACITIES.items(), key=lambda row: -len(row[0])):
        model, _, memory = known.partition("-")
        if model not in joined:
            continue
        if size is not None and memory and int(size[1]) != int(memory[:-1]):
            continue
        if size is None and model in _AMBIGUOUS:
            return None
        if size is None and memory:
            continue  # a rarer size
        if size is not None and not memory and abs(int(size[1]) - gib) > _SIZE_TOLERANCE * gib:
            continue  # another size than the known one
        return gib * GIB
    return None


def parse_gpu(text: str) -> float:
    """Return the usable bytes of a GPU that a user names, or of a size such as 40G.

    Raises:
        InputError: The type is unknown, or has several sizes.

    >>> parse_gpu("48G") / GIB
    48.0
    """
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(g|gb|gib)", text.strip().lower())
    if size is not None and float(size[1]) > 0:
        return float(size[1]) * GIB
    if (found := find_gpu_memory(text)) is not None:
        return found
    word = text.strip().lower()
    if word in _AMBIGUOUS:
        raise InputError(
            f"--gpu {text}: this type has several sizes",
            fix=f"--gpu {_AMBIGUOUS[word][0]} or --gpu {_AMBIGUOUS[word][1]}",
        )
    close = difflib.get_close_matches(word, _CAPACITIES, 1, 0.6)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InputError(
        f"--gpu {text}: the memory of this type is unknown to hpcrun",
        fix=f"{hint}give its size, as in --gpu 48G, or one of {', '.join(sorted(_CAPACITIES))}",
    )
