"""Ranks whose logs state that each of them trains alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.jobside.lone_ranks import LoneRanks
from hpcrun.jobside.rank_hook import note_joined
from hpcrun.runs import read_warnings

LONE = (
    "Not using distributed mode",
    "2026-11-28 10:00:00,123 - INFO - Not using distributed mode",
    "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1",
    "[11/28 10:00:00 detectron2]: Rank of current process: 0. World size: 1",
    "11/28/2026 10:00:00 - WARNING - __main__ - Process rank: 0, device: cpu, n_gpu: 1, "
    "distributed training: False, 16-bits training: False",
    "11/28/2026 10:00:00 - INFO - __main__ - Distributed environment: DistributedType.NO",
    "Training with a single process on 1 device (cpu).",
    "I1128 10:00:00.123456 140 main.py:50] JAX process: 0 / 1",
    "rank 0 / world size 1",
    "[INFO] global_rank=0, world_size=1",
    "Rank: 0 of 1",
    "2026-11-28 10:00:00,123 - __main__ - INFO - rank 0, world_size 1",
    "2026-11-28T10:00:00Z INFO __main__:main:12 - rank 0, world size 1",
    "[2026-11-28 10:00:00] global rank 0 of 1",
    "I1128 10:00:00.123456 140 train.py:50] rank 0 of 1",
)
TOGETHER = (
    "rank 0 / world size 4",
    "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4",
    "Namespace(lr=0.1, rank=0, world_size=1)",
    "tensor parallel rank 0, world size 1",
    "rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0",
    "local_rank: 0, world_size: 1",
    "[TP] rank 0, world_size 1",
    "[INFO] [TP] rank 0, world_size 1",
    "Pipeline: rank 0 of 1",
    "2026-11-28 10:00:00,123 - INFO - tensor_parallel - rank 0, world_size 1",
    "INFO parallel_state.py:50] rank 0, world_size 1",
    "Group of tensor parallelism:\n  rank 0 of 1",
    "distributed training: True",
    "rank 0 / world size 16",
)
CURVE = "".join(f"step {step} loss {3 / step:.3f}\n" for step in range(1, 5))


def warn(folder: Path, logs: dict[int, str], *, preflight: bool = True) -> list[str]:
    """Return the warnings of an attempt of four ranks with these logs."""
    (folder / "logs/0").mkdir(parents=True, exist_ok=True)
    (folder / "attempts/0").mkdir(parents=True, exist_ok=True)
    for rank, text in logs.items():
        (folder / f"logs/0/rank-{rank}.log").write_text(text)
    if preflight:
        (folder / "hook.pyz").touch()
    environ = {"HPCRUN_RUN_DIR": str(folder), "HPCRUN_WORLD_SIZE": "4"}
    complaints: list[str] = []
    watch = LoneRanks(environ, complaints.append)
    watch.check()
    watch.check()
    warnings = read_warnings(folder / "attempts/0")
    assert [each.replace("warning: ranks", "ranks:") for each in complaints] == [
        f"hpcrun: {each}" for each in warnings
    ]
    return warnings


@pytest.mark.parametrize("statement", LONE)
def test_ranks_that_state_to_train_alone_have_a_warning(tmp_path: Path, statement: str) -> None:
    (warning,) = warn(tmp_path, dict.fromkeys(range(4), f"{statement}\n{CURVE}"))
    assert warning.startswith('ranks: 0, 1 and 3 each print "'), warning
    assert "and the job has 4 ranks" in warning
    assert "launcher: srun" in warning


@pytest.mark.parametrize("statement", TOGETHER)
def test_equal_losses_of_ranks_that_train_together_are_no_warning(
    tmp_path: Path, statement: str
) -> None:
    assert warn(tmp_path, dict.fromkeys(range(4), f"{statement}\n{CURVE}")) == []


def test_statement_needs_a_training_in_several_ranks_without_a_group(tmp_path: Path) -> None:
    alone = f"{LONE[0]}\n{CURVE}"
    assert warn(tmp_path / "one", {0: alone, 1: CURVE, 3: CURVE}) == []
    assert warn(tmp_path / "untrained", dict.fromkeys(range(4), LONE[0] + "\n")) == []
    assert warn(tmp_path / "meant", dict.fromkeys(range(4), alone), preflight=False) == []
    (tmp_path / "joined/attempts/0").mkdir(parents=True)
    (tmp_path / "joined/attempts/0/joined").touch()  # DeepSpeed initialized the group later
    assert warn(tmp_path / "joined", dict.fromkeys(range(4), alone)) == []


@pytest.mark.parametrize(("rank", "world", "joined"), [(0, 4, True), (1, 4, False), (0, 1, False)])
def test_hook_records_that_the_ranks_form_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, world: int, joined: bool
) -> None:
    (tmp_path / "attempts/2").mkdir(parents=True)
    environ = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_ATTEMPT": "2"}
    environ |= {"HPCRUN_WORLD_SIZE": str(world), "RANK": str(rank)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    note_joined()
    assert (tmp_path / "attempts/2/joined").exists() == joined
