"""Write a training log of any size: DeepSpeed-like metric lines among what clusters print beside.

    python bench/make_log.py /tmp/big.log --metric-lines 300000 --lines 2400000

One line in eight says what a step measured, the others are noise of the kinds that fill real logs:
progress of loading, NCCL's INFO lines, warnings, tracebacks, checkpoints, numbers that are no
metric. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

_WORDS = (  # noqa: SIM905, a list of them would be a page
    "loading weights from shard into memory took while checkpoint saved rank node tensor shape "
    "layer attention block warming cache compiled kernel dataset tokenizer bucket reduce gather "
    "stream prefetch worker queue timeout reached barrier allocated parameters flattened group"
).split()


def _noise(rng: random.Random, stamp: str) -> str:
    """One line that measures nothing."""
    number = rng.randrange(100_000)
    words = " ".join(rng.choices(_WORDS, k=rng.randrange(11, 24)))
    return rng.choice(
        (
            f"[{stamp},{number % 1000:03d}] [INFO] [engine.py:{number % 3000}:_configure] {words}",
            f"node{number % 64:03d}:{number}:{number + 7} [{number % 8}] NCCL INFO Channel "
            f"{number % 32:02d}/0 : {number % 8}[{number % 8}] -> {number % 7}[{number % 7}] via "
            "P2P/CUMEM/read",
            f"{stamp} WARNING {words} ({number / 1000:.3f} s)",
            f'  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line '
            f"{number % 2000}, in _call_impl",
            f"{words}: {number} of {number + 1000} ({number % 100}%)",
            f"[{stamp}] saved checkpoint to /scratch/run/ckpt/{number}/model-00001.pt {words}",
        )
    )


def lines(count: int, metric_lines: int, seed: int = 0) -> Iterator[str]:
    """Yield ``count`` lines, ``metric_lines`` of them metric lines, evenly spread."""
    rng = random.Random(seed)
    noise = [_noise(rng, f"2026-11-20 08:{i // 60 % 60:02d}:{i % 60:02d}") for i in range(5000)]
    step = 0
    for index in range(count):
        if (index + 1) * metric_lines // count == step:
            yield noise[rng.randrange(len(noise))]
            continue
        step += 1
        loss = 2 + 9 / (1 + step / 5000) + rng.gauss(0, 0.05)
        clock = f"{8 + step // 36000 % 16:02d}:{step // 600 % 60:02d}:{step // 10 % 60:02d}"
        yield (
            f"[2026-11-20 {clock},{step * 100 % 1000:03d}] [INFO] [train.py:212:log] step={step} "
            f"loss={loss:.4f} lr={3e-4 * (1 - step / (metric_lines + 1)):.6e} "
            f"grad_norm={rng.gauss(1, 0.1):.3f} tokens_per_second={rng.gauss(52000, 400):.1f} "
            f"step_time={rng.gauss(100, 3):.1f}ms memory={rng.gauss(41, 0.2):.2f}GiB"
        )


def write_log(path: Path, count: int, metric_lines: int) -> None:
    """Write the log."""
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines(count, metric_lines))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--lines", type=int, default=2_400_000)
    parser.add_argument("--metric-lines", type=int, default=300_000)
    given = parser.parse_args()
    write_log(given.path, given.lines, given.metric_lines)


if __name__ == "__main__":
    main()
