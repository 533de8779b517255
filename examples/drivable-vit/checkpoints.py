"""Checkpoints of a DeepSpeed engine: whole or not there, for any number of GPUs.

A checkpoint is a folder FOLDER/TAG with DeepSpeed's own files, a part of them from each rank, and
checkpoint.json, which says what is in it. FOLDER/latest names the one to go on from.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FACTS = "checkpoint.json"
# With the same of these each rank reads the part that it wrote; else all parts are put together.
SHARDING = ("world_size", "zero_stage")


def save(engine: Any, folder: Path, tag: str, facts: dict[str, Any], *, latest: bool) -> None:
    """Write a checkpoint. All ranks must call this: each has a part of the optimizer's states.

    It has another name until it is whole: of a run that is killed here, ``latest`` names the one
    before.
    """
    partial = folder / f"{tag}.partial"
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    dist.barrier()
    engine.save_checkpoint(str(folder), tag=partial.name, save_latest=False)
    dist.barrier()
    if dist.get_rank() == 0:
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        old = folder / f"{tag}.old"
        shutil.rmtree(old, ignore_errors=True)
        if (folder / tag).exists():
            (folder / tag).rename(old)  # a kill between here and there loses neither
        partial.rename(folder / tag)
        shutil.rmtree(old, ignore_errors=True)
        if latest:
            pointer = folder / "latest.partial"
            pointer.write_text(tag, encoding="utf-8")
            pointer.rename(folder / "latest")
    dist.barrier()


def stop_request(device: torch.device) -> Callable[[], bool]:
    """Return what tells whether to save and end: on all ranks alike, once any of them was asked.

    Only in a job with `survive`: a rank that notices SIGTERM does not end by it while it waits.
    """
    told: list[int] = []
    if not (os.environ.get("HPCRUN_SURVIVE") or os.environ.get("HPCRUN_SAVES")):
        return lambda: False
    for each in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, lambda number, _: told.append(number))

    def any_rank_is() -> bool:
        flag = torch.tensor(len(told), device=device)
        dist.all_reduce(flag)
        return bool(flag)

    return any_rank_is


def find(resume: str | None, folder: Path, facts: dict[str, Any]) -> Path | None:
    """Find the checkpoint to go on from, if there is one: ``folder``'s newest, else ``resume``.

    In this order, since a run that is started again has the same command line. ``resume`` is the
    path of a checkpoint, or of a folder of such. Raises ValueError for a path that is neither, for
    another model or number format, and for a change of the ZeRO stage that DeepSpeed cannot make.
    """
    if resume is None and not (folder / "latest").exists():
        return None
    found = folder if (folder / "latest").exists() else Path(str(resume))
    if (found / "latest").exists():
        found = found / (found / "latest").read_text(encoding="utf-8").strip()
    if not (found / FACTS).is_file():
        raise ValueError(f"{found} is no checkpoint of this program (checkpoint.resume={resume})")
    saved = read(found)
    # Of the number formats fp16 alone has a loss scale; DeepSpeed takes over whatever it finds.
    for key in ("model", "precision"):
        if saved[key] != facts[key]:
            raise ValueError(f"{found}: its {key} is {saved[key]}, and this run's {facts[key]}")
    if (saved["zero_stage"] == 3) != (facts["zero_stage"] == 3):
        was = f"{found} was written by ZeRO-{saved['zero_stage']}"
        raise ValueError(
            f"{was}: DeepSpeed can go on neither from ZeRO-3 without it nor with it from others"
        )
    return found


def read(checkpoint: Path) -> dict[str, Any]:
    """Read what save() noted about a checkpoint."""
    facts: dict[str, Any] = json.loads((checkpoint / FACTS).read_text(encoding="utf-8"))
    return facts


def make_universal(checkpoint: Path, folder: Path, facts: dict[str, Any]) -> Path | None:
    """Put a checkpoint's parts together, by DeepSpeed's own program, if this run shards otherwise.

    Returns the universal checkpoint, in this run's own ``folder``; None if none is needed. One
    process does this, for all. Raises ValueError with what the program said when it failed.
    """
    saved = read(checkpoint)
    if all(saved[key] == facts[key] for key in SHARDING):
        return None
    whole = folder / "universal"
    shutil.rmtree(whole, ignore_errors=True)  # of a run that was killed, or of an older checkpoint
    program = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    # A model without model parallelism has nothing to say about how its tensors were cut.
    options = ["--inject_missing_state", "--input_folder", str(checkpoint)]
    argv = [*program, *options, "--output_folder", str(whole)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{checkpoint} could not be put together: {done.stderr}")
    shutil.copy(checkpoint / FACTS, whole / FACTS)
    return whole
