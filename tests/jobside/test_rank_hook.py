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


@pytest.mark.parametrize(
    "text",
    [
        FROM_SLURM,
        TRAIN,
        pytest.param(LIGHTNING.format(devices=1), marks=pytest.mark.thorough),
    ],
)
def test_single_rank_is_no_error(tmp_path: Path, text: str) -> None:
    code, output = run(tmp_path, text)
    assert code == 0 and "hpcrun" not in output, output


def test_ranks_with_other_communication_libraries_and_own_hooks_train(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").touch()
    own = "from torch.optim.optimizer import register_optimizer_step_pre_hook as register\n"
    own += "register(lambda *_: print('own hook'))\n"
    code, output = run(tmp_path, f"import mpi4py\n{own}{TRAIN}", world=2)
    assert code == 0 and "own hook" in output, output


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


def test_checks_are_loaded_with_the_first_checked_module(tmp_path: Path) -> None:
    text = "import sys; print(sys.meta_path[0].hook)"
    assert run(tmp_path, text) == (0, "None\n")
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    for name in ("../__init__.py", "__init__.py", "optimizer.py"):
        (package / name).touch()
    code, output = run(tmp_path, f"import torch.optim.optimizer; {text}")
    assert code == 0 and "hpcrun_rank_hook" in output
    text = "import os, torch.optim.optimizer; print('trained')"
    code, output = run(tmp_path, f"import os; os.remove('hook.pyz'); {text}")
    assert code == 0 and output.startswith("trained\n")
    assert "hpcrun: torch.optim.optimizer is not checked: " in output


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


DIFFERENT = {
    **OWN,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
}


def test_deepspeed_config_different_from_the_job_is_an_error(tmp_path: Path) -> None:
    text = ENGINE.format(config=OWN, optimizer="optimizer")
    code, output = run(tmp_path, text, BY_FRAMEWORK, job=DIFFERENT)
    assert code != 0 and "\ninitialized" not in output, output
    for differs in (
        "ZeRO stage 2 (job: 3)",
        "gradient_accumulation_steps 8 (job: 2)",
        "bf16 False (job: True)",
        "offload_optimizer none (job: cpu)",
    ):
        assert differs in output, output
    # If the script should pass the job's JSON itself, submit has already noted that it does not.
    code, output = run(tmp_path, text, job=DIFFERENT)
    assert code == 0 and "warning: hpcrun: the script trains with another" in output, output


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(OWN, marks=pytest.mark.thorough),
        {**OWN, "train_batch_size": "auto", "bf16": {"enabled": "auto"}},
        None,
    ],
)
def test_deepspeed_config_of_the_job_is_no_error(
    tmp_path: Path, job: dict[str, object] | None
) -> None:
    text = ENGINE.format(config=OWN, optimizer="optimizer")
    code, output = run(tmp_path, text, BY_FRAMEWORK, job=job)
    assert code == 0 and "initialized" in output and "hpcrun" not in output, output


# ---- usage


# Stands in for torch on a GPU, of which the hook reads the statistics of the allocator.
TORCH = {
    "torch/__init__.py": "from torch import cuda",
    "torch/cuda/memory.py": """
PEAKS = [[0, 0], [3 << 30, 5 << 30]]
def max_memory_allocated(device): return PEAKS[device][0]
def max_memory_reserved(device): return PEAKS[device][1]
def reset_peak_memory_stats(device=1): PEAKS[device] = [1 << 30, 1 << 30]
reset_max_memory_allocated = reset_peak_memory_stats
""",
    "torch/cuda/__init__.py": """
from types import SimpleNamespace
from torch.cuda.memory import *
def is_initialized(): return True
def device_count(): return 2
def get_device_properties(device): return SimpleNamespace(name="A100", total_memory=80 << 30)
""",
}
LOADER = """
import time, torch
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): time.sleep(0.05); return torch.ones(1) * index
for batch in DataLoader(Slow(), batch_size=2): time.sleep(0.05)
"""


def usage_after(
    folder: Path, text: str, *, code: int = 0, gpu: bool = False
) -> dict[str, object] | None:
    """Run a program as rank 0 and return what the hook recorded of it."""
    for name, content in TORCH.items() if gpu else ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    attempt = folder / "attempts" / "0"
    attempt.mkdir(parents=True)
    found, output = run(folder, text, {"HPCRUN_RUN_DIR": str(folder), "HPCRUN_ATTEMPT": "0"})
    assert found == code and "rank_hook" not in output and "hpcrun" not in output, output
    file = attempt / "usage" / "rank-0.json"
    return json.loads(file.read_text()) if file.exists() else None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import torch", 0),
        ("import sys; del sys.path[1:3]; assert 'pyz' not in str(sys.path); import torch", 0),
        ("import torch; torch.cuda.reset_peak_memory_stats(1)", 0),
        ("import torch; torch.cuda.reset_max_memory_allocated()", 0),
        ("import torch; raise RuntimeError('CUDA out of memory')", 1),
        ("import torch, sys; sys.exit(3)", 3),
        ("import torch, os\nif os.fork() == 0: torch.cuda.reset_peak_memory_stats()\n", 0),
    ],
)
def test_peak_gpu_memory_is_recorded(tmp_path: Path, text: str, code: int) -> None:
    assert usage_after(tmp_path, text, code=code, gpu=True) == {
        "peak_allocated": 3 << 30,
        "peak_reserved": 5 << 30,
        "gpu": "A100",
        "gpu_memory": 80 << 30,
    }


@pytest.mark.parametrize("text", ["print(1)", "import torch", TRAIN])
def test_nothing_is_recorded_without_gpu_and_data_loader(tmp_path: Path, text: str) -> None:
    assert usage_after(tmp_path, text) is None


def test_unwritable_directory_and_other_torch_versions_do_not_disturb_training(
    tmp_path: Path,
) -> None:
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "0").touch()
    places = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_ATTEMPT": "0"}
    code, output = run(tmp_path, LOADER + "print('trained')", places)
    assert (code, output) == (0, "trained\n")
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text("def is_initialized(): return 1 / 0")
    code, output = run(tmp_path, "import torch.cuda; print('trained')", places)
    assert (code, output) == (0, "trained\n")


def test_waiting_time_for_data_loaders_is_recorded(tmp_path: Path) -> None:
    found = usage_after(tmp_path, LOADER)
    assert found is not None and found["batches"] == 4
    # Three batches of 2 x 50 ms, each after a step of 50 ms.
    assert 0.3 <= float(str(found["data_seconds"])) <= float(str(found["loop_seconds"])) - 0.1


def test_usage_of_a_killed_rank_is_recorded(tmp_path: Path) -> None:
    text = LOADER.replace("return 8", "return 64") + "import os; os.kill(os.getpid(), 9)"
    found = usage_after(tmp_path, text, code=-9)
    assert found is not None and int(str(found["batches"])) > 1
