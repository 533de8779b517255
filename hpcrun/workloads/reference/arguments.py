"""Command line, launcher variables and DeepSpeed's JSON: read, checked, refused in one line."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from gpt import SIZES


def refuse(message: str, *, alike: bool = True) -> NoReturn:
    """End with exit code 2 and one line on stderr; of ranks that are alike one a node says it."""
    if not alike or os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"train_gpt.py: error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        refuse(message)


def at_least(minimum: float, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """Return an argparse type: a finite number of this kind that is not below the minimum."""

    def number(text: str) -> float:
        value = kind(text)
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {minimum} up")
        return value

    return number


def fault(text: str) -> tuple[int, int, str]:
    """Read STEP:RANK:HOW.

    >>> fault("20:1:kill")
    (20, 1, 'kill')
    """
    match = re.fullmatch(r"(\d+):(\d+):(exception|exit7|kill)", text)
    if match is None:
        message = f"{text!r} is not STEP:RANK:HOW, where HOW is exception, exit7 or kill"
        raise argparse.ArgumentTypeError(message)
    return int(match[1]), int(match[2]), match[3]


def truth(text: str) -> bool:
    """Read true or false.

    >>> truth("true"), truth("false")
    (True, False)
    """
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; on a mistake end with exit code 2 and one line on stderr."""
    parser = Parser(prog="train_gpt.py", description="Train a small GPT on bytes.")
    add = parser.add_argument
    add("--size", choices=SIZES, default="tiny", help="the model (%(default)s)")
    add("--data", type=Path, metavar="FILE", help="any file; absent: text made by the program")
    add("--seq-len", type=at_least(1), default=128, help="tokens per sample (%(default)s)")
    add("--steps", type=at_least(1), default=100, help="optimizer steps in all (%(default)s)")
    add("--micro-batch-per-gpu", type=at_least(1), default=4, help="samples (%(default)s)")
    add("--gradient-accumulation-steps", type=at_least(1), default=1, help="(%(default)s)")
    add("--precision", choices=("bf16", "fp16", "fp32"), default="bf16", help="(%(default)s)")
    add("--lr", type=at_least(0, float), help="peak learning rate (absent: what suits the size)")
    add("--warmup-steps", type=at_least(0), default=10, help="to the peak (%(default)s)")
    add("--weight-decay", type=at_least(0, float), default=0.1, help="AdamW's (%(default)s)")
    add("--grad-clip", type=at_least(0, float), default=1.0, help="0 clips nothing (%(default)s)")
    add("--seed", type=at_least(0), default=0, help="of weights and data order (%(default)s)")
    add("--eval-every", type=at_least(0), default=0, help="steps; 0: never (%(default)s)")
    add("--eval-batches", type=at_least(1), default=4, help="effective batches (%(default)s)")
    add("--checkpoint-dir", type=Path, help="where to keep checkpoints; absent: none are written")
    add("--checkpoint-every", type=at_least(0), default=0, help="steps; 0: only at the end")
    add(
        "--resume",
        default="auto",
        metavar="auto|never|PATH",
        help="auto: from the newest checkpoint in --checkpoint-dir, if any (%(default)s)",
    )
    add(
        "--activation-checkpointing",
        type=truth,
        nargs="?",
        const=True,
        default=False,
        metavar="true|false",
        help="recompute layers in backward (%(default)s)",
    )
    add("--deepspeed-config", type=Path, metavar="FILE", help="train with DeepSpeed by this JSON")
    add("--deterministic", action="store_true", help="deterministic kernels only; slower")
    add("--parameter-hash", action="store_true", help="at the end every rank prints a hash")
    add(
        "--fail-at",
        type=fault,
        metavar="STEP:RANK:HOW",
        help="make rank RANK fail before step STEP, to see what a failure looks like; HOW is "
        "exception, exit7 (exit code 7) or kill (SIGKILL); a resumed run does not fail again",
    )
    arguments = parser.parse_args(argv)
    if arguments.lr is None:
        arguments.lr = SIZES[arguments.size].lr
    if arguments.checkpoint_every and not arguments.checkpoint_dir:
        refuse("--checkpoint-every needs --checkpoint-dir")
    return arguments


class World(NamedTuple):
    """Who this process is among all that train together."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    backend: str


def read_world(environment: MutableMapping[str, str], precision: str) -> World:
    """Read the launcher's variables; a process that was started alone is a world of one."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in environment]
    if len(missing) == len(names) and int(environment.get("SLURM_STEP_NUM_TASKS", 1)) == 1:
        # Port 0: the store of a world of one takes any free port.
        environment.update(zip(names, ("0", "0", "1", "127.0.0.1", "0"), strict=True))
    elif missing:
        refuse(f"the launcher has not set {', '.join(missing)}")
    rank, local_rank, size = (int(environment[name]) for name in names[:3])
    if not torch.cuda.is_available():
        if precision == "fp16":
            refuse("--precision fp16 needs a GPU, and torch sees none; use bf16 or fp32")
        return World(rank, local_rank, size, torch.device("cpu"), "gloo")
    if local_rank >= torch.cuda.device_count():
        seen = f"torch sees {torch.cuda.device_count()} GPU(s)"
        refuse(f"rank {rank}: LOCAL_RANK is {local_rank}, but {seen}", alike=False)
    if precision == "bf16" and not torch.version.hip:
        major, minor = torch.cuda.get_device_capability(local_rank)
        if major < 8:
            refuse(f"this GPU (compute capability {major}.{minor}) has no bf16; use fp16 or fp32")
    return World(rank, local_rank, size, torch.device("cuda", local_rank), "nccl")


def effective_batch(arguments: argparse.Namespace, world_size: int) -> int:
    """Return the number of samples in one optimizer step."""
    micro: int = arguments.micro_batch_per_gpu
    accumulation: int = arguments.gradient_accumulation_steps
    return micro * accumulation * world_size


def read_deepspeed_config(arguments: argparse.Namespace, world_size: int) -> dict[str, Any]:
    """Read the JSON, fill what it leaves out (or calls "auto"), refuse what contradicts."""
    path = arguments.deepspeed_config
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        refuse(f"--deepspeed-config {path}: {error}")
    if not isinstance(config, dict):
        refuse(f"--deepspeed-config {path}: not a JSON object")

    def agree(section: dict[str, Any], key: str, name: str, value: Any) -> None:
        if section.setdefault(key, "auto") == "auto":
            section[key] = value
        if section[key] != value:
            found = f"{name} is {json.dumps(section[key])}"
            refuse(f"{path}: {found}, but by the arguments it is {json.dumps(value)}")

    for key, value in {
        "train_micro_batch_size_per_gpu": arguments.micro_batch_per_gpu,
        "gradient_accumulation_steps": arguments.gradient_accumulation_steps,
        "train_batch_size": effective_batch(arguments, world_size),
        "gradient_clipping": arguments.grad_clip,
    }.items():
        agree(config, key, key, value)
    for precision in ("bf16", "fp16"):
        section = config.setdefault(precision, {})
        agree(section, "enabled", f"{precision}.enabled", arguments.precision == precision)
    for key in ("optimizer", "scheduler"):
        if key in config:
            refuse(f"{path}: {key}: this program brings its own; remove it from the file")
    config.setdefault("zero_optimization", {}).setdefault("stage", 0)
    return config
