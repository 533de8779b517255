"""The error messages about a DeepSpeed configuration."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.deepspeed import DeepSpeedInput
from tests.plan.making import plan


def refused(job: str, **given: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        plan(job, deepspeed_input=DeepSpeedInput(**given))
    return [str(problem) for problem in caught.value.problems]


def in_config(config: str, rest: str = "", **given: Any) -> list[str]:
    return refused(f"script: a.py\ndeepspeed: {{config: {{{config}}}}}\n{rest}", **given)


BATCH = "batch: {micro_batch_per_gpu: 1, gradient_accumulation_steps: 1}"
NO_KEY = "DeepSpeed has no such key"
NEEDS_INT = "is text; a whole number is needed"
