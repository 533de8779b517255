"""Algorithm Distillation on Darkroom: distil the learning of Q-learners into a transformer.

Q-learners, one for each goal, record their learning histories. A causal transformer learns to
predict their next action over several episodes in one context, and therefore must learn how they
improve. In rooms with unseen goals, its return then rises from episode to episode although its
weights are fixed. Accelerate handles ranks, precision, accumulation and TensorBoard.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list, set_seed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from darkroom import Contexts, Ints, Room, q_learning
from evaluate import in_context_returns
from model import Distiller


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    room = parser.add_argument_group("the room, and the agents that learn in it")
    room.add_argument("--size", type=int, default=5, help="cells along one side")
    room.add_argument("--horizon", type=int, default=16, help="steps of an episode")
    room.add_argument("--source-episodes", type=int, default=40, help="episodes of each Q-learner")
    room.add_argument("--agents-per-goal", type=int, default=4)
    model = parser.add_argument_group("the transformer")
    model.add_argument("--context-episodes", type=int, default=4, help="episodes in a context")
    model.add_argument("--width", type=int, default=64)
    model.add_argument("--layers", type=int, default=2)
    model.add_argument("--heads", type=int, default=4)
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=100)
    training.add_argument("--batch-size", type=int, default=32, help="contexts on each GPU")
    training.add_argument("--lr", type=float, default=1e-2)
    training.add_argument("--warmup", type=int, default=20, help="steps")
    training.add_argument("--workers", type=int, default=0, help="processes that generate the data")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--deterministic", action="store_true", help="bitwise reproducible")
    output = parser.add_argument_group("output")
    output.add_argument("--log-every", type=int, default=5, help="steps")
    output.add_argument("--eval-every", type=int, default=25, help="steps")
    output.add_argument("--eval-repeats", type=int, default=16, help="lives per unseen goal")
    output.add_argument("--save-every", type=int, default=50, help="steps")
    output.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    output.add_argument("--resume-from", type=Path, help="for a run without its own checkpoint")
    output.add_argument("--log-dir", default=".", help="folder for TensorBoard files")
    return parser.parse_args(argv)


def make_deterministic() -> None:
    """Restrict torch to deterministic operations; others raise an error."""
    # cuBLAS reads the variable when it starts, so set it before the first matrix product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def split_goals(room: Room, seed: int) -> tuple[Ints, Ints]:
    """Return the goals for training, and the unseen quarter of all goals for the evaluation."""
    cells = np.random.default_rng(seed).permutation(room.cells())
    unseen = len(cells) // 4
    return cells[unseen:], cells[:unseen]


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save the state on all ranks, rename it when it is complete, keep the last two."""
    partial, whole = folder / "partial", folder / f"step-{step:08d}"
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(whole, ignore_errors=True)
        partial.rename(whole)
        for old in sorted(folder.glob("step-*"))[:-2]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def resume(accelerator: Accelerator, folder: Path, other: Path | None) -> int:
    """Load the newest checkpoint of ``folder``, otherwise of ``other``; return its step.

    ``other`` may be a checkpoint itself. Raises SystemExit if ``other`` has none.
    """
    own = sorted(folder.glob("step-*"))
    found = own or ([other] if other and other.name.startswith("step-") and other.is_dir() else [])
    found = found or (sorted(other.glob("step-*")) if other else [])
    # Rank 0 decides for all, because another node may see an outdated state of the folder.
    (newest,) = broadcast_object_list([found[-1] if found else None])
    if newest is None:
        if other:
            raise SystemExit(f"--resume-from {other}: no checkpoints there")
        return 0
    accelerator.load_state(str(newest))
    step = int(newest.name.removeprefix("step-"))
    tell(accelerator, f"Resuming training from {newest} at step {step}")
    return step


def stop_request(accelerator: Accelerator) -> Callable[[], bool]:
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
        flag = torch.tensor(len(told), device=accelerator.device)
        return bool(accelerator.reduce(flag, "sum"))

    return any_rank_is


def digest(model: nn.Module) -> str:
    """Return a digest of the weights."""
    weights = [value.detach().float().cpu().numpy().tobytes() for value in model.parameters()]
    return hashlib.sha256(b"".join(weights)).hexdigest()[:16]


