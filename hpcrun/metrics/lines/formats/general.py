"""Formats of libraries that bring the loop with them, of vision's programs, and of boosting."""

from __future__ import annotations

import re

from msgspec import structs

from hpcrun.metrics.lines.fields import (
    Field,
    Shape,
    build_row,
    fields_of,
    finite,
    read_json,
    to_count,
)
from hpcrun.metrics.lines.formats import Format, compiled
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
        step = to_count(float(number))
        return None if step is None else Row(step=step)
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


# Their meters count seconds, and memory in units of 2**20 bytes.
_METERS = {"time": "step_seconds", "memory": "memory_mib", "max_mem": "memory_mib"}

# mmengine: mmengine/runner/log_processor.py; mmcv 1: mmcv/runner/hooks/logger/text.py.
OPENMMLAB = (
    Format(
        name="mmengine",
        needle="(train) ",
        pattern=pattern_of(
            r"(?:Epoch\(train\)\s+\[\s*(?P<epoch>\d+)\]|Iter\(train\)\s+)"
            r"\[\s*(?P<step>\d+)/\s*(?P<total>\d+)\]\s+(?P<rest>.*)"
        ),
        names=_METERS,
        sure=True,
        example="Epoch(train) [1][10/90]  lr: 1.0000e-02  eta: 0:00:25  time: 0.0100  "
        "data_time: 0.0000  memory: 512  loss: 11.4723",
        look_alike="Epoch(train) [1] has begun",
    ),
    Format(
        name="mmengine",
        needle="(val) ",
        pattern=pattern_of(
            r"(?:Epoch\(val\)\s+\[\s*(?P<epoch>\d+)\]|Iter\(val\)\s+)\[[\s\d/]+\]"
            r"\s+(?P<rest>\S+: .*)"
        ),
        names={**_METERS, "time": "", "data_time": "", "eta": ""},
        split="eval",
        example="Epoch(val) [10][100/100]    coco/bbox_mAP: 0.3000  loss: 0.5",
        look_alike="Epoch(val) [10][100/100]  eta: 0:00:25  time: 0.01  data_time: 0.001",
    ),
    Format(
        name="mmcv",
        needle="data_time: ",
        pattern=pattern_of(
            r"(?:Epoch \[(?P<epoch>\d+)\]|Iter )\[(?P<step>\d+)/(?P<total>\d+)\]\s+(?P<rest>lr: .*)"
        ),
        names=_METERS,
        example="Epoch [1][640/1730]\tlr: 1.000e-02, eta: 1 day, 14:05:50, time: 0.500, "
        "data_time: 0.010, memory: 5000, loss_cls: 1.2, loss: 2.5",
        look_alike="Epoch [1][640/1730]\tlr: low, data_time: short",
    ),
    Format(
        name="mmcv",
        needle='{"mode": "',
        pattern=pattern_of(r'(?P<rest>\{"mode": "(?P<split>train|val)", "epoch": .*\})'),
        names=_METERS,
        example='{"mode": "train", "epoch": 1, "iter": 50, "lr": 0.01, "memory": 5000, '
        '"loss": 2.5, "time": 0.5}',
        look_alike='{"mode": "train", "epoch": "first"}',
    ),
)
# detectron2: detectron2/utils/events.py (CommonMetricPrinter, JSONWriter).
DETECTRON = (
    Format(
        name="detectron2",
        needle="total_loss: ",
        pattern=pattern_of(r"\s*(?P<rest>(?:eta: .*)?iter: \d+  total_loss: .*)"),
        names={**_METERS, "max_mem": "max_mem"},
        example=" eta: 0:01:40  iter: 19  total_loss: 2.168  loss_cls: 0.725  time: 0.3670  "
        "data_time: 0.0043  lr: 0.00016068  max_mem: 2345M",
        look_alike="iter: 19  total_loss: unknown",
    ),
    Format(
        name="detectron2",
        needle='"total_loss": ',
        pattern=pattern_of(r'(?P<rest>\{"data_time": .*"iteration": .*\})'),
        names={"time": "step_seconds"},
        example='{"data_time": 0.004, "iteration": 19, "loss_cls": 0.72, "lr": 0.0001, '
        '"time": 0.3, "total_loss": 2.1}',
        look_alike='{"data_time": 0.004, "iteration": "19th", "total_loss": 2.1}',
    ),
)
# PyTorch's imagenet example and its many children (ProgressMeter; DeiT's and MAE's MetricLogger).
IMAGENET = (
    Format(
        name="imagenet",
        needle=": [",
        pattern=pattern_of(
            r"(?:Epoch|Train): \[(?P<epoch>\d+)(?:/\d+)?\]"
            r"\s*\[\s*(?P<step>\d+)/\s*(?P<total>\d+)\]\s*(?P<rest>.*)"
        ),
        names=_METERS,
        example="Epoch: [0][  10/5005]\tTime  0.512 ( 0.601)\tData  0.010 ( 0.100)\t"
        "Loss 6.9e+00 (7.0e+00)\tAcc@1   0.39 (  0.10)",
        look_alike="Epoch: [0][10/5005] done",
    ),
    Format(
        name="timm",
        needle="Train: ",
        pattern=pattern_of(
            r"Train: (?P<epoch>\d+) \[\s*(?P<step>\d+)/\s*(?P<total>\d+)[^\]]{0,20}\]"
            r"\s+(?P<rest>\S.*)"
        ),
        names={"time": "step_time", "s": "samples_per_second"},
        example="Train: 0 [  50/1251 (  4%)]  Loss: 6.95 (6.96)  Time: 0.512s, 1900.10/s  "
        "(0.601s, 1700.20/s)  LR: 1.000e-06  Data: 0.010 (0.012)",
        look_alike="Train: 0 [50/1251 (4%)]  begins",
    ),
    Format(
        name="open_clip",
        needle="Data (t): ",
        pattern=pattern_of(
            r"Train Epoch: (?P<epoch>\d+) \[\s*(?P<step>\d+)/(?P<total>\d+) \(\d+%\)\] (?P<rest>.*)"
        ),
        names={"s": "samples_per_second", "s_gpu": "", "batch_t": "step_seconds"},
        example="Train Epoch: 0 [  823296/10977280 (8%)] Data (t): 0.309 Batch (t): 0.687, "
        "5881.76/s, 367.610/s/gpu LR: 0.000010 Logit Scale: 14.286 Loss: 7.9482 (8.1817)",
        look_alike="Train Epoch: 0 [1/2 (50%)] Data (t): late",
    ),
    Format(
        name="cifar",
        needle="] loss: ",
        pattern=compiled(r"\[(?P<epoch>\d+),\s*(?P<step>\d+)\] loss: (?P<loss>⟨N⟩)\Z"),
        example="[1,  2000] loss: 2.187",
        look_alike="[1, 2000] loss: 2.187 is high",
    ),
    Format(
        name="train and val",
        needle="Val",
        pattern=compiled(
            r"(?:Epoch|EPOCH|epoch)\s+(?P<epoch>\d+)\s*(?:/\s*\d+)?\s*[:|-]\s*[Tt]rain\s*[=:]\s*"
            r"(?P<loss>⟨N⟩)[\s,|]+[Vv]al(?:id)?\s*[=:]\s*(?P<eval_loss>⟨N⟩)(?:[\s,|]+(?P<rest>.*))?\Z"
        ),
        example="Epoch 1: Train=447479.91936  Val=442149.83827  MAE=824.50142",
        look_alike="Epoch 1: Train=80%  Val=20%",
    ),
)

