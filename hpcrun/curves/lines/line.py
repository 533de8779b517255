"""The reader of one line: what a line of a training log says, by itself.

The text may hold anything that a terminal or a launcher put there. Its prefixes come off
(``prefixes``); then the first that fits counts: a format of the table, a row of the open table or a
head, a progress bar, a mark, and the generic reader. The answer depends on the text alone, and on
its numbers only as far as they are copied: a line with other digits gives the same row with other
values. The readers of whole logs build on that.

A mark measures nothing but says where the run stands: an epoch begins, or a run does again: Slurm
requeues the job, or a program goes on from a checkpoint and says so. Only what cannot mean anything
else counts: a job that its time limit ended is no restart, nor is an option of that name. The
heading of a step is a row without values: the lines below it that name no place are of this step.

A line is the head of a table if it is nothing but names, one of them a step or an epoch and one a
loss (or a score). Its rows have as many cells, numbers where there are any; an empty cell, a dash
or a word measures nothing. Whatever does not fit below a head is read as if there were none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from operator import or_
from typing import Any

from msgspec import structs

from hpcrun.curves.lines.fields import (
    WRAPPED,
    Field,
    Found,
    build_row,
    fields_of,
    is_known,
    is_place,
    number_or_word,
    read_json,
)
from hpcrun.curves.lines.formats import Format, find_bar, read_bar
from hpcrun.curves.lines.formats.table import FORMATS
from hpcrun.curves.lines.generic import read_generic
from hpcrun.curves.lines.prefixes import Line, strip_prefixes
from hpcrun.curves.names import (
    EPOCH_RANK,
    LOSSES,
    LR,
    SPLIT_SPELLINGS,
    SPLITS,
    STEP_RANK,
    fold,
    in_english,
    like_a_loss,
    like_a_score,
    name_of,
    rank_for_loss,
    split_of,
)
from hpcrun.curves.row import Mark, Row, Table
from hpcrun.patterns import pattern_of

# A line that is read without an open table holds one of these, in lower case.
NEEDLES: tuple[bytes, ...] = (
    *b"loss,step,iter,epoch,it/s,s/it, train , val ,trl:,tel:,learning_rate,grad_norm".split(b","),
    *b"per_second,words/s,mllog,[batch=,batch:,max_ma ,]\ttrain,]\tvalid,train=".split(b","),
    *b"[l1: ,learn: ,cost on,train: ,%) ,% (, --\n,learning rate,requeu,due to,resum,restor".split(
        b","
    ),
    # Loss and epoch in other languages.
    *map(str.encode, ("损失", "損失", "손실", "轮", "отер", "поха", "poca", "rdida")),
    *(b" avg, ", b"envinteracts"),  # darknet, Spinning Up
    *b"perda,perte,verlust".split(b","),
)
_NEEDLES = tuple(map(bytes.decode, NEEDLES))
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

    ``table`` is the head of the table that is open, if one is. The line is one of ``records``.

    >>> form, row = read_line("[rank1]: 2026-11-20 08:04:09 - INFO - step: 7 | loss: 2.5")
    >>> form, row.step, row.rank, row.values
    ('key=value', 7, 1, (('loss', 2.5),))
    >>> read_line("the loss of step 3 is 2.5 and too high")
    """
    line = strip_prefixes(text)
    answer = _read(line, table, formats)
    if answer is None or not isinstance(row := answer[1], Row):
        return answer
    rank = row.rank if line.rank is None else line.rank
    if rank is None and row.step is not None:
        rank = line.label
    return answer[0], structs.replace(row, rank=rank)


