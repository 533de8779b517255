"""Checkpoints: DIR/step-00000020/ appears by rename when it is whole, then DIR/latest names it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist

from arguments import World, refuse
from strategies import Strategy


def flush_to_disk(path: Path) -> None:
    """Have the file system write a file or folder out."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_checkpoint(
    strategy: Strategy, directory: Path, world: World, facts: dict[str, Any]
) -> None:
    """Save by all ranks; a kill at any moment leaves the checkpoint before this one usable."""
    final = directory / f"step-{facts['step']:08d}"
    partial = directory / f"{final.name}.partial"
    if world.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of an attempt that was killed
        partial.mkdir(parents=True)
        (partial / "checkpoint.json").write_text(json.dumps(facts, default=str) + "\n")
    dist.barrier()
    strategy.save(partial)
    dist.barrier()
    if world.local_rank == 0:  # on a network file system only the writing node can flush
        for path in [*partial.iterdir(), partial]:
            flush_to_disk(path)
    dist.barrier()
    if world.rank == 0:
        stale = directory / f"{final.name}.stale"
        shutil.rmtree(stale, ignore_errors=True)
        if final.exists():  # from an earlier run, where this one does not resume
            final.rename(stale)
        partial.rename(final)
        shutil.rmtree(stale, ignore_errors=True)
        pointer = directory / "latest.partial"
        pointer.write_text(final.name)
        flush_to_disk(pointer)
        pointer.rename(directory / "latest")
        flush_to_disk(directory)
    dist.barrier()


def find_checkpoint(arguments: argparse.Namespace, facts: dict[str, Any]) -> Path | None:
    """Return the checkpoint to resume from, if any; refuse one that this run cannot continue."""
    if arguments.resume == "never" or (arguments.resume == "auto" and not arguments.checkpoint_dir):
        return None
    place = arguments.checkpoint_dir if arguments.resume == "auto" else Path(arguments.resume)
    pointer = place / "latest"
    if arguments.resume == "auto" and not pointer.exists():
        return None
    folder = place / pointer.read_text().strip() if pointer.exists() else place
    try:
        saved = json.loads((folder / "checkpoint.json").read_text())
    except (OSError, ValueError):
        refuse(f"--resume {arguments.resume}: {folder} is not a checkpoint of this program")
    must_fit = ["strategy", "size", "precision", "seed"]
    if facts["strategy"] not in ("ddp", "zero0"):
        must_fit.append("world_size")  # each rank has a shard of its own
    for key in must_fit:
        if saved.get(key) != facts[key]:
            refuse(f"{folder}: its {key} is {saved.get(key)}, but this run's is {facts[key]}")
    return Path(folder)


def load_checkpoint(strategy: Strategy, folder: Path) -> tuple[int, int]:
    """Restore a checkpoint; return its step and the next sample's global index."""
    strategy.load(folder)
    saved = json.loads((folder / "checkpoint.json").read_text())
    return int(saved["step"]), int(saved["next_sample"])