# PaddleClas: ppcls/engine/evaluation/classification.py (classification_eval), [Eval] in front; that
# of training counts its epochs as 1/90.
PPCLS = (
    Format(
        name="ppcls",
        needle="][Avg]",
        pattern=pattern_of(r"\[Epoch (?P<epoch>\d+)\]\[Avg\]\s*(?P<rest>\w+: .*)"),
        split="eval",
        example="[Eval][Epoch 1][Avg]CELoss: 1.03125, loss: 1.03125, top1: 0.75, top5: 0.875",
        look_alike="[Eval][Epoch 1][Avg]loss: falling",
    ),
)


def _read_rounded(found: re.Match[str], line: Line) -> Row | None:
    """Read a line whose step has a letter for thousands, once there are that many."""
    groups = found.groupdict()
    letter, step = groups.pop("letter"), float(groups.pop("step"))
    fields = [Field("step", float(round(step * 1000 ** " KMB".index(letter or " "))))]
    fields += [Field(key, float(number.replace(",", ""))) for key, number in groups.items()]
    row = build_row(fields, Shape())
    return None if row is None else structs.replace(row, is_rounded=True)


# CycleGAN and pix2pix: util/visualizer.py (print_current_losses). lerobot: its steps are rounded.
LOSSES_BY_NAME = (
    Format(
        name="cyclegan",
        needle="iters: ",
        pattern=compiled(
            r"\(epoch: (?P<epoch>\d+), iters: (?P<step>\d+), time: ⟨N⟩, data: ⟨N⟩\)\s+(?P<rest>.*)"
        ),
        sure=True,
        example="(epoch: 1, iters: 100, time: 0.580, data: 0.064) D_A: 0.25 G_A: 0.5 cycle_A: 1.5",
        look_alike="(epoch: 1, iters: 100, time: late, data: 0.064) D_A: 0.25",
    ),
    Format(
        name="lerobot",
        needle=" smpl:",
        pattern=compiled(
            r"step:(?P<step>\d{1,9}(?:\.\d{1,3})?)(?P<letter>[KMB]?) smpl:\S+ ep:\S+"
            r" epch:(?P<epoch>⟨N⟩) loss:(?P<loss>⟨N⟩) grdn:(?P<grad_norm>⟨N⟩) lr:(?P<lr>⟨N⟩)"
            r" updt_s:(?P<step_seconds>⟨N⟩)"
        ),
        read=_read_rounded,
        example="step:1K smpl:32K ep:101 epch:2.53 loss:1.226 grdn:34.825 lr:1.0e-05 updt_s:0.502",
        look_alike="step:1K smpl:32K ep:101 epch:2.53 loss:low",
    ),
)


