"""The last step and loss of a log's end are those of its whole curve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hpcrun
from hpcrun.controller.progress import last_point
from hpcrun.metrics.names import LOSS
from hpcrun.runs.layout import RunFolder
from tests.source import ROOT

LOGS = ROOT / "tests" / "metrics" / "logs"
# The Trainer prints its losses without steps, and draws its bar every tenth of a second.
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
