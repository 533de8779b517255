"""Generic resources as nodes list them: ``gpu:a100:4(S:0-1),shard:8``."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What sinfo and scontrol write for none.
_NOTHING = frozenset({"", "(null)", "N/A", "none"})
_COUNT = re.compile(r"([0-9]{1,9})([KMGTkmgt]?)")
_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def node_gpus(gres: str) -> dict[str, int]:
    """Count the GPUs of a node by type; "" is the type of those that have none.

    Sockets, indices and ``no_consume`` say nothing of the number. Shares of GPUs (shard, mps) are
    no GPUs: who asks for gres gpu does not get them. What cannot be read counts for nothing.

    >>> node_gpus("gpu:a100:4(S:0-1)"), node_gpus("gpu:4(S:0,2),shard:8"), node_gpus("(null)")
    ({'a100': 4}, {'': 4}, {})
    >>> node_gpus("gpu:a100:2,gpu:1g.5gb:7"), node_gpus("gpu:v100:no_consume:2"), node_gpus("gpu")
    ({'a100': 2, '1g.5gb': 7}, {'v100': 2}, {'': 1})
    """
    found: dict[str, int] = {}
    for name, kind, count in _parse(gres):
        if name == "gpu" and count > 0:
            found[kind] = found.get(kind, 0) + count
    return found


def _parse(gres: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, type and count of each resource. A type may be a number: gpu:4090:2."""
    if gres.strip() in _NOTHING:
        return
    for text in re.sub(r"\([^()]*\)", "", gres).split(","):
        text = re.sub("^gres[:/]", "", text.strip())
        name, *rest = (part.strip() for part in re.split("[:=]", text))
        rest = [part for part in rest if part not in ("no_consume", "")]
        count = _COUNT.fullmatch(rest[-1]) if rest else None
        kind = ":".join(rest[:-1] if count else rest)
        number = int(count[1]) * _FACTOR[count[2].lower()] if count else 1
        yield name, kind, number


def count_gpus(gres: str) -> int:
    """Count the GPUs of all types.

    >>> count_gpus("gpu:a100:4(IDX:0-3),gpu:v100:2(IDX:0,2),shard:8"), count_gpus("gres/gpu:1")
    (6, 1)
    >>> count_gpus("(null)"), count_gpus("gres:gpu:h100:8"), count_gpus("gpu")
    (0, 8, 1)
    """
    return sum(node_gpus(gres).values())


def gpus_of(tres: str) -> int | None:
    """Count the GPUs in a list of trackable resources; None: it does not list them.

    Types stand beside their sum.

    >>> gpus_of("cpu=8,node=2,gres/gpu=4,gres/gpu:a100=4"), gpus_of("gres/gpu:a100=2"), gpus_of("")
    (4, 2, None)
    """
    found = tres_gpus(tres)
    return found.get("", sum(found.values())) if found else None


def tres_gpus(text: str) -> dict[str, int]:
    """Read the limits on GPUs from a list of trackable resources; "" is any type.

    >>> tres_gpus("cpu=512,gres/gpu=16,gres/gpu:a100=8"), tres_gpus(""), tres_gpus("cpu=1")
    ({'': 16, 'a100': 8}, {}, {})
    """
    pairs = re.findall(r"(?:^|,)\s*gres/gpu(?::([^=,]+))?=([0-9]{1,9})(?=,|\s*$)", text)
    return {kind: int(count) for kind, count in pairs}
