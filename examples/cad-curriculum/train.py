"""Train a small multimodal language model to write CAD programs, in a curriculum of three stages.

Stage 1 learns from captions, stage 2 from captions and points, stage 3 also from pictures: the
inputs of CAD-MLLM (Xu et al. 2024, arXiv 2411.04954). Each stage starts from the weights that the
previous stage saved, with a new engine, optimizer and learning rate schedule. The result is
therefore the same whether one job trains all stages or each stage is a separate job.

Start it with any launcher that sets RANK, LOCAL_RANK and WORLD_SIZE, with a DeepSpeed JSON that
has an optimizer. It trains on GPUs if there are any, otherwise on CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler

from check_ranks import check_ranks, model_hash
from data import Shapes, floor
from model import SIZES, CadModel

INPUTS = {1: "text", 2: "text and points", 3: "text, points and pictures"}
HELD_OUT = 128  # minimum number of shapes for the evaluation, drawn from a separate seed
EVAL_BATCH = 8  # per rank


@dataclass(frozen=True)
class Saved:
    """A checkpoint after ``epoch`` complete epochs of its stage, and ``part`` steps of the next.

    DeepSpeed stores it in ``folder / tag``, with a file for each rank. The tag has the position.
    """

    folder: Path
    stage: int
    epoch: int
    over: bool  # the stage is complete
    step: int  # optimizer steps of all stages so far
    part: int = 0

    @property
    def tag(self) -> str:
        part = f"-part{self.part}" if self.part else ""
        kind = "end" if self.over else "epoch"
        return f"stage{self.stage}-{kind}{self.epoch}{part}-step{self.step}"


def find_saved(folder: Path | None) -> Saved | None:
    """Find the newest complete checkpoint of a folder, named in ``latest``."""
    if folder is None or not (folder / "latest").exists():
        return None
    tag = (folder / "latest").read_text().strip()
    found = re.fullmatch(r"stage(\d)-(epoch|end)(\d+)(?:-part(\d+))?-step(\d+)", tag)
    if found is None:
        raise SystemExit(f"{folder}/latest: {tag!r} is no checkpoint of this program")
    stage, kind, epoch, part, step = found.groups()
    return Saved(folder, int(stage), int(epoch), kind == "end", int(step), int(part or 0))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train on CAD programs, in three stages.")
    add = parser.add_argument
    add("--deepspeed_config", type=Path, required=True, help="DeepSpeed's JSON: batch, ZeRO")
    add("--checkpoint-dir", type=Path, required=True, help="saved here, and resumed from here")
    add("--init-from", type=Path, help="checkpoints of the job that trained the stage before")
    add("--stages", type=int, nargs="+", default=[1, 2, 3], choices=INPUTS, help="in this order")
    add("--epochs", type=int, nargs=3, default=[2, 3, 2], metavar="N", help="of each stage")
    add("--lr", type=float, nargs=3, default=[3e-3] * 3, metavar="LR", help="each stage's peak")
    add("--samples", type=int, default=1024, help="of each stage, made from the seed")
    add("--size", choices=SIZES, default="small", help="of the model")
    add("--llm", help="a causal LM to begin with instead: a folder, or a model of the hub")
    add("--lora", type=int, default=0, help="rank of adapters, which learn instead of the LM")
    add("--activation-checkpointing", choices=["true", "false"], default="false")
    add("--backend", default="nccl", help="of torch.distributed: nccl, or gloo on CPUs")
    add("--ranks", type=int, help="how many must be there; else WORLD_SIZE")
    add("--workers", type=int, default=0, help="processes of each rank that make samples")
    add("--seed", type=int, default=0)
    add("--wandb", metavar="PROJECT", help="log to Weights & Biases too")
    args = parser.parse_args()
    if args.stages != list(range(args.stages[0], args.stages[-1] + 1)):
        parser.error(f"--stages {args.stages}: each begins from the one before")
    return args


def stop_request(device: torch.device) -> Callable[[], bool]:
    """Return a function that is true on all ranks as soon as any rank was asked to save and stop.

    Used only in a job with `survive`, because a rank with a handler does not react to SIGTERM while
    it waits in a collective.
    """
    told: list[int] = []
    if not (os.environ.get("HPCRUN_SURVIVE") or os.environ.get("HPCRUN_SAVES")):
        return lambda: False
    for each in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, lambda number, _: told.append(number))

    def any_rank_is() -> bool:
        flag = torch.tensor(len(told), device=device)
        dist.all_reduce(flag)
        return bool(flag)

    return any_rank_is


def make_loader(
    args: argparse.Namespace, stage: int, micro_batch: int, epoch: int
) -> tuple[DataLoader[Any], list[int]]:
    """Return this rank's batches of an epoch, and the numbers of its first samples."""
    shapes = Shapes(args.samples, args.seed, stage)
    sampler: DistributedSampler[Any] = DistributedSampler(shapes, seed=args.seed, drop_last=True)
    sampler.set_epoch(epoch)  # otherwise each epoch has the same order
    loader = DataLoader(
        shapes,
        micro_batch,
        sampler=sampler,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
    )
    return loader, list(itertools.islice(sampler, 4))


