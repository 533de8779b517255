"""Write two checkpoints of a small model with a framework: WAY FOLDER, on any number of ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = (10, 20)
RANK = int(os.environ.get("RANK", "0"))


def make(*, trained: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Create a model and an optimizer, with states if it is trained."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    if trained:
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    return model, optimizer


def deepspeed_engine(stage: int) -> Any:
    """Create an engine on CPUs and train one step."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "bf16": {"enabled": stage > 0},
        "zero_optimization": {"stage": stage},
    }
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    data = torch.ones(1, 16, dtype=torch.bfloat16 if stage else torch.float32)
    engine.backward(engine(data).float().sum())
    engine.step()
    return engine


def write_deepspeed(folder: Path, stage: int) -> None:
    """Write with DeepSpeed's engine: a folder for each tag, and `latest`."""
    engine = deepspeed_engine(stage)
    for step in STEPS:
        engine.save_checkpoint(str(folder), tag=f"global_step{step}")


def write_lightning_deepspeed(folder: Path) -> None:
    """As lightning/pytorch/strategies/deepspeed.py does, which itself wants GPUs."""
    engine = deepspeed_engine(2)
    for step in STEPS:
        at = folder / f"epoch=0-step={step}.ckpt"
        engine.save_checkpoint(str(at), client_state={"global_step": step}, tag="checkpoint")


def write_lightning_fsdp(folder: Path) -> None:
    """As lightning/pytorch/strategies/fsdp.py does, which itself wants GPUs."""
    for step in STEPS:
        at = folder / f"epoch=0-step={step}.ckpt"
        write_dcp_to(at)
        if RANK == 0:
            torch.save({"epoch": 0, "global_step": step}, at / "meta.pt")


def write_dcp_to(folder: Path) -> None:
    """Save a model sharded over the ranks."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model, _ = make()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=folder)


def write_dcp(folder: Path) -> None:
    """Save with torch.distributed.checkpoint."""
    for step in STEPS:
        write_dcp_to(folder / f"step-{step}")


def write_fsdp(folder: Path) -> None:
    """Save in shards, as accelerate's save_state does with FSDP, which itself wants GPUs."""
    for step in STEPS:
        at = folder / f"step_{step}"
        write_dcp_to(at / "pytorch_model_fsdp_0")
        write_dcp_to(at / "optimizer_0")
        torch.save({"step": step}, at / f"random_states_{RANK}.pkl")
        if RANK == 0:
            torch.save({"last_epoch": step}, at / "scheduler.bin")
        dist.barrier()


def write_megatron(folder: Path) -> None:
    """As Megatron-LM's save_checkpoint does with --ckpt-format torch_dist: two files per rank."""
    import torch.distributed.checkpoint as dcp

    for step in STEPS:
        at = folder / f"iter_{step:07d}"
        state = {f"layer{i}": torch.full((8,), float(RANK + i)) for i in range(4)}
        shards = {f"rank{RANK}/{name}": tensor for name, tensor in state.items()}
        dcp.save(shards, storage_writer=dcp.FileSystemWriter(at, thread_count=2))
        if RANK == 0:
            torch.save({"iteration": step, "args": {}}, at / "common.pt")
            record = {"sharded_backend": "torch_dist", "common_backend": "torch"}
            (at / "metadata.json").write_text(json.dumps(record) + "\n")
            (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
        dist.barrier()


def write_accelerate(folder: Path, *, zero: bool) -> None:
    """Write with Accelerate's save_state."""
    from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    if zero:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    accelerator = Accelerator(
        cpu=not zero,
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config) if zero else None,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )
    model, optimizer = make(trained=not zero)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for step in STEPS:
        accelerator.save_state(str(folder / f"step_{step}"))


def write_trainer(folder: Path, way: str) -> None:
    """Write with the Trainer of transformers and a tiny GPT-2; `sharded` splits safetensors."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    zero = {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    if way == "zero":  # with use_cpu the Trainer would leave it out
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    config = GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    if way == "sharded":
        saves = model.save_pretrained
        model.save_pretrained = lambda *a, **k: saves(*a, **k, max_shard_size="4KB")
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        max_steps=STEPS[-1],
        save_steps=STEPS[0],
        use_cpu=way != "zero",
        report_to=[],
        disable_tqdm=True,
        deepspeed=zero if way == "zero" else None,
    )
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    Trainer(model=model, args=arguments, train_dataset=[row] * 200).train()


def write_lightning(folder: Path) -> None:
    """Write with Lightning's Trainer, including `last.ckpt`."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Small(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(16, 4)

        def training_step(self, batch: Tensor) -> Tensor:
            loss: Tensor = self.model(batch).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    keeps = ModelCheckpoint(folder, every_n_train_steps=STEPS[0], save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS[-1],
        callbacks=[keeps],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Small(), torch.utils.data.DataLoader(torch.ones(64, 16)))


def write_plain(folder: Path) -> None:
    """Write plain torch files, safetensors, and a custom folder."""
    from safetensors.torch import save_file

    model, optimizer = make()
    for step in STEPS:
        for name in ("files", "weights"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            folder / "files" / f"ckpt_{step}.pt",
        )
        save_file(model.state_dict(), folder / "weights" / f"step{step}.safetensors")
        own = folder / "folders" / f"step-{step:08d}"
        own.mkdir(parents=True)
        torch.save(model.state_dict(), own / "model.pt")
        torch.save(optimizer.state_dict(), own / "optimizer.pt")


def main() -> None:
    """Write the checkpoints named by the first argument below the folder in the second."""
    way, folder = sys.argv[1], Path(sys.argv[2])
    if way in ("dcp", "fsdp", "megatron", "lightning-fsdp"):
        dist.init_process_group("gloo")
    ways: dict[str, Callable[[Path], None]] = {
        "plain": write_plain,
        "dcp": write_dcp,
        "fsdp": write_fsdp,
        "megatron": write_megatron,
        "lightning": write_lightning,
        "lightning-fsdp": write_lightning_fsdp,
        "lightning-deepspeed": write_lightning_deepspeed,
        "accelerate": lambda at: write_accelerate(at, zero=False),
        "accelerate-deepspeed": lambda at: write_accelerate(at, zero=True),
        "trainer": lambda at: write_trainer(at, "plain"),
        "trainer-sharded": lambda at: write_trainer(at, "sharded"),
        "trainer-deepspeed": lambda at: write_trainer(at, "zero"),
        **{f"deepspeed-{stage}": partial(write_deepspeed, stage=stage) for stage in range(4)},
    }
    ways[way](folder)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # all is written: at Python's own end a thread of torch's may abort the process
