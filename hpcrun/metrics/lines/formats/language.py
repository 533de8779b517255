"""Formats of the programs that train models of language and speech."""

from __future__ import annotations

import re

from hpcrun.metrics.lines.fields import Field, Shape, build_row
from hpcrun.metrics.lines.formats import Format, compiled
from hpcrun.metrics.lines.generic import read_generic
from hpcrun.metrics.lines.prefixes import Line
from hpcrun.metrics.names import LOSS_SCALE
from hpcrun.metrics.row import Row
from hpcrun.patterns import pattern_of

# DeepSpeed: deepspeed/runtime/engine.py (_report_progress), utils/timer.py, runtime/pipe/engine.py.
DEEPSPEED = (
    Format(
        name="deepspeed",
        needle="skipped=",
        pattern=compiled(r"step=(?P<step>\d+), skipped=\d+, lr=\[(?P<lr>⟨N⟩)[^\]]*\], mom="),
        sure=True,
        example="[Rank 0] step=10, skipped=6, lr=[9.6e-06, 9.6e-06], mom=[(0.9, 0.95)]",
        look_alike="step=10, skipped=6, lr=[], mom=[]",
    ),
    Format(
        name="deepspeed",
        needle="RunningAvgSamplesPerSec=",
        pattern=pattern_of(
            r"epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+), (?P<rest>RunningAvg.*)"
        ),
        example="epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=17.5, "
        "CurrSamplesPerSec=17.25, MemAllocated=3.96GB, MaxMemAllocated=22.95GB",
        look_alike="epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=see above",
    ),
    Format(
        name="deepspeed",
        needle="iter time (s):",
        pattern=pattern_of(r"(?P<rest>steps: \d+ loss: .*)"),
        example="steps: 1 loss: 12.6360 iter time (s): 15.161 samples/sec: 1.055",
        look_alike="steps: many loss: little iter time (s): short",
    ),
    # The timers of wall_clock_breakdown, milliseconds; some are called as if they counted steps.
    Format(
        name="deepspeed",
        needle="time (ms) | ",
        pattern=compiled(r"(?:rank=\d+ )?time \(ms\) \| (?P<rest>(?:\w+: ⟨N⟩(?: \| |\s*\Z))+)\Z"),
        names={"step": "step_ms", "optimizer_step": "optimizer_step_ms"},
        sure=True,
        verbatim=True,
        example="time (ms) | fwd_microstep: 1.25 | bwd_microstep: 4.56 | step_microstep: 0.75",
        look_alike="time (ms) | fwd_microstep: fast | step_microstep: slow",
    ),
    # runtime/utils.py (see_memory_usage); the peak is that since the last such line.
    Format(
        name="deepspeed",
        needle="Max_MA ",
        pattern=compiled(
            r"MA (?P<memory_allocated_gb>⟨N⟩) GB\s+(?:\| )?Max_MA (?P<max_memory_gb>⟨N⟩) GB\s"
        ),
        names={"memory_allocated_gb": ""},
        sure=True,
        example="MA 3.25 GB         Max_MA 5.12 GB         CA 8.0 GB         Max_CA 9 GB ",
        look_alike="MA low GB         Max_MA high GB         CA 8.0 GB         Max_CA 9 GB ",
    ),
)
# What mixed precision says when it changes its factor: DeepSpeed, apex, fairseq, MXNet.
LOSS_SCALES = (
    Format(
        name="loss scale",
        needle="loss scale",
        pattern=compiled(
            r"(?:.{0,40}OVERFLOW!|Grad(?:ient)? overflow|Overflow detected|NOTE: gradient overflow"
            r"|Reducing dynamic|Increasing dynamic|AMP:)[^\n]{0,120}?loss scale"
            rf"(?: from (?:⟨N⟩))?(?:: ⟨N⟩, reducing)?(?: to:?|:) (?P<{LOSS_SCALE}>⟨N⟩)(?=,|\.?$)"
        ),
        sure=True,
        example="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, "
        "reducing to 32768",
        look_alike="dynamic loss scale: 65536",
    ),
)
# Megatron-LM: megatron/training/training.py (training_log, evaluate_and_print_results).
MEGATRON = (
    Format(
        name="megatron",
        needle="elapsed time per iteration",
        pattern=pattern_of(r"(?P<rest>\s*iteration\s+\d+/\s*\d+ \|.*)"),
        example=" iteration      122/  250000 | consumed samples:       124928 | elapsed time per "
        "iteration (ms): 86545.2 | learning rate: 9.150000E-06 | global batch size:  1024 | "
        "lm loss: 2.504220E+00 | loss scale: 1.0 | grad norm: 0.231 |",
        look_alike="iteration 5/ 10 | elapsed time per iteration is long",
    ),
    Format(
        name="megatron",
        needle="validation loss at",
        pattern=compiled(
            r"-*\s*validation loss at iteration (?P<step>⟨I⟩)(?: on validation set)? \|"
            r" lm loss value: (?P<eval_loss>⟨N⟩) \| lm loss PPL: (?P<eval_ppl>⟨N⟩)"
        ),
        split="eval",
        example="validation loss at iteration 100 | lm loss value: 7.66E+00 | "
        "lm loss PPL: 2.1E+03 | ",
        look_alike="validation loss at iteration 100 | lm loss value: none",
    ),
    Format(
        name="megatron",
        needle="validation loss at",
        pattern=compiled(
            r"-*\s*validation loss at (?:iteration (?P<step>⟨I⟩)|the end of training)"
            r" (?:on|for) (?:(?P<split>test)|val(?:idation)?) (?:set|data) \|"
            r" lm loss value: (?P<loss>⟨N⟩) \| lm loss PPL: (?P<ppl>⟨N⟩)"
        ),
        read=lambda found, line: build_row(
            [
                *([Field("step", float(found["step"]))] if found["step"] else []),
                Field("loss", float(found["loss"])),
                Field("ppl", float(found["ppl"])),
            ],
            Shape(split=found["split"] or "eval"),
        ),
        example="validation loss at iteration 100 on test set | lm loss value: 7.66E+00 | "
        "lm loss PPL: 2.1E+03 | ",
        look_alike="validation loss at the end of training for test data | lm loss value: none",
    ),
)
# nanoGPT: train.py; llm.c: train_gpt2.cu, llmc/logger.h; build-nanogpt: train_gpt2.py.
NANOGPT = (
    Format(
        name="nanogpt",
        needle=": train loss ",
        pattern=compiled(
            r"(?:step|iter)\s+(?P<step>\d+): train loss (?P<eval_train_loss>⟨N⟩),"
            r" val(?:idation)? loss (?P<eval_loss>⟨N⟩)(?P<rest>.*)"
        ),
        split="eval",
        example="step 3000: train loss 4.0390, val loss 4.0427",
        look_alike="step 3000: train loss low, val loss high",
    ),
    Format(
        name="llm.c",
        needle="s:",
        pattern=compiled(
            r"s:(?P<step>\d+) (?:trl:(?P<loss>⟨N⟩)(?: lr:(?P<lr>⟨N⟩))?(?: norm:(?P<grad_norm>⟨N⟩))?"
            r"|tel:(?P<eval_loss>⟨N⟩))\Z"
        ),
        example="s:0 trl:11.0096 lr:0.000001 norm:15.2",
        look_alike="s:0 trl:done",
    ),
    Format(
        name="llm.c",
        needle=" ms | ",
        pattern=compiled(
            r"step\s+(?P<step>\d+)/(?P<total>\d+) \| (?:train )?loss (?P<loss>⟨N⟩)[^|]*\|"
            r"(?: norm (?P<grad_norm>⟨N⟩)[^|]*\|)?(?: lr (?P<lr>⟨N⟩) \|)?"
            r" (?P<step_ms>⟨N⟩) ms \|(?:[^|]{1,40}\|)? (?P<tokens_per_second>⟨N⟩) tok/s"
        ),
        names={"step_ms": "step_time_ms"},
        example="step    1/18865 | loss 11.009 (+nanz)| norm 15.2 (+nanz)| lr 2.1e-06 | "
        "2134.34 ms | 55.2% bf16 MFU | 245645 tok/s",
        look_alike="step 1/2 | loss low | 3 ms | 4 tok/s",
    ),
    Format(
        name="llama2.c",
        needle=" | loss ",
        pattern=pattern_of(r"(?P<step>\d+) \| (?P<rest>loss .*)"),
        example="100 | loss 2.3145 | lr 1.000000e-04 | 350.12ms | mfu 40.12%",
        look_alike="100 | loss of packets",
    ),
    Format(
        name="build-nanogpt",
        needle=" train ",
        pattern=compiled(r"(?P<step>\d+) train (?P<loss>\d+\.\d{3,12})\Z"),
        example="250 train 6.035",
        look_alike="250 train 6",
    ),
    Format(
        name="build-nanogpt",
        needle=" val ",
        pattern=compiled(r"(?P<step>\d+) val (?P<eval_loss>\d+\.\d{3,12})\Z"),
        example="250 val 6.035",
        look_alike="250 val 3.5",
    ),
)
# XLM and what grew out of it: xlm/trainer.py (print_stats). The first number is the step.
XLM = (
    Format(
        name="xlm",
        needle="words/s - ",
        pattern=compiled(
            r"-?\s*(?P<step>\d+) -\s+⟨N⟩ \w+/s -\s+(?P<tokens_per_second>⟨N⟩) words/s -"
            r"\s+[\w-]+:\s+(?P<loss>⟨N⟩) .*?\b(?:LR|lr): (?P<lr>⟨N⟩)"
        ),
        example="20 -   26.80 equations/s -  1023.60 words/s - PRIM-FWD:  3.7550 - "
        "model LR: 1.0000e-04",
        look_alike="20 - equations/s - words/s - FWD: 3 - LR: 1",
    ),
)
# OpenNMT-py: onmt/utils/statistics.py; Marian: src/training/scheduler.h.
TRANSLATION = (
    Format(
        name="opennmt",
        needle="; xent: ",
        pattern=compiled(
            r"Step\s+(?P<step>\d+)/\s*(?P<total>\d+); .*?\bppl:\s*(?P<ppl>⟨N⟩);"
            r" xent:\s*(?P<loss>⟨N⟩); lr:\s*(?P<lr>⟨N⟩);"
            r"(?:.*?\s\d+/\s*(?P<tokens_per_second>\d+) tok/s)?"
        ),
        example="Step 50/100000; acc: 10.5; ppl: 1234.5; xent: 7.1; lr: 0.00001; sents: 100; "
        "12345/12346 tok/s; 20 sec;",
        look_alike="Step 50/100000; ppl: high; xent: high; lr: low;",
    ),
    Format(
        name="marian",
        needle=" : Up. ",
        pattern=compiled(
            r"Ep\. (?P<epoch>\d+) : Up\. (?P<step>[\d,]+) : Sen\. [\d,]+"
            r" : Cost (?P<loss>⟨N⟩)[^:]*"
            r"(?: : Time ⟨N⟩s)?(?: : (?P<tokens_per_second>⟨N⟩) words/s)?"
            r"(?: : gNorm (?P<grad_norm>⟨N⟩))?"
        ),
        example="Ep. 1 : Up. 1,000 : Sen. 123,456 : Cost 9.85 * 123,456 after 1,234,567 "
        ": Time 12.3s : 10000.00 words/s : gNorm 1.25",
        look_alike="Ep. 1 : Up. 1,000 : Sen. 123,456 : Cost rising : words/s",
    ),
)
# tqdm_loggable: tqdm_logging.py; its counts are rounded beyond a thousand, and then no step.
LOGGABLE = (
    Format(
        name="tqdm_loggable",
        needle="Progress on:",
        pattern=pattern_of(
            r"Progress on:\S* (?:(?P<step>\d+)(?:\.0+)?it|[\d.]+[kMG]it)/\S+ rate:\S+ remaining:\S+"
            r" elapsed:\S+ postfix:(?P<rest>[^-].*)"
        ),
        example="Progress on:train 100it/1.00kit rate:1.4it/s remaining:10:42 elapsed:01:11 "
        "postfix:loss=2.31",
        look_alike="Progress on:train 100it/1.00kit rate:1.4it/s remaining:10:42 elapsed:01:11 "
        "postfix:-",
    ),
)
# MaxText: src/MaxText/metric_logger.py.
OTHERS = (
    Format(
        name="maxtext",
        needle="eval ",
        pattern=pattern_of(
            r"(?:Completed eval after train step|eval metrics after step:?) (?P<step>\d+), "
            r"(?P<rest>loss=.*)"
        ),
        split="eval",
        example="Completed eval after train step 19, loss=5.013, perplexity=29.400, "
        "total_weights=65536, avg_z_loss=0.000",
        look_alike="Completed eval after train step 19, loss=fine",
    ),
    Format(
        name="maxtext",
        needle="completed step:",
        pattern=pattern_of(r"(?P<rest>completed step: .*)"),
        names={"completed_step": "step", "seconds": "step_seconds"},
        example="completed step: 3, seconds: 1.2, TFLOP/s/device: 86.0, Tokens/s/device: 12965.1, "
        "total_weights: 65536, loss: 10.1",
        look_alike="completed step: 3 of the setup",
    ),
)
_RANK = r"(?:\((?P<rank>\d+)/\d+\) )?"
_PAIRS = r"(?P<rest>(?:\w+=⟨N⟩(?:, (?=\w+=))?)+)"

