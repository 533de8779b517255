"""Requested failures end as specified; invalid arguments are refused in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.trainer import (
    PROGRAM,
    environment,
    torchrun,
    train,
    write_deepspeed_config,
)


# A kill: test_resume.py, too. Ranks that end in each of these ways: tests/cluster/test_faults.py.
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("exception", 1),
        pytest.param("exit7", 7, marks=pytest.mark.thorough),
        pytest.param("kill", -9, marks=pytest.mark.thorough),
    ],
)
def test_fault_on_one_rank_ends_the_training(how: str, code: int) -> None:
    outcome = torchrun(2, "--precision", "fp32", "--fail-at", f"3:1:{how}")
    assert outcome.returncode == 1
    last = max(step for step, _ in outcome.curve())
    assert last == 2  # rank 0 waited for the rank that failed
    root = outcome.stderr[outcome.stderr.index("Root Cause") :]
    assert re.search(r"rank\s+: 1 ", root)
    assert re.search(rf"exitcode\s+: {code} ", root)
    assert ("RuntimeError: this failure was asked for by --fail-at" in root) == (how == "exception")


MISTAKES: list[tuple[list[str], str]] = [
    (
        ["--micro-batch-per-gpu", "0"],
        "argument --micro-batch-per-gpu: 0 is not a number from 1 up",
    ),
    (["--lr", "nan"], "argument --lr: nan is not a number from 0 up"),
    (["--size", "huge"], "argument --size: invalid choice: 'huge'"),
    (["--fail-at", "3:kill"], "argument --fail-at: '3:kill' is not STEP:RANK:HOW"),
    (["--seq-len", "5000000"], "--seq-len 5000000 needs 10000002 bytes of data"),
    (["--data", "/no/such/file"], "--data /no/such/file: "),
    (["--precision", "fp16"], "--precision fp16 needs a GPU"),
    (["--checkpoint-every", "5"], "--checkpoint-every needs --checkpoint-dir"),
]


def test_invalid_arguments_are_refused() -> None:
    for arguments, message in MISTAKES:
        outcome = train(*arguments)
        assert (outcome.returncode, outcome.stdout) == (2, ""), (arguments, outcome)
        (line,) = outcome.stderr.splitlines()
        assert line.startswith(f"train_gpt.py: error: {message}"), line


def test_incomplete_launcher_variables_are_refused() -> None:
    outcome = train(extra={"RANK": "0", "WORLD_SIZE": "2"})
    assert outcome.returncode == 2
    assert "has not set LOCAL_RANK, MASTER_ADDR, MASTER_PORT" in outcome.stderr
    # srun started four ranks without variables: four separate trainings are not one of four ranks.
    assert train(extra={"SLURM_STEP_NUM_TASKS": "4"}).returncode == 2


DISAGREEMENTS: list[tuple[dict[str, object], str]] = [
    ({}, "train_batch_size is 8, but by the arguments it is 4"),
    (
        {"train_batch_size": "auto", "gradient_clipping": 0.5},
        "gradient_clipping is 0.5, but by the arguments it is 1.0",
    ),
    (
        {"train_batch_size": 4, "bf16": {"enabled": True}},
        "bf16.enabled is true, but by the arguments it is false",
    ),
    (
        {"train_batch_size": 4, "optimizer": {"type": "AdamW"}},
        "optimizer: this program brings its own; remove it from the file",
    ),
]


def test_contradicting_deepspeed_json_is_refused(tmp_path: Path) -> None:
    arguments = ["--precision", "fp32", "--micro-batch-per-gpu", "2"]
    arguments += ["--gradient-accumulation-steps", "2", "--deepspeed-config"]
    paths = [
        write_deepspeed_config(tmp_path / f"{number}.json", {"stage": 2}, **other)
        for number, (other, _) in enumerate(DISAGREEMENTS)
    ]
    for path, (_, message) in zip(paths, DISAGREEMENTS, strict=True):
        outcome = train(*arguments, path)
        assert (outcome.returncode, outcome.stdout) == (2, "")
        assert outcome.stderr == f"train_gpt.py: error: {path}: {message}\n"


def test_doctests_of_the_trainer_pass() -> None:
    """In a separate process, because nothing else imports the trainer's modules."""
    command = [sys.executable, "-m", "doctest", "arguments.py"]
    done = subprocess.run(
        command, cwd=PROGRAM.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
