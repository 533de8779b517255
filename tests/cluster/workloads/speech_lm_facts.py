"""What the example speech-lm does in one process: run in its folder, with a folder to write in."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, "")  # the example's folder
train: Any = importlib.import_module("train")
data: Any = importlib.import_module("data")
transformers: Any = importlib.import_module("transformers")
GraniteMLP: Any = importlib.import_module("transformers.models.granite.modeling_granite").GraniteMLP

TINY = transformers.AutoConfig.from_pretrained("models/tiny")
SHORT = 128
WORDS = ["--use_cpu", "true", "--precision", "fp32", "--model", "models/tiny",
         "--typical_length", "64", "--recordings", "512", "--per_device_train_batch_size", "16",
         "--learning_rate", "1e-2", "--warmup_steps", "4", "--disable_tqdm", "true"]  # fmt: skip


def fit(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Train as the command line would, and give what the Trainer logged."""
    sys.argv = ["train.py", "--output_dir", str(folder), *WORDS, *words]
    train.main()
    newest = Path(train.last_checkpoint(folder))
    history: list[dict[str, Any]] = json.loads((newest / "trainer_state.json").read_text())[
        "log_history"
    ]
    return history


def losses(history: list[dict[str, Any]]) -> dict[str, float]:
    """Give the loss of each step."""
    return {str(each["step"]): each["loss"] for each in history if "loss" in each}


def batches(folder: Path, **options: Any) -> Counter[tuple[int, ...]]:
    """Count the rows that an epoch gives the model, without their padding."""
    args = train.Arguments(
        output_dir=str(folder), use_cpu=True, precision="fp32", typical_length=64, recordings=512,
        max_steps=1, per_device_train_batch_size=16, **options,
    )  # fmt: skip
    mixture, held_out = train.build_datasets(args, TINY.vocab_size)
    model = transformers.AutoModelForCausalLM.from_config(TINY)
    trainer = train.SpeechTrainer(
        model, args, data_collator=train.collate, train_dataset=mixture, eval_dataset=held_out
    )
    rows: Counter[tuple[int, ...]] = Counter()
    for batch in trainer.get_train_dataloader():
        for ids, real in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            rows[tuple(ids[: int(real.sum())].tolist())] += 1
    return rows


def filtered(folder: Path) -> list[dict[str, Any]]:
    """For each seed: what is trained on with the filter, and without."""
    shown = []
    for seed in (1, 2):
        made = [train.record(each, 512, 64, TINY.vocab_size, seed) for each in data.CORPORA]
        long = {tuple(row) for rows in made for row in rows["input_ids"] if len(row) > SHORT}
        with_it = batches(folder, max_length=SHORT, seed=seed)
        without = batches(folder, max_length=10**6, seed=seed)
        shown.append(
            {
                "long": len(long),
                "long_trained_on": len(long & set(with_it)),
                "long_without_filter": len(long & set(without)),
                "longest": max(map(len, with_it)),
            }
        )
    return shown


def shares(folder: Path) -> list[tuple[float, int, int]]:
    """For each weight of the first corpus: how many rows of it there are, of how many."""
    shown = []
    for weight, seed in ((0.2, 1), (0.6, 2)):
        rows = batches(folder, max_length=10**6, weights=[weight, 1 - weight], seed=seed)
        first = sum(times for row, times in rows.items() if row[0] == data.FIRST_NAME)
        shown.append((weight, first, rows.total()))
    return shown


def layer_passes(folder: Path, switch: str) -> float:
    """Count how often each layer computes its MLP for one micro batch of training."""
    calls, forward = [0], GraniteMLP.forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return forward(self, *args, **kwargs)

    GraniteMLP.forward = counted
    words = ["--max_steps", "2", "--gradient_accumulation_steps", "3", "--eval_strategy", "no"]
    try:
        fit(folder, *words, "--max_length", "128", "--activation_checkpointing", switch)
    finally:
        GraniteMLP.forward = forward
    passes: float = calls[0] / (2 * 3 * TINY.num_hidden_layers)
    return passes


def passes_with_the_json_alone(block: dict[str, Any]) -> float:
    """Count the same with DeepSpeed's engine and a JSON with an activation_checkpointing block."""
    import deepspeed
    import torch

    calls, forward = [0], GraniteMLP.forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return forward(self, *args, **kwargs)

    model = transformers.AutoModelForCausalLM.from_config(TINY).float()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={"train_batch_size": 2, "zero_optimization": {"stage": 2}, **block},
    )
    rows = train.record(data.CORPORA[0], 2, 64, TINY.vocab_size, 1)
    batch = train.collate([rows[0], rows[1]])
    GraniteMLP.forward = counted
    engine.backward(engine(**batch).loss)
    engine.step()
    GraniteMLP.forward = forward
    passes: float = calls[0] / TINY.num_hidden_layers
    return passes


def resumed(folder: Path) -> tuple[dict[str, float], dict[str, float], int]:
    """Train six steps, and again from the third; a newer checkpoint is not whole.

    Gives the losses of both, and how many steps the second one made.
    """
    words = ["--max_length", "128", "--max_steps", "6", "--save_steps", "3",
             "--eval_strategy", "no"]  # fmt: skip
    whole = losses(fit(folder, *words))
    shutil.rmtree(folder / "checkpoint-6")
    (folder / "checkpoint-9").mkdir()
    made, step = [0], train.SpeechTrainer.training_step

    def counted(*args: Any) -> Any:
        made[0] += 1
        return step(*args)

    train.SpeechTrainer.training_step = counted
    try:
        again = losses(fit(folder, *words))
    finally:
        train.SpeechTrainer.training_step = step
    return whole, again, made[0]


def eval_losses(folder: Path, *words: str) -> dict[str, float]:
    """Train and give the losses of the last evaluation."""
    history = fit(folder, "--max_length", "128", "--max_steps", "24", "--eval_steps", "24", *words)
    found: dict[str, float] = {}
    for each in history:
        found.update({key: value for key, value in each.items() if key.endswith("_loss")})
    return found


def main(folder: Path) -> None:
    """Find everything out."""
    block = {"activation_checkpointing": {"partition_activations": True}}
    shown = {
        "filtered": filtered(folder / "f"),
        "shares": shares(folder / "w"),
        "passes": {
            switch: layer_passes(folder / f"a{switch}", switch) for switch in ("true", "false")
        },
        "resumed": resumed(folder / "r"),
        "first_only": eval_losses(folder / "s", "--weights", "1", "0"),
        "passes_json_alone": passes_with_the_json_alone(block),
    }
    print("\n" + json.dumps(shown))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
