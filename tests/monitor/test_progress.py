"""Step and loss at the end of a log are those of its whole curve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hpcrun
from hpcrun.curves.names import LOSS
from hpcrun.monitor.progress import last_point, steps_of
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.status import Progress
from tests.source import ROOT

LOGS = ROOT / "tests" / "curves" / "logs"
# The Trainer prints losses without steps, and redraws its bar every tenth of a second.
BARS = ["hf4_bar", "hf4_resumed", "hf5_bar", "hf5_every_step", "hf5_resumed", "trl_grpo", "trl_sft"]


@pytest.mark.parametrize("name", [*BARS, "plain_healthy"])
def test_status_and_parse_agree_on_the_last_step(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    (run.path / "attempts" / "0").mkdir(parents=True)
    log = run.logs / "0" / "rank-0.log"
    log.parent.mkdir(parents=True)
    shutil.copy(LOGS / f"{name}.log", log)
    last = hpcrun.parse(log).curve.metrics[LOSS]
    shown = last_point(run)
    assert (shown.step, shown.value) == (last.steps[-1], last.values[-1])
    first, latest = steps_of(run, 0)
    assert first is not None and last.steps[0] is not None and latest == last.steps[-1]
    assert first >= last.steps[0], "a bar that is drawn later than its step"


def test_step_is_taken_from_an_earlier_attempt_if_later_ones_have_none(tmp_path: Path) -> None:
    """The last attempt may have had nothing left to do."""
    run = RunFolder(tmp_path)
    for attempt in range(6):
        (run.path / "attempts" / str(attempt)).mkdir(parents=True)
        log = run.logs / str(attempt) / "rank-0.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"step={attempt} loss=2.5\n" if attempt < 2 else "nothing left to do\n")
    assert last_point(run) == Progress()
    shutil.rmtree(run.path / "attempts" / "5")
    assert last_point(run) == Progress(step=1, value=2.5, metric=LOSS, log=None), "its log is old"
    for number in ("2", "3", "4"):
        shutil.rmtree(run.path / "attempts" / number)
    log = run.logs / "1" / "rank-0.log"
    assert last_point(run) == Progress(step=1, value=2.5, metric=LOSS, log=log)
