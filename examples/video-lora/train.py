"""Train LoRA adapters on a frozen video diffusion transformer, with Accelerate and DeepSpeed.

Accelerate's launcher determines DeepSpeed, its ZeRO stage and the precision. Without a launcher,
the script trains in a single process.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, set_seed
from torch import nn
from torch.utils.data import DataLoader

from data import Clips, levels
from keep import fingerprints, resume, save_adapters, save_checkpoint, stop_request
from model import adapters_of, base_of, build, flow_matching_loss, size


def read_args(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line. The defaults are for a small test on any machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    clip = parser.add_argument_group("clips")
    clip.add_argument("--frames", type=int, default=6)
    clip.add_argument("--height", type=int, default=16, help="pixels, a multiple of --patch")
    clip.add_argument("--width", type=int, default=16, help="pixels, a multiple of --patch")
    base = parser.add_argument_group("base model")
    base.add_argument("--base", help="folder of a WanTransformer3DModel; else one at random, with")
    base.add_argument("--layers", type=int, default=2)
    base.add_argument("--heads", type=int, default=4)
    base.add_argument("--head-dim", type=int, default=32)
    base.add_argument("--patch", type=int, default=4, help="pixels on a token's side")
    learn = parser.add_argument_group("training")
    learn.add_argument("--rank", type=int, default=16, help="of the adapters")
    learn.add_argument("--alpha", type=float, help="of the adapters; else twice the rank")
    learn.add_argument("--dropout", type=float, default=0.0, help="of the adapters")
    learn.add_argument("--batch", type=int, default=1, help="clips on a GPU at once")
    learn.add_argument("--accumulation", type=int, default=1, help="such batches for a step")
    learn.add_argument("--steps", type=int, default=40, help="optimizer steps in all")
    learn.add_argument("--lr", type=float, default=1e-2)
    learn.add_argument("--warmup", type=int, default=0, help="steps over which --lr is reached")
    learn.add_argument("--seed", type=int, default=0)
    learn.add_argument("--activation-checkpointing", choices=("true", "false"), default="false")
    learn.add_argument("--workers", type=int, default=0, help="processes that make clips")
    keep = parser.add_argument_group("what is kept")
    keep.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    keep.add_argument("--resume-from", type=Path, help="for a run with no checkpoint yet")
    keep.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    keep.add_argument("--wandb", action="store_true", help="log to Weights & Biases as well")
    keep.add_argument("--check-base", action="store_true", help="hash all weights, on every rank")
    args = parser.parse_args(words)
    if not args.base and (args.height % args.patch or args.width % args.patch):
        parser.error(f"--height and --width must be multiples of --patch, {args.patch}")
    return args


def main(words: list[str] | None = None) -> None:
    """Train."""
    args = read_args(words)
    # With DeepSpeed on CPUs, Accelerate selects no backend; on GPUs this is nccl.
    backend = os.environ.get("HPCRUN_BACKEND")
    accelerator = Accelerator(
        gradient_accumulation_steps=args.accumulation,
        log_with="wandb" if args.wandb else None,
        kwargs_handlers=[InitProcessGroupKwargs(backend=backend)] if backend else [],
    )
    set_seed(args.seed)  # the same base and the same adapters on every rank
    model = build(args)
    optimizer = torch.optim.AdamW(adapters_of(model), lr=args.lr, weight_decay=0.0)
    clips_per_step = args.batch * args.accumulation * accelerator.num_processes
    clips = Clips(args.steps * clips_per_step, args.frames, args.height, args.width, args.seed)
    loader = DataLoader(
        clips, args.batch, num_workers=args.workers, pin_memory=torch.cuda.is_available()
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if args.wandb:
        accelerator.init_trackers("video-lora", config=vars(args))
    if accelerator.is_main_process:
        introduce(model, args)

    before = fingerprints(model) if args.check_base else ()
    done = resume(accelerator, args.checkpoint_dir, args.resume_from)
    finished = train(accelerator, model, optimizer, loader, done, args)
    if before:
        base, adapters = fingerprints(model)
        print(f"rank {accelerator.process_index}: base {before[0]} before, {base} after; "
              f"adapters {before[1]} before, {adapters} after", flush=True)  # fmt: skip
    if finished:
        save_adapters(accelerator, model, args.checkpoint_dir / "adapters")
    accelerator.end_training()


def introduce(model: nn.Module, args: argparse.Namespace) -> None:
    """Print the number of trained parameters and reference values of the loss."""
    trained, frozen = size(adapters_of(model)), size(base_of(model))
    print(f"{trained:,} parameters in the adapters, {frozen:,} in the frozen base")
    for what, loss in levels(args.frames, args.height, args.width).items():
        print(f"who knows {what} can get down to {loss:.3f}")


def train(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[dict[str, torch.Tensor]],
    done: int,
    args: argparse.Namespace,
) -> bool:
    """Train the remaining steps, and save checkpoints; return False if asked to stop."""
    is_to_stop = stop_request(accelerator)
    step, losses, began = done, [], time.perf_counter()
    for batch in accelerator.skip_first_batches(loader, done * args.accumulation):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / max(args.warmup, 1))
        with accelerator.accumulate(model):
            loss = flow_matching_loss(model, batch)
            accelerator.backward(loss)
            norm = None
            if accelerator.sync_gradients:  # DeepSpeed has clipped already, and returns the norm
                norm = accelerator.clip_grad_norm_(adapters_of(model), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        if not accelerator.sync_gradients:
            continue
        step += 1
        mean = accelerator.reduce(torch.stack(losses).mean(), "mean").item()
        seconds = time.perf_counter() - began
        told = {
            "loss": mean,
            "samples_per_sec": args.batch * args.accumulation * accelerator.num_processes / seconds,
        }
        if norm is not None:  # None if an fp16 overflow skipped the step
            told["grad_norm"] = float(norm)
        report(accelerator, step, told, args)
        stop = is_to_stop()
        if stop or step % args.save_every == 0 or step == args.steps:
            save_checkpoint(accelerator, args.checkpoint_dir, step)
        if stop and step < args.steps:
            return False
        losses, began = [], time.perf_counter()
    return True


def report(
    accelerator: Accelerator, step: int, told: dict[str, float], args: argparse.Namespace
) -> None:
    """Print the metrics of a step, and log them to W&B if enabled."""
    if torch.cuda.is_available():
        told["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if accelerator.is_main_process:
        words = " ".join(f"{name} {value:.4g}" for name, value in told.items())
        print(f"step {step}/{args.steps} {words}", flush=True)
    accelerator.log(told, step=step)


if __name__ == "__main__":
    main()
