"""Save and load checkpoints, export the adapters, and verify that the base did not change."""

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
    # The base does not change, so the checkpoint contains only the adapters.
    only = {"exclude_frozen_parameters": True} if uses_deepspeed(accelerator) else {}
    accelerator.save_state(str(part), **only)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        if whole.exists():
            shutil.rmtree(whole)
        part.rename(whole)  # a run that is killed while saving leaves no partial checkpoint


def resume(accelerator: Accelerator, folder: Path, other: Path | None) -> int:
    """Load the newest checkpoint of ``folder``, otherwise of ``other``; return its step.

    ``other`` may be a checkpoint itself. DeepSpeed loads only checkpoints of the same number of
    ranks. Raises SystemExit if ``other`` has none.
    """
    own = sorted(folder.glob(f"{PREFIX}*"))
    found = own or ([other] if other and other.name.startswith(PREFIX) and other.is_dir() else [])
    found = found or (sorted(other.glob(f"{PREFIX}*")) if other else [])
    # Rank 0 decides for all, because another node may see an outdated state of the folder.
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


def save_adapters(accelerator: Accelerator, model: nn.Module, folder: Path) -> None:
    """Save the adapters for ``load_lora_weights`` of diffusers; all ranks must call it."""
    plain = accelerator.unwrap_model(model)
    with gathered(adapters_of(plain)):
        if accelerator.is_main_process:
            WanLoraLoaderMixin.save_lora_weights(folder, get_peft_model_state_dict(plain))


def fingerprints(model: nn.Module) -> tuple[str, str]:
    """Hash this rank's weights of the base and of the adapters; all ranks must call this."""
    return _hash(base_of(model)), _hash(adapters_of(model))


def _hash(parameters: list[nn.Parameter]) -> str:
    digest = hashlib.sha256()
    for each in parameters:
        with gathered([each]):
            digest.update(each.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def gathered(parameters: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """Gather parameters on every rank if ZeRO-3 shards them."""
    if not any(hasattr(each, "ds_id") for each in parameters):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def uses_deepspeed(accelerator: Accelerator) -> bool:
    """Return whether the launcher enabled DeepSpeed."""
    return accelerator.distributed_type == DistributedType.DEEPSPEED
