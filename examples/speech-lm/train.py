"""Train a causal language model on long sequences of audio tokens, with the Trainer and DeepSpeed.

This script accepts every argument of the Trainer (`TrainingArguments`). DeepSpeed's JSON is not an
argument: an environment variable names it, and the Trainer fills in its "auto" values from the
arguments. The same script therefore trains with ZeRO-3 and offload, ZeRO-2, or no DeepSpeed.
"""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import datasets
import torch
import torch.distributed as dist
from accelerate.utils import broadcast_object_list
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from data import CORPORA, collate, floor, keep_short, mix, record, with_lengths


@dataclass
class Arguments(TrainingArguments):
    """Arguments of this script: those of the Trainer, with these defaults, and its own.

    Do not pass ``bf16``, ``fp16``, ``gradient_checkpointing``, ``dataloader_pin_memory`` and the
    evaluation batch size, which are derived from other arguments.
    """

    learning_rate: float = 3e-4
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = 20
    max_steps: int = 1000
    logging_steps: float = 1
    eval_strategy: str = "steps"
    eval_steps: float | None = 200
    save_steps: float = 200
    save_total_limit: int | None = 2
    report_to: str = "none"
    include_num_input_tokens_seen: str = "non_padding"

    model: str = field(
        default="models/1b", metadata={"help": "folder of a model's config.json, beside this file"}
    )
    pretrained: str | None = field(
        default=None, metadata={"help": "weights to start from: a folder, or a model of the hub"}
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "sdpa, eager, flash_attention_2; else the model's choice"}
    )
    data: str | None = field(
        default=None, metadata={"help": "folder of a saved dataset with input_ids, to train on"}
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
        if len(self.weights) != len(CORPORA):
            raise ValueError(f"--weights: {len(CORPORA)} numbers, one for each corpus")
        self.bf16, self.fp16 = self.precision == "bf16", self.precision == "fp16"
        # The name of this argument in older versions of transformers.
        self.gradient_checkpointing = self.activation_checkpointing
        self.per_device_eval_batch_size = self.per_device_train_batch_size  # needs as many logits
        self.dataloader_pin_memory = torch.cuda.is_available()
        super().__post_init__()


class SpeechTrainer(Trainer):
    """A Trainer that also logs its batch, the length of its rows, and the memory that they need."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._told = False
        self._longest = self._padding = self._tokens = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        """Train on one micro batch of (recordings, tokens)."""
        if not self._told:
            tell_batch(self.args, model)
            self._told = True
        ids = inputs["input_ids"]
        self._longest = max(self._longest, ids.shape[1])
        # Keep a tensor, because reading its value would wait for the GPU.
        self._padding += (inputs["attention_mask"] == 0).sum()
        self._tokens += ids.numel()
        return super().training_step(model, inputs, *args)

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log the longest row, padding and peak GPU memory of all ranks since the last call."""
        if "loss" in logs:
            peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
            mine = [float(each) for each in (self._longest, self._padding, self._tokens, peak)]
            table = torch.tensor([mine], dtype=torch.float64, device=self.args.device)
            longest, padding, tokens, peaks = self.accelerator.gather(table).T
            logs["longest"] = int(longest.max())
            logs["padding"] = float(padding.sum() / tokens.sum())
            if torch.cuda.is_available():
                logs["gpu_peak_gib"] = float(peaks.max()) / 2**30
            self._longest = self._padding = self._tokens = 0
        super().log(logs, *args, **kwargs)


class SaveWhenAsked(TrainerCallback):
    """Saves and stops all ranks at the end of a step in which any received SIGTERM or SIGUSR1.

    Used only in a job with `survive`, because a rank with a handler does not react to SIGTERM while
    it waits in a collective.
    """

    def __init__(self) -> None:
        self._told: list[int] = []
        self._on = bool(os.environ.get("HPCRUN_SURVIVE") or os.environ.get("HPCRUN_SAVES"))
        for each in (signal.SIGTERM, signal.SIGUSR1) if self._on else ():
            signal.signal(each, lambda number, _: self._told.append(number))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check on all ranks."""
        if not self._on:
            return
        flag = torch.tensor(len(self._told), device=args.device)
        if args.world_size > 1:
            dist.all_reduce(flag)
        if flag:
            control.should_save = control.should_training_stop = True


def tell_batch(args: TrainingArguments, model: Any) -> None:
    """Log the batch sizes of the Trainer and, if ``model`` is its engine, of DeepSpeed.

    The name of the optimizer is that of its class: DeepSpeedCPUAdam means offload.
    """
    parts = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.world_size
    batch = parts[0] * parts[1] * parts[2]
    tell(args, f"Trainer: {' x '.join(map(str, parts))} = {batch} recordings a step")
    if hasattr(model, "zero_optimization_stage"):
        size, stage = model.train_batch_size(), model.zero_optimization_stage()
        steps_by = type(model.basic_optimizer).__name__
        tell(args, f"DeepSpeed: {size} recordings a step, ZeRO-{stage}, {steps_by}")


def tell(args: TrainingArguments, line: str) -> None:
    """Print on rank 0, on a separate line from the Trainer's progress bar."""
    if args.process_index == 0:
        tqdm.write(line)


def build_datasets(args: Arguments, vocabulary: int) -> tuple[Any, dict[str, Any]]:
    """Create the mixture for training, and recordings of each corpus for evaluation."""
    if args.data:
        own = with_lengths(datasets.load_from_disk(args.data))
        own = keep_short(own, args.max_length).shuffle(seed=args.seed)
        if len(own) < 2 or max(map(max, own["input_ids"])) >= vocabulary:
            raise ValueError(
                f"--data {args.data}: too few recordings, or codes beyond {vocabulary}"
            )
        few = min(64, len(own) // 2)
        tell(args, f"{args.data}: {len(own)} recordings of at most {args.max_length} tokens")
        return own.select(range(few, len(own))), {"data": own.select(range(few))}
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
        if not len(short) or not len(held_out[corpus.name]):
            raise ValueError(f"--max_length {args.max_length}: nothing of {corpus.name} stays")
    mixture = mix(kept, args.weights, args.seed)
    names = mixture["corpus"]
    shares = ", ".join(f"{names.count(each.name)} of {each.name}" for each in CORPORA)
    tell(args, f"mixture: {len(mixture)} recordings: {shares}")
    for name, dataset in {"the mixture": mixture, **held_out}.items():
        tell(args, f"a perfect model's loss on {name}: {floor(dataset, vocabulary):.3f}")
    return mixture, held_out


def last_checkpoint(folder: Path) -> str | None:
    """Find the newest complete checkpoint; the Trainer writes its state last."""
    whole = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json")]
    newest = max(whole, key=lambda each: int(each.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def main() -> None:
    """Train, and evaluate on each corpus."""
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    datasets.disable_progress_bars()
    set_seed(args.seed)
    attention = (
        {"attn_implementation": args.attn_implementation} if args.attn_implementation else {}
    )
    # With ZeRO-3 each rank creates, or loads, only its shard of every weight.
    if args.pretrained:
        model = AutoModelForCausalLM.from_pretrained(
            args.pretrained, torch_dtype=torch.float32, **attention
        )
    else:
        config = AutoConfig.from_pretrained(Path(__file__).parent / args.model)
        model = AutoModelForCausalLM.from_config(config, **attention)
    mixture, held_out = build_datasets(args, model.config.vocab_size)
    trainer = SpeechTrainer(
        model,
        args,
        data_collator=collate,
        train_dataset=mixture,
        eval_dataset=held_out,
        callbacks=[SaveWhenAsked()],
    )
    # Its own checkpoints come first, because a requeued job has the same arguments. Rank 0 decides
    # for all, because another node may see an outdated state of the folder.
    own = last_checkpoint(Path(args.output_dir))
    (begin,) = broadcast_object_list([own or args.resume_from_checkpoint])
    if begin:
        tell(args, f"resumes from {begin}")
    trainer.train(resume_from_checkpoint=begin)


def leave_together() -> None:
    """Leave together; gloo may abort a process that holds its group while others leave."""
    gc.collect()  # the trainer, DeepSpeed's engine and the model refer to each other
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave_together()