# icefall: egs/librispeech/ASR/zipformer/train.py. The batch's loss stands before the running one.
ICEFALL = (
    Format(
        name="icefall",
        needle="tot_loss[",
        pattern=compiled(
            rf"{_RANK}Epoch (?P<epoch>\d+), batch (?P<step>\d+)"
            r"(?:, global_batch_idx: (?P<global_step>\d+))?"
            rf"(?:, batch size: \d+)?, (?:train_)?loss\[{_PAIRS}(?:.*\blr: (?P<lr>⟨N⟩))?"
        ),
        sure=True,
        example="Epoch 1, batch 50, loss[loss=7.125, simple_loss=0.5, over 2500.00 frames. ], "
        "tot_loss[loss=7.25, simple_loss=0.75, over 5000.00 frames. ], batch size: 14, lr: 2.2e-02",
        look_alike="Epoch 1, batch 50, loss[none], tot_loss[loss=7.25], batch size: 14",
    ),
    Format(
        name="icefall",
        needle=", validation: loss=",
        pattern=compiled(rf"{_RANK}Epoch (?P<epoch>\d+), validation: {_PAIRS}"),
        split="eval",
        sure=True,
        example="Epoch 1, validation: loss=6.5, simple_loss=0.5, over 944034.00 frames. ",
        look_alike="Epoch 1, validation: loss=none",
    ),
)


