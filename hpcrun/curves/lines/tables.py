"""Read tables: the names in their heads, and the values in their rows.

A line is the head of a table if it contains only names, one of them a step or an epoch, and one a
loss or a score. A row has as many cells as its head; cells that are empty, a dash or a word measure
nothing. A line below a head that does not fit is read as if there were no table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from operator import or_

from msgspec import structs

from hpcrun.curves.lines.fields import WRAPPED, build_row, fields_of, is_known, number_or_word
from hpcrun.curves.lines.times import read_duration
from hpcrun.curves.names import (
    EPOCH_RANK,
    LOSSES,
    LR,
    SPLIT_SPELLINGS,
    SPLITS,
    STEP_RANK,
    fold,
    is_loss_name,
    is_position_key,
    is_score_name,
    name_of,
    split_of,
    stand_in_rank,
)
from hpcrun.curves.row import Field, LineFields, Row, TableHead
from hpcrun.patterns import pattern_of

_MAX_COLUMNS = 400
_NAME = pattern_of(
    r"[^\W\d](?:[\w./@%<>#-]|:(?=\d(?![\d.])|0\.95)|[ ](?=[^\W\d])){0,80}[ ]?"
    r"(?:[(\[][\w ./%-]{1,20}[)\]])?"
)
# Separators of cells, by kind of table. The other kinds have at least two blanks, or one.
_SEPARATORS = {"pipes": "|", "csv": ",", "semicolons": ";", "tabs": "\t"}
# First columns that count steps: the index that pandas writes, and plurals such as "Epochs", which
# elsewhere are settings.
_COUNTING_COLUMN = pattern_of(
    r"|unnamed_0|frame|num_iters|(?:env_|total_)?(?:(epoch)|step|episode)s"
)
_WIDE_KINDS = ("columns", "frame")  # pandas indents the head of a data frame
_SPACED_CELL, _PIPED_CELL = pattern_of(r"[^\s|]+(?: [^\s|]+)*"), pattern_of(r"[^|]+")
_TIME_COLUMNS = {
    "timestamp",
    "wall_time",
    "walltime",
    "date",
    "datetime",
    "seconds",
    "idx",
    "index",
}
_DURATION_COLUMNS = ("time", "elapsed", "elapsed_time", "duration")
_BOX_TO_ASCII = str.maketrans("│┃║┆", "||||")
_BLANKS = pattern_of(r"[ ]{2,}|\t+")
_QUOTED, _MAX_CELL_CHARACTERS = pattern_of(r'(?<![^,])"([^"]*)"(?![^,])'), 80
# YOLO trainers draw a progress bar after the row of an epoch, and print memory with a unit.
_BAR_BEHIND = pattern_of(r":(?:\s|\Z)|\s\d{1,3}%")
_WRAPPED = pattern_of(WRAPPED)
_LIST = pattern_of(r"\[([\d.e+, -]{0,2000})\]")
_YOLO_MEMORY_COLUMN, _MEMORY_CELL = "gpu_mem", pattern_of(r"(\d[\d.]{0,9})([GMK]?)B?")


def read_head(text: str, above: TableHead | None = None) -> TableHead | None:
    """Read the head of a table, or one of its two lines.

    ``above`` is the upper line, if the line before was one; an upper line has no columns.

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
    indented, line = text[:1] == " ", text.translate(_BOX_TO_ASCII)
    text = line.strip().removeprefix("#").lstrip()  # numpy's savetxt
    marked = next((kind for kind, mark in _SEPARATORS.items() if mark in text), "")
    marked = "" if "\t\t" in text else marked  # here tabs only align
    for kind in (marked,) if marked else (_WIDE_KINDS[indented], "words"):
        cells = _split_cells(text, kind)
        if cells[1:] and not cells[-1]:
            cells.pop()
        if cells[:2] == ["E", "#"]:  # spacy/training/loggers.py (console_logger)
            cells[:2] = ["epoch", "step"]
        counts = _COUNTING_COLUMN.fullmatch(fold(cells[0])) if cells else None
        if counts and not any(map(is_position_key, cells)):
            cells[0] = counts[1] or "step"
        if kind == "csv":  # of several runs in one file, the first one
            cells = [cell if cell not in cells[:at] else "" for at, cell in enumerate(cells)]
        if 2 <= len(cells) <= _MAX_COLUMNS and _is_head(cells, kind):
            return TableHead(kind, tuple(cells), line if kind in _WIDE_KINDS else "")
    if above is not None and not above.columns:
        kind = "columns" if any(map(_BLANKS.search, _split_cells(text, marked))) else marked
        cells = [*_join_head_lines(above.text, line, kind)]
        if len(cells) <= _MAX_COLUMNS and _is_head(cells, "pipes"):
            return TableHead(kind, tuple(cells))
    words = [*filter(None, (part.strip(" -*") for part in text.split("|")))]
    is_upper = marked == "pipes" and ":" not in text and all(map(_NAME.fullmatch, words))
    return TableHead("head", (), line) if is_upper and words[1:] else None


