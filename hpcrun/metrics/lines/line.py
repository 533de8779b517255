"""The reader of one line: what a line of a training log says, by itself.

The text may hold anything that a terminal or a launcher put there. Its prefixes come off
(``prefixes``); then the first that fits speaks: a format of the table, a row of the open table or a
head, a progress bar, a mark, and the generic reader. The answer depends on the text alone, and on
its numbers only as far as they are copied: a line with other digits gives the same row with other
values. The readers of whole logs build on that.

A mark measures nothing but says where the run stands: an epoch begins, or a run does again: Slurm
requeues the job, or a program goes on from a checkpoint and says so. Only what cannot mean anything
else counts: a job that its time limit ended is no restart, nor is an option of that name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.metrics.lines.fields import read_json
from hpcrun.metrics.lines.formats import Format
from hpcrun.metrics.lines.formats.general import GENERAL
from hpcrun.metrics.lines.formats.language import LANGUAGE
from hpcrun.metrics.lines.generic import find_meter, read_generic, read_meter
from hpcrun.metrics.lines.prefixes import Line, find_time, read_time, strip_prefixes
from hpcrun.metrics.lines.tables import read_head, read_row
from hpcrun.metrics.names import SPLITS
from hpcrun.metrics.row import Mark, Row, Table
from hpcrun.patterns import pattern_of

__all__ = [
    "ALWAYS",
    "COMMON",
    "FORMATS",
    "NEEDLES",
    "Format",
    "find_time",
    "read_line",
    "read_time",
    "records",
]

# The table of formats, tried in this order.
FORMATS: tuple[Format, ...] = (*LANGUAGE, *GENERAL)

# A line that is read without an open table holds one of these, in lower case.
NEEDLES: tuple[bytes, ...] = (
    *(
        b"loss",
        b"step",
        b"iter",
        b"epoch",
        b"it/s",
        b"s/it",
        b" train ",
        b" val ",
        b"trl:",
        b"tel:",
    ),
    *(b"learning_rate", b"grad_norm", b"per_second", b"words/s", b"mllog"),
    *(b"[batch=", b"max_ma ", b"]\ttrain", b"]\tvalid", b"requeu", b"due to", b"resum", b"restor"),
)
_NEEDLES = tuple(needle.decode() for needle in NEEDLES)
# Those that are looked for in every part of a very long log.
ALWAYS: tuple[bytes, ...] = (b"loss",)
# Those that are looked for here and there in one.
COMMON = frozenset({b"loss", b"step", b"iter", b"epoch", b"it/s", b"s/it"})

# Where loggers that print JSON put the message itself.
_MESSAGE_KEYS = ("message", "msg", "log", "event", "text", "textPayload")

Answer = tuple[str, Row | Mark | Table]


def read_line(
    text: str, table: Table | None = None, formats: Sequence[Format] = FORMATS
) -> Answer | None:
    """Read one line; return the name of its form and what it says, None if it says nothing.

    ``table`` is the head of the table that is open, if one is. Of a line with several records
    (``records``) the first is read.

    >>> form, row = read_line("[rank1]: 2026-11-20 08:04:09 - INFO - step: 7 | loss: 2.5")
    >>> form, row.step, row.rank, row.values
    ('key=value', 7, 1, (('loss', 2.5),))
    >>> read_line("the loss of step 3 is 2.5")
    """
    line = strip_prefixes(records(text)[0])
    answer = _read(line, table, formats)
    if answer is None or not isinstance(answer[1], Row):
        return answer
    return answer[0], _with_rank(answer[1], line)


# A second record on one line: processes write side by side, and a line end comes late.
_NEXT_RECORD = pattern_of(
    r"(?<=[^\s\[({|>:\]])(?=\[(?:(?:default|rank)[ _]?\d{1,6}\]|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d))"
    r"|(?<=[a-z] )(?=\[default\d{1,6}\]:)|(?<=\})(?=\{['\"])"
    r"|\x1b\[A"  # the cursor goes up: what follows stands on another line
)


def records(text: str) -> list[str]:
    """Part a line into the records that stand on it, nearly always one.

    >>> records("[rank 1] step 5 loss 3.5[rank 0] step 5 loss 7.5")
    ['[rank 1] step 5 loss 3.5', '[rank 0] step 5 loss 7.5']
    """
    if text.count("[") < 2 and "}{" not in text:
        return [text]
    return [part for part in _NEXT_RECORD.split(text) if part.strip()] or [text]


def _with_rank(row: Row, line: Line) -> Row:
    """Add the rank that the prefixes name."""
    rank = line.rank if line.rank is not None else row.rank
    if rank is None and row.step is not None:
        rank = line.label
    if rank == row.rank:
        return row
    return Row(row.step, row.epoch, row.split, rank, row.values, row.total, row.bar)


def _read(line: Line, table: Table | None, formats: Sequence[Format]) -> Answer | None:
    text = line.text
    if not text:
        return None
    for form in formats:
        if form.needle in text and (told := form.answer(line)) is not None:
            return form.name, told
    if table is not None and (row := read_row(text, table)):
        return f"table ({table.kind})", row
    return _read_generic(line, formats) if _is_searched_for(text) else None


def _is_searched_for(text: str) -> bool:
    """Whether a log is searched for what stands on a line."""
    folded = text.lower()
    return any(needle in folded for needle in _NEEDLES)


def _read_generic(line: Line, formats: Sequence[Format]) -> Answer | None:
    """Read a line by what it looks like."""
    text = line.text
    if meter := find_meter(text):
        after = meter.after.strip()
        if after and after[0] != "{":  # a logger's own line, which a bar's drawing had begun
            behind = _read(strip_prefixes(after), None, formats)
            if behind and isinstance(behind[1], Row) and behind[1].step is not None:
                return behind
        row = read_meter(meter)
        return None if row is None else ("progress bar", row)
    if text.startswith("{"):
        return _read_object(line, formats)
    if head := read_head(text):
        return f"table ({head.kind})", head
    if mark := read_mark(text):
        return "mark", mark
    if row := read_generic(text, SPLITS.get(line.tag, "")):
        return "python dict" if text.endswith("}") else "key=value", row
    return None


def _read_object(line: Line, formats: Sequence[Format]) -> Answer | None:
    """Read a line that is a JSON object or a Python dict; a logger's may hold the message."""
    text = line.text
    if text.startswith('{"') and (read := read_json(text)) and read[1] == len(text):
        if row := read_generic(text, SPLITS.get(line.tag, "")):
            return "json lines", row
        for key in _MESSAGE_KEYS:
            message = read[0].get(key)
            if isinstance(message, str) and message[:1] not in ("", "{"):
                return _read(strip_prefixes(message), None, formats)
        return None
    row = read_generic(text, SPLITS.get(line.tag, ""))
    return None if row is None else ("python dict", row)


