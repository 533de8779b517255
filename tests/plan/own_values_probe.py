"""Print the values with which Accelerate trains, for each case of environment and script.

Run as a program of its own: python own_values_probe.py CASES.json. A case has the variables of the
job (``env``), the arguments of the script (``script``) and the class that it calls (``of``).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def train(case: dict[str, Any]) -> dict[str, Any]:
    """Create the script's Accelerator, and return its values."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    before = dict(os.environ)
    os.environ.update(case["env"])
    try:
        if case["of"] == "Trainer":
            import torch
            from transformers import Trainer, TrainingArguments

            words = {"output_dir": case["folder"], "use_cpu": True, "report_to": "none"}
            trainer = Trainer(torch.nn.Linear(1, 1), TrainingArguments(**words, **case["script"]))
            accelerator: Any = trainer.accelerator
        else:
            accelerator = Accelerator(cpu=True, **case["script"])
        plugin = accelerator.state.dynamo_plugin
        return {
            "precision": accelerator.mixed_precision,
            "steps": accelerator.gradient_accumulation_steps,
            "compiler": plugin.backend.value.lower(),
        }
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    """Answer all cases."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    print("ANSWERS" + json.dumps([train(case) for case in cases]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
