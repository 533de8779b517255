"""How the ranks share one model: plain DDP, or DeepSpeed ZeRO."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from arguments import World
from gpt import GPT, SIZES, initialise, parameter_groups


class PlainDDP:
    """Every rank holds the whole model in fp32; DDP averages gradients, autocast computes."""

    def __init__(self, arguments: argparse.Namespace, world: World) -> None:
        size = SIZES[arguments.size]
        self.world = world
        self.clip = arguments.grad_clip or math.inf
        self.precision = arguments.precision
        self.module = GPT(size, arguments.activation_checkpointing)
        initialise(self.module, size, arguments.seed)
        self.module.to(world.device)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.module, arguments.weight_decay), betas=(0.9, 0.95)
        )
        self.model = DistributedDataParallel(
            self.module, device_ids=[world.local_rank] if world.backend == "nccl" else None
        )
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.precision == "fp16")

    def loss(self, batch: Tensor) -> Tensor:
        """Compute a micro batch's loss."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        with torch.autocast(self.world.device.type, dtype, enabled=self.precision != "fp32"):
            loss: Tensor = self.model(batch)
        return loss

    def step(self, batches: Sequence[Tensor]) -> tuple[Tensor, float]:
        """Take one optimizer step; return this rank's mean loss and the gradients' norm."""
        total = torch.zeros((), device=self.world.device)
        for number, batch in enumerate(batches, start=1):
            # Gradients are averaged over the ranks once, with the last micro batch.
            last = number == len(batches)
            with nullcontext() if last else self.model.no_sync():
                loss = self.loss(batch) / len(batches)
                torch.autograd.backward(self.scaler.scale(loss))
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return total, float(norm)

    def gather(self, parameter: nn.Parameter) -> AbstractContextManager[Any]:
        """Make a parameter whole within the block; here it always is."""
        return nullcontext()

    def save(self, folder: Path) -> None:
        """Write rank 0's state, which is everybody's."""
        if self.world.rank == 0:
            state = {
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
            torch.save(state, folder / "state.pt")

    def load(self, folder: Path) -> None:
        """Read what save wrote, on every rank."""
        state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def close(self) -> None:
        """Release what belongs to the process group."""
        del self.model


class DeepSpeedZeRO:
    """DeepSpeed shards optimizer (ZeRO-1), gradients (2) and parameters (3) by its JSON."""

    def __init__(self, arguments: argparse.Namespace, world: World, config: dict[str, Any]) -> None:
        if world.device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        size = SIZES[arguments.size]
        zero = config["zero_optimization"]
        self.sharded = zero["stage"] == 3
        self.gathered = deepspeed.zero.GatheredParameters
        deepspeed.init_distributed(dist_backend=world.backend)
        # zero.Init shards each layer as it is made: the whole model never exists on one rank.
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=self.sharded):
            module = GPT(size, arguments.activation_checkpointing)
        initialise(module, size, arguments.seed, self.gather)
        groups = parameter_groups(module, arguments.weight_decay)
        optimizer: torch.optim.Optimizer
        offload = zero.get("offload_optimizer") or {"device": "none"}
        if offload["device"] == "none":
            optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        else:
            optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(groups, betas=(0.9, 0.95))
        self.engine = deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]
        self.module = module
        self.model = self.engine
        self.optimizer = self.engine.optimizer

    def loss(self, batch: Tensor) -> Tensor:
        """Compute a micro batch's loss."""
        loss: Tensor = self.engine(batch)
        return loss

    def step(self, batches: Sequence[Tensor]) -> tuple[Tensor, float]:
        """Take one optimizer step; return this rank's mean loss and the gradients' norm."""
        total = torch.zeros((), device=self.engine.device)
        norm = None
        for number, batch in enumerate(batches, start=1):
            loss = self.loss(batch)
            self.engine.backward(loss)
            if number == len(batches) and isinstance(self.optimizer, torch.optim.Optimizer):
                # In fp32 without ZeRO the engine clips, but keeps no norm: measure it before.
                norm = nn.utils.clip_grad_norm_(self.module.parameters(), math.inf)
            self.engine.step()  # does so with the last micro batch only
            total += loss.detach() / len(batches)
        if norm is None:
            norm = self.engine.get_global_grad_norm()
        return total, math.nan if norm is None else float(norm)

    def gather(self, parameter: nn.Parameter) -> AbstractContextManager[Any]:
        """Make a parameter whole within the block; what rank 0 writes to it is kept."""
        context: AbstractContextManager[Any] = self.gathered(
            [parameter], modifier_rank=0, enabled=self.sharded
        )
        return context

    def save(self, folder: Path) -> None:
        """Write every rank's shard; `latest` is left to the caller."""
        self.engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)

    def load(self, folder: Path) -> None:
        """Read this rank's shards."""
        self.engine.load_checkpoint(str(folder.parent), tag=folder.name)

    def close(self) -> None:
        """Release what belongs to the process group."""
        self.engine.destroy()
        del self.model, self.engine, self.optimizer


Strategy = PlainDDP | DeepSpeedZeRO
