"""Known line formats of programs whose lines the generic reader would miss or misread.

Each entry consists of the program, the needle, the pattern and an example. Formats are tried in
this order.
"""

from __future__ import annotations

import re

from hpcrun.curves.lines.fields import build_row, fields_of, finite, read_json
from hpcrun.curves.lines.formats import LineFormat, form
from hpcrun.curves.lines.prefixes import StrippedLine
from hpcrun.curves.names import LOSS_SCALE, words
from hpcrun.curves.row import Field, LineFields, Row


def _read_round(found: re.Match[str], line: StrippedLine) -> Row | None:
    """Read the scores of a boosting round on each data set, keeping the names on the line."""
    pairs = [cell.rpartition(":") for cell in found["cells"].strip().split("\t")]
    scores = {
        key.strip(): finite(number.split("+")[0].replace(",", "")) for key, _, number in pairs
    }
    fields = [Field("step", float(found["step"])), *map(Field, scores, scores.values())]
    return build_row(LineFields(fields), sure=True, verbatim=scores)


def _read_mllog(found: re.Match[str], line: StrippedLine) -> Row | None:
    """Read an event of an MLPerf log; return a row only for measurements, not for settings."""
    read = read_json(line.text, found.start("json"))
    key, value, metadata = (read[0].get(name) if read else None for name in _MLLOG)
    if not isinstance(key, str) or not isinstance(metadata, dict):
        return None
    if key in _MLLOG_KEYS and isinstance(value, float):
        value = {key: value}
    elif key in _MLLOG_KEYS and isinstance(value, dict):
        value = {f"{key}/{name}": number for name, number in value.items()}
    elif key != "tracked_stats" or not isinstance(value, dict):
        return None
    places = {name: each for name, each in metadata.items() if name in _MLLOG_NAMES}
    values: dict[str, object] = value | places
    named = {_MLLOG_NAMES.get(name, name): each for name, each in values.items()}
    split = "eval" if key.startswith("eval") else ""
    return build_row(LineFields(fields_of(named), whole_split=split), sure=True)


_MLLOG = ("key", "value", "metadata")
_MLLOG_KEYS = words("train_loss eval_loss eval_accuracy eval_error loss learning_rate throughput")
_MLLOG_NAMES = {
    "throughput": "samples_per_second",
    "train_step_time": "step_seconds",
    "step": "global_step",
    "step_num": "step",
    "samples_count": "timestep",
    "epoch_num": "epoch",
    "iteration": "iteration",
}