def _join_head_lines(upper: str, line: str, kind: str) -> Iterator[str]:
    """Yield the names of the lower line of a head, each after the text above it."""
    for cell in (_SPACED_CELL if kind == "columns" else _PIPED_CELL).finditer(line.rstrip(" |")):
        middle, name = (cell.start() + cell.end()) // 2, cell[0].partition("(")[0].strip()
        end = upper.find("|", middle)
        above = upper[upper.rfind("|", 0, middle) + 1 : None if end < 0 else end].strip(" -*")
        yield name if is_position_key(name) else f"{above} {name}".strip()


def _split_cells(text: str, kind: str) -> list[str]:
    if kind == "pipes":
        text = text.strip().removeprefix("|").removesuffix("|")
    if mark := _SEPARATORS.get(kind):
        if kind == "csv":
            text = _QUOTED.sub(
                lambda cell: cell[1].replace(mark, " " * (not cell[1][:1].isdecimal()))[
                    :_MAX_CELL_CHARACTERS
                ],
                text,
            )
        cells = [cell.strip() for cell in text.split(mark)]
        # Exports put the name of the run before the name of the column.
        return cells if mark == "|" else [c.strip("\"'").rpartition(" - ")[2] for c in cells]
    return text.split() if kind == "words" else _BLANKS.split(text.replace("|", "  ").strip())


def _is_head(cells: list[str], kind: str) -> bool:
    if kind == "csv":
        cells = [cell for cell in cells if cell not in ("", "Unnamed: 0")]
    if not all(_NAME.fullmatch(cell) and cell.count(" ") < 4 for cell in cells):
        return False
    folded = [fold(cell) for cell in cells]
    known = [
        is_known(cell) or cell in _TIME_COLUMNS or stand_in_rank(cell) is not None
        for cell in folded
    ]
    # Among unknown names, a "cost" may be anything.
    lost = [is_loss_name(cell) or (all(known) and name_of(cell) in LOSSES) for cell in cells]
    scores = (is_score_name(c) or (all(known) and stand_in_rank(c) is not None) for c in cells)
    scored = [*map(or_, lost, scores)]
    placed = any(cell in STEP_RANK or cell in EPOCH_RANK for cell in folded)
    if kind in (*_WIDE_KINDS, "words"):  # words of prose are separated by blanks, too
        wide = kind in _WIDE_KINDS and len(cells) > 3
        # After a step and an epoch, any other columns belong to a training.
        single = wide and is_position_key(cells[0])
        if single and (folded[1] in STEP_RANK or folded[1] == _YOLO_MEMORY_COLUMN):
            return True
        odd = [cell for cell in cells if not (is_known(cell) or {"_", "/"} & set(cell))]
        # One name may be unknown if the columns are wide: "epoch  train_loss  dur".
        return placed and any(scored) and len(odd) <= single + (wide and sum(lost) > 1)
    if kind != "pipes":
        sides = {split_of(cell) for cell, is_loss in zip(cells, lost, strict=True) if is_loss}
        alone = (all(map(or_, known, lost)) and any(lost)) or {"train", "eval"} <= sides
        placed = placed or all(scored) or alone  # rows are counted
    placed = placed or (kind == "pipes" and not SPLIT_SPELLINGS.isdisjoint(folded))
    return placed and any(scored) and len(set(folded)) == len(folded)


