"""Write a training log of any size, mostly of noise, or with metrics in every line.

    python bench/make_log.py /tmp/big.log --lines 2400000 --metric-lines 300000
    python bench/make_log.py /tmp/dense.log --lines 2400000 --dense

In the first kind of log one line in eight has the metrics of a step; the others are noise like that
of real logs: progress of loading, NCCL's INFO lines, warnings, tracebacks, checkpoints, and numbers
that are not metrics. In the second kind a step writes twelve lines: an update of a progress bar and
a dict like those of the HF Trainer, the memory of six ranks and two lines like those of DeepSpeed's
engine, Megatron's padded columns, and pairs. The same arguments produce the same bytes.
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
    """Return a line without metrics."""
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


def dense_lines(count: int, seed: int = 0) -> Iterator[str]:
    """Yield lines that all have metrics, with their line ends, which a progress bar lacks."""
    rng = random.Random(seed)
    steps = -(-count // A_STEP)
    for step in range(1, steps + 1):
        yield from _dense_step(rng, step, steps)[: count - (step - 1) * A_STEP]


A_STEP = 12


def _dense_step(rng: random.Random, step: int, steps: int) -> list[str]:
    """Return the lines that one step writes."""
    loss = 2 + 9 / (1 + step / 5000) + rng.gauss(0, 0.05)
    norm, seconds = rng.gauss(1, 0.1), rng.gauss(0.1, 0.003)
    lr = 3e-4 * (1 - step / (steps + 1))
    clock = f"2026-11-{20 + step // 864000 % 10:02d} {step // 36000 % 24:02d}"
    stamp = f"{clock}:{step // 600 % 60:02d}:{step // 10 % 60:02d}"
    head = f"[{stamp},{step * 100 % 1000:03d}] [INFO]"
    share = step * 100 // steps
    left = int((steps - step) * 0.1)
    drawn = (
        f"\r{share:3d}%|{'█' * (share // 10):10}| {step}/{steps} [{step // 600:02d}:"
        f"{step // 10 % 60:02d}<{left // 60:02d}:{left % 60:02d}, {1 / seconds:5.2f}it/s]"
    )
    return [
        drawn + "\r",
        f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': {lr:.6e}, "
        f"'epoch': {step / 5000:.2f}}}\n",
        *(
            f"[rank{rank}]: {head} [utils.py:782:see_memory_usage] MA {rng.gauss(31, 0.3):.2f} GB"
            f"         Max_MA {rng.gauss(41, 0.3):.2f} GB         CA {rng.gauss(44, 0.3):.2f} GB"
            f"         Max_CA {rng.gauss(46, 1):.0f} GB \n"
            for rank in range(6)
        ),
        f"{head} [logging.py:96:log_dist] [Rank 0] step={step}, skipped=6, lr=[{lr!r}, {lr!r}], "
        "mom=[(0.9, 0.95), (0.9, 0.95)]\n",
        f"{head} [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step}, "
        f"RunningAvgSamplesPerSec={1 / seconds:.6f}, CurrSamplesPerSec={1.01 / seconds:.6f}, "
        f"MemAllocated={rng.gauss(31, 0.3):.2f}GB, MaxMemAllocated={rng.gauss(41, 0.3):.2f}GB\n",
        f" iteration {step:8d}/{steps:8d} | consumed samples: {step * 512:12d} | elapsed time per "
        f"iteration (ms): {seconds * 1000:.1f} | learning rate: {lr:.6E} | global batch size: "
        f"{512:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n",
        f"[{stamp}] step={step} loss={loss:.4f} lr={lr:.3e} grad_norm={norm:.3f} "
        f"tokens_per_second={rng.gauss(52000, 400):.1f} step_time={seconds * 1000:.1f}ms\n",
    ]


def write_log(path: Path, count: int, metric_lines: int) -> None:
    """Write the log of noise."""
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines(count, metric_lines))


def write_dense_log(path: Path, count: int) -> None:
    """Write the log with metrics in every line."""
    with path.open("w", newline="") as file:
        file.writelines(dense_lines(count))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--lines", type=int, default=2_400_000)
    parser.add_argument("--metric-lines", type=int, default=300_000)
    parser.add_argument("--dense", action="store_true")
    given = parser.parse_args()
    if given.dense:
        write_dense_log(given.path, given.lines)
    else:
        write_log(given.path, given.lines, given.metric_lines)


if __name__ == "__main__":
    main()