# Where a second record begins on a line: processes write side by side, and a line end comes late.
_NEXT_RECORD = re.compile(
    rb"(?<=[^\s\[({|>:\]])"
    rb"(?=\[(?:(?:default|rank)[ _]?\d{1,6}\]|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d))"
    rb"|(?<=[a-z] )(?=\[default\d{1,6}\]:)|(?<=\})(?=\{['\"])"
    rb"|\x1b\[A"  # the cursor goes up: what follows stands on another line
    # What stands behind a bar was printed by something else; it may have waited in a buffer.
    rb"|\[(?:\d{1,4} days?, )?\d{1,6}:\d\d(?::\d\d)?(?:<|, )[^\[\]]{0,400}\]"
    rb"(?= {0,80}(?:[^\s\[\]\x1b]|\[[a-zA-Z]|\[\d\d:\d\d:\d\d\.\d))"
    rb"|(?<=\})(?=[^\[\]{}|]{0,60}\d%\|)"
    rb"|(?<=[^\s\d])(?=\d{1,9}/\d{1,9} \[={5,99}\] - \d)"  # Keras, of an epoch's end
)


def records(line: bytes) -> list[bytes]:
    """Part a line into the records that stand on it, nearly always one.

    >>> records(b"[rank 1] step 5 loss 3.5[rank 0] step 5 loss 7.5")
    [b'[rank 1] step 5 loss 3.5', b'[rank 0] step 5 loss 7.5']
    """
    if line.count(b"[") < 2 and b"{" not in line and b"/s]" not in line and b"/it]" not in line:
        return [line]
    borders = [0, *(found.end() for found in _NEXT_RECORD.finditer(line)), len(line)]
    return [line[start:end] for start, end in pairwise(borders) if start < end]


def _read(line: Line, table: Table | None, formats: Sequence[Format]) -> Answer | None:
    text = line.text
    for form in formats if text else ():
        if form.needle in text and (found := form.answer(line)) is not None:
            return form.name, found
    if table is not None and table.columns and (row := read_row(text, table)):
        return f"table ({table.kind})", row
    folded = f" {text.lower()}\n"
    if not any(map(folded.__contains__, _NEEDLES)):
        return None
    text = in_english(text)
    if bar := find_bar(text):
        row = read_bar(bar)
        return None if row is None else ("progress bar", row)
    event: dict[str, object] = {}  # what a line holds that is one JSON object
    if text.startswith('{"') and (read := read_json(text)) and read[1] == len(text):
        event = read[0]
    elif head := read_head(text, table):
        return f"table ({head.kind})", head
    elif mark := read_mark(text):
        return "mark" if isinstance(mark, Mark) else "heading", mark
    if row := read_generic(text, SPLITS.get(line.tag, "")):
        return "json lines" if event else "python dict" if text[-1] == "}" else "key=value", row
    for key in _MESSAGE_KEYS:
        message = event.get(key)
        if isinstance(message, str) and message[:1] not in ("", "{"):
            return _read(strip_prefixes(message), None, formats)
    return None


