"""A log with lines of several programs."""

from __future__ import annotations

import random


def mixed_log(seed: int, size: int) -> bytes:
    rng, lines, step, length = random.Random(seed), [], 0, 0
    while length < size:
        step += 1
        line = rng.choice(
            (
                b"step=%d loss=%d.5 lr=0.1" % (step, step),
                b"2026-11-20 08:%02d:00 - step: %d, loss: 1.5" % (step % 60, step),
                b"[rank%d]: step=%d grad_norm=2.5" % (step % 3, step),
                b"x" * rng.choice((3, 500, 9000)),
                b"nothing to see",
                b"",
                b"eval_loss: 2.5",
            )
        ) + rng.choice((b"\n", b"\r", b"\r\n", b"\0\n"))
        lines.append(line)
        length += len(line)
    return b"".join(lines)
