"""Parse one line of a training log.

The text may contain anything that a terminal or a launcher added. ``prefixes`` removes prefixes and
escape sequences; then the first reader that understands the rest decides:

1. a format of ``formats.known``, a job's own first,
2. a row of the open table, a progress bar, the head of a table (``tables``),
3. a mark, see ``read_mark``,
4. the generic reader of names and values (``generic``).

The result depends only on the text, and its numbers are copied from it: a line with other digits
gives the same row with other values. ``line_pattern`` relies on that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from msgspec import structs

from hpcrun.curves.lines.fields import read_json
from hpcrun.curves.lines.formats import LineFormat, find_bar, read_bar
from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.lines.generic import read_generic
from hpcrun.curves.lines.prefixes import StrippedLine, strip_prefixes
from hpcrun.curves.lines.tables import read_head, read_table_row
from hpcrun.curves.lines.times import (
    read_duration,
    read_lap_time,
    read_total_time,
    states_end,
)
from hpcrun.curves.names import EPOCH_SECONDS, SPLITS, in_english
from hpcrun.curves.row import IMPROVEMENTS, Mark, Row, TableHead
from hpcrun.patterns import pattern_of

# Without an open table, only lines that contain one of these, in lower case, can be read.
NEEDLES: tuple[bytes, ...] = (
    *b"loss,step,iter,epoch,it/s,s/it, train , val ,trl:,tel:,learning_rate,grad_norm".split(b","),
    *b"per_second,words/s,mllog,[batch=,batch:,max_ma ,]\ttrain,]\tvalid,train=".split(b","),
    *b"[l1: ,learn: ,cost on,train: ,%) ,% (, --\n,learning rate,requeu,due to,resum,restor".split(
        b","
    ),
    # Loss and epoch in other languages.
    *map(str.encode, ("损失", "損失", "손실", "轮", "отер", "поха", "poca", "rdida")),
    *(b" avg, ", b"envinteracts", b" : up. "),  # darknet, Spinning Up, Marian
    # The time that a training took, and its end.
    *b"ing time,total time,ompleted in,inished in,elapsed,time: ,time cost,time taken".split(b","),
    *b"***** ,results,evaluat,validat,test metric".split(b","),  # headings
    *b"early stop,earlystop,stopping_early".split(b","),
    *b"perda,perte,verlust".split(b","),
    # Scores, which an evaluation may print without a step or an epoch.
    *b"accura, acc,_acc,acc@,acc:,prec@,auc,auroc,iou,map@,map:,map=,map50,bleu,chrf,psnr".split(
        b","
    ),
    *b"lpips,ssim,f1,dice,rouge,wer,cer:,fid,recall,precision,reward,rew_mean,rewmean,perplex,ppl".split(
        b","
    ),
    *b"mse,mae,ndcg, r2,_r2".split(b","),
)
_NEEDLES = tuple(map(bytes.decode, NEEDLES))
# Searched for in every block of a very long log.
ALWAYS_SEARCHED: tuple[bytes, ...] = (b"loss",)
# Searched for in some blocks of a very long log.
COMMON_NEEDLES = frozenset({b"loss", b"step", b"iter", b"epoch", b"it/s", b"s/it", b"accura"})

# Keys under which loggers that print JSON store the message itself.
_MESSAGE_KEYS = ("message", "msg", "log", "event", "text", "textPayload")

# The name of a line's format, and what the line contains.
Reading = tuple[str, Row | Mark | TableHead]


def read_line(
    text: str, table: TableHead | None = None, formats: Sequence[LineFormat] = FORMATS
) -> Reading | None:
    """Read one record of a line; return None if it is neither a measurement nor a mark.

    Args:
        text: The record.
        table: Head of the open table, or None.
        formats: Line formats in order of precedence.

    >>> form, row = read_line("[rank1]: 2026-11-20 08:04:09 - INFO - step: 7 | loss: 2.5")
    >>> form, row.step, row.rank, row.values
    ('key=value', 7, 1, (('loss', 2.5),))
    >>> read_line("the loss of step 3 is 2.5 and too high")
    """
    line = strip_prefixes(text)
    reading = _read_stripped(line, table, formats)
    if reading is None or not isinstance(row := reading[1], Row):
        return reading
    rank = row.rank if line.rank is None else line.rank
    if rank is None and row.step is not None:
        rank = line.label
    if line.data and row.scope.split == SPLITS[line.tag]:
        row = structs.replace(row, scope=row.scope._replace(data=line.data))
    return reading[0], structs.replace(row, rank=rank)


# Where a second record begins on a line: processes share a terminal, and line ends come late.
_NEXT_RECORD = re.compile(
    rb"(?<=[^\s\[({|>:\]])"
    rb"(?=\[(?:(?:default|rank)[ _]?\d{1,6}\]|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d))"
    rb"|(?<=[a-z] )(?=\[default\d{1,6}\]:)|(?<=\})(?=\{['\"])"
    rb"|\x1b\[A"  # the cursor moves up: what follows is displayed on another line
    # Text after a progress bar was printed by something else, perhaps from a buffer.
    rb"|\[(?:\d{1,4} days?, )?\d{1,6}:\d\d(?::\d\d)?(?:<|, )[^\[\]]{0,400}\]"
    rb"(?= {0,80}(?:[^\s\[\]\x1b]|\[[a-zA-Z]|\[\d\d:\d\d:\d\d\.\d"
    rb"|\[\d{1,6}m \d))"
    rb"|(?<=\})(?=[^\[\]{}|]{0,60}\d%\|)"
    rb"|(?<=[^\s\d])(?=\d{1,9}/\d{1,9} \[={5,99}\] - \d)"  # Keras, at the end of an epoch
)


def split_records(line: bytes) -> list[bytes]:
    """Split a line into the records that it contains, nearly always one.

    >>> split_records(b"[rank 1] step 5 loss 3.5[rank 0] step 5 loss 7.5")
    [b'[rank 1] step 5 loss 3.5', b'[rank 0] step 5 loss 7.5']
    """
    is_bar = b"/s]" in line or b"/it]" in line or b"/s, " in line or b"/it, " in line
    if line.count(b"[") < 2 and b"{" not in line and not is_bar:
        return [line]
    borders = [0, *(found.end() for found in _NEXT_RECORD.finditer(line)), len(line)]
    return [line[start:end] for start, end in pairwise(borders) if start < end]


def _read_stripped(
    line: StrippedLine, table: TableHead | None, formats: Sequence[LineFormat]
) -> Reading | None:
    text = line.text
    if not text and line.tag:  # "[Evaluation]"
        return "mark", Mark(split=SPLITS[line.tag])
    for form in formats if text else ():
        if form.needle in text and (found := form.read_stripped(line)) is not None:
            return form.name, found
    if table is not None and table.columns and (row := read_table_row(text, table)):
        return f"table ({table.kind})", row
    folded = f" {text.lower()}\n"
    if not any(map(folded.__contains__, _NEEDLES)):
        return None
    text = in_english(text)
    if bar := find_bar(text):
        row = read_bar(bar)
        return None if row is None else ("progress bar", row)
    event: dict[str, object] = {}  # the keys of a line that is a single JSON object
    if text.startswith('{"') and (read := read_json(text)) and read[1] == len(text):
        event = read[0]
    elif head := read_head(text, table):
        return f"table ({head.kind})", head
    elif mark := read_mark(text):
        return "mark" if isinstance(mark, Mark) else "heading", mark
    if row := read_generic(text, SPLITS.get(line.tag, "")):
        if [name for name, _ in row.values] == [EPOCH_SECONDS]:
            return "mark", Mark(seconds=row.values[0][1])
        if "' reached " in text:  # Lightning
            return IMPROVEMENTS, row
        return "json lines" if event else "python dict" if text[-1] == "}" else "key=value", row
    for key in _MESSAGE_KEYS:
        message = event.get(key)
        if isinstance(message, str) and message[:1] not in ("", "{"):
            return _read_stripped(strip_prefixes(message), None, formats)
    seconds, ends = read_total_time(text), states_end(text)
    if ends or seconds is not None:
        return "mark", Mark(ends=True, seconds=seconds)
    seconds = read_lap_time(text)
    return None if seconds is None else ("mark", Mark(seconds=seconds, is_lap=True))


# A line that contains only a step or an epoch: "Epoch 3/20", "-----Iteration: 1000-----", "begin
# training epoch 1".
_HEADING = pattern_of(
    r"(?:[\s=*#>|~<\[({'+-]|[^\w\s\x00-\x7f]){0,200}"
    r"(?:(?:start(?:ing|ed)?|begin(?:ning)?|running|entering)[ ]{1,2}(?:of[ ])?)?"
    r"(?:(?:train(?:ing)?|(?P<split>eval(?:uation)?|val(?:id(?:ation)?)?|test(?:ing)?))[ ]{1,2})?"
    r"(?:(?:current|global|learning)[ _])?"
    r"(?:(?P<epoch>epoch)|step|iter(?:ation)?|update|batch|round|episode)"
    r"(?:es)?(?:[ _](?:number|num|no|index|idx|of))?(?!=\d+(?![\d/]))'?(?P<sign>[\s:#=]{0,8})"
    r"[\[(]?(?P<count>\d{1,9})(?:(?:st|nd|rd|th) step)?"
    r"(?:\s{0,4}(?:/|\||(?(epoch)(?:out )?of|(?!)))\s{0,4}(?P<total>\d{1,9}))?\]?"
    r"(?: \(\d{1,9}/\d{1,9}\)(?= \*))?"
    r"(?: (?:summary|results|metrics|statistics|scores|perf(?:ormance)?|train(?:ing)?)"
    r"(?=[\s:=*-]{0,80}\Z))?(?: \[\d{1,3}%\]| \(\d[\d.]{0,12}s\))?"
    r"(?: \| (?:epoch )?time: (?P<time>\d{1,4}m \d{1,2}s)"
    r"|(?(total) took \d[\d.]{0,20} ?s| starting)"
    r"| started| begins)?"
    r"(?:[\s,|-]{1,6}(?:learning[ _]rate|lr)(?: is|[ :=]{1,3}) ?\d[\d.e-]{0,40}"
    r"(?:,\s{1,30}previous best = \d[\d.]{0,20})?)?"
    r"(?:, (?:total (?:micro|generation) batches|numImages:) {0,8}\d{1,9})?"
    r"[\s.,:=*#<>|~…\])+-]{0,200}",
    re.IGNORECASE,
)
# The heading of a block of results: "***** Eval results *****", "Validation:", "--- Test ---",
# and the head of scikit-learn's classification report.
_BLOCK = pattern_of(
    r"(?:[\s=*>|~<\[+-]|[^\w\s\x00-\x7f]){0,100}(?:dataloader:\d )?"
    r"(?:(?:start(?:ing)?|begin(?:ning)?|running|performing|final)[ ]{1,2}(?:the[ ])?){0,2}"
    r"(?P<split>train(?:ing)?|eval(?:uation|uating|uate)?|val(?:id(?:ation|ating)?)?|test(?:ing)?)"
    r"(?:[ ]{1,2}(?:on|the|set|data|split|model|results?|metrics?|scores?|performance|summary"
    r"|report|stats|statistics"
    r"|(?P<data>train(?:ing)?|val(?:idation)?|test|dev)(?= (?:set|data|split)))){0,5}"
    r"(?:[\s|┃│]{1,60}dataloader \d)?"
    r"(?:[\s┃│.,:*#<>|~…\]+-]|={2,100}){0,100}",
    re.IGNORECASE,
)
_CLASSIFICATION_REPORT = ["precision", "recall", "f1-score", "support"]
_COUNTED = pattern_of(r"[ ]{0,4}-{2,4} (\d{1,9}) ?/ ?(\d{1,9}) -{2,4}")  # "-- 010 / 040 --"
_STEP = r"(?:global[_ ]?)?(?:steps?|iter(?:ation)?s?|updates?)[ :=#_-]{0,3}"
_RESTARTED = pattern_of(
    rf"""
    (?:slurmstepd|srun|slurmd)? :?[ ]? (?:error:[ ])? (?:
      job[ ]\d{{1,12}}[ ](?:has[ ]been[ ])?requeued\b
    | (?:requeu?e?ing|requeued)[ ](?:slurm[ ])?job[ :]{{1,2}}\d{{1,12}}\b )
    | [^*\n]{{0,200}} \*\*\*[ ](?:JOB|STEP)[ ]\S{{1,60}}[ ]ON[ ]\S{{1,200}}[ ]CANCELLED[ ]AT
      [ ]\S{{10,40}}[ ]DUE[ ]TO[ ](?:PREEMPTION|JOB[ ]REQUEUE|NODE[ ]FAILURE)
    | .{{0,120}} will[ ]restart[ ]worker[ ]group
    | [ \t]{{0,3}} (?: [=*>#-]{{1,40}} [ ]{{0,2}} )? (?:
      (?:successfully[ ])? (?: resum(?:ed|ing) | continuing | restarting )
        [ ]{{1,2}} (?: (?:the[ ])? (?:model[ ])? (?:training|run|job)[ ] )? (?: from | at | of )\b
    | (?:successfully[ ])? loaded[ ]checkpoint[ ] [^\n]{{0,300}}?
        (?: \bat[ ](?={_STEP}\d) | (?=\(epoch[ ]\d) )
    | (?:loading|loaded)[ ](?:the[ ])?checkpoint[ ](?:from|at)[ ](?={_STEP}\d)
    | resume[ ]training\b [^\n]{{0,100}} \bfrom[ ](?=epoch[ ]\d|{_STEP}\d)
    | resumed[ ]epoch:[ ]\d{{1,9}},[ ](?=iter:[ ]\d)
    | restor(?:ed|ing)[ ](?:all[ ])?states?[ ]from[ ]the[ ]checkpoint\b
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RESUMED_AT = pattern_of(
    rf"(?:\b{_STEP}|checkpoint-|[ ]@[ ](?=\d+ updates))(\d{{1,15}})", re.IGNORECASE
)


def read_mark(text: str) -> Mark | Row | None:
    """Read a line without measurements that marks a position of the run; prefixes are removed.

    Marks are the heading of an epoch or of a block of results, and a restart: Slurm requeued the
    job, or the program reports that it resumes. Ambiguous lines, such as the end of a job at its
    time limit or an option named "resume", are not restarts. The heading of a step is a row without
    values; lines without a step below it belong to that step.

    >>> read_mark("Eval epoch 3/20") == Mark(epoch=3.0, split="eval")
    True
    >>> read_mark("***** Test results *****") == Mark(split="test")
    True
    >>> read_mark("Resuming training from checkpoint-500") == Mark(restart=True, step=500)
    True
    >>> read_mark("Epoch 3: early stopping"), read_mark("resume: None")
    (None, None)
    >>> read_mark("---- Iteration: 1000 ----").step
    1000
    """
    if len(text) > 600:
        return None
    if begun := _HEADING.fullmatch(text):
        is_sure = begun["sign"].strip() != "="  # otherwise it may be a setting
        if begun["epoch"] and begun["epoch"].isupper() and not is_sure:
            return None  # a constant in source code
        if begun["epoch"]:
            split = SPLITS[begun["split"].lower()] if begun["split"] else ""
            seconds = read_duration(begun["time"]) if begun["time"] else None
            return Mark(epoch=float(begun["count"]), split=split, seconds=seconds)
        total = int(begun["total"]) if begun["total"] else None
        return Row(step=int(begun["count"]), total=total, is_sure=is_sure)
    if block := _BLOCK.fullmatch(text):
        return Mark(split=SPLITS[(block["data"] or block["split"]).lower()])
    if text.split() == _CLASSIFICATION_REPORT:
        return Mark(split="eval")
    if counted := _COUNTED.fullmatch(text):
        return Row(step=int(counted[1]), total=int(counted[2]))
    if resumed := _RESTARTED.match(text):
        at = _RESUMED_AT.search(text, resumed.end())
        return Mark(restart=True, step=int(at[1]) if at else None)
    return None