# A place on a line of its own: "Epoch 3/20", "-----Iteration: 1000-----", "begin training epoch 1".
_HEADING = pattern_of(
    r"(?:[\s=*#>|~<\[({'+-]|[^\w\s\x00-\x7f]){0,200}"
    r"(?:(?:start(?:ing|ed)?|begin(?:ning)?|running|entering)[ ]{1,2}(?:of[ ])?)?"
    r"(?:(?:train(?:ing)?|(?P<split>eval(?:uation)?|val(?:id(?:ation)?)?|test(?:ing)?))[ ]{1,2})?"
    r"(?:(?:current|global|learning)[ _])?"
    r"(?:(?P<epoch>epoch)|step|iter(?:ation)?|update|batch|round|episode)"
    r"(?:es)?(?:[ _](?:number|num|no|index|idx))?(?!=\d+(?![\d/]))'?(?P<sign>[\s:#=]{0,8})"
    r"[\[(]?(?P<count>\d{1,9})(?:(?:st|nd|rd|th) step)?"
    r"(?:\s{0,4}(?:/|\||(?(epoch)(?:out )?of|(?!)))\s{0,4}(?P<total>\d{1,9}))?\]?"
    r"(?: \(\d{1,9}/\d{1,9}\)(?= \*))?"
    r"(?: (?:summary|results|metrics|statistics|train(?:ing)?)"
    r"(?=[\s:=*-]{0,80}\Z))?(?: \[\d{1,3}%\]| \(\d[\d.]{0,12}s\))?"
    r"(?: \| (?:epoch )?time: \d{1,4}m \d{1,2}s|(?(total) took \d[\d.]{0,20} ?s| starting)"
    r"| started| begins)?"
    r"(?:[\s,|-]{1,6}(?:learning[ _]rate|lr)(?: is|[ :=]{1,3}) ?\d[\d.e-]{0,40}"
    r"(?:,\s{1,30}previous best = \d[\d.]{0,20})?)?"
    r"(?:, (?:total (?:micro|generation) batches|numImages:) {0,8}\d{1,9})?"
    r"[\s.,:=*#<>|~…\])+-]{0,200}",
    re.IGNORECASE,
)
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
    """Read a line without prefixes; the heading of a step is a row without values.

    >>> read_mark("Eval epoch 3/20") == Mark(epoch=3.0, split="eval")
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
        is_sure = begun["sign"].strip() != "="  # else it may be a setting
        if begun["epoch"] and begun["epoch"].isupper() and not is_sure:
            return None  # a constant of a program
        if begun["epoch"]:
            split = SPLITS[begun["split"].lower()] if begun["split"] else ""
            return Mark(epoch=float(begun["count"]), split=split)
        total = int(begun["total"]) if begun["total"] else None
        return Row(step=int(begun["count"]), total=total, is_sure=is_sure)
    if counted := _COUNTED.fullmatch(text):
        return Row(step=int(counted[1]), total=int(counted[2]))
    if resumed := _RESTARTED.match(text):
        at = _RESUMED_AT.search(text, resumed.end())
        return Mark(restart=True, step=int(at[1]) if at else None)
    return None


_MOST_COLUMNS = 400
_NAME = pattern_of(
    r"[^\W\d](?:[\w./@%<>#-]|:(?=\d(?![\d.])|0\.95)|[ ](?=[^\W\d])){0,80}[ ]?"
    r"(?:[(\[][\w ./%-]{1,20}[)\]])?"
)
# What parts the cells, by kind; those of the others are parted by blanks, two of them or one.
_MARKS = {"pipes": "|", "csv": ",", "semicolons": ";", "tabs": "\t"}
# A first column that counts: the index that pandas writes; what is else a setting, "Epochs".
_COUNTS = pattern_of(r"|unnamed_0|frame|num_iters|(?:env_|total_)?(?:(epoch)|step|episode)s")
_WIDE = ("columns", "frame")  # a frame's head is indented, as pandas prints it
_APART, _BETWEEN_PIPES = pattern_of(r"[^\s|]+(?: [^\s|]+)*"), pattern_of(r"[^|]+")
_TIMES = {"timestamp", "wall_time", "walltime", "date", "datetime", "seconds", "idx", "index"}
_DRAWN = str.maketrans("│┃║┆", "||||")
_BLANKS = pattern_of(r"[ ]{2,}|\t+")
_QUOTED, _LONGEST_CELL = pattern_of(r'(?<![^,])"([^"]*)"(?![^,])'), 80
# YOLO's trainers draw a bar behind the row of an epoch; its memory has a unit.
_BAR_BEHIND = pattern_of(r":(?:\s|\Z)|\s\d{1,3}%")
_WRAPPED = pattern_of(WRAPPED)
_LISTED = pattern_of(r"\[([\d.e+, -]{0,2000})\]")
_MEMORY, _IN_UNITS = "gpu_mem", pattern_of(r"(\d[\d.]{0,9})([GMK]?)B?")


def read_head(text: str, above: Table | None = None) -> Table | None:
    """Read the head of a table, or one of its two lines; ``above`` may be the upper one.

    >>> read_head("epoch,train_loss,val_loss").columns
    ('epoch', 'train_loss', 'val_loss')
    >>> read_head("| step | loss |").kind, read_head("the step, the loss and a half")
    ('pipes', None)
    >>> upper = read_head("|  Epoch  |  Mini-batch  |  Validation  |")
    >>> read_head("|         |     Loss     |     Loss     |", upper).columns
    ('Epoch', 'Mini-batch Loss', 'Validation Loss')
    """
    if "=" in text or "{" in text:
        return None
    indented, line = text[:1] == " ", text.translate(_DRAWN)
    text = line.strip().removeprefix("#").lstrip()  # numpy's savetxt
    marked = next((kind for kind, mark in _MARKS.items() if mark in text), "")
    marked = "" if "\t\t" in text else marked  # tabs that only align
    for kind in (marked,) if marked else (_WIDE[indented], "words"):
        cells = _cells(text, kind)
        if cells[1:] and not cells[-1]:
            cells.pop()
        if cells[:2] == ["E", "#"]:  # spacy/training/loggers.py (console_logger)
            cells[:2] = ["epoch", "step"]
        counts = _COUNTS.fullmatch(fold(cells[0])) if cells else None
        if counts and not any(map(is_place, cells)):
            cells[0] = counts[1] or "step"
        if kind == "csv":  # of runs side by side the first
            cells = [cell if cell not in cells[:at] else "" for at, cell in enumerate(cells)]
        if 2 <= len(cells) <= _MOST_COLUMNS and _are_names(cells, kind):
            return Table(kind, tuple(cells), line if kind in _WIDE else "")
    if above is not None and not above.columns:
        kind = "columns" if any(map(_BLANKS.search, _cells(text, marked))) else marked
        cells = [*_names_below(above.text, line, kind)]
        if len(cells) <= _MOST_COLUMNS and _are_names(cells, "pipes"):
            return Table(kind, tuple(cells))
    words = [*filter(None, (part.strip(" -*") for part in text.split("|")))]
    is_upper = marked == "pipes" and ":" not in text and all(map(_NAME.fullmatch, words))
    return Table("head", (), line) if is_upper and words[1:] else None


def _names_below(upper: str, line: str, kind: str) -> Iterator[str]:
    """Yield the names of a head's lower line, behind what stands above each."""
    for cell in (_APART if kind == "columns" else _BETWEEN_PIPES).finditer(line.rstrip(" |")):
        middle, name = (cell.start() + cell.end()) // 2, cell[0].partition("(")[0].strip()
        end = upper.find("|", middle)
        above = upper[upper.rfind("|", 0, middle) + 1 : None if end < 0 else end].strip(" -*")
        yield name if is_place(name) else f"{above} {name}".strip()


