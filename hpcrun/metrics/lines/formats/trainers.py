"""Formats of libraries that bring the training loop with them."""

from __future__ import annotations

import re

from hpcrun.metrics.lines.dicts import fields_of, read_json
from hpcrun.metrics.lines.fields import Field, Shape, build_row
from hpcrun.metrics.lines.formats.form import Format, compiled
from hpcrun.metrics.lines.prefixes import Line
from hpcrun.metrics.names import words
from hpcrun.metrics.row import Row
from hpcrun.patterns import pattern_of

# transformers: trainer.py (speed_metrics at the end of train()): a summary, no point of the curve.
HF = (
    Format(
        name="hf trainer summary",
        needle="train_runtime",
        pattern=pattern_of(r"(?P<rest>\{['\"]train_runtime['\"]: .*\})"),
        sure=True,
        verbatim=True,
        example="{'train_runtime': '1575', 'train_samples_per_second': '1.333', "
        "'train_steps_per_second': '0.168', 'train_loss': '0.2854', 'epoch': '3'}",
        look_alike="{'train_runtime': the whole night}",
    ),
    Format(
        name="hf trainer",
        needle="'epoch': ",
        pattern=pattern_of(r"(?P<rest>\{'[^{}]{0,4000}'epoch': [^{}]{1,400}\})"),
        example="{'loss': 1.7166, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.02}",
        look_alike="{'task': 'sft', 'epoch': 3}",
    ),
)
# fairseq: fairseq/logging/progress_bar.py; its summaries of an epoch are no points of the curve.
FAIRSEQ = (
    Format(
        name="fairseq summary",
        needle='"train_num_updates"',
        pattern=pattern_of(r'(?P<rest>\{"epoch": .*"train_num_updates": .*\})'),
        sure=True,
        verbatim=True,
        example='{"epoch": 1, "train_loss": "7.864", "train_num_updates": "479"}',
        look_alike='{"epoch": 1, "train_num_updates": }',
    ),
    Format(
        name="fairseq",
        needle=" subset | ",
        pattern=pattern_of(
            r"(?:epoch\s+(?P<epoch>\d+) \| )?valid on ['\"][^'\"]{1,40}['\"] subset \| (?P<rest>.*)"
        ),
        split="eval",
        example="epoch 001 | valid on 'valid' subset | loss 5.6 | ppl 48.5 | num_updates 479",
        look_alike="valid on 'valid' subset | loss see below",
    ),
    Format(
        name="fairseq summary",
        needle=" | num_updates ",
        pattern=pattern_of(r"(?:\| )?epoch\s+(?P<epoch>\d+) \| (?P<rest>(?:train_)?loss .*)"),
        names={"loss": "train_loss"},
        sure=True,
        verbatim=True,
        example="epoch 008 | loss 6.326 | ppl 36.58 | wps 55450 | num_updates 479 | lr 7e-06",
        look_alike="epoch 008 | loss of words | num_updates 3",
    ),
    Format(
        name="fairseq",
        needle='"num_updates"',
        pattern=pattern_of(r'(?P<rest>\{"epoch": .*"num_updates": .*\})'),
        example='{"epoch": 1, "update": 0.4, "loss": "9.276", "wps": "58056.1", '
        '"num_updates": "200", "lr": "3.1e-06", "gnorm": "1.421", "loss_scale": "128"}',
        look_alike='{"epoch": 1, "num_updates": "many"}',
    ),
)


# keras: src/utils/progbar.py, TF 2 the same. The counter is of batches and starts with each epoch,
# the values are running means of the epoch, whose number stands on a line of its own.
KERAS = (
    Format(
        name="keras",
        needle="loss: ",
        pattern=pattern_of(
            r"(?:\s*\d+/(?:\d+|Unknown)\s+|[ ]?(?=- \d+s(?: \d+m?s/\w+)? - ))"
            r"(?P<rest>(?:- \d+s|\[[=>. ]{5,80}\]|[━ ]{3,80}|\s*\d+s \d+m?s/step)\s.*\bloss: .*)"
        ),
        sure=True,
        example="1563/1563 - 37s - loss: 1.4910 - accuracy: 0.4697 - val_loss: 1.7780 - 24ms/step",
        look_alike="1563/1563 - 37s - loss: falling",
    ),
)


