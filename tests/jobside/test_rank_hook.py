"""The hook in real processes: training that contradicts the job file is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.assets import build_hook
from tests.torch_extensions import extensions
from tests.workloads.trainer import free_port

pytestmark = pytest.mark.slow

TRAIN = """\
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("stepped")
"""
# As dinov2 does: Slurm's variables first, of which torchrun's ranks all see the same.
FROM_SLURM = """\
import os, torch.distributed as dist
os.environ["RANK"] = os.environ.get("SLURM_PROCID", "0")
os.environ["WORLD_SIZE"] = os.environ.get("SLURM_NTASKS", "1")
dist.init_process_group("gloo")
"""
LIGHTNING = """\
import lightning.pytorch as pl
print("world", pl.Trainer(accelerator="cpu", logger=False, devices={devices}).world_size)
"""


def run(
    folder: Path,
    text: str,
    env: dict[str, str] | None = None,
    *,
    world: int = 1,
    job: dict[str, object] | None = None,
) -> tuple[int, str]:
    """Run a program as rank 0 of several, with the hook on its path."""
    hook = folder / "hook.pyz"
    hook.write_bytes(build_hook())
    (folder / "train.py").write_text(text)
    environ = {
        **os.environ,
        "PYTHONPATH": str(hook),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "HPCRUN_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": extensions(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **(env or {}),
    }
    if job is not None:
        (folder / "job.json").write_text(json.dumps(job))
        environ["HPCRUN_DEEPSPEED_CONFIG"] = str(folder / "job.json")
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FROM_SLURM, "this process group has 1 rank, and the job has 2 ranks"),
        (TRAIN, "this rank trains without a process group, and the job has 2 ranks"),
        (LIGHTNING.format(devices=1), "Lightning's Trainer has 1 rank, and the job has 2 ranks"),
    ],
)
def test_ranks_training_separately_are_an_error(tmp_path: Path, text: str, found: str) -> None:
    code, output = run(tmp_path, text, world=2)
    assert code != 0 and found in output and "stepped" not in output, output
    assert "launcher: srun" in output


@pytest.mark.parametrize("text", [FROM_SLURM, TRAIN, LIGHTNING.format(devices=1)])
def test_single_rank_is_no_error(tmp_path: Path, text: str) -> None:
    code, output = run(tmp_path, text)
    assert code == 0 and "hpcrun" not in output, output


def test_ranks_with_other_communication_libraries_train(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").touch()
    assert run(tmp_path, f"import mpi4py\n{TRAIN}", world=2)[0] == 0


def test_child_processes_of_a_rank_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(TRAIN)
    text = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'other.py']))"
    code, output = run(tmp_path, text, world=2)
    assert code == 0 and "stepped" in output, output


def test_sitecustomize_of_the_site_is_loaded(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os; os.environ['OF_SITE'] = 'yes'\n")
    path = f"{tmp_path / 'hook.pyz'}:{site}"
    code, output = run(tmp_path, "import os; print(os.environ['OF_SITE'])", {"PYTHONPATH": path})
    assert (code, output) == (0, "yes\n")


ENGINE = """\
import deepspeed, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
config = {config}
deepspeed.init_distributed("gloo")
deepspeed.initialize(model=model, optimizer={optimizer}, config=config)
print("initialized")
"""
OWN = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
BY_FRAMEWORK = {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "job.json"}


@pytest.mark.parametrize(
    ("job", "differs"),
    [
        ({**OWN, "zero_optimization": {"stage": 3}}, "ZeRO stage 2 (job: 3)"),
        ({**OWN, "gradient_accumulation_steps": 2}, "gradient_accumulation_steps 8 (job: 2)"),
        ({**OWN, "bf16": {"enabled": True}}, "bf16 False (job: True)"),
        (
            {**OWN, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "offload_optimizer none (job: cpu)",
        ),
    ],
)
def test_deepspeed_config_different_from_the_job_is_an_error(
    tmp_path: Path, job: dict[str, object], differs: str
) -> None:
    text = ENGINE.format(config=OWN, optimizer="optimizer")
    code, output = run(tmp_path, text, BY_FRAMEWORK, job=job)
    assert code != 0 and differs in output and "\ninitialized" not in output, output
    # If the script should pass the job's JSON itself, submit has already noted that it does not.
    code, output = run(tmp_path, text, job=job)
    assert code == 0 and "warning: hpcrun: the script trains with another" in output, output


@pytest.mark.parametrize(
    "job", [OWN, {**OWN, "train_batch_size": "auto", "bf16": {"enabled": "auto"}}, None]
)
def test_deepspeed_config_of_the_job_is_no_error(
    tmp_path: Path, job: dict[str, object] | None
) -> None:
    text = ENGINE.format(config=OWN, optimizer="optimizer")
    code, output = run(tmp_path, text, BY_FRAMEWORK, job=job)
    assert code == 0 and "initialized" in output and "hpcrun" not in output, output
