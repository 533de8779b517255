"""DeepSpeed's engine that saves and ends when it is asked to, as docs/survive.md has it."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import os
import signal

import curve
import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))


def asked_to_stop(device):
    """Return True on all ranks, in the same step, if any rank received the signal."""
    flag = torch.tensor(len(asked), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    args = parser.parse_args()
    deepspeed.init_distributed("gloo")
    folder, model, step = curve.CHECKPOINTS, curve.Model(), 0
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=curve.adam(model), config=os.environ["HPCRUN_DEEPSPEED_CONFIG"]
    )
    dataset, rank = curve.Samples(), dist.get_rank()
    sampler: DistributedSampler[dict[str, torch.Tensor]] = DistributedSampler(dataset)
    # doc: deepspeed
    if args.resume:
        place, tag = os.path.split(args.resume)
        path, state = engine.load_checkpoint(place, tag)
        assert path, f"DeepSpeed finds nothing in {args.resume}"  # DeepSpeed only warns
        step = state["step"]
    # end
    for number, batch in enumerate(DataLoader(dataset, curve.BATCH, sampler=sampler)):
        if number < step:
            continue
        torch.manual_seed(1000 * step + rank)
        loss = engine(**batch)["loss"]
        engine.backward(loss)
        engine.step()
        step += 1
        curve.tell(step, loss)
        stop = asked_to_stop(engine.device)
        if stop or step % 1000 == 0:
            # doc: deepspeed
            engine.save_checkpoint(folder, f"global_step{step}", client_state={"step": step})
            # end
        if stop:
            break
    engine.destroy()
    del engine
    curve.leave(model, step)


if __name__ == "__main__":
    main()