def _read_mllog(found: re.Match[str], line: Line) -> Row | None:
    """Read an event of MLPerf's log; only what was measured counts, not the settings it lists."""
    read = read_json(line.text, found.start("json"))
    if read is None:
        return None
    event = read[0]
    key, value, metadata = event.get("key"), event.get("value"), event.get("metadata")
    fields: list[Field] = []
    split = ""
    if key == "tracked_stats" and isinstance(value, dict):
        fields = [
            Field(_MLLOG_STATS.get(field.key, field.key), field.value) for field in fields_of(value)
        ]
    elif isinstance(key, str) and key in _MLLOG_KEYS and isinstance(value, float):
        fields = [Field(key, value)]
        split = "eval" if key.startswith("eval") else ""
    if not fields or not isinstance(metadata, dict):
        return None
    places = {_MLLOG_PLACES[name]: number for name, number in metadata.items()
              if name in _MLLOG_PLACES and isinstance(number, float)}  # fmt: skip
    fields += [Field(name, number) for name, number in places.items()]
    return build_row(fields, Shape(split=split), sure=True)


_MLLOG_KEYS = words("train_loss eval_loss eval_accuracy eval_error loss learning_rate throughput")
_MLLOG_STATS = {"throughput": "samples_per_second", "train_step_time": "step_seconds"}
_MLLOG_PLACES = {
    "step": "global_step",
    "step_num": "step",
    "iteration": "iteration",
    "samples_count": "timestep",
    "epoch_num": "epoch",
}
# mlperf_logging/mllog: one JSON event behind a mark.
MLLOG = (
    Format(
        name="mlperf",
        needle=":::MLLOG ",
        pattern=pattern_of(r".{0,200}?:::MLLOG (?P<json>\{)"),
        read=_read_mllog,
        example=':::MLLOG {"key": "train_loss", "value": 3.7142, "event_type": "POINT_IN_TIME", '
        '"metadata": {"lineno": 102, "samples_count": 80}}',
        look_alike=':::MLLOG {"key": "opt_base_learning_rate", "value": 0.0003, '
        '"metadata": {"lineno": 188, "step": 1}}',
    ),
)
# Coqui TTS: trainer's console_logger.py. A line with the step, then one for each metric.
COQUI = (
    Format(
        name="coqui",
        needle="GLOBAL_STEP: ",
        pattern=pattern_of(
            r"(?:\| )?\s*--> (?:TIME: .{0,40} -- )?STEP: \d+/\d+ -- GLOBAL_STEP: (?P<step>\d+)\Z"
        ),
        sure=True,
        example="   --> TIME: 2026-11-20 08:04:09 -- STEP: 24/36 -- GLOBAL_STEP: 1000025",
        look_alike="   --> STEP: 24/36 -- GLOBAL_STEP: unknown",
    ),
    Format(
        name="coqui",
        needle="> ",
        pattern=compiled(
            r"\s*(?:\|\s*){0,3}> (?P<split>avg_)?(?P<key>\w*(?:loss|grad_norm|step_time)\w*):"
            r"\s+(?P<number>⟨N⟩)\s+\([^()]*\)\Z"
        ),
        read=lambda found, line: build_row(
            [Field(found["key"], float(found["number"]))],
            Shape(split="eval" if found["split"] else ""),
            sure=True,
        ),
        example="  | > loss_mel: 19.08429  (23.57030)",
        look_alike="  | > loss_mel: falling  (23.57030)",
    ),
)
# verl: verl/utils/logger/aggregate_logger.py (concat_dict_to_str).
VERL = (
    Format(
        name="verl",
        needle="step:",
        pattern=pattern_of(r"(?P<rest>step:\d+ - [\w./()-]+:.*)"),
        names={
            "actor_loss": "loss",
            "actor_lr": "lr",
            "actor_lr_1e_3": "lr(1e-3)",
            "actor_grad_norm": "grad_norm",
            "perf_throughput": "tokens_per_second",
            "perf_time_per_step": "step_seconds",
            "perf_max_memory_allocated_gb": "max_memory_gb",
        },
        example="step:1 - actor/pg_loss:0.0 - actor/loss:-0.0004 - actor/lr:3e-05 - "
        "actor/grad_norm:0.009 - perf/throughput:71.08",
        look_alike="step:1 - the actor's loss:0.5 - is low",
    ),
)


