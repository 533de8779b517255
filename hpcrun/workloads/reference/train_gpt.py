"""Train a small GPT on bytes: from text to checkpoint, on one process or many.

The program needs torch, and deepspeed when `--deepspeed-config` asks for it; nothing else. Start
it with torchrun, with srun (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set), or alone.
Without `--deepspeed-config` it trains with DistributedDataParallel. It runs on GPUs with nccl and,
where there are none, on CPUs with gloo.

stdout holds one JSON object a line, all from rank 0, and nothing else:

    {"config": {"world_size": 4, "parameters": 426368, "effective_batch": 16, ...}}
    {"step": 1, "loss": 5.57, "lr": 0.0003, "grad_norm": 1.6, "tokens_per_second": 21000.0,
     "step_seconds": 0.19, "memory_allocated_bytes": 459000000}
    {"step": 50, "eval_loss": 1.9}

A loss is the mean over the whole effective batch, grad_norm the global norm before clipping (inf
where fp16 overflowed), memory_allocated_bytes rank 0's peak: on a GPU what torch allocated since
the line before, on a CPU the resident set of the process since its start.

The samples of a step depend on the seed and the global sample index alone, the initial weights on
the seed and the parameter alone. So in fp32 a run's losses are the same, but for rounding, on any
number of ranks and with any ZeRO stage, as long as the effective batch is the same; and a resumed
run continues the losses of the run that was cut off.

In a job with `survive`, SIGTERM or SIGUSR1 to any rank has all ranks end together when the step is
done, with exit code 0; with `--checkpoint-dir` they save it first.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from arguments import World, effective_batch, parse_arguments, read_deepspeed_config, read_world
from checkpoints import find_checkpoint, load_checkpoint, save_checkpoint
from data import load_tokens, micro_batches
from strategies import DeepSpeedZeRO, PlainDDP, Strategy


def claim_stdout() -> TextIO:
    """Keep stdout for records; what libraries and compilers print there goes to stderr."""
    records = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return records


def emit(stream: TextIO, **values: Any) -> None:
    """Write one JSON line, at once."""
    print(json.dumps(values, default=str), file=stream, flush=True)


def learning_rate(step: int, arguments: argparse.Namespace) -> float:
    """Return the rate of a step (the first is 1): linear warm-up, then a cosine to a tenth."""
    peak: float = arguments.lr
    warmup: int = arguments.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    done = (step - warmup) / (arguments.steps - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def is_due(step: int, every: int, last: int) -> bool:
    """Return whether a step is one of every N (0: none), or the last."""
    return step == last or (every > 0 and step % every == 0)


def mean_over_ranks(value: Tensor, world: World) -> float:
    """Average a value over all ranks."""
    dist.all_reduce(value)
    return float(value) / world.size


def asked_to_stop(world: World) -> Callable[[], bool]:
    """Return what tells whether to save and end: on all ranks alike, once any of them was asked.

    Only in a job that wants it: a rank that notices SIGTERM does not end by it while it waits for
    others, and launchers end the ranks of a failed run so.
    """
    if not (os.environ.get("HPCRUN_SURVIVE") or os.environ.get("HPCRUN_SAVES")):
        return lambda: False
    told: list[int] = []
    for each in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, lambda number, _: told.append(number))  # more than one do no harm

    def any_rank_is() -> bool:
        flag = torch.tensor(len(told), device=world.device)
        dist.all_reduce(flag)
        return bool(flag)

    return any_rank_is


def peak_memory(world: World) -> int:
    """Return the peak in bytes: of torch's allocations on a GPU, of the process on a CPU."""
    if world.device.type == "cuda":
        peak: int = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@torch.no_grad()
def evaluate(
    strategy: Strategy, tokens: Tensor, arguments: argparse.Namespace, world: World
) -> float:
    """Return the mean loss over --eval-batches effective batches of held-out text."""
    strategy.model.eval()
    total = torch.zeros((), device=world.device)
    for number in range(arguments.eval_batches):
        first = number * effective_batch(arguments, world.size)
        for batch in micro_batches(tokens, first, arguments, world):
            total += strategy.loss(batch)
    strategy.model.train()
    micro: int = arguments.eval_batches * arguments.gradient_accumulation_steps
    return mean_over_ranks(total, world) / micro


