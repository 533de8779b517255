"""Atomic checkpoints of a DeepSpeed engine, for any number of GPUs.

A checkpoint is a folder FOLDER/TAG with DeepSpeed's own files, written by all ranks, and
checkpoint.json, which describes it. FOLDER/latest names the checkpoint to resume from.
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
# If these are unchanged, each rank reads the part that it wrote; otherwise the parts are merged.
SHARDING = ("world_size", "zero_stage")


def save(engine: Any, folder: Path, tag: str, facts: dict[str, Any], *, latest: bool) -> None:
    """Write a checkpoint. All ranks must call this, since each has a part of the optimizer states.

    The checkpoint has a temporary name until it is complete. If the run is killed meanwhile,
    ``latest`` names the previous one.
    """
    partial = folder / f"{tag}.partial"
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
    dist.barrier()
    engine.save_checkpoint(str(folder), tag=partial.name, save_latest=False)
    dist.barrier()
    if dist.get_rank() == 0:
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        old = folder / f"{tag}.old"
        shutil.rmtree(old, ignore_errors=True)
        if (folder / tag).exists():
            (folder / tag).rename(old)  # if the run is killed between the renames, both exist
        partial.rename(folder / tag)
        shutil.rmtree(old, ignore_errors=True)
        if latest:
            pointer = folder / "latest.partial"
            pointer.write_text(tag, encoding="utf-8")
            pointer.rename(folder / "latest")
    dist.barrier()


def stop_request(device: torch.device) -> Callable[[], bool]:
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
        flag = torch.tensor(len(told), device=device)
        dist.all_reduce(flag)
        return bool(flag)

    return any_rank_is


def find(resume: str | None, folder: Path, facts: dict[str, Any]) -> Path | None:
    """Find the checkpoint to resume from, if any: the newest of ``folder``, otherwise ``resume``.

    ``folder`` comes first, because a restarted run has the same command line. ``resume`` is the
    path of a checkpoint, or of a folder of checkpoints. Raises ValueError for any other path, for
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
    # Only fp16 has a loss scale, and DeepSpeed restores any that it finds.
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
    """Read the description that save() wrote."""
    facts: dict[str, Any] = json.loads((checkpoint / FACTS).read_text(encoding="utf-8"))
    return facts


def make_universal(checkpoint: Path, folder: Path, facts: dict[str, Any]) -> Path | None:
    """Merge the parts of a checkpoint with DeepSpeed's tool, if this run shards differently.

    Returns the universal checkpoint in this run's own ``folder``, or None if none is needed. One
    process does this for all. Raises ValueError with the output of the tool if it fails.
    """
    saved = read(checkpoint)
    if all(saved[key] == facts[key] for key in SHARDING):
        return None
    whole = folder / "universal"
    shutil.rmtree(whole, ignore_errors=True)  # left by a killed run, or of an older checkpoint
    program = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    # Without model parallelism there is no information on how tensors were split.
    options = ["--inject_missing_state", "--input_folder", str(checkpoint)]
    argv = [*program, *options, "--output_folder", str(whole)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{checkpoint} could not be put together: {done.stderr}")
    shutil.copy(checkpoint / FACTS, whole / FACTS)
    return whole
