"""Run the reference trainer on CPU ranks, and read its output."""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.torch_extensions import extensions

PROGRAM = Path(__file__).parents[2] / "hpcrun" / "workloads" / "reference" / "train_gpt.py"
# What every training imports: the first optimizer the second.
TORCH = ("torch.distributed.elastic.multiprocessing.errors", "torch._dynamo")


class Outcome(NamedTuple):
    """The exit code and output of a training."""

    returncode: int
    stdout: str
    stderr: str

    def records(self) -> list[dict[str, Any]]:
        """Parse every line of stdout as JSON."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def config(self) -> dict[str, Any]:
        """Return the first record."""
        config: dict[str, Any] = self.records()[0]["config"]
        return config

    def curve(self, *names: str) -> dict[tuple[int, str], float]:
        """Return values by step and name, with all default curve names."""
        wanted = names or ("loss", "eval_loss", "grad_norm", "lr")
        return {
            (record["step"], name): record[name]
            for record in self.records()
            for name in wanted
            if name in record
        }

    def hashes(self) -> list[str]:
        """Return the output of --parameter-hash, one per rank."""
        return [r["parameter_hash"] for r in self.records() if "parameter_hash" in r]


def environment() -> dict[str, str]:
    """Return the environment of a rank: one thread, no GPU, no variables of launchers or Slurm."""
    ours = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith("SLURM_")}
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": extensions(),
    }


def free_port() -> int:
    """Find a free TCP port outside the ephemeral range."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) != 0:
                return port


@cache
def _forks() -> subprocess.Popen[str]:
    """Start the process that imports torch, for the lifetime of this one."""
    argv = [sys.executable, str(Path(__file__).with_name("forked.py")), *TORCH]
    pipe = subprocess.PIPE
    forks = subprocess.Popen(
        argv, env=environment(), stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    atexit.register(forks.communicate)
    atexit.register(os.killpg, forks.pid, signal.SIGKILL)  # called before the other
    return forks


def run_forked(
    ranks: Sequence[Mapping[str, str]],
    arguments: Sequence[object],
    *,
    program: Path = PROGRAM,
    module: str = "deepspeed",
    stop: tuple[int, Sequence[float]] | None = None,
) -> Outcome:
    """Run a program on these ranks in forks of a process that has imported ``module``.

    ``stop``: after how many steps to ask all ranks to stop, with a pause before each.
    """
    forks = _forks()
    assert forks.stdin and forks.stdout
    asked = [module, str(program), ranks, [*map(str, arguments)], stop]
    print(json.dumps(asked), file=forks.stdin, flush=True)
    return Outcome(*json.loads(forks.stdout.readline()))


def train(*arguments: object, extra: Mapping[str, str] | None = None) -> Outcome:
    """Train in one process, without a launcher."""
    return run_forked([extra or {}], arguments)


def as_by_srun(ranks: int) -> list[dict[str, str]]:
    """Return the variables set by srun for this many ranks."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**shared, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(ranks)]


def train_on(ranks: int, *arguments: object) -> Outcome:
    """Train on this many ranks, started like srun starts them."""
    return run_forked(as_by_srun(ranks), arguments)


def stop_after(steps: int, *arguments: object, survive: str = "preempted") -> Outcome:
    """Train on two ranks, and SIGTERM both after some steps, in a job with this `survive`."""
    ranks = [{**rank, "HPCRUN_SURVIVE": survive} for rank in as_by_srun(2)]
    return run_forked(ranks, arguments, stop=(steps, (0, 0.01)))


def torchrun(ranks: int, *arguments: object) -> Outcome:
    """Train on this many ranks under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, *launcher, *address, str(PROGRAM), *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def write_deepspeed_config(path: Path, zero: dict[str, Any], **other: object) -> Path:
    """Write hpcrun's JSON for SHARED_BATCH on two ranks in fp32."""
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 8,
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    path.write_text(json.dumps({**config, **other}))
    return path
