"""Formats of computer vision's programs, and of what was written after their examples."""

from __future__ import annotations

from hpcrun.metrics.lines.fields import Field, Shape, build_row
from hpcrun.metrics.lines.formats.form import Format, compiled
from hpcrun.patterns import pattern_of

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
# Andrew Ng's course has a cost, Deeplearning4j a score.
_LOSS_AT = {"cost": "loss", "score": "loss"}
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
        name="loss at",
        needle=" ",
        pattern=compiled(
            r"(?P<key>(?:(?i:average|training|train|validation|val|test|total)\s)?(?i:loss|cost|score))"
            r"(?: \(for one batch\))? (?:at|after|of|for) "
            r"(?:(?P<place>(?i:step|iteration|iter|epoch))\s+"
            r"(?P<number>⟨N⟩)|(?P<number2>\d+) (?P<place2>step|iteration|epoch)s?)"
            r"(?:\s*[:=]| is)\s*(?P<value>⟨N⟩)\Z"
        ),
        read=lambda found, line: build_row(
            [
                Field(
                    found["place"] or found["place2"], float(found["number"] or found["number2"])
                ),
                Field(_LOSS_AT.get(found["key"].lower(), found["key"]), float(found["value"])),
            ],
            Shape(),
        ),
        example="Training loss (for one batch) at step 200: 1.1523",
        look_alike="the loss at step 200: 1.1523",
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
            r"step:\S+ smpl:\S+ ep:\S+ epch:(?P<epoch>⟨N⟩) loss:(?P<loss>⟨N⟩)"
            r" grdn:(?P<grad_norm>⟨N⟩) lr:(?P<lr>⟨N⟩) updt_s:(?P<step_seconds>⟨N⟩)"
        ),
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
VISION: tuple[Format, ...] = (*OPENMMLAB, *DETECTRON, *IMAGENET, *PPCLS, *LOSSES_BY_NAME, *ELDERS)
