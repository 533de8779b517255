"""A killed run continues from its last checkpoint as if uninterrupted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workloads.trainer import Outcome, stop_after, train, train_on

# DeepSpeed may have to compile its operators first.
pytestmark = pytest.mark.timeout(1800)


# ZeRO-3 is resumed on a cluster: tests/cluster/test_training.py.
@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.thorough), "zero2"])
def test_killed_run_continues_from_its_checkpoint(
    strategy: str,
    tmp_path: Path,
    strategy_arguments: Callable[[str], list[object]],
    on_two_ranks: Callable[[str], Outcome],
) -> None:
    checkpoints = ["--checkpoint-dir", tmp_path, "--checkpoint-every", 4]
    arguments = [*strategy_arguments(strategy), *checkpoints, "--parameter-hash"]
    killed = train_on(2, *arguments, "--fail-at", "7:1:kill")
    assert killed.returncode == -signal.SIGKILL
    # The state after a kill during a save.
    (tmp_path / "step-00000008.partial").mkdir()
    (tmp_path / "step-00000008.partial" / "state.pt").write_text("half a checkpoint")

    resumed = train_on(2, *arguments, "--fail-at", "7:1:kill")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.config()["resumed_from_step"] == 4
    # The same arithmetic on the same numbers gives bitwise equal results.
    whole = on_two_ranks(strategy)
    expected = {key: value for key, value in whole.curve().items() if key[0] > 4}
    assert resumed.curve() == expected
    assert set(resumed.hashes()) == set(whole.hashes())
    folders = [path.name for path in sorted(tmp_path.glob("step-*"))]
    assert folders == ["step-00000004", "step-00000008", "step-00000012"]
    assert (tmp_path / "latest").read_text() == "step-00000012"


def test_run_saves_its_step_on_sigterm(
    tmp_path: Path,
    strategy_arguments: Callable[[str], list[object]],
    on_two_ranks: Callable[[str], Outcome],
) -> None:
    """At different moments, each rank slightly later than the previous one."""
    arguments = [*strategy_arguments("ddp"), "--checkpoint-dir", tmp_path, "--parameter-hash"]
    curve: dict[tuple[int, str], float] = {}
    for steps in (1, 2, 1) if os.environ.get("HPCRUN_TEST_ALL") == "1" else (2,):
        stopped = stop_after(steps, *arguments)
        last = max((step for step, _ in stopped.curve()), default=12)
        assert stopped.returncode == 0, stopped.stderr
        assert (tmp_path / "latest").read_text() == f"step-{last:08}"
        assert not curve.keys() & stopped.curve().keys(), "no step is done twice"
        curve |= stopped.curve()
    rest = train_on(2, *arguments)
    whole = on_two_ranks("ddp")
    assert curve | rest.curve() == whole.curve()
    assert set(rest.hashes()) == set(whole.hashes())


def test_run_without_survive_ends_at_once_on_sigterm(tmp_path: Path) -> None:
    stopped = stop_after(2, "--steps", 500, "--checkpoint-dir", tmp_path, survive="")
    assert stopped.returncode == -signal.SIGTERM
    assert not (tmp_path / "latest").exists()


def test_resume_with_a_different_model_is_refused(tmp_path: Path) -> None:
    arguments = ["--checkpoint-dir", tmp_path, "--precision", "fp32"]
    assert train(*arguments, "--steps", 2).returncode == 0
    # Already at its last step: there is nothing to do, which is no failure.
    again = train(*arguments, "--steps", 2)
    assert again.returncode == 0
    assert again.config()["resumed_from_step"] == 2
    assert again.curve() == {}

    # A run started afresh replaces existing files.
    begun_again = train(*arguments, "--steps", 2, "--resume", "never")
    assert [step for step, _ in begun_again.curve("loss")] == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000002"]

    other = train(*arguments, "--size", "small")
    assert other.returncode == 2
    assert other.stderr.splitlines() == [
        f"train_gpt.py: error: {tmp_path / 'step-00000002'}: its size is tiny, "
        "but this run's is small"
    ]
    nowhere = train("--resume", tmp_path / "elsewhere")
    assert nowhere.returncode == 2
    assert "is not a checkpoint of this program" in nowhere.stderr
