"""Export of runs as event files, read with TensorBoard's own reader."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.curves.curve import Curve, build_series
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.tensorboard import folder_names, write_tensorboard
from hpcrun.errors import InputError
from tests.curves.report import runs


def made(source: str, **metrics: Any) -> ParsedRun:
    return structs.replace(runs.one()[0], source=source, curve=Curve(metrics, ()))


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return each tag's (step, value, wall time), as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


@pytest.mark.slow
def test_tensorboard_reads_every_point(tmp_path: Path) -> None:
    (run,) = runs.one()
    write_tensorboard([run], tmp_path)
    found = read(tmp_path / "train.log")
    tags = {
        "train/loss": "loss",
        "eval/loss": "eval_loss",
        "train/learning_rate": "lr",
        "train/grad_norm": "grad_norm",
        "train/tokens_per_second": "tokens_per_second",
        "train/step_seconds": "step_seconds",
        "train/memory_bytes": "memory_bytes",
    }
    assert set(tags) <= set(found)
    for tag, name in tags.items():
        assert [step for step, _, _ in found[tag]] == run.curve.steps(name)
        values = [value for _, value, _ in found[tag]]
        assert values == pytest.approx(run.curve.values(name), rel=1e-6)


@pytest.mark.slow
def test_tensorboard_finds_a_run_in_each_folder(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    write_tensorboard(runs.several(), tmp_path / "new" / "board")
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "new" / "board"))
    multiplexer.Reload()
    names = {"train.log", "20261120-081455-zero2-4gpu-7k3q", "diverged.log", "slurm-17.out"}
    assert set(multiplexer.Runs()) == names
    diverged = read(tmp_path / "new/board/diverged.log")
    assert math.isnan(diverged["train/loss"][-1][1])


@pytest.mark.slow
def test_time_stamps_are_wall_times(tmp_path: Path) -> None:
    series = build_series([5, 6], [2.0, 1.0], [1.79e9, 1.79e9 + 60])
    write_tensorboard([made("a", loss=series)], tmp_path)
    assert read(tmp_path / "a")["train/loss"] == [(5, 2.0, 1.79e9), (6, 1.0, 1.79e9 + 60)]


def test_wall_times_use_step_times_without_time_stamps(tmp_path: Path) -> None:
    loss, seconds = build_series([1, 2], [2.0, 1.0]), build_series([1, 2], [3.0, 4.0])
    write_tensorboard([made("a", loss=loss, step_seconds=seconds), made("b", loss=loss)], tmp_path)
    assert [at for _, _, at in read(tmp_path / "a")["train/loss"]] == [3.0, 7.0]
    assert [at for _, _, at in read(tmp_path / "b")["train/loss"]] == [0.0, 0.0]


@pytest.mark.parametrize("steps", [[None, None, None], [1, 2, 1]])
def test_points_without_steps_are_numbered(tmp_path: Path, steps: list[int | None]) -> None:
    write_tensorboard([made("a", loss=build_series(steps, [3.0, 2.0, 1.0]))], tmp_path)
    assert [event[:2] for event in read(tmp_path / "a")["train/loss"]] == [(1, 3), (2, 2), (3, 1)]


def test_metrics_with_equal_tags_remain_separate(tmp_path: Path) -> None:
    first, second = build_series([1], [1.0]), build_series([1], [2.0])
    metrics = {"eval_acc": first, "eval/acc": second, "val/acc": second, "rewards/margins": first}
    run = structs.replace(runs.one()[0], source="a", curve=Curve(metrics, ()))
    write_tensorboard([run], tmp_path)
    found = {tag: events[0][1] for tag, events in read(tmp_path / "a").items()}
    assert found == {"eval/acc": 1, "eval/acc_2": 2, "val/acc": 2, "train/rewards/margins": 1}


def test_writing_again_replaces_the_file(tmp_path: Path) -> None:
    for values in ([3.0, 2.0], [5.0, 4.0]):
        write_tensorboard([made("a", loss=build_series([1, 2], values))], tmp_path)
    assert [value for _, value, _ in read(tmp_path / "a")["train/loss"]] == [5.0, 4.0]
    assert len(list((tmp_path / "a").iterdir())) == 1


@pytest.mark.parametrize(
    "source",
    ["..", "/", "", "../../etc/passwd", ".hidden", "a b\n;$(x)", "損失", "x" * 300, "a\udc80"],
)
def test_source_name_cannot_leave_the_folder(tmp_path: Path, source: str) -> None:
    inside = tmp_path / "board"
    write_tensorboard([made(source, loss=build_series([1], [1.0]))], inside)
    (folder,) = inside.iterdir()
    assert list(read(folder)) == ["train/loss"] and list(tmp_path.iterdir()) == [inside]


def test_every_run_has_its_own_folder() -> None:
    sources = ["a/x", "b/x", "x", "x", "X", "a-x", "x-2", "x"]
    names = folder_names(sources)
    assert len({name.lower() for name in names}) == len(sources)


def test_missing_tensorboard_has_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install tensorboard"):
        write_tensorboard(runs.one(), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file"):
        write_tensorboard(runs.one(), tmp_path / "file")
