"""Each example, stopped by SIGTERM in the middle of its training, goes on to the same result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.examples.project import Project
from tests.waiting import until

# How many losses its log has when it is stopped.
STOPPED_AFTER = {
    "algorithm-distillation": 8,
    "cad-curriculum": 4,
    "drivable-vit": 4,
    "speech-lm": 3,
    "video-lora": 2,
}
# A shorter training than that of the job small.
SHORT = [
    "--",
    "--steps",
    "120",
    "--log-every",
    "1",
    "--eval-repeats",
    "1",
    "--source-episodes",
    "10",
]
WORDS = {"algorithm-distillation": [*SHORT, "--eval-every", "1000"]}
HERE = ("--cluster", "sandbox")
LOSS = re.compile(r"loss['\"]?[=: ]")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STOPPED_AFTER)
def test_an_example_that_is_stopped_goes_on(project: Callable[[str], Project], name: str) -> None:
    example = project(name)

    def submit() -> Any:
        words = ("--set", "survive.when=[preempted]", *WORDS.get(name, []))
        return json.loads(example.hpcrun("submit", "small", "--json", *HERE, *words))

    stopped, whole = submit(), submit()
    run, log = Path(stopped["run_dir"]), Path(stopped["run_dir"]) / "logs/0/rank-0.log"
    until(
        lambda: log.exists() and len(LOSS.findall(log.read_text())) >= STOPPED_AFTER[name],
        f"steps of {name}",
    )
    example.hpcrun("requeue", stopped["job_id"], *HERE)
    for each in (stopped, whole):
        example.hpcrun("wait", each["job_id"], *HERE)
    status = json.loads(example.hpcrun("status", "--json", stopped["job_id"], *HERE))
    first, second = status["runs"][0]["attempts"]
    assert first["end"]["why"] == "requeued" and first["end"]["checkpoint"]
    assert second["end"]["exit_code"] == 0
    # The Trainer's lines have no steps.
    assert name == "speech-lm" or 1 < first["last_step"] < second["first_step"]
    expected = example.curves(Path(whole["run_dir"]))["loss"]
    assert len(expected) > STOPPED_AFTER[name]
    assert example.curves(run)["loss"] == pytest.approx(expected, rel=1e-3)