def make_engine(
    args: argparse.Namespace,
    config: dict[str, Any],
    stage: int,
    before: Saved | None,
    resumed: Saved | None,
    steps: int,
) -> Any:
    """Create the model of a stage and the engine that trains it for the given number of steps.

    The weights are those of the previous stage, or of the checkpoint of this stage.
    """
    torch.manual_seed(args.seed)  # not seed + rank: all ranks must start with the same model
    model = CadModel(
        args.size, pretrained=args.llm, lora=args.lora,
        activation_checkpointing=args.activation_checkpointing == "true",
    )  # fmt: skip
    start = resumed or before
    facts = {"model": model_hash(model), "start": start.tag if start else "from the seed"}
    said = check_ranks(args.ranks or int(os.environ["WORLD_SIZE"]), device_of_rank(), facts)
    tell(f"check: {said}")
    if before is not None and resumed is None and dist.get_rank() == 0:
        # Merge fp32 weights from shards of any ZeRO stage and number of ranks. DeepSpeed broadcasts
        # those of rank 0.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            weights = get_fp32_state_dict_from_zero_checkpoint(str(before.folder), before.tag)
        model.load_state_dict(weights)
    model.train_for(stage)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = deepspeed.initialize(
        model=model,
        model_parameters=[{"params": trained, "lr": args.lr[stage - 1]}],
        config=config,
        lr_scheduler=lambda optimizer: LambdaLR(optimizer, lambda step: rate(step, steps)),
    )[0]
    if resumed is not None:
        path, _ = engine.load_checkpoint(str(resumed.folder), resumed.tag)
        if path is None:  # DeepSpeed only warns, and would start from scratch
            raise SystemExit(f"{resumed.folder}/{resumed.tag}: nothing there to resume from")
    return engine