def _cells(text: str, kind: str) -> list[str]:
    if kind == "pipes":
        text = text.strip().removeprefix("|").removesuffix("|")
    if mark := _MARKS.get(kind):
        if kind == "csv":
            text = _QUOTED.sub(
                lambda cell: cell[1].replace(mark, " " * (not cell[1][:1].isdigit()))[
                    :_LONGEST_CELL
                ],
                text,
            )
        cells = [cell.strip() for cell in text.split(mark)]
        # The name of the run, which an export puts before a column's, is none of it.
        return cells if mark == "|" else [c.strip("\"'").rpartition(" - ")[2] for c in cells]
    return text.split() if kind == "words" else _BLANKS.split(text.replace("|", "  ").strip())


def _are_names(cells: list[str], kind: str) -> bool:
    if kind == "csv":
        cells = [cell for cell in cells if cell not in ("", "Unnamed: 0")]
    if not all(_NAME.fullmatch(cell) and cell.count(" ") < 4 for cell in cells):
        return False
    folded = [fold(cell) for cell in cells]
    known = [is_known(cell) or cell in _TIMES or rank_for_loss(cell) is not None for cell in folded]
    # Beside what is not known a cost may be one of anything.
    lost = [like_a_loss(cell) or (all(known) and name_of(cell) in LOSSES) for cell in cells]
    scores = (like_a_score(c) or (all(known) and rank_for_loss(c) is not None) for c in cells)
    scored = [*map(or_, lost, scores)]
    placed = any(cell in STEP_RANK or cell in EPOCH_RANK for cell in folded)
    if kind in (*_WIDE, "words"):  # blanks part words of prose, too
        wide = kind in _WIDE and len(cells) > 3
        # Behind two places it does not matter what of a training's these are.
        single = wide and is_place(cells[0])
        if single and (folded[1] in STEP_RANK or folded[1] == _MEMORY):
            return True
        odd = [cell for cell in cells if not (is_known(cell) or {"_", "/"} & set(cell))]
        # Wide apart behind a place, one may be unknown: "epoch  train_loss  dur".
        return placed and any(scored) and len(odd) <= single + (wide and sum(lost) > 1)
    if kind != "pipes":
        sides = {split_of(cell) for cell, is_loss in zip(cells, lost, strict=True) if is_loss}
        alone = (all(map(or_, known, lost)) and any(lost)) or {"train", "eval"} <= sides
        placed = placed or all(scored) or alone  # one by one, as they stand
    placed = placed or (kind == "pipes" and not SPLIT_SPELLINGS.isdisjoint(folded))
    return placed and any(scored) and len(set(folded)) == len(folded)


