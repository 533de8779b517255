"""Accelerate that saves and ends when it is asked to, as docs/survive.md has it."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import re
import shutil
import signal

import curve
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))


def asked_to_stop(device):
    """Return True on all ranks, in the same step, if any rank received the signal."""
    flag = torch.tensor(len(asked), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


# doc: accelerate
def save(accelerator, folder, step):
    accelerator.save_state(folder / "part")  # on all ranks, for their random states
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder / f"step-{step}", ignore_errors=True)  # left by an interrupted attempt
        (folder / "part").replace(folder / f"step-{step}")  # atomic: complete or absent
    accelerator.wait_for_everyone()


# end


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    plain, step, folder = curve.Model(), 0, curve.CHECKPOINTS
    loader = DataLoader(curve.Samples(), curve.BATCH)
    model, optimizer, loader = accelerator.prepare(plain, curve.adam(plain), loader)
    # doc: accelerate
    if args.resume:
        accelerator.load_state(args.resume)
        step = int(re.search(r"\d+$", args.resume)[0])

    for batch in accelerator.skip_first_batches(loader, step):
        set_seed(step, device_specific=True)  # the same dropout in step N, resumed or not
        # end
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        curve.tell(step, loss)
        stop = asked_to_stop(accelerator.device)
        if stop or step % 1000 == 0:
            save(accelerator, folder, step)
        if stop:
            break
    del model
    accelerator.free_memory()
    curve.leave(plain, step)


if __name__ == "__main__":
    main()