def make_loader(
    args: argparse.Namespace, room: Room, goals: Ints, batch: int, device: torch.device
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Train the source agents, and return a loader of `args.steps` batches of their histories."""
    # Every rank generates the same histories, in seconds; Accelerate distributes the samples.
    histories = q_learning(
        room, np.repeat(goals, args.agents_per_goal, axis=0),
        episodes=args.source_episodes, rng=np.random.default_rng(args.seed),
    )  # fmt: skip
    data = Contexts(
        histories, episodes=args.context_episodes, samples=args.steps * batch, seed=args.seed
    )
    pinned = device.type == "cuda"
    return DataLoader(data, args.batch_size, num_workers=args.workers, pin_memory=pinned)


def make_policy(args: argparse.Namespace) -> Distiller:
    """Create the transformer."""
    return Distiller(
        size=args.size, context=args.context_episodes * args.horizon,
        width=args.width, layers=args.layers, heads=args.heads,
    )  # fmt: skip


def tell(accelerator: Accelerator, line: str) -> None:
    """Print a line once; Accelerator.print would print it once per node."""
    if accelerator.is_main_process:
        print(line, flush=True)


def evaluate(
    accelerator: Accelerator, policy: Distiller, room: Room, goals: Ints,
    args: argparse.Namespace, step: int,
) -> None:  # fmt: skip
    """Play in rooms with unseen goals, with the context and, as a control, without it."""
    kept, cleared = (
        in_context_returns(
            accelerator, policy, room, goals, episodes=args.context_episodes,
            repeats=args.eval_repeats, seed=args.seed, keep_context=keep,
        ).tolist()
        for keep in (True, False)
    )  # fmt: skip
    returns = {f"return/episode_{i}": value for i, value in enumerate(kept, 1)}
    accelerator.log({**returns, "return/cleared": cleared[-1]}, step=step)
    line = f"step {step}/{args.steps} eval_return_first {kept[0]:.3f} "
    line += f"eval_return_last {kept[-1]:.3f} eval_return_cleared {cleared[-1]:.3f}"
    tell(accelerator, line)
    if step == args.steps:
        best = room.best_return(goals).mean()
        tell(accelerator, f"mean returns on {len(goals)} unseen goals; the best is {best:.2f}")
        for name, values in (("context kept", kept), ("context cleared", cleared)):
            cells = "".join(f"{value:7.2f}" for value in values)
            tell(accelerator, f"  {name:16}{cells}   in episodes 1 to {len(values)}")


def main(argv: list[str] | None = None) -> None:
    """Train, and evaluate."""
    args = arguments(argv)
    if args.deterministic:
        make_deterministic()
    # Precision and accumulation come from the launcher, by Accelerate's YAML or variables.
    # The schedule counts optimizer steps; Accelerate would step it once for each process.
    # After its first step DDP regroups the gradients in its buckets, unless it searches for unused
    # ones. Another order changes the rounding with more than two ranks, and after resuming.
    ddp = DistributedDataParallelKwargs(find_unused_parameters=args.deterministic)
    accelerator = Accelerator(
        log_with="tensorboard", project_dir=args.log_dir, step_scheduler_with_optimizer=False,
        kwargs_handlers=[ddp],
    )  # fmt: skip
    accelerator.init_trackers("tensorboard", {k: str(v) for k, v in vars(args).items()})
    accumulation = accelerator.gradient_accumulation_steps
    batch = args.batch_size * accumulation * accelerator.num_processes
    set_seed(args.seed)

    room = Room(args.size, args.horizon)
    goals, unseen = split_goals(room, args.seed)
    loader = make_loader(args, room, goals, batch, accelerator.device)
    policy = make_policy(args)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1, (i + 1) / args.warmup) * max(0.05, 1 - i / args.steps)
    )
    # `policy` remains the model without DDP's wrapper, which the evaluation does not need.
    model, optimizer, loader, schedule = accelerator.prepare(policy, optimizer, loader, schedule)
    tell(
        accelerator,
        f"processes: {accelerator.num_processes} ({accelerator.distributed_type.value}), "
        f"{accelerator.device.type}, mixed precision: {accelerator.mixed_precision}, "
        f"accumulation: {accumulation}, effective batch: {batch}",
    )

    step = resume(accelerator, args.checkpoint_dir, args.resume_from)
    mean_loss = torch.zeros((), device=accelerator.device)
    is_to_stop = stop_request(accelerator)
    since, began = step, time.perf_counter()
    for tokens, actions in skip_first_batches(loader, step * accumulation):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), actions.flatten())
            accelerator.backward(loss)
            mean_loss += loss.detach() / accumulation
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        lr = schedule.get_last_lr()[0]
        if not accelerator.optimizer_step_was_skipped:  # fp16 skips a step on overflow
            schedule.step()
        step += 1
        logs, evaluates, saves = (
            step == args.steps or step % every == 0
            for every in (args.log_every, args.eval_every, args.save_every)
        )
        if logs:
            told = accelerator.reduce(mean_loss, reduction="mean").item()
            seconds = (time.perf_counter() - began) / (step - since)
            speed = batch / seconds
            accelerator.log({"loss": told, "lr": lr, "samples/s": speed}, step=step)
            line = f"step {step}/{args.steps} loss {told:.4f} lr {lr:.2e} grad_norm {norm:.3f} "
            tell(accelerator, f"{line}step_time {1000 * seconds:.0f} ms samples/s {speed:.0f}")
        mean_loss.zero_()
        if evaluates:
            evaluate(accelerator, policy, room, unseen, args, step)
        stop = is_to_stop()
        if saves or stop:
            save(accelerator, args.checkpoint_dir, step)
        if stop and step < args.steps:
            break
        if logs or evaluates or saves:  # exclude this time from the speed
            since, began = step, time.perf_counter()

    if step == args.steps:
        tell(accelerator, f"weights: {digest(policy)}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