# darknet: src/detector.c; caffe: src/caffe/solver.cpp; MXNet: python/mxnet/callback.py.
ELDERS = (
    Format(
        name="darknet",
        needle=" seconds, ",
        pattern=compiled(
            r"\s*(?P<step>\d+): (?P<loss>⟨N⟩), (?P<avg_loss>⟨N⟩) avg(?: loss)?, "
            r"(?P<lr>⟨N⟩) rate, (?P<step_seconds>⟨N⟩) seconds, \d+ images"
        ),
        example=" 1000: 2.345, 2.400 avg loss, 0.001000 rate, 3.512 seconds, 64000 images",
        look_alike="1000: 2, 3 avg, and 4 seconds, 5 images",
    ),
    Format(
        name="caffe",
        needle="Iteration ",
        pattern=compiled(
            r"Iteration (?P<step>\d+)(?: \([^()]{1,60}\))?, "
            r"(?:loss = (?P<loss>⟨N⟩)|lr = (?P<lr>⟨N⟩))\Z"
        ),
        sure=True,
        example="Iteration 100 (4.5 iter/s, 22.2s/100 iters), loss = 2.3026",
        look_alike="Iteration 100, loss = high",
    ),
    Format(
        name="caffe",
        needle=" net output #",
        pattern=compiled(
            r"[|\s]{0,8}Test net output #\d+: (?P<rest>[\w/-]{1,80} = ⟨N⟩)"
            r"(?: \(\* ⟨N⟩ = ⟨N⟩ loss\))?\Z"
        ),
        split="eval",
        sure=True,
        example="Test net output #1: loss = 0.0315 (* 1 = 0.0315 loss)",
        look_alike="Test net output #1: loss = unknown",
    ),
    Format(
        name="mxnet",
        needle="Epoch[",
        pattern=pattern_of(r"Epoch\[(?P<epoch>\d+)\] (?P<rest>(?:Train|Validation)-[\w-]+=\S+)\Z"),
        sure=True,
        example="Epoch[145] Train-SmoothL1=2.446886",
        look_alike="Epoch[145] Train-SmoothL1=none",
    ),
    Format(
        name="mxnet",
        needle="Epoch[",
        pattern=pattern_of(
            r"Epoch\[(?P<epoch>\d+)\](?: Batch ?\[(?:\d+-)?(?P<step>\d+)\])?\s+(?P<rest>\S.*)"
        ),
        example="Epoch[0] Batch [20]\tSpeed: 1000.00 samples/sec\taccuracy=0.5",
        look_alike="Epoch[0] Time cost is high",
    ),
    Format(
        name="espnet",
        needle="epoch:train:",
        pattern=pattern_of(r"(?P<epoch>\d+)epoch:train:\d+-(?P<step>\d+)batch:\s+(?P<rest>.*)"),
        names={"optim0_lr0": "lr", "train_time": "step_seconds"},
        example="1epoch:train:51-100batch: iter_time=0.1, loss_ctc=12.5, loss=10.25",
        look_alike="1epoch:train:51-100batch: loss=falling",
    ),
    # The epoch's mean over the training data stands beside; its batches have told it already.
    Format(
        name="espnet",
        needle="epoch results: [train]",
        pattern=compiled(
            r"(?P<epoch>\d+)epoch results: \[train\] .*?\[valid\] (?P<rest>(?:\w+=⟨N⟩(?:, |\Z))+)"
        ),
        split="eval",
        example="1epoch results: [train] iter_time=0.1, loss=70.5, time=1 hour, total_count=100, "
        "[valid] loss_ctc=70.25, loss=60.5, acc=0.5, time=3 minutes, total_count=10",
        look_alike="1epoch results: [train] loss=70.5, [valid] none",
    ),
)