def fail(how: str) -> NoReturn:
    """Fail as --fail-at says."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit7":
        os._exit(7)  # as a library does that ends the process: no traceback, no clean-up
    raise RuntimeError("this failure was asked for by --fail-at")


def parameter_hash(strategy: Strategy) -> str:
    """Return the SHA-256 over the names and bytes of all parameters, as this rank sees them."""
    digest = hashlib.sha256()
    for name, parameter in strategy.module.named_parameters():
        with strategy.gather(parameter):
            digest.update(name.encode())
            values = parameter.detach().cpu().contiguous().view(torch.uint8)
            digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def train(
    arguments: argparse.Namespace,
    world: World,
    deepspeed_config: dict[str, Any] | None,
    data: tuple[Tensor, Tensor],
    facts: dict[str, Any],
    resume_from: Path | None,
    stdout: TextIO,
) -> None:
    """Train from the first step, or the one after the checkpoint, to the last."""
    strategy: Strategy
    if deepspeed_config is None:
        strategy = PlainDDP(arguments, world)
    else:
        strategy = DeepSpeedZeRO(arguments, world, deepspeed_config)
    training_data, held_out = data
    is_to_stop = asked_to_stop(world)
    done, next_sample = 0, 0
    if resume_from:
        done, next_sample = load_checkpoint(strategy, resume_from)
        facts = {**facts, "resumed_from_step": done}
    if world.rank == 0:
        # ZeRO-3 leaves each rank a shard, and the count in ds_numel.
        counts = [getattr(p, "ds_numel", p.numel()) for p in strategy.module.parameters()]
        emit(stdout, config={**facts, "parameters": sum(counts)})
    for step in range(done + 1, arguments.steps + 1):
        if arguments.fail_at and not resume_from and arguments.fail_at[:2] == (step, world.rank):
            fail(arguments.fail_at[2])
        began = time.perf_counter()
        lr = learning_rate(step, arguments)
        for group in strategy.optimizer.param_groups:
            group["lr"] = lr
        batches = list(micro_batches(training_data, next_sample, arguments, world))
        loss, grad_norm = strategy.step(batches)
        mean_loss = mean_over_ranks(loss, world)
        seconds = time.perf_counter() - began
        next_sample += facts["effective_batch"]
        if world.rank == 0:
            emit(
                stdout,
                step=step,
                loss=mean_loss,
                lr=lr,
                grad_norm=grad_norm,
                tokens_per_second=facts["effective_batch"] * arguments.seq_len / seconds,
                step_seconds=seconds,
                memory_allocated_bytes=peak_memory(world),
            )
        if arguments.eval_every and is_due(step, arguments.eval_every, arguments.steps):
            eval_loss = evaluate(strategy, held_out, arguments, world)
            if world.rank == 0:
                emit(stdout, step=step, eval_loss=eval_loss)
        stop = is_to_stop()
        is_saved = stop or is_due(step, arguments.checkpoint_every, arguments.steps)
        if arguments.checkpoint_dir and is_saved:
            position = {"step": step, "next_sample": next_sample}
            save_checkpoint(strategy, arguments.checkpoint_dir, world, {**facts, **position})
        if stop:
            break
    if arguments.parameter_hash:
        emit(stdout, parameter_hash=parameter_hash(strategy), rank=world.rank)
    strategy.close()


@record  # torchrun's summary then shows the traceback of the rank that failed first
def main() -> None:
    """Read the arguments, join the other ranks, train, leave together."""
    # What can be refused is refused here, before any rank waits for another.
    arguments = parse_arguments(sys.argv[1:])
    stdout = claim_stdout()
    world = read_world(os.environ, arguments.precision)
    config, name = None, "ddp"
    if arguments.deepspeed_config:
        config = read_deepspeed_config(arguments, world.size)
        name = f"zero{config['zero_optimization']['stage']}"
    data = load_tokens(arguments.data, arguments.seq_len)
    facts = {
        **vars(arguments),
        "strategy": name,
        "world_size": world.size,
        "effective_batch": effective_batch(arguments, world.size),
        "backend": world.backend,
        "device": world.device.type,
    }
    found = [find_checkpoint(arguments, facts)]

    if arguments.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward is not
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    device_id = world.device if world.backend == "nccl" else None
    dist.init_process_group(world.backend, device_id=device_id)
    # Rank 0 decides for all: another node may still see the `latest` of a moment ago.
    dist.broadcast_object_list(found, device=world.device)
    # Leave together, and when nothing holds the process group any more: gloo's threads would
    # otherwise now and then abort a process that was done (exit code -6), or hide why one failed.
    try:
        train(arguments, world, config, data, facts, found[0], stdout)
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        if world.backend == "gloo":  # with nccl this could wait for ranks that never come
            traceback.clear_frames(error.__traceback__)
            gc.collect()
            dist.destroy_process_group()
        raise


if __name__ == "__main__":
    main()
