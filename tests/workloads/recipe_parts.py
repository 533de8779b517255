"""The parts of a training that the recipes run, whole and interrupted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.source import ROOT
from tests.workloads.trainer import as_by_srun, run_forked

FRAMEWORKS = ["torch", "deepspeed", "accelerate", "transformers", "lightning"]
MODULES = {"transformers": "transformers.trainer"}
SCRIPTS = ROOT / "tests" / "cluster" / "workloads"
STEPS = 30

TRAINER = (
    f"--max_steps {STEPS} --per_device_train_batch_size 4 --ddp_backend gloo --save_strategy no "
    "--report_to none --optim adamw_torch --learning_rate 1e-2 --use_cpu --disable_tqdm true"
)


class Part(NamedTuple):
    """The output of an attempt: losses by step and, at the end, a hash of the weights."""

    curve: dict[int, float]
    weights: str | None


def train(framework: str, folder: Path, *, stop: bool = False) -> Part:
    """Train on two ranks from the newest checkpoint; stop both at a random moment."""
    argv = [sys.executable, "-m", "hpcrun.jobside", "newest_checkpoint", str(folder), "2"]
    found = subprocess.run(argv, capture_output=True, text=True)
    assert found.stderr == ""
    option = "--resume_from_checkpoint" if framework == "transformers" else "--resume"
    words = [option, found.stdout.strip()] if found.stdout else []
    if framework == "transformers":
        words += ["--output_dir", str(folder), *TRAINER.split()]
    config = folder.with_suffix(".json")
    zero = {"zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, **zero}))
    env = {
        "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "recipe", "DS_ACCELERATOR": "cpu",
        "ACCELERATE_USE_CPU": "true", "HPCRUN_CHECKPOINT_DIR": str(folder), "TOTAL": str(STEPS),
        "HPCRUN_DEEPSPEED_CONFIG": str(config), "STEP": "0.1" if stop else "0",
    }  # fmt: skip
    done = run_forked(
        [rank | env for rank in as_by_srun(2)],
        words,
        program=SCRIPTS / f"survive_{framework}.py",
        module=MODULES.get(framework, framework),
        stop=(1, (random.uniform(0, 0.2), random.uniform(0, 0.03))) if stop else None,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return read(done.stdout)


def read(output: str) -> Part:
    """Read the ranks' shared output stream, in which line ends may be displaced."""
    lines = output.replace("}{", "}\n{").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith('{"')]
    curve = {each["step"]: each["loss"] for each in records if "step" in each}
    return Part(curve, next((each["weights"] for each in records if "weights" in each), None))
