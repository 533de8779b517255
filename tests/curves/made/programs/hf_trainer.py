"""The Trainer of transformers (4 and 5) on a tiny GPT-2 that learns to count."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from tests.curves.made.truth import note

WORDS, LENGTH, SAMPLES = 32, 16, 160
NAMES = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm", "eval_loss": "eval_loss"}
PRINTS_FOUR_DIGITS = int(transformers.__version__.split(".")[0]) >= 5


class Told(TrainerCallback):
    """Notes what the Trainer logs; ends, breaks or stalls the run where that is asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Note a line."""
        if not state.is_world_process_zero:
            return
        shown = {NAMES[name]: value for name, value in logs.items() if name in NAMES}
        if PRINTS_FOUR_DIGITS and not self.arguments.every_digit:
            shown = {name: f"{value:.4g}" for name, value in shown.items()}
        if shown:
            note(state.global_step, **shown)

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Break the weights."""
        if state.global_step == self.arguments.nan_after:
            with torch.no_grad():
                next(rest["model"].parameters()).fill_(float("nan"))

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Take a moment, as a step on a GPU does; die."""
        time.sleep(self.arguments.step_seconds)
        if state.global_step == self.arguments.die_after:
            os.kill(os.getpid(), signal.SIGKILL)


def samples(number: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Make sequences that count up from anywhere."""
    starts = torch.randint(WORDS, (number, 1), generator=torch.Generator().manual_seed(seed))
    words = (starts + torch.arange(LENGTH)) % WORDS
    return [{"input_ids": row, "labels": row} for row in words]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every-digit", action="store_true", help="as trainer_state.json has it")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--logging-steps", type=int, default=5)
    parser.add_argument("--eval-steps", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="no bar")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die-after", type=int, default=-1)
    parser.add_argument("--nan-after", type=int, default=-1)
    parser.add_argument("--step-seconds", type=float, default=0.03)
    arguments = parser.parse_args()
    set_seed(7)
    trainer = Trainer(
        GPT2LMHeadModel(
            GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2)
        ),
        TrainingArguments(
            "checkpoints",
            per_device_train_batch_size=8,
            max_steps=arguments.steps,
            learning_rate=3e-3,
            warmup_steps=4,
            logging_steps=arguments.logging_steps,
            logging_nan_inf_filter=arguments.nan_after < 0,
            eval_strategy="steps" if arguments.eval_steps else "no",
            eval_steps=arguments.eval_steps or None,
            save_strategy="steps" if arguments.die_after > 0 else "no",
            save_steps=20,
            disable_tqdm=arguments.plain,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=samples(SAMPLES, 1),
        eval_dataset=samples(24, 2),
        callbacks=[Told(arguments)],
    )
    trainer.train(resume_from_checkpoint=arguments.resume or None)
    if not arguments.nan_after > 0:
        trainer.save_state()


if __name__ == "__main__":
    main()