def _read_batch(found: re.Match[str], line: Line) -> Row | None:
    """Read pairs without signs, which count behind a place alone."""
    return read_generic(f"epoch {found['epoch']} step {found['step']} {found['rest']}")


# WeNet: wenet/utils/train_utils.py (log_per_step), wenet/bin/train.py. What looks like a batch and
# the number of batches is the epoch and the batch. The batches of an evaluation are passed over.
WENET = (
    Format(
        name="wenet",
        needle="TRAIN ",
        pattern=compiled(
            r"TRAIN (?:\| (?:steps/sec ⟨N⟩\| ?)?)?Batch (?P<epoch>\d+)/(?P<step>\d+) "
            r"(?P<rest>loss .*)"
        ),
        read=_read_batch,
        example="TRAIN Batch 0/100 loss 7.125000 loss_att 8.5 loss_ctc 12.5 lr 0.00004 rank 0",
        look_alike="TRAIN Batch 0/100 loss of words",
    ),
    Format(
        name="wenet",
        needle=" CV info ",
        pattern=compiled(
            r"Epoch (?P<epoch>\d+) (?:Step (?P<step>\d+) )?CV info (?:lr \S+ )?"
            r"cv_loss (?P<loss>⟨N⟩)"
        ),
        split="eval",
        sure=True,
        example="Epoch 0 CV info cv_loss 12.5",
        look_alike="Epoch 0 CV info cv_loss unknown",
    ),
)
# AXLearn: axlearn/common/trainer.py.
AXLEARN = (
    Format(
        name="axlearn",
        needle="rocess ",
        pattern=compiled(
            r"(?:\S+ )?[Pp]rocess\s+(?P<rank>\d+) step\s+(?P<step>\d+)[:\]] loss=(?P<loss>⟨N⟩)"
            r"(?=\s|\Z)"
        ),
        sure=True,
        example="Process   0 step      100: loss=7.125 aux={}",
        look_alike="Process   0 step      100: loss=unknown",
    ),
)
# pytorch/tutorials: beginner_source/basics/quickstart_tutorial.py, below "Test Error:".
QUICKSTART = (
    Format(
        name="pytorch quickstart",
        needle=", Avg loss: ",
        pattern=compiled(r"\s?Accuracy: (?P<accuracy>⟨N⟩)%, Avg loss: (?P<loss>⟨N⟩)\s*\Z"),
        split="test",
        sure=True,
        example=" Accuracy: 45.1%, Avg loss: 2.151250",
        look_alike=" Accuracy: 45.1%, Avg loss: unknown",
    ),
)
LANGUAGE: tuple[Format, ...] = (
    *DEEPSPEED,
    *LOSS_SCALES,
    *MEGATRON,
    *NANOGPT,
    *XLM,
    *TRANSLATION,
    *LOGGABLE,
    *OTHERS,
    *ICEFALL,
    *WENET,
    *AXLEARN,
    *QUICKSTART,
)