def _read_box(found: re.Match[str], line: Line) -> Row | None:
    """Read a row of a drawn box that holds one key and its value."""
    key, number = found["key"], found["number"].replace(",", "")
    if key == "total_timesteps":
        return Row(step=int(number)) if number.isdecimal() else None
    return build_row([Field(key, float(number))], Shape(), sure=True)


# stable-baselines3: common/logger.py (HumanOutputFormat).
BOXES = (
    Format(
        name="stable-baselines3",
        needle="|",
        pattern=compiled(
            r"\|\s{1,40}(?:\w+/)?(?P<key>total_timesteps|[a-z_]*loss|learning_rate)\s{1,60}\|\s{1,20}(?P<number>⟨N⟩)\s{1,40}\|\Z"
        ),
        read=_read_box,
        example="|    loss                 | 0.0123      |",
        look_alike="|    loss                 | see below   |",
    ),
)


def _read_block(found: re.Match[str], line: Line) -> Row | None:
    """Read a line of a block that holds one metric."""
    key = found["key"]
    known = _BLOCK_NAMES.get(key.lower(), key)
    split = "eval" if (found["split"] or "").lower() == "eval" else ""
    return build_row(
        [Field(known, float(found["number"].replace(",", "")))], Shape(split=split), sure=True
    )


_BLOCK_NAMES = {
    "loss/train/total": "loss",
    "train/crossentropyloss": "loss",
    "train/ce loss": "loss",
    "optim/total_grad_norm": "grad_norm",
    "throughput/device/tokens_per_second": "tokens_per_second",
}
# composer: composer/loggers/console_logger.py; OLMo: olmo/train.py. A place, then a line a metric.
BLOCKS = (
    Format(
        name="metric block",
        needle="]",
        pattern=pattern_of(
            r"\[(?:epoch=(?P<epoch2>\d+)(?:/\d+)?\]\[)?(?:step|batch)=(?P<step>\d+)(?:/(?P<total>\d+))?"
            r"(?:,\s?epoch=(?P<epoch>\d+)(?:/\d+)?)?(?:,[^\]]{0,80})?\]:?\Z"
        ),
        names={"epoch2": "epoch"},
        sure=True,
        example="[step=20/739328,epoch=0]",
        look_alike="[step=20] saving",
    ),
    Format(
        name="metric block",
        needle="/",
        pattern=compiled(
            r"(?:[ \t]{0,16}(?P<split>Train|Eval)[ ]|[ \t]{1,16})"
            r"(?P<key>loss/\w{1,20}/total|(?:metrics|train|eval|optim|throughput)/[\w/ -]{0,80}"
            r"(?:loss|Loss|grad_norm|learning_rate\w{0,10}|tokens_per_second))"
            r"(?:: |=)(?P<number>⟨N⟩)\Z"
        ),
        read=_read_block,
        example="\t Train loss/train/total: 11.2",
        look_alike="    train/data: 3 files",
    ),
)


TRAINERS: tuple[Format, ...] = (*HF, *FAIRSEQ, *KERAS, *COQUI, *MLLOG, *VERL, *BOXES, *BLOCKS)
