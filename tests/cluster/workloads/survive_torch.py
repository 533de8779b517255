"""Plain DDP that saves and ends when it is asked to, as docs/survive.md has it."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import signal

import curve
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

# doc: torch
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))  # repeated signals do no harm


def asked_to_stop(device):
    """Return True on all ranks, in the same step, if any rank received the signal."""
    flag = torch.tensor(len(asked), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def save(folder, step, model, optimizer):
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / "part")
        (folder / "part").replace(folder / f"step-{step}.pt")  # atomic: complete or absent
    dist.barrier()


# end


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    device, folder, rank = torch.device("cpu"), curve.CHECKPOINTS, dist.get_rank()
    model = curve.Model()
    wrapped, optimizer, step = DistributedDataParallel(model), curve.adam(model), 0
    dataset = curve.Samples()
    sampler: DistributedSampler[dict[str, torch.Tensor]] = DistributedSampler(dataset)
    # doc: torch
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    # end
    for number, batch in enumerate(DataLoader(dataset, curve.BATCH, sampler=sampler)):
        if number < step:
            continue
        # doc: torch
        torch.manual_seed(1000 * step + rank)  # the same dropout in step N, resumed or not
        # end
        loss = wrapped(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        curve.tell(step, loss)
        # doc: torch
        stop = asked_to_stop(device)
        if stop or step % 1000 == 0:
            save(folder, step, model, optimizer)
        if stop:
            break
        # end
    del wrapped
    curve.leave(model, step)


if __name__ == "__main__":
    main()
