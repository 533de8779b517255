"""Formats of speech recognizers, and of programs that only a pattern of their own can read."""

from __future__ import annotations

import re

from hpcrun.metrics.lines.formats.form import Format, compiled
from hpcrun.metrics.lines.generic import read_generic
from hpcrun.metrics.lines.prefixes import Line
from hpcrun.metrics.row import Row

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
SPEECH = (*ICEFALL, *WENET, *AXLEARN, *QUICKSTART)
