"""What programs call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpcrun
from hpcrun.errors import InputError

LOG = (
    "".join(f"step={i} loss={3 - i / 10:.1f} lr=0.1\n" for i in range(1, 6))
    + "step=5 eval_loss=2\n"
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


def test_a_log_as_columns(log: Path) -> None:
    run = hpcrun.parse(log)
    assert run.points == 5 and run.warnings == ()
    columns = run.columns()
    assert list(columns) == ["step", "loss", "eval_loss", "lr"]
    assert columns["step"] == [1, 2, 3, 4, 5]
    assert columns["loss"] == [2.9, 2.8, 2.7, 2.6, 2.5]
    assert columns["eval_loss"][-1] == 2.0
    assert all(value != value for value in columns["eval_loss"][:-1])
    assert len(run.samples) == 11
    assert [sample.value for sample in run.samples if sample.name == "eval_loss"] == [2.0]


def test_all_points_are_kept(log: Path) -> None:
    log.write_text("".join(f"step={i} loss=2.5\n" for i in range(30_000)))
    assert len(hpcrun.parse("train.log").columns()["loss"]) == 30_000


def test_a_pattern_of_ones_own(log: Path) -> None:
    log.write_text("at 1 we got L 2.5!\nat 2 we got L 2.25!\n")
    assert hpcrun.parse(log).points == 0
    run = hpcrun.parse(log, patterns=[r"at (?P<step>\d+) .* L (?P<loss>[\d.]+)"])
    assert run.columns() == {"step": [1, 2], "loss": [2.5, 2.25]}
    with pytest.raises(InputError, match="has no named group"):
        hpcrun.parse(log, patterns=["L .*"])


def test_what_is_not_there(log: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: no such file, run or job"):
        hpcrun.parse("none.log")
    with pytest.raises(AttributeError, match="no attribute 'prase'"):
        hpcrun.prase  # noqa: B018


def test_importing_hpcrun_imports_nothing_else() -> None:
    program = "import sys, hpcrun; print([name for name in sys.modules if 'hpcrun.' in name])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
