"""The batch sizes of a job: those that it sets, and those derived from its number of ranks."""

from __future__ import annotations

from msgspec import Struct

from hpcrun.plan.findings import Findings
from hpcrun.spec import Batch


class BatchSizes(Struct, frozen=True, kw_only=True):
    """Samples per GPU, forward passes per optimizer step, and samples per optimizer step."""

    micro_batch_per_gpu: int
    gradient_accumulation_steps: int
    effective: int


def decide_batch(
    batch: Batch, replicas: int, found: Findings, *, where: str = "batch.effective"
) -> BatchSizes:
    """Complete the batch sizes of a job; refuse an effective batch that is not divisible.

    Args:
        replicas: The number of copies of the model that train on different samples.
        where: The key of the effective batch, for messages.

    >>> decide_batch(Batch(effective=64, micro_batch_per_gpu=4), 8, Findings())
    BatchSizes(micro_batch_per_gpu=4, gradient_accumulation_steps=2, effective=64)
    >>> decide_batch(Batch(effective=64), 8, Findings()).micro_batch_per_gpu
    8
    """
    micro, steps, effective = (
        batch.micro_batch_per_gpu,
        batch.gradient_accumulation_steps,
        batch.effective,
    )
    if effective is not None:
        known = (micro or 1) * (steps or 1) * replicas
        factors = [f"{replicas} ranks"]
        factors += [f"{micro} samples per GPU"] if micro else []
        factors += [f"{steps} accumulated steps"] if steps else []
        if effective % known:
            below, above = effective // known * known, -(-effective // known) * known
            nearest = " or ".join(str(size) for size in (below, above) if size)
            message = f"{effective} is not a multiple of {' x '.join(factors)}; {nearest} is"
            found.refuse(where, message)
        elif micro and steps and known != effective:
            message = (
                f"{effective}, but {' x '.join(factors)} make {known}: remove one of the three"
            )
            found.refuse(where, message)
        elif micro:
            steps = steps or effective // known
        else:
            micro = effective // known
    micro, steps = micro or 1, steps or 1
    return BatchSizes(
        micro_batch_per_gpu=micro,
        gradient_accumulation_steps=steps,
        effective=micro * steps * replicas,
    )