def rate(step: int, steps: int) -> float:
    """Return the learning rate relative to its peak: linear warm-up for a tenth, then cosine."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train_stage(
    args: argparse.Namespace,
    stage: int,
    before: Saved | None,
    resumed: Saved | None,
    log: Any,
    is_to_stop: Callable[[], bool],
) -> Saved:
    """Train one stage, from its start or from a checkpoint; return its last checkpoint.

    The stage is incomplete if a rank was asked to stop.
    """
    config = json.loads(args.deepspeed_config.read_text())
    if config["zero_optimization"]["stage"] == 0:
        raise SystemExit(
            "ZeRO stage 0: a stage finds the one before in ZeRO's shards; say 1, 2 or 3"
        )
    micro_batch = config["train_micro_batch_size_per_gpu"]
    accumulated, epochs = config["gradient_accumulation_steps"], args.epochs[stage - 1]
    batches = args.samples // dist.get_world_size() // micro_batch
    steps = batches // accumulated  # drop the incomplete batch at the end of an epoch
    if steps == 0:
        raise SystemExit(f"--samples {args.samples}: less than one batch of all ranks")
    engine = make_engine(args, config, stage, before, resumed, steps * epochs)
    start = resumed or before
    step, first_epoch = start.step if start else 0, resumed.epoch if resumed else 0
    at_once = EVAL_BATCH * dist.get_world_size()  # full batches: their means weigh the same
    held_out = Shapes(math.ceil(HELD_OUT / at_once) * at_once, args.seed + 1, stage)
    lowest = floor(stage, [held_out.shape(index) for index in range(len(held_out))])
    tell(f"stage {stage} learns from {INPUTS[stage]}: {epochs} epochs of {steps} steps; no loss "
         f"can be below {lowest:.3f}")  # fmt: skip
    saved, stop = resumed, False
    for epoch in range(first_epoch, epochs):
        loader, first = make_loader(args, stage, micro_batch, epoch)
        tell(f"epoch {epoch + 1} of stage {stage} begins with samples {first}")
        batch = iter(loader)
        done = resumed.part if resumed and epoch == first_epoch else 0
        for _ in range(done * accumulated):
            next(batch)
        for part in range(done + 1, steps + 1):
            began = time.perf_counter()
            lr = engine.get_lr()[0]  # after the step, it is that of the next step
            loss = train_step(engine, batch, accumulated)
            step += 1
            log(
                stage=stage,
                epoch=epoch + 1,
                step=step,
                loss=loss,
                lr=lr,
                grad_norm=float(engine.get_global_grad_norm() or math.nan),
                samples_per_second=engine.train_batch_size() / (time.perf_counter() - began),
            )
            stop = is_to_stop()
            if stop and part < steps:
                new = Saved(args.checkpoint_dir, stage, epoch, False, step, part)
                break
        else:
            new = Saved(args.checkpoint_dir, stage, epoch + 1, epoch + 1 == epochs, step)
        saved = save(engine, new, saved)
        if stop and not saved.over:
            break
    else:
        log(stage=stage, step=step, **evaluate(engine, held_out), floor=lowest)
    engine.destroy()
    assert saved is not None
    return saved


def train_step(engine: Any, batch: Iterator[dict[str, Tensor]], accumulated: int) -> float:
    """Make one optimizer step; return the mean loss of its effective batch."""
    loss = torch.zeros((), device=engine.device)
    for _ in range(accumulated):
        part = engine(**to_device(next(batch), engine.device))
        engine.backward(part)
        engine.step()  # updates only after the last micro batch
        loss += part.detach() / accumulated
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


@torch.no_grad()
def evaluate(engine: Any, shapes: Shapes) -> dict[str, float]:
    """Return the loss on held-out shapes, and the same with the newest input of another shape.

    The second is a control: both are equal if the model ignores that input.
    """
    engine.eval()
    newest = {1: None, 2: "points", 3: "pictures"}[shapes.stage]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    total = torch.zeros(2, device=engine.device)
    mine = range(rank, len(shapes), ranks)
    loader = DataLoader(torch.utils.data.Subset(shapes, mine), EVAL_BATCH)
    for batch in loader:
        item = to_device(batch, engine.device)
        total[0] += engine(**item)
        if newest is not None:
            item[newest] = item[newest].roll(1, dims=0)
            total[1] += engine(**item)
    dist.all_reduce(total)
    engine.train()
    loss, swapped = (total / ranks / len(loader)).tolist()
    return {"eval_loss": loss} if newest is None else {"eval_loss": loss, "eval_swapped": swapped}


def save(engine: Any, new: Saved, old: Saved | None) -> Saved:
    """Save on all ranks, each its own shard, then delete the earlier checkpoint of this stage."""
    # DeepSpeed's rank 0 would write ``latest`` while other ranks may still write their shards.
    engine.save_checkpoint(str(new.folder), new.tag, save_latest=False)
    dist.barrier()
    if dist.get_rank() == 0:
        pointer = new.folder / "latest.partial"
        pointer.write_text(new.tag)
        pointer.rename(new.folder / "latest")
        if old is not None and old.stage == new.stage:
            shutil.rmtree(old.folder / old.tag, ignore_errors=True)
    dist.barrier()
    return new


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def device_of_rank() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def tell(line: str) -> None:
    """Print on rank 0 only."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def make_log(args: argparse.Namespace) -> Any:
    """Return a function that prints the values of a step, and logs them to W&B if requested."""
    run: Any = None
    if args.wandb and dist.get_rank() == 0:
        import wandb

        args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        run = wandb.init(project=args.wandb, dir=args.checkpoint_dir, config=vars(args))

    def log(**values: float) -> None:
        shown = (f"{k} {v:.3e}" if k == "lr" else f"{k} {v:.5g}" for k, v in values.items())
        tell(" | ".join(shown))
        if run is not None:
            run.log(values, step=int(values["step"]))

    return log


def main() -> None:
    """Train the requested stages that are not complete yet."""
    args = parse_arguments()
    if torch.cuda.is_available():
        torch.cuda.set_device(device_of_rank())
    deepspeed.init_distributed(args.backend, timeout=timedelta(minutes=10))
    saved, before = find_saved(args.checkpoint_dir), find_saved(args.init_from)
    if args.init_from and before is None:
        raise SystemExit(f"--init-from {args.init_from}: no checkpoint there")
    if before is not None and (before.stage, before.over) != (args.stages[0] - 1, True):
        raise SystemExit(f"--init-from {args.init_from}: {before.tag} is not the end of the stage "
                         f"before stage {args.stages[0]}")  # fmt: skip
    if before is None and args.stages[0] != 1:
        raise SystemExit(f"--stages {args.stages[0]}: say --init-from, where stage "
                         f"{args.stages[0] - 1} was saved")  # fmt: skip
    log, is_to_stop = make_log(args), stop_request(device_of_rank())
    for stage in args.stages:
        if saved is not None and (saved.stage, saved.over) >= (stage, True):
            before = saved if saved.stage == stage else before
            continue
        resumed = saved if saved is not None and saved.stage == stage else None
        before = train_stage(args, stage, before, resumed, log, is_to_stop)
        if not before.over or is_to_stop():
            break
        gc.collect()  # the engine and its model refer to each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    # Leave together, when nothing references the process group; otherwise gloo may abort.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
