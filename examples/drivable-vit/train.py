"""Train a vision transformer to predict the drivable region, with DeepSpeed's engine.

Hydra reads conf/config.yaml, a size from conf/size/ and the overrides on the command line.
DeepSpeed reads its JSON, which has the batch sizes, the ZeRO stage and the precision.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import deepspeed
import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.tensorboard import SummaryWriter

import checkpoints
from data import Scenes
from model import DrivableViT


def make_engine(config: DictConfig, ds_config: dict[str, Any], steps_per_epoch: int) -> Any:
    """Create model, optimizer and learning rate schedule, and pass them to DeepSpeed."""
    torch.manual_seed(config.seed)  # the same on all ranks, so that they start with the same model
    model = DrivableViT(
        **config.model, activation_checkpointing=config.training.activation_checkpointing
    )
    settings = {"lr": config.training.lr, "weight_decay": config.training.weight_decay}
    offload = ds_config["zero_optimization"].get("offload_optimizer") or {"device": "none"}
    optimizer: torch.optim.Optimizer
    if offload["device"] == "none":
        optimizer = torch.optim.AdamW(model.parameters(), **settings)
    else:  # with states in host memory, the CPU makes the step
        optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), **settings)
    warmup: int = config.training.warmup_epochs * steps_per_epoch
    total = config.training.epochs * steps_per_epoch

    def factor(step: int) -> float:
        """Linear warm-up, then cosine decay to zero."""
        if step < warmup:
            return (step + 1) / warmup
        part = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1 + math.cos(math.pi * part))

    return deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=lambda inner: LambdaLR(inner, factor),
        config=ds_config,
    )[0]


class Log:
    """Logs to standard output and TensorBoard, on rank 0 only."""

    def __init__(self, engine: Any, config: DictConfig, steps_per_epoch: int) -> None:
        self.engine, self.every = engine, config.training.log_every
        self.steps = config.training.epochs * steps_per_epoch
        self.board = None
        if dist.get_rank() == 0:
            # Discards what a killed run wrote after its last checkpoint.
            self.board = SummaryWriter(config.tensorboard, purge_step=engine.global_steps + 1)
        self.start_clock()

    def start_clock(self) -> None:
        """Start the clock for the speed."""
        self.began, self.told = time.perf_counter(), self.engine.global_steps

    def say(self, text: str) -> None:
        """Print a line."""
        if self.board:
            print(text, flush=True)

    def metrics(self, epoch: int, values: dict[str, float]) -> None:
        """Log metrics of a step."""
        step = self.engine.global_steps
        words = [f"{name}={value:.5g}" for name, value in values.items()]
        self.say(f"epoch={epoch} step={step}/{self.steps} {' '.join(words)}")
        for name, value in values.items() if self.board else ():
            is_val = name.startswith("val_")
            self.board.add_scalar(f"val/{name[4:]}" if is_val else f"train/{name}", value, step)

    def step(self, epoch: int, loss: Tensor, lr: float) -> None:
        """Log every n-th optimizer step, with the mean of the ``loss`` of all ranks."""
        engine = self.engine
        if engine.global_steps % self.every:
            return
        dist.all_reduce(loss)
        mean = loss.item() / dist.get_world_size()  # waits for the GPU: the clock is correct
        seconds = time.perf_counter() - self.began
        samples = engine.train_batch_size() * (engine.global_steps - self.told)
        self.start_clock()
        values = {
            "loss": mean,
            "lr": lr,
            "grad_norm": float(engine.get_global_grad_norm() or 0.0),
            "samples_per_second": samples / seconds,
        }
        if engine.fp16_enabled():
            values["loss_scale"] = float(engine.optimizer.loss_scale)
        self.metrics(epoch, {**values, **memory_figures(engine.device)})

    def close(self) -> None:
        """Flush the TensorBoard file."""
        if self.board:
            self.board.close()


def train_epoch(
    engine: Any,
    loader: DataLoader[Any],
    epoch: int,
    steps: range,
    log: Log,
    is_to_stop: Callable[[], bool],
) -> int:
    """Make the optimizer steps of an epoch; return their number, lower if asked to stop."""
    engine.train()
    micro_batches = iter(loader)
    for _ in range(steps.start * engine.gradient_accumulation_steps()):
        next(micro_batches)
    log.start_clock()
    for step in steps:
        total = torch.zeros((), device=engine.device)
        for _ in range(engine.gradient_accumulation_steps()):
            pictures, drivable, _ = next(micro_batches)
            logits = engine(to_model(pictures, engine)).float()
            # In nats per pixel: 0.69 for a random guess.
            loss = F.binary_cross_entropy_with_logits(logits, drivable.to(engine.device))
            lr = engine.get_lr()[0]  # after the step, it is that of the next step
            engine.backward(loss)  # divides by the number of accumulated micro batches
            engine.step()  # updates only after the last micro batch
            total += loss.detach() / engine.gradient_accumulation_steps()
        log.step(epoch, total, lr)
        if is_to_stop():
            return step + 1
    return steps.stop


@torch.no_grad()
def validate(engine: Any, scenes: Scenes) -> dict[str, float]:
    """Evaluate on all ranks together, each scene once.

    Returns the mean loss in nats per pixel, and the IoU of the drivable region, for all cameras and
    for covered cameras only. Every rank makes the same number of forward passes, because ZeRO-3
    gathers parameters in each; if a rank has no scene left, it repeats one with weight 0.
    """
    engine.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    size = engine.train_micro_batch_size_per_gpu()
    # Loss and pixels; intersection and union, for all cameras and for covered ones.
    sums = torch.zeros(6, dtype=torch.float64, device=engine.device)
    for first in range(rank * size, rank * size + len(scenes), world * size):
        numbers = range(first, first + size)
        parts = zip(*(scenes[number % len(scenes)] for number in numbers), strict=True)
        pictures, drivable, covered = (torch.stack(part).to(engine.device) for part in parts)
        counts = torch.tensor([number < len(scenes) for number in numbers], device=engine.device)
        weight = counts.view(-1, 1, 1, 1)
        logits = engine(to_model(pictures, engine)).float()
        is_covered = F.one_hot(covered, pictures.shape[2])[:, :, None, None]
        both = ((logits > 0) & (drivable > 0.5)) * weight
        either = ((logits > 0) | (drivable > 0.5)) * weight
        loss = F.binary_cross_entropy_with_logits(logits, drivable, reduction="none") * weight
        pixels = weight.expand_as(logits)
        found = [loss, pixels, both, either, both * is_covered, either * is_covered]
        sums += torch.stack([each.double().sum() for each in found])
    dist.all_reduce(sums)
    loss, pixels, both, either, covered_both, covered_either = sums.tolist()
    return {
        "val_loss": loss / pixels,
        "val_iou": both / either,
        "val_covered_iou": covered_both / covered_either,
    }


def to_model(pictures: Tensor, engine: Any) -> Tensor:
    """Move pictures to the model's device and number format."""
    dtype = torch.float16 if engine.fp16_enabled() else torch.float32
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else dtype
    return pictures.to(engine.device, dtype, non_blocking=True)