def read_row(text: str, table: Table) -> Row | None:
    """Read a row of a table, None if the line is none.

    >>> table = read_head("epoch,train_loss,val_loss,note")
    >>> read_row("3,0.5,0.75,best", table).values, read_row("3,0.5", table)
    ((('loss', 0.5), ('eval_loss', 0.75)), None)
    >>> read_row("3,val,0.5", read_head("epoch,split,loss")).values
    (('eval_loss', 0.5),)
    >>> table = read_head("Step   Train loss   Test loss   Test metric")
    >>> read_row("500    [0.25, 0.5]    [2.5e-01, 1e+00]    []", table).values
    (('loss', 0.75), ('test_loss', 1.25))
    >>> read_row("3;0.5;[1e-4, 1e-4]", read_head("epoch;train_loss;lr")).values  # no sum of rates
    (('loss', 0.5),)
    >>> table = read_head("Epoch  Batch  box   total")
    >>> read_row("2/9    40/165 0.25  8.5", table).values
    (('box', 0.25), ('loss', 8.5))
    """
    columns, has_bar = table.columns, fold(table.columns[1]) == _MEMORY
    text = _LISTED.sub(_sum, _WRAPPED.sub(r"\g<wrapped>", text))
    if table.kind in ("semicolons", "tabs") and "." not in text:
        text = text.replace(",", ".")
    if has_bar:
        text = _BAR_BEHIND.split(text, 1)[0]
    kind = "pipes" if table.kind == "tabs" and "\t" not in text and "|" in text else table.kind
    cells = _cells(text.translate(_DRAWN), kind)
    if table.kind in _WIDE and len(cells) != len(columns):
        cells = text.replace("|", " ").split()  # a wide number leaves but one blank
    if len(cells) == len(columns) - 1 and fold(columns[0]).startswith(("time", "date", "wall")):
        cells.insert(0, "")  # it was taken off as a logger's
    if table.kind == "tabs":  # blanks at the end of a line are gone
        cells += [""] * (len(columns) - len(cells))
    if len(cells) == len(columns) + 1 and "" in cells:
        del cells[-1 if not cells[-1] else cells.index("")]  # a mark behind a cell, or two
    if table.kind == "frame" and text[:1].isdigit():
        del cells[: 1 if len(cells) > len(columns) else None]  # the row's number; a row that is cut
    if len(cells) < len(columns) and table.text and "\t" not in text:
        cells = _cells_below(table.text, text)
    if len(cells) != len(columns) or (table.text and "|" in text):  # pipes are another table's
        return None
    fields: list[Field] = []
    for column, cell in zip(columns, cells, strict=True):
        if cell[:1] == "Σ":
            cell = cell[1:] if like_a_loss(column) else ""
        worded = cell[:1].isdigit() and isinstance(number_or_word(cell), str)
        if len(cell) > _LONGEST_CELL or (worded and like_a_loss(column)):
            return None
        if column == "total" and "loss" not in columns and table.kind not in _MARKS:
            column = "loss"
        in_units = _IN_UNITS.fullmatch(cell) if has_bar and column == columns[1] else None
        if in_units:
            fields.append(Field(column, float(in_units[1]), in_units[2] or "G"))
        elif column and (cell.lower() in SPLITS or cell[:1] in "+-.0123456789nNiI"):
            read = fields_of({column: cell})
            fields += [f for f in read if type(f.value) is float or fold(column) in SPLIT_SPELLINGS]
    if has_bar and fields:  # redraws of an epoch count as one: its step is the epoch
        fields.append(structs.replace(fields[0], key="step"))
    keys = [field.key for field in fields]
    sure = any(like_a_loss(n) or rank_for_loss(n) is not None or name_of(n) == LR for n in keys)
    return build_row(Found(fields), sure=has_bar or sure, verbatim=_second_columns(columns))