# Sources of the first formats: DeepSpeed (deepspeed/runtime/engine.py, utils/timer.py,
# runtime/utils.py); loss scales of mixed precision in DeepSpeed, apex, fairseq and MXNet;
# Megatron-LM (megatron/training/training.py); nanoGPT, llm.c, llama2.c, build-nanogpt (train.py,
# train_gpt2).
FORMATS: tuple[LineFormat, ...] = (
    form(
        "deepspeed",
        "skipped=",
        r"step=(?P<step>\d+), skipped=\d+, lr=\[(?P<lr>⟨N⟩)[^\]]*\], mom=",
        "[Rank 0] step=10, skipped=6, lr=[9.6e-06, 9.6e-06], mom=[(0.9, 0.95)]",
        sure=True,
    ),
    # Timers of wall_clock_breakdown in milliseconds; the names of some resemble step counters.
    form(
        "deepspeed",
        "time (ms) | ",
        r"(?:rank=\d+ )?time \(ms\) \| (?P<rest>(?:\w+: ⟨N⟩(?: \| |\s*\Z))+)\Z",
        "time (ms) | fwd_microstep: 1.25 | bwd_microstep: 4.56 | step_microstep: 0.75",
        names={"step": "step_ms", "optimizer_step": "optimizer_step_ms"},
        sure=True,
        verbatim=True,
    ),
    # see_memory_usage; the peak covers the time since the previous such line.
    form(
        "deepspeed",
        "Max_MA ",
        r"MA ⟨N⟩ GB\s+(?:\| )?Max_MA (?P<max_memory_gb>⟨N⟩) GB\s",
        "MA 3.25 GB         Max_MA 5.12 GB         CA 8.0 GB         Max_CA 9 GB ",
        sure=True,
    ),
    form(
        "loss scale",
        "loss scale",
        r"(?:.{0,40}OVERFLOW!|Grad(?:ient)? overflow|Overflow detected|NOTE: gradient overflow"
        r"|Reducing dynamic|Increasing dynamic|AMP:)[^\n]{0,120}?loss scale"
        rf"(?: from (?:⟨N⟩))?(?:: ⟨N⟩, reducing)?(?: to:?|:) (?P<{LOSS_SCALE}>⟨N⟩)(?=,|\.?$)",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, "
        "reducing to 32768",
        sure=True,
    ),
    form(
        "megatron",
        "validation loss at",
        r"-*\s*validation loss at (?:iteration\s+(?P<step>\d+)|the end of training)"
        r"(?: (?:on|for) (?:(?P<split>test)|val(?:idation)?) (?:set|data))? \|"
        r" lm loss value: (?P<loss>⟨N⟩) \| lm loss PPL: (?P<ppl>⟨N⟩)",
        "validation loss at iteration 100 on test set | lm loss value: 7.66E+00 | "
        "lm loss PPL: 2.1E+03 | ",
        split="eval",
    ),
    form(
        "nanogpt",
        ": train ",
        r"(?:\[eval\] )?(?:step|iter)\s+(?P<step>\d+): train (?:loss )?(?P<eval_train_loss>⟨N⟩)"
        r"(?: (?!val)\w+)?,? val(?:idation)? (?:loss )?(?P<eval_loss>⟨N⟩)(?: \w+\Z)?(?P<rest>.*)",
        "step 3000: train loss 4.0390, val loss 4.0427",
        split="eval",
    ),
    form(
        "llm.c",
        " ms | ",
        r"step\s+(?P<step>\d+)/(?P<total>\d+) \| (?:train )?loss (?P<loss>⟨N⟩)[^|]*\|"
        r"(?: norm (?P<grad_norm>⟨N⟩)[^|]*\|)?(?: lr (?P<lr>⟨N⟩) \|)?"
        r" (?P<step_time_ms>⟨N⟩) ms \|(?:[^|]{1,40}\|)? (?P<tokens_per_second>⟨N⟩) tok/s",
        "step    1/18865 | loss 11.009 (+nanz)| norm 15.2 (+nanz)| lr 2.1e-06 | "
        "2134.34 ms | 55.2% bf16 MFU | 245645 tok/s",
    ),
    # XLM and its derivatives: xlm/trainer.py (print_stats). The first number is the step.
    form(
        "xlm",
        "words/s - ",
        r"-?\s*(?P<step>\d+) -\s+⟨N⟩ \w+/s -\s+(?P<tokens_per_second>⟨N⟩) words/s -"
        r"\s+[\w-]+:\s+(?P<loss>⟨N⟩) .*?\b(?:LR|lr): (?P<lr>⟨N⟩)",
        "20 -   26.80 equations/s -  1023.60 words/s - PRIM-FWD:  3.7550 - model LR: 1.0000e-04",
    ),
    # OpenNMT-py: onmt/utils/statistics.py; Marian: src/training/scheduler.h.
    form(
        "opennmt",
        "; xent: ",
        r"Step\s+(?P<step>\d+)/\s*(?P<total>\d+); .*?\bppl:\s*(?P<ppl>⟨N⟩);"
        r" xent:\s*(?P<loss>⟨N⟩); lr:\s*(?P<lr>⟨N⟩);"
        r"(?:.*?\s\d+/\s*(?P<tokens_per_second>\d+) tok/s)?",
        "Step 50/100000; acc: 10.5; ppl: 1234.5; xent: 7.1; lr: 0.00001; sents: 100; "
        "12345/12346 tok/s; 20 sec;",
    ),
    form(
        "marian",
        " : Up. ",
        r"Ep\. (?P<epoch>\d+) : Up\. (?P<step>[\d,]+) : Sen\. [\d,]+ : Cost (?P<loss>⟨N⟩)[^:]*"
        r"(?: : Time ⟨N⟩s)?(?: : (?P<tokens_per_second>⟨N⟩) words/s)?"
        r"(?: : gNorm (?P<grad_norm>⟨N⟩))?",
        "Ep. 1 : Up. 1,000 : Sen. 123,456 : Cost 9.85 * 123,456 after 1,234,567 "
        ": Time 12.3s : 10000.00 words/s : gNorm 1.25",
    ),
    form(
        "marian",
        " : Up. ",
        r"Ep\. (?P<epoch>\d+) : Up\. (?P<step>[\d,]+) : (?P<key>[a-z][\w-]*) : (?P<number>⟨N⟩)"
        r" : (?:new best|stalled )",
        "[valid] Ep. 3 : Up. 3000 : bleu-detok : 27.5 : stalled 1 times (last best: 27.75)",
        split="eval",
        sure=True,
    ),
    # tqdm_loggable: tqdm_logging.py. Counts above a thousand are rounded, so they are not steps.
    form(
        "tqdm_loggable",
        "Progress on:",
        r"Progress on:\S* (?:(?P<step>\d+)(?:\.0+)?it|[\d.]+[kMG]it)/\S+ rate:\S+ remaining:\S+"
        r" elapsed:\S+ postfix:(?P<rest>[^-].*)",
        "Progress on:train 100it/1.00kit rate:1.4it/s remaining:10:42 elapsed:01:11 "
        "postfix:loss=2.31",
    ),
    # icefall: egs/librispeech/ASR/zipformer/train.py. The batch loss is read, not the running mean.
    form(
        "icefall",
        "loss=",
        r"(?:\((?P<rank>\d+)/\d+\) )?Epoch (?P<epoch>\d+), (?:(?P<split>validation): "
        r"|batch (?P<step>\d+)(?:, global_batch_idx: (?P<global_step>\d+))?"
        r"(?:, batch size: \d+)?, (?:train_)?loss\[)(?P<rest>(?:\w+=⟨N⟩(?:, (?=\w+=))?)+)"
        r"(?:.*\blr: (?P<lr>⟨N⟩))?",
        "Epoch 1, batch 50, loss[loss=7.125, simple_loss=0.5, over 2500.00 frames. ], "
        "tot_loss[loss=7.25, simple_loss=0.75, over 5000.00 frames. ], batch size: 14, "
        "lr: 2.2e-02",
        sure=True,
    ),
    # WeNet: wenet/utils/train_utils.py (log_per_step), wenet/bin/train.py. The pair that resembles
    # batch and number of batches is epoch and batch. Batches of an evaluation are ignored.
    form(
        "wenet",
        "TRAIN ",
        r"TRAIN (?:\| (?:steps/sec ⟨N⟩\| ?)?)?Batch (?P<epoch>\d+)/(?P<step>\d+) "
        r"(?P<rest>loss .*)",
        "TRAIN Batch 0/100 loss 7.125000 loss_att 8.5 loss_ctc 12.5 lr 0.00004 rank 0",
    ),
    form(
        "wenet",
        " CV info ",
        r"Epoch (?P<epoch>\d+) (?:Step (?P<step>\d+) )?CV info (?:lr \S+ )?cv_loss (?P<loss>⟨N⟩)",
        "Epoch 0 CV info cv_loss 12.5",
        split="eval",
        sure=True,
    ),
    # AXLearn: axlearn/common/trainer.py.
    form(
        "axlearn",
        "rocess ",
        r"(?:\S+ )?[Pp]rocess\s+(?P<rank>\d+) step\s+(?P<step>\d+)[:\]] loss=(?P<loss>⟨N⟩)"
        r"(?=\s|\Z)",
        "Process   0 step      100: loss=7.125 aux={}",
        sure=True,
    ),
    # pytorch/tutorials: beginner_source/basics/quickstart_tutorial.py, below "Test Error:".
    form(
        "pytorch quickstart",
        ", Avg loss: ",
        r"\s?Accuracy: (?P<accuracy>⟨N⟩)%, Avg loss: (?P<loss>⟨N⟩)\s*\Z",
        " Accuracy: 45.1%, Avg loss: 2.151250",
        split="test",
        sure=True,
    ),
    # transformers: trainer.py (speed_metrics at the end of train()); fairseq:
    # fairseq/logging/progress_bar.py: summaries, which are not points of the curve.
    form(
        "summary",
        "train_",
        r"(?P<rest>\{(?!.*['\"]loss['\"]: ).*['\"]train_(?:runtime|num_updates)['\"]: .*\})",
        "{'train_runtime': '1575', 'train_samples_per_second': '1.333', "
        "'train_steps_per_second': '0.168', 'train_loss': '0.2854', 'epoch': '3'}",
        sure=True,
        verbatim=True,
    ),
    form(
        "summary",
        " | num_updates ",
        r"(?:\| )?epoch\s+(?P<epoch>\d+) \| (?P<rest>(?:train_)?loss .*)",
        "epoch 008 | loss 6.326 | ppl 36.58 | wps 55450 | num_updates 479 | lr 7e-06",
        names={"loss": "train_loss"},
        sure=True,
        verbatim=True,
    ),
    form(
        "fairseq",
        " subset | ",
        r"(?:epoch\s+(?P<epoch>\d+) \| )?valid on ['\"][^'\"]{1,40}['\"] subset \| (?P<rest>.*)",
        "epoch 001 | valid on 'valid' subset | loss 5.6 | ppl 48.5 | num_updates 479",
        split="eval",
    ),
    # keras: src/utils/progbar.py, also in TF 2. The counter counts the batches of an epoch, and the
    # values are running means of the epoch. The epoch is printed on a separate line. The number of
    # batches distinguishes fit() from evaluate() (``scope``).
    form(
        "keras",
        "loss: ",
        r"(?:\s*\d+/(?:(?P<total>\d{1,9})|Unknown)\s+|[ ]?(?=- \d+s(?: \d+m?s/\w+)? - ))"
        r"(?P<rest>(?:- (?P<epoch_seconds>\d+)s|\[[=>. ]{5,80}\]|[━ ]{3,80}"
        r"|\s*\d+s \d+m?s/step)\s.*?\bloss: ⟨N⟩"
        r"(?:\s{0,40}- (?:[^:]{1,60}: ⟨N⟩|\d\S{1,12}))*)",
        "1563/1563 - 37s - loss: 1.4910 - accuracy: 0.4697 - val_loss: 1.7780 - 24ms/step",
        names={"loss": "mean_loss", "batch": "", "size": ""},
        sure=True,
    ),
    # mlperf_logging/mllog: one JSON event after a marker.
    form(
        "mlperf",
        ":::MLLOG ",
        r".{0,200}?:::MLLOG (?P<json>\{)",
        ':::MLLOG {"key": "train_loss", "value": 3.7142, "event_type": "POINT_IN_TIME", '
        '"metadata": {"lineno": 102, "samples_count": 80}}',
        read=_read_mllog,
    ),
    # One metric per line, below its step. Coqui TTS: trainer's console_logger.py;
    # stable-baselines3: common/logger.py (HumanOutputFormat), and OpenAI's baselines, whose numbers
    # have three digits; composer: composer/loggers/console_logger.py; OLMo: olmo/train.py.
    form(
        "coqui",
        "> ",
        r"\s*(?:\|\s*){0,3}> (?:(?P<split>avg)_)?(?P<key>\w*(?:loss|grad_norm|step_time)\w*):"
        r"\s+(?P<number>⟨N⟩)\s+\([^()]*\)\Z",
        "  | > loss_mel: 19.08429  (23.57030)",
        sure=True,
    ),
    form(
        "stable-baselines3",
        "|",
        r"\|\s{1,40}(?:\w+/)?(?:step\s{1,60}\|\s{1,20}(?P<rounded>\d{1,3}|\d\.?\d{0,2}e\+\d\d)"
        r"|(?P<key>total_timesteps|step|ep_?rew_?mean|[a-z_]*loss|learning_rate|grad_norm"
        r"|TotalEnvInteracts|Loss(?:Pi|V|Q))\s{1,60}"  # Spinning Up
        r"\|\s{1,20}(?P<number>⟨N⟩))\s{1,40}\|\Z",
        "|    loss                 | 0.0123      |",
        sure=True,
    ),
    form(
        "metric block",
        "/",
        r"(?:[ \t]{0,16}(?P<split>Train|Eval)[ ]|[ \t]{1,16})"
        r"(?P<key>loss/\w{1,20}/total|(?:metrics|train|eval|optim|throughput)/[\w/ -]{0,80}"
        r"(?:loss|Loss|grad_norm|learning_rate\w{0,10}|tokens_per_second))"
        r"(?:: |=)(?P<number>⟨N⟩)\Z",
        "\t Train loss/train/total: 11.2",
        names={
            "loss_train_total": "loss",
            "train_cross_entropy_loss": "loss",
            "train_crossentropyloss": "loss",
            "train_ce_loss": "loss",
            "optim_total_grad_norm": "grad_norm",
            "throughput_device_tokens_per_second": "tokens_per_second",
        },
        sure=True,
    ),
    # CycleGAN and pix2pix: util/visualizer.py (print_current_losses); the time is per image.
    form(
        "cyclegan",
        "iters: ",
        r"\(epoch: (?P<epoch>\d+), iters: (?P<step>\d+), time: ⟨N⟩(?:, data: ⟨N⟩)?\)\s+"
        r"(?P<rest>.*)",
        "(epoch: 1, iters: 100, time: 0.580, data: 0.064) D_A: 0.25 G_A: 0.5 cycle_A: 1.5",
        sure=True,
    ),
    form(
        "mmengine",
        "(val) ",
        r"(?:Epoch\(val\)\s+\[\s*(?P<epoch>\d+)\]|Iter\(val\)\s+)\[[\s\d/]+\]\s+(?P<rest>\S+: .*)",
        "Epoch(val) [10][100/100]    coco/bbox_mAP: 0.3000  loss: 0.5",
        names={"time": "", "data_time": "", "eta": ""},
        split="eval",
    ),
    # The time next to that of data loading is the step time in seconds; memory is in MiB.
    # mmengine: mmengine/runner/log_processor.py; mmcv 1: mmcv/runner/hooks/logger/text.py;
    # detectron2/utils/events.py; timm: train.py; open_clip: src/open_clip_train/train.py; PyTorch's
    # imagenet example and its many children (ProgressMeter; DeiT's MetricLogger; Swin); MaxText:
    # src/MaxText/metric_logger.py.
    form(
        "meters",
        "",
        r"(?:(?=completed step: \d+, seconds: )"
        r"|(?=(?:Epoch|Train): \[[^\]]*\]\s*\[|.*\b[Dd]ata(?:_time| \(t\))?\"?:?\s+\d)"
        r"(?=.*\b(?:[Tt]ime|Batch \(t\))\"?:?\s+\d))"
        r"(?:(?:Epoch|Iter|Train)(?:\(train\)|:)?\s*(?=\[)|Train(?: Epoch)?: (?P<epoch>\d+) )?"
        r"(?P<rest>.*)",
        "Epoch: [0][  10/5005]\tTime  0.512 ( 0.601)\tData  0.010 ( 0.100)\t"
        "Loss 6.9e+00 (7.0e+00)\tAcc@1   0.39 (  0.10)",
        names={
            "time": "step_time s",
            "batch_t": "step_time s",
            "memory": "memory MiB",
            "max_mem": "max_mem MiB",
            "seconds": "step_seconds",
            "s": "samples_per_second",
            "s_gpu": "",
        },
    ),
    # darknet: src/detector.c; caffe: src/caffe/solver.cpp; MXNet: python/mxnet/callback.py.
    form(
        "darknet",
        " seconds, ",
        r"\s*(?P<step>\d+)(?:, [\d.]+)?: (?P<loss>⟨N⟩), (?P<avg_loss>⟨N⟩) avg(?: loss)?, "
        r"(?P<lr>⟨N⟩) rate, (?P<step_seconds>⟨N⟩) seconds, \d+ images",
        " 1000: 2.345, 2.400 avg loss, 0.001000 rate, 3.512 seconds, 64000 images",
    ),
    form(
        "caffe",
        "Iteration ",
        r"Iteration (?P<step>\d+)(?: \([^()]{1,60}\))?, "
        r"(?:loss = (?P<loss>⟨N⟩)|lr = (?P<lr>⟨N⟩))\Z",
        "Iteration 100 (4.5 iter/s, 22.2s/100 iters), loss = 2.3026",
        sure=True,
    ),
    form(
        "caffe",
        " net output #",
        r"[|\s]{0,8}Test net output #\d+: (?P<rest>[\w/-]{1,80} = ⟨N⟩)"
        r"(?: \(\* ⟨N⟩ = ⟨N⟩ loss\))?\Z",
        "Test net output #1: loss = 0.0315 (* 1 = 0.0315 loss)",
        split="eval",
        sure=True,
    ),
    form(
        "mxnet",
        "Epoch[",
        r"Epoch\[(?P<epoch>\d+)\] (?P<rest>(?:Train|Validation)-[\w-]+=\S+)\Z",
        "Epoch[145] Train-SmoothL1=2.446886",
        sure=True,
    ),
    # ESPnet's results. The mean over the training data is ignored, because batches are logged.
    form(
        "espnet",
        "epoch:train:",
        r"(?P<epoch>\d+)epoch:train:\d+-(?P<step>\d+)batch:\s+(?P<rest>.*)",
        "1epoch:train:51-100batch: iter_time=0.1, loss_ctc=12.5, loss=10.25",
        names={"optim0_lr0": "lr", "train_time": "step_seconds"},
    ),
    form(
        "espnet",
        "epoch results: [train]",
        r"(?P<epoch>\d+)epoch results: \[train\] .*?\[valid\] (?P<rest>(?:\w+=⟨N⟩(?:, |\Z))+)",
        "1epoch results: [train] iter_time=0.1, loss=70.5, time=1 hour, total_count=100, "
        "[valid] loss_ctc=70.25, loss=60.5, acc=0.5, time=3 minutes, total_count=10",
        split="eval",
    ),
    # LightGBM: python-package/lightgbm/callback.py (log_evaluation); XGBoost:
    # python-package/xgboost/callback.py (EvaluationMonitor). Cross validation: the mean.
    form(
        "boosting",
        "]\t",
        r"\[(?P<step>\d+)\](?P<cells>(?:\t(?:[\w ]{1,80}'s [\w@.-]{1,40}: "
        r"|[\w@.]{1,80}-[\w@.-]{1,40}:)⟨N⟩(?: ?\+ ?⟨N⟩)?\s?)+)\s*\Z",
        "[10]\ttraining's l2: 0.50125\tvalid_1's l2: 0.60125",
        read=_read_round,
    ),
    # TensorFlow: tensorflow_estimator/python/estimator/estimator.py (_write_dict_to_summary).
    form(
        "tensorflow estimator",
        "Saving dict for global step ",
        r"Saving dict for global step (?P<step>\d+): (?P<rest>\S+ = .*)",
        "Saving dict for global step 1000: accuracy = 0.75, global_step = 1000, loss = 0.5",
        split="eval",
    ),
)