def memory_figures(device: torch.device) -> dict[str, float]:
    """Return the peak memory of this rank in GB: of the GPU, otherwise of the host."""
    if device.type == "cuda":
        return {
            "memory_allocated_gb": torch.cuda.max_memory_allocated() / 1e9,
            "memory_reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
        }
    return {"host_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def refuse(message: str) -> NoReturn:
    """Exit on all ranks with code 2; rank 0 prints the reason to stderr."""
    if dist.get_rank() == 0:
        print(f"error: {message}", file=sys.stderr, flush=True)
    leave()
    sys.exit(2)


def leave() -> None:
    """Destroy the process group together with the other ranks.

    gloo may abort a process that still holds the group while others leave it (exit code 134).
    """
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def agree_on_checkpoint(config: DictConfig, facts: dict[str, Any]) -> tuple[Path | None, bool]:
    """Find the checkpoint to resume from, and whether it is universal; rank 0 decides for all.

    Another node may see an outdated state of the folder.
    """
    answer: list[Any] = [None, False, ""]
    if dist.get_rank() == 0:
        try:
            folder = Path(config.checkpoint.folder)
            found = checkpoints.find(config.checkpoint.resume, folder, facts)
            whole = checkpoints.make_universal(found, folder, facts) if found else None
            answer = [whole or found, whole is not None, ""]
        except ValueError as error:
            answer[2] = str(error)
    dist.broadcast_object_list(answer)
    if answer[2]:
        refuse(answer[2])
    return answer[0], answer[1]


def train(config: DictConfig, ds_config: dict[str, Any], facts: dict[str, Any]) -> None:
    """Train from the first epoch, or the one after the checkpoint, to the last."""
    steps_per_epoch = config.data.train_scenes // ds_config["train_batch_size"]
    if steps_per_epoch == 0:
        refuse("data.train_scenes is less than the effective batch, train_batch_size")
    resume, is_universal = agree_on_checkpoint(config, facts)
    ds_config["checkpoint"] = {**ds_config.get("checkpoint", {}), "load_universal": is_universal}
    engine = make_engine(config, ds_config, steps_per_epoch)
    done, part, best = 0, 0, math.inf
    if resume:
        loaded, _ = engine.load_checkpoint(str(resume.parent), tag=resume.name)
        if loaded is None:  # DeepSpeed only warns, and would start from scratch
            refuse(f"{resume}: DeepSpeed finds nothing to load there")
        saved = checkpoints.read(resume)
        done, part, best = saved["epoch"], saved.get("steps_of_next", 0), saved["best"]
    log = Log(engine, config, steps_per_epoch)
    how = f"ZeRO-{facts['zero_stage']}, {facts['precision']} on {engine.device.type}"
    begin = f"resumes from {resume}, after epoch {done}" if resume else "begins anew"
    log.say(f"{parameters(engine):,} parameters, {facts['world_size']} ranks, {how}; {begin}")

    shape = {key: config.model[key] for key in ("views", "frames", "image_size")}
    scenes = Scenes(count=config.data.train_scenes, seed=config.seed, **shape)
    held_out = Scenes(count=config.data.val_scenes, seed=config.seed + 1_000_000, **shape)
    # The scenes of a step depend on the effective batch, not on the number of ranks.
    sampler: DistributedSampler[Any] = DistributedSampler(scenes, seed=config.seed, drop_last=True)
    loader = DataLoader(
        scenes,
        batch_size=engine.train_micro_batch_size_per_gpu(),
        sampler=sampler,
        num_workers=config.data.workers,
        pin_memory=engine.device.type == "cuda",
    )
    folder = Path(config.checkpoint.folder)
    is_to_stop = checkpoints.stop_request(engine.device)
    for epoch in range(done + 1, config.training.epochs + 1):
        sampler.set_epoch(epoch)  # a different order in each epoch
        steps = range(part, steps_per_epoch)
        part = train_epoch(engine, loader, epoch, steps, log, is_to_stop)
        if part < steps_per_epoch:  # asked to stop
            facts = {**facts, "epoch": epoch - 1, "steps_of_next": part, "best": best}
            tag = f"step-{engine.global_steps:06d}"
            checkpoints.save(engine, folder, tag, facts, latest=True)
            break
        part = 0
        measured = validate(engine, held_out)
        log.metrics(epoch, measured)
        is_best = measured["val_loss"] < best  # the same on all ranks: all save, or none
        best = min(best, measured["val_loss"])
        facts = {**facts, "epoch": epoch, "best": best, **measured}
        if epoch % config.checkpoint.every == 0 or epoch == config.training.epochs:
            checkpoints.save(engine, folder, f"epoch-{epoch:04d}", facts, latest=True)
        if is_best:
            checkpoints.save(engine, folder, "best", facts, latest=False)
    log.close()
    engine.destroy()


def parameters(engine: Any) -> int:
    """Count the parameters of the model; under ZeRO-3 the full count is in ds_numel."""
    return sum(getattr(each, "ds_numel", each.numel()) for each in engine.module.parameters())


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(config: DictConfig) -> None:
    """Initialize the process group, train, and leave together."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(dist_backend=config.backend)
    ds_config = json.loads(Path(config.training.deepspeed_config).read_text(encoding="utf-8"))
    used = [name for name in ("bf16", "fp16") if ds_config.get(name, {}).get("enabled")]
    facts = {
        "world_size": dist.get_world_size(),
        "zero_stage": ds_config["zero_optimization"]["stage"],
        "precision": used[0] if used else "fp32",
        "model": OmegaConf.to_container(config.model),
    }
    train(config, ds_config, facts)
    leave()


if __name__ == "__main__":
    main()