def _cells_below(head: str, text: str) -> list[str]:
    """Find the cells of a row by what stands above each, where some are empty; none if unsure.

    >>> _cells_below("epoch  loss  best", "    1   2.5"), _cells_below("epoch  loss", "Epoch 7")
    (['1', '2.5', ''], [])
    """
    names = [*_APART.finditer(head)]
    cells = [""] * len(names)
    for cell in _APART.finditer(text):
        start, end = cell.span()
        above = [at for at, n in enumerate(names) if n.start() == start or n.end() == end]
        if len(above) != 1 or cells[above[0]]:
            return []
        cells[above[0]] = cell[0]
    return cells if cells[0][:1].isdigit() else []


def _sum(listed: re.Match[str]) -> str:
    """Return the sum of a list, marked: of a loss it is the whole (DeepXDE: deepxde/display.py)."""
    parts = [number_or_word(part) for part in listed[1].replace(",", " ").split()]
    numbers = [part for part in parts if isinstance(part, float)]
    return f"Σ{sum(numbers)}" if numbers and len(numbers) == len(parts) else "-"


@lru_cache(maxsize=64)
def _second_columns(columns: tuple[str, ...]) -> frozenset[str]:
    """Find the columns of a metric that has two, which keep their names.

    Lightning logs a metric of each step and its mean over the epoch: of the training the steps
    count, of an evaluation the mean.

    >>> sorted(_second_columns(("loss_step", "loss_epoch", "val_loss_step", "val_loss_epoch")))
    ['loss_epoch', 'val_loss_step']
    """
    both = {name[: -len("_step")] for name in columns if name.endswith("_step")}
    both &= {name[: -len("_epoch")] for name in columns if name.endswith("_epoch")}
    return frozenset(
        f"{name}_{'step' if split_of(name) in ('eval', 'test') else 'epoch'}" for name in both
    )


_DEEPEST = 2
_AS_JSON = {"'": '"', "nan": "NaN", "inf": "Infinity", "None": "null"}
_BORDER = pattern_of(r"(?<=^[}\]])\s*(?=[{\[])", re.MULTILINE)
_PYTHON = pattern_of(r"'|\b(?:nan|inf|None|True|False)\b")


def read_document(text: str) -> list[Row] | None:
    """Read a whole file of JSON documents, or a dict of Python; None if none logs anything.

    It holds lists of objects (``log_history`` of the HF Trainer), or columns of one length (Keras).

    >>> text = '{"best": null, "log_history": [{"step": 5, "loss": 2.5}, {"step": 9, "loss": 2.0}]}'
    >>> [(row.step, row.values) for row in read_document(text)]
    [(5, (('loss', 2.5),)), (9, (('loss', 2.0),))]
    >>> read_document('{"loss": [2.5, 2.25], "val_loss": [2.0, 1.5]}')[1].values
    (('loss', 2.25), ('eval_loss', 1.5))
    >>> read_document('{"learning_rate": 0.1}') is None
    True
    """
    text = text.strip().removeprefix("\ufeff")
    if text.startswith("{'"):
        text = _PYTHON.sub(lambda word: _AS_JSON.get(word[0], word[0].lower()), text)
    whole = f'{{"log": [{_BORDER.sub(",", text)}]}}'
    read = read_json(whole)
    if read is None or read[1] != len(whole) or not isinstance(log := read[0]["log"], list):
        return None
    found = [each if isinstance(each, dict) else {"log": each} for each in log]
    if len(found) > 1:  # one record each
        found = [{**each, "": [each]} for each in found]
    objects = chain.from_iterable(map(_objects_in, found))
    rows = [_row_of(each, split) for each, split in objects]
    return [row for row in rows if row is not None] or None


