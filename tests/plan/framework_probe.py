"""Apply a framework's own changes to a DeepSpeed JSON, and print the result.

Run as a program of its own: python framework_probe.py FRAMEWORK PORT CASES.json. A case is a JSON
(``config``), what the script says (``script``) and the data loader's batch (``loader_batch``).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

Case = dict[str, Any]


class Taken(Exception):
    """Stop DeepSpeed at the point where it receives its configuration."""


def transformers(case: Case) -> dict[str, Any]:
    """Fill in the config as the Trainer does, on creation of its arguments and at the start."""
    from transformers import GPT2Config, TrainingArguments

    arguments = TrainingArguments(
        output_dir=case["folder"], deepspeed=case["config"], use_cpu=True, **case["script"]
    )
    model = mock.Mock(config=GPT2Config(n_embd=64))
    filled: Any = arguments.hf_deepspeed_config
    filled.trainer_config_finalize(arguments, model, 100)
    plugin: Any = arguments.deepspeed_plugin
    config: dict[str, Any] = plugin.hf_ds_config.config
    return config


def accelerate(case: Case) -> dict[str, Any]:
    """Fill in the config as Accelerator.prepare does."""
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler

    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    model = torch.nn.Linear(4, 4)
    model.config = mock.Mock(hidden_size=64)
    optimizer: Any = torch.optim.AdamW(model.parameters())
    further = []
    if "optimizer" in case["config"]:
        optimizer = DummyOptim(model.parameters(), lr=0.1)
        further = [DummyScheduler(optimizer, total_num_steps=9, warmup_num_steps=2)]
    plugin = DeepSpeedPlugin(hf_ds_config=case["config"])
    accelerator = Accelerator(deepspeed_plugin=plugin, **case["script"])
    with mock.patch("deepspeed.initialize", side_effect=Taken) as started:
        try:
            accelerator.prepare(model, optimizer, loader(case), *further)
        except Taken:
            return dict(started.call_args.kwargs["config_params"])
    raise AssertionError("DeepSpeed was not started")


def lightning(case: Case) -> dict[str, Any]:
    """Fill in the config as DeepSpeedStrategy does before it starts DeepSpeed."""
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.precision import DeepSpeedPrecision
    from lightning.pytorch.strategies import DeepSpeedStrategy

    script = dict(case["script"])
    strategy = DeepSpeedStrategy(
        config=case["config"], precision_plugin=DeepSpeedPrecision(script.pop("precision"))
    )
    module = pl.LightningModule()
    module.trainer = pl.Trainer(accelerator="cpu", logger=False, **script)
    source = module.trainer.fit_loop._data_source
    source.instance, source.name = loader(case), ""
    strategy._lightning_module = module
    strategy._init_config_if_needed()
    assert isinstance(strategy.config, dict)
    return strategy.config


def loader(case: Case) -> Any:
    """Create the script's data loader."""
    import torch

    rows = torch.utils.data.TensorDataset(torch.zeros(64, 4))
    return torch.utils.data.DataLoader(rows, batch_size=case["loader_batch"])


def main() -> None:
    """Print, for each case, the trained values, the keys still "auto", or the error."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": sys.argv[2],
    }
    fill = {"transformers": transformers, "accelerate": accelerate, "lightning": lightning}
    answers: list[dict[str, Any]] = []
    cases = Path(sys.argv[3])
    os.chdir(cases.parent)
    for case in json.loads(cases.read_text()):
        try:
            config = fill[sys.argv[1]](case)
            from deepspeed.runtime.config import DeepSpeedConfig

            config.pop("steps_per_print", None)  # Accelerate's infinity is no JSON
            left = config if "auto" in json.dumps(config) else None
            trains = DeepSpeedConfig(config) if left is None else None
        except Exception as error:  # whatever the framework raises is the answer
            answers.append({"error": f"{type(error).__name__}: {error}"})
            continue
        answers.append({"left": left})
        if trains is not None:
            answers[-1]["trains"] = {
                "batch": [
                    trains.train_batch_size,
                    trains.train_micro_batch_size_per_gpu,
                    trains.gradient_accumulation_steps,
                ],
                "clipping": trains.gradient_clipping,
                "bf16": trains.bfloat16_config.enabled,
                "fp16": trains.float16_config.enabled,
                "stage": int(trains.zero_config.stage),
            }
    print("ANSWERS" + json.dumps(answers), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
