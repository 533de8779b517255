"""TRL's trainers on a tiny GPT-2 with random weights: sft, dpo or grpo."""

from __future__ import annotations

import sys
import time
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)
from trl import (  # type: ignore[import-not-found]
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    SFTConfig,
    SFTTrainer,
)

from tests.curves.made.truth import note

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
WORDS = [*NUMBERS, "yes", "no", "good", "bad"]
TOLD = {
    "loss": "loss",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "mean_token_accuracy": "mean_token_accuracy",
    "rewards/margins": "rewards/margins",
    "reward": "reward",
}
COMMON = {
    "output_dir": "checkpoints",
    "per_device_train_batch_size": 4,
    "max_steps": 24,
    "logging_steps": 2,
    "learning_rate": 2e-3,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}


class Told(TrainerCallback):
    """Notes what the trainer logs, to the four digits that are printed."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Note a line."""
        shown = {TOLD[name]: f"{value:.4g}" for name, value in logs.items() if name in TOLD}
        if "loss" in logs:
            note(state.global_step, **shown)

    def on_step_end(self, *args: Any, **rest: Any) -> None:
        """Take a moment."""
        time.sleep(0.03)


def tokenizer() -> PreTrainedTokenizerFast:
    """Make one that knows a few words."""
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def trainer(how: str) -> Any:
    """Make the trainer."""
    words = tokenizer()
    size = {"vocab_size": len(words), "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**size, **ids))
    numbers = [" ".join(WORDS[i % 10 : i % 10 + 4]) for i in range(64)]
    rest = {"processing_class": words, "callbacks": [Told()]}
    if how == "sft":
        rows = Dataset.from_dict({"text": numbers})
        return SFTTrainer(model, args=SFTConfig(**COMMON), train_dataset=rows, **rest)
    if how == "dpo":
        pairs = {"chosen": [" yes good"] * 64, "rejected": [" no bad"] * 64}
        rows = Dataset.from_dict({"prompt": numbers, **pairs})
        reference = GPT2LMHeadModel(model.config)
        return DPOTrainer(model, reference, DPOConfig(**COMMON), train_dataset=rows, **rest)
    rows = Dataset.from_dict({"prompt": numbers})
    sizes = {"num_generations": 4, "max_completion_length": 8}

    def brevity(completions: list[str], **kwargs: Any) -> list[float]:
        return [-float(len(completion)) for completion in completions]

    settings = GRPOConfig(**COMMON, **sizes)
    return GRPOTrainer(model, brevity, args=settings, train_dataset=rows, **rest)


if __name__ == "__main__":
    set_seed(7)
    trainer(sys.argv[1]).train()