def _read_round(found: re.Match[str], line: Line) -> Row | None:
    """Read what a round of boosting scored on each set of data, named as the line names it."""
    cells = found["cells"].strip().split("\t")
    pairs = [cell.rpartition(":") for cell in cells]
    fields = [Field("step", float(found["step"]))]
    fields += [Field(key.strip(), finite(number.split("+")[0])) for key, _, number in pairs]
    return build_row(fields, Shape(), sure=True, verbatim=True)


# xgboost: python-package/xgboost/callback.py (EvaluationMonitor), src/learner.cc (EvalOneIter);
# LightGBM: python-package/lightgbm/callback.py (log_evaluation). Of a cross validation the mean.
BOOSTING = (
    Format(
        name="xgboost",
        needle="]\t",
        pattern=compiled(
            r"\[(?P<step>\d+)\](?P<cells>(?:\t[\w@.]{1,80}-[\w@.-]{1,40}:⟨N⟩(?:\+⟨N⟩)?\s?)+)\s*\Z"
        ),
        read=_read_round,
        example="[10]\ttrain-rmse:0.50125\teval-rmse:0.60125",
        look_alike="[10]\ttrain-rmse:low\teval-rmse:high",
    ),
    Format(
        name="lightgbm",
        needle="]\t",
        pattern=compiled(
            r"\[(?P<step>\d+)\](?P<cells>(?:\t[\w ]{1,80}'s [\w@.-]{1,40}: ⟨N⟩(?: \+ ⟨N⟩)?)+)\s*\Z"
        ),
        read=_read_round,
        example="[10]\ttraining's l2: 0.50125\tvalid_1's l2: 0.60125",
        look_alike="[10]\tvalid_0's l2: unknown",
    ),
)
# TensorFlow: tensorflow_estimator/python/estimator/estimator.py (_write_dict_to_summary).
ESTIMATOR = (
    Format(
        name="tensorflow estimator",
        needle="Saving dict for global step ",
        pattern=pattern_of(r"Saving dict for global step (?P<step>\d+): (?P<rest>\S+ = .*)"),
        split="eval",
        example="Saving dict for global step 1000: accuracy = 0.75, global_step = 1000, loss = 0.5",
        look_alike="Saving dict for global step 1000: loss = see below",
    ),
)
GENERAL: tuple[Format, ...] = (
    *HF,
    *FAIRSEQ,
    *KERAS,
    *COQUI,
    *MLLOG,
    *VERL,
    *BOXES,
    *BLOCKS,
    *OPENMMLAB,
    *DETECTRON,
    *IMAGENET,
    *PPCLS,
    *LOSSES_BY_NAME,
    *ELDERS,
    *BOOSTING,
    *ESTIMATOR,
)
