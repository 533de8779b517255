"""What a run keeps: checkpoints to go on from, the adapters, and proof that the base stayed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list
from diffusers.loaders import WanLoraLoaderMixin
from peft import get_peft_model_state_dict
from torch import nn

from model import adapters_of, base_of

PREFIX = "step-"


def save_checkpoint(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save adapters, optimizer and random states as ``folder/step-N``; all ranks must call it."""
    whole, part = folder / f"{PREFIX}{step:06}", folder / f"part-{step:06}"
    # The base does not change: without it a checkpoint has the adapters' size, not the model's.
    only = {"exclude_frozen_parameters": True} if uses_deepspeed(accelerator) else {}
    accelerator.save_state(str(part), **only)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        if whole.exists():
            shutil.rmtree(whole)
        part.rename(whole)  # a run that is killed while it saves leaves no half a checkpoint


def resume(accelerator: Accelerator, folder: Path, other: Path | None) -> int:
    """Load the newest checkpoint of ``folder``, else of ``other``, if there is one; give its step.

    ``other`` may be a checkpoint itself. DeepSpeed loads what as many ranks have saved. Raises
    SystemExit where ``other`` has none.
    """
    own = sorted(folder.glob(f"{PREFIX}*"))
    found = own or ([other] if other and other.name.startswith(PREFIX) and other.is_dir() else [])
    found = found or (sorted(other.glob(f"{PREFIX}*")) if other else [])
    # Rank 0 decides for all: another node may see the folder as it was a moment ago.
    (newest,) = broadcast_object_list([found[-1] if found else None])
    if newest is None:
        if other:
            raise SystemExit(f"--resume-from {other}: no checkpoints there")
        return 0
    lax = {"load_module_strict": False} if uses_deepspeed(accelerator) else {}
    accelerator.load_state(str(newest), **lax)
    if accelerator.is_main_process:
        print(f"going on from {newest.name}")
    return int(newest.name.removeprefix(PREFIX))


def stop_request(accelerator: Accelerator) -> Callable[[], bool]:
    """Return what tells whether to save and end: on all ranks alike, once any of them was asked.

    Only in a job with `survive`: a rank that notices SIGTERM does not end by it while it waits.
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


def save_adapters(accelerator: Accelerator, model: nn.Module, folder: Path) -> None:
    """Save the adapters for ``load_lora_weights`` of diffusers; all ranks must call it."""
    plain = accelerator.unwrap_model(model)
    with gathered(adapters_of(plain)):
        if accelerator.is_main_process:
            WanLoraLoaderMixin.save_lora_weights(folder, get_peft_model_state_dict(plain))


def fingerprints(model: nn.Module) -> tuple[str, str]:
    """Hash the base's weights and the adapters' as this rank has them; all ranks must call it."""
    return _hash(base_of(model)), _hash(adapters_of(model))


def _hash(parameters: list[nn.Parameter]) -> str:
    digest = hashlib.sha256()
    for each in parameters:
        with gathered([each]):
            digest.update(each.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def gathered(parameters: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """Have parameters whole on every rank, where ZeRO-3 keeps them in shards."""
    if not any(hasattr(each, "ds_id") for each in parameters):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def uses_deepspeed(accelerator: Accelerator) -> bool:
    """Tell whether the launcher has asked for DeepSpeed."""
    return accelerator.distributed_type == DistributedType.DEEPSPEED