def read_table_row(text: str, table: TableHead) -> Row | None:
    """Read a row of a table; return None if the line does not fit its head.

    >>> table = read_head("epoch,train_loss,val_loss,note")
    >>> read_table_row("3,0.5,0.75,best", table).values, read_table_row("3,0.5", table)
    ((('loss', 0.5), ('eval_loss', 0.75)), None)
    >>> read_table_row("3,val,0.5", read_head("epoch,split,loss")).values
    (('eval_loss', 0.5),)
    >>> table = read_head("Step   Train loss   Test loss   Test metric")
    >>> read_table_row("500    [0.25, 0.5]    [2.5e-01, 1e+00]    []", table).values
    (('loss', 0.75), ('test_loss', 1.25))
    >>> read_table_row("3;0.5;[1e-4, 1e-4]", read_head("epoch;train_loss;lr")).values  # no sum
    (('loss', 0.5),)
    >>> table = read_head("Epoch  Batch  box   total")
    >>> read_table_row("2/9    40/165 0.25  8.5", table).values
    (('box', 0.25), ('loss', 8.5))
    """
    columns, has_bar = table.columns, fold(table.columns[1]) == _YOLO_MEMORY_COLUMN
    text = _LIST.sub(_sum_of_list, _WRAPPED.sub(r"\g<wrapped>", text))
    if table.kind in ("semicolons", "tabs") and "." not in text:
        text = text.replace(",", ".")
    if has_bar:
        text = _BAR_BEHIND.split(text, 1)[0]
    kind = "pipes" if table.kind == "tabs" and "\t" not in text and "|" in text else table.kind
    cells = _split_cells(text.translate(_BOX_TO_ASCII), kind)
    if table.kind in _WIDE_KINDS and len(cells) != len(columns):
        cells = text.replace("|", " ").split()  # a wide number leaves a single blank
    if len(cells) == len(columns) - 1 and fold(columns[0]).startswith(("time", "date", "wall")):
        cells.insert(0, "")  # strip_prefixes removed it as a logger's
    if table.kind == "tabs":  # empty cells at the end of a line were stripped
        cells += [""] * (len(columns) - len(cells))
    if len(cells) == len(columns) + 1 and "" in cells:
        del cells[
            -1 if not cells[-1] else cells.index("")
        ]  # a separator too many, at the end or between two cells
    if table.kind == "frame" and text[:1].isdecimal():
        del cells[
            : 1 if len(cells) > len(columns) else None
        ]  # the index of the row; an abbreviated row
    if len(cells) < len(columns) and table.text and "\t" not in text:
        cells = _split_cells_by_position(table.text, text)
    if len(cells) != len(columns) or (table.text and "|" in text):  # the pipes of another table
        return None
    fields: list[Field] = []
    for column, cell in zip(columns, cells, strict=True):
        if cell[:1] == "Σ":
            cell = cell[1:] if is_loss_name(column) else ""
        worded = cell[:1].isdecimal() and isinstance(number_or_word(cell), str)
        if len(cell) > _MAX_CELL_CHARACTERS or (worded and is_loss_name(column)):
            return None
        if column == "total" and "loss" not in columns and table.kind not in _SEPARATORS:
            column = "loss"
        # A column of clocks may contain times of day.
        is_duration = fold(column) in _DURATION_COLUMNS and cell[-1:].isalpha()
        if is_duration and (seconds := read_duration(cell)) is not None:
            fields.append(Field("elapsed_time", seconds))
            continue
        in_units = _MEMORY_CELL.fullmatch(cell) if has_bar and column == columns[1] else None
        if in_units:
            fields.append(Field(column, float(in_units[1]), in_units[2] or "G"))
        elif column and (cell.lower() in SPLITS or cell[:1] in "+-.0123456789nNiI"):
            read = fields_of({column: cell})
            fields += [f for f in read if type(f.value) is float or fold(column) in SPLIT_SPELLINGS]
    if has_bar and fields:  # rows of one epoch are redrawn: the epoch is the step
        fields.append(structs.replace(fields[0], key="step"))
    keys = [field.key for field in fields]
    sure = any(is_loss_name(n) or stand_in_rank(n) is not None or name_of(n) == LR for n in keys)
    return build_row(LineFields(fields), sure=has_bar or sure, verbatim=_duplicate_columns(columns))


def _split_cells_by_position(head: str, text: str) -> list[str]:
    """Assign the cells of a row to columns by position, as some are empty; return [] if unsure.

    >>> _split_cells_by_position("epoch  loss  best", "    1   2.5")
    ['1', '2.5', '']
    >>> _split_cells_by_position("epoch  loss", "Epoch 7")
    []
    """
    names = [*_SPACED_CELL.finditer(head)]
    cells = [""] * len(names)
    for cell in _SPACED_CELL.finditer(text):
        start, end = cell.span()
        above = [at for at, n in enumerate(names) if n.start() == start or n.end() == end]
        if len(above) != 1 or cells[above[0]]:
            return []
        cells[above[0]] = cell[0]
    return cells if cells[0][:1].isdecimal() else []


def _sum_of_list(listed: re.Match[str]) -> str:
    """Replace a list by its sum, marked with Σ (DeepXDE: deepxde/display.py)."""
    parts = [number_or_word(part) for part in listed[1].replace(",", " ").split()]
    numbers = [part for part in parts if isinstance(part, float)]
    return f"Σ{sum(numbers)}" if numbers and len(numbers) == len(parts) else "-"


@lru_cache(maxsize=64)
def _duplicate_columns(columns: tuple[str, ...]) -> frozenset[str]:
    """Return the less useful column of each metric that has two; it keeps its own name.

    Lightning logs a metric of each step and its mean over the epoch. For the training the steps
    count, for an evaluation the mean.

    >>> sorted(_duplicate_columns(("loss_step", "loss_epoch", "val_loss_step", "val_loss_epoch")))
    ['loss_epoch', 'val_loss_step']
    """
    both = {name[: -len("_step")] for name in columns if name.endswith("_step")}
    both &= {name[: -len("_epoch")] for name in columns if name.endswith("_epoch")}
    return frozenset(
        f"{name}_{'step' if split_of(name) in ('eval', 'test') else 'epoch'}" for name in both
    )