def _row_of(values: Mapping[str, object], split: str) -> Row | None:
    """Read an object as a line."""
    # What the HF Trainer sums up at the end of a run is no point of its curve. Where it counts
    # tokens it shows how long it has run at each step, too.
    summary = "train_runtime" in values and "loss" not in values
    split = split or SPLITS.get(str(values.get("name", "")).lower(), "")
    found = Found(fields_of(values), split=split, has_dict=True)
    return build_row(found, sure=summary, verbatim=values if summary else ())


def _objects_in(
    document: dict[str, object], name: str = "", depth: int = 0
) -> Iterator[tuple[Mapping[str, object], str]]:
    """Find what was logged, and of what split: columns side by side, and lists of objects."""
    for row in _parted(document, name):
        yield row, SPLITS.get(name, "")
    for key, inside in document.items():
        if isinstance(inside, list):
            split = SPLITS.get(key, "")
            yield from ((each, split) for each in inside if isinstance(each, dict))
            tag = "/".join(key.split("/")[-2:])
            yield from (({"step": at, tag: value}, "") for at, value in _pairs(inside))
        elif isinstance(inside, dict) and (epoch := key.lower().removeprefix("epoch_")).isdecimal():
            yield {"epoch": float(epoch), **inside}, ""
        elif isinstance(inside, dict) and depth < _DEEPEST:
            yield from _objects_in(inside, key, depth + 1)


def _parted(document: dict[str, object], name: str) -> Iterator[dict[str, float]]:
    """Part lists side by side into an object for each row.

    Without a step or an epoch among them they are one by epoch. An ``x`` is of what the document is
    called.
    """
    columns = {key: numbers for key, value in document.items() if (numbers := _numbers(value))}
    lost = next(filter(like_a_loss, columns), None)
    if lost is None:
        return
    length = len(columns[lost])
    if "x" in columns:
        columns["epoch" if fold(name) in EPOCH_RANK else "step"] = columns.pop("x")
    columns = {key: column for key, column in columns.items() if len(column) == length}
    if not any(map(is_place, columns)):
        columns["epoch"] = [*map(float, range(1, length + 1))]
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _numbers(value: object) -> list[float]:
    """Return the numbers of a list; nothing if anything else is in there."""
    numbers = value if isinstance(value, list) else []
    return numbers if all(isinstance(number, float) for number in numbers) else []


def _pairs(value: list[Any]) -> list[list[float]]:
    """Return a list of steps and values, nothing if it is none: [[100, 2.5], [200, 2.0]].

    Before each may stand the time, as TensorBoard's export has it.
    """
    value = [each[1:] if isinstance(each, list) and len(each) == 3 else each for each in value]
    is_pair = (isinstance(each, list) and [*map(type, each)] == [float, float] for each in value)
    if len(value) < 2 or not all(is_pair):
        return []
    steps = [step for step, _ in value]
    return value if steps == sorted({*steps}) and not any(step % 1 for step in steps) else []


# A document is read whole, so it must fit into memory; JSON lines of any length begin like one.
LARGEST_DOCUMENT = 1 << 26


def may_be_document(head: bytes) -> bool:
    """Return by its first bytes whether a file may be one JSON document, not JSON lines.

    >>> [may_be_document(head) for head in (b'{\\n "a', b"{'a': [1", b'[{"a"', b"[2026-11")]
    [True, True, True, False]
    >>> may_be_document(b'{"a": 1}\\n{')
    False
    """
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    first, _, rest = head.partition(b"\n")
    if head.startswith(b"{") and first.rstrip().endswith(b"}") and rest:
        return False
    inside = head[1:].lstrip()[:1]
    is_object = head[:1] == b"{" and (inside in b'"' or b"': [" in first)
    return is_object or (head[:1] == b"[" and inside in (b"", b"{"))
