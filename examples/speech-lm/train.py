"""Train a causal language model on long sequences of audio tokens, with the Trainer and DeepSpeed.

Every argument of the Trainer (`TrainingArguments`) is one of this script, too. DeepSpeed's JSON
does not come by an argument: the environment names it, and the Trainer fills its "auto" from the
arguments. So the same script trains with ZeRO-3 and offload, with ZeRO-2, and without DeepSpeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import datasets
import torch
from data import CORPORA, PAD, collate, floor, keep_short, mix, record
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


@dataclass
class Arguments(TrainingArguments):
    """What this script takes: the Trainer's own arguments, with these defaults, and its own."""

    learning_rate: float = 3e-4
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = 20
    max_steps: int = 1000
    logging_steps: float = 1
    save_steps: float = 200
    save_total_limit: int | None = 2
    report_to: str = "none"

    model: str = field(
        default="models/1b", metadata={"help": "folder of a model's config.json, beside this file"}
    )
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    activation_checkpointing: bool = field(
        default=False, metadata={"help": "keep one tensor of a layer and compute the rest again"}
    )
    max_length: int = field(
        default=8192, metadata={"help": "leave out recordings of more tokens than this"}
    )
    typical_length: int = field(
        default=4096, metadata={"help": "median length in tokens of the recordings that are made"}
    )
    recordings: int = field(default=2048, metadata={"help": "recordings of each corpus"})
    weights: list[float] = field(
        default_factory=lambda: [0.6, 0.4],
        metadata={"help": f"how much of {' and '.join(each.name for each in CORPORA)} to mix"},
    )

    def __post_init__(self) -> None:
        self.bf16, self.fp16 = self.precision == "bf16", self.precision == "fp16"
        # Its name in the Trainer of transformers before 5.
        self.gradient_checkpointing = self.activation_checkpointing
        super().__post_init__()


class SpeechTrainer(Trainer):
    """A Trainer that also logs how long its batches are, and the memory that they take."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._longest = self._padding = self._tokens = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        """Train on one micro batch of (recordings, tokens)."""
        ids = inputs["input_ids"]
        self._longest = max(self._longest, ids.shape[1])
        self._padding += (ids == PAD).sum()  # a tensor: reading it would wait for the GPU
        self._tokens += ids.numel()
        return super().training_step(model, inputs, *args)

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log, over all ranks, since the last time: longest row, padding, peak of GPU memory."""
        if "loss" in logs:
            peak = 0
            if torch.cuda.is_available():
                peak = torch.cuda.max_memory_allocated()
            mine = [float(each) for each in (self._longest, self._padding, self._tokens, peak)]
            table = torch.tensor([mine], dtype=torch.float64, device=self.args.device)
            longest, padding, tokens, peak = self.accelerator.gather(table).T
            logs["longest"] = int(longest.max())
            logs["padding"] = float(padding.sum() / tokens.sum())
            if torch.cuda.is_available():
                logs["gpu_peak_gib"] = float(peak.max()) / 2**30
            self._longest = self._padding = self._tokens = 0
        super().log(logs, *args, **kwargs)


class TellBatch(TrainerCallback):
    """Tell, once, the batch that DeepSpeed trains with beside the Trainer's own."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        """Print, on rank 0."""
        if not state.is_world_process_zero:
            return
        parts = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.world_size
        batch = parts[0] * parts[1] * parts[2]
        print("batch:", " x ".join(map(str, parts)), f"= {batch} recordings a step")
        # With DeepSpeed the model is its engine.
        if hasattr(model, "train_batch_size"):
            stage = model.zero_optimization_stage()
            print(f"DeepSpeed: ZeRO-{stage}, {model.train_batch_size()} recordings a step")


def build_datasets(args: Arguments, vocabulary: int) -> tuple[Any, dict[str, Any]]:
    """Make the mixture to train on, and recordings of each corpus to evaluate with."""
    kept, held_out = [], {}
    for corpus in CORPORA:
        made = record(corpus, args.recordings, args.typical_length, vocabulary, args.seed)
        short = keep_short(made, args.max_length)
        kept.append(short)
        tell(
            args,
            f"corpus {corpus.name}: {len(made)} recordings, the longest has {max(made['length'])} "
            f"tokens; {len(made) - len(short)} of more than {args.max_length} are left out, "
            f"{len(short)} stay",
        )
        unseen = record(corpus, 64, args.typical_length, vocabulary, args.seed + 1)
        held_out[corpus.name] = keep_short(unseen, args.max_length)
        best = floor(held_out[corpus.name], vocabulary)
        tell(args, f"corpus {corpus.name}: a perfect model's loss is {best:.3f}")
    mixture = mix(kept, args.weights, args.seed)
    names = mixture["corpus"]
    shares = ", ".join(f"{names.count(each.name)} of {each.name}" for each in CORPORA)
    tell(args, f"mixture: {len(mixture)} recordings: {shares}")
    return mixture, held_out


def tell(args: Arguments, line: str) -> None:
    """Print on rank 0."""
    if args.process_index == 0:
        print(line, flush=True)


def last_checkpoint(folder: Path) -> str | None:
    """Find the newest checkpoint that is whole: the Trainer writes its state last."""
    whole = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json")]
    newest = max(whole, key=lambda each: int(each.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def main() -> None:
    """Train, then evaluate on each corpus."""
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    datasets.disable_progress_bars()
    set_seed(args.seed)
    config = AutoConfig.from_pretrained(Path(__file__).parent / args.model)
    # With ZeRO-3 each rank makes only its share of every weight.
    model = AutoModelForCausalLM.from_config(config)
    mixture, held_out = build_datasets(args, config.vocab_size)
    trainer = SpeechTrainer(
        model,
        args,
        data_collator=collate,
        train_dataset=mixture,
        eval_dataset=held_out,
        callbacks=[TellBatch()],
    )
    begin = args.resume_from_checkpoint or last_checkpoint(Path(args.output_dir))
    if begin:
        tell(args, f"goes on from {begin}")
    trainer.train(resume_from_checkpoint=begin)
    trainer.evaluate()


if __name__ == "__main__":
    main()