_EPOCH = pattern_of(
    r"[\s=*#>|~-]{0,200}"
    r"(?:(?:start(?:ing|ed)?|begin(?:ning)?|running)[ ]{1,2}(?:of[ ]|train(?:ing)?[ ])?"
    r"|train(?:ing)?[ ])?"
    r"epoch(?![ ]=[ ])[\s:#=]{0,8}\[?(?P<epoch>\d{1,9})(?:\s{0,4}(?:/|of)\s{0,4}\d{1,9})?\]?"
    r"(?: (?:summary|results|metrics|statistics)(?=:|\s{0,8}\Z))?"
    r"(?: \| (?:epoch )?time: \d{1,4}m \d{1,2}s)?"
    r"(?:, total (?:micro|generation) batches \d{1,9})?[\s.:=*#<|~…-]{0,200}",
    re.IGNORECASE,
)
_SLURM = pattern_of(
    r"\*\*\* (?:JOB|STEP) [\d._+\w]{1,40} ON \S{1,200} CANCELLED AT \S{10,40} DUE TO "
    r"(?:PREEMPTION|JOB REQUEUE|NODE FAILURE)"
)
_REQUEUED = pattern_of(
    r"(?:slurmstepd|srun|slurmd)?:? ?(?:error: )?(?:job \d{1,12} (?:has been )?requeued"
    r"|requeu?e?ing (?:slurm )?job[ :]{1,2}\d{1,12}|requeued (?:slurm )?job[ :]{1,2}\d{1,12})\b"
    r"|.{0,120}will restart worker group",
    re.IGNORECASE,
)
_STEP = r"(?:global[_ ]?)?(?:steps?|iter(?:ation)?s?|updates?)[ :=#_-]{0,3}"
_RESUMED = pattern_of(
    rf"""
    [ \t]{{0,3}} (?: [=*>#-]{{1,40}} [ ]{{0,2}} )? (?:
      (?: (?:successfully[ ])? (?: resum(?:ed|ing) | continuing | restarting ) )
        [ ]{{1,2}} (?: (?:the[ ])? (?:model[ ])? (?:training|run|job)[ ] )? (?: from | at | of )\b
        [^\n]{{0,200}}?
        (?: \b {_STEP}(?P<step1>\d{{1,15}}) | checkpoint-(?P<step2>\d{{1,15}}) \b | \Z )
    | (?:successfully[ ])? loaded[ ]checkpoint[ ] [^\n]{{0,300}}?
        (?: \bat[ ]{_STEP}(?P<step3>\d{{1,15}})
          | \(epoch[ ]\d+(?:[ ]@[ ](?P<step4>\d{{1,15}})[ ]updates)?\) )
    | (?:loading|loaded)[ ](?:the[ ])?checkpoint[ ](?:from|at)[ ]{_STEP}(?P<step5>\d{{1,15}})
    | resume[ ]training\b [^\n]{{0,100}} \bfrom[ ](?:epoch[ ]\d{{1,9}}|{_STEP}(?P<step8>\d{{1,15}}))
    | resumed[ ]epoch:[ ]\d{{1,9}},[ ]iter:[ ](?P<step6>\d{{1,15}})
    | restor(?:ed|ing)[ ](?:all[ ])?states?[ ]from[ ]the[ ]checkpoint\b [^\n]{{0,200}}?
        (?: \bstep=(?P<step7>\d{{1,15}}) | \Z )
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_EPOCH_WORDS = ("epoch", "Epoch", "EPOCH")


def read_mark(text: str) -> Mark | None:
    """Read a line without prefixes.

    >>> read_mark("Epoch 3/20"), read_mark("Resuming training from checkpoint-500")
    (Mark(epoch=3.0, restart=False, step=None), Mark(epoch=None, restart=True, step=500))
    >>> read_mark("Epoch 3: early stopping"), read_mark("resume: None")
    (None, None)
    """
    if "***" in text and _SLURM.search(text):
        return Mark(restart=True)
    if len(text) > 600:
        return None
    if any(word in text for word in _EPOCH_WORDS) and (begun := _EPOCH.fullmatch(text)):
        return Mark(epoch=float(begun["epoch"]))
    if resumed := _RESUMED.match(text):
        step = next((group for group in resumed.groups() if group), None)
        return Mark(restart=True, step=None if step is None else int(step))
    if _REQUEUED.match(text):
        return Mark(restart=True)
    return None
