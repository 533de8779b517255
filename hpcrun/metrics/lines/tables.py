"""Tables: a head that names columns, and rows of bare values below it.

A line is the head of a table if it is nothing but names, one of them a step or an epoch and one a
loss (or a score). Its rows have as many cells, numbers where there are any; an empty cell, a dash
or a word measures nothing. Whatever does not fit below a head is read as if there were none.
"""

from __future__ import annotations

from hpcrun.metrics.lines.dicts import number_or_word
from hpcrun.metrics.lines.fields import Field, Shape, build_row, is_known
from hpcrun.metrics.names import EPOCH_RANK, STEP_RANK, fold, like_a_loss, like_a_score
from hpcrun.metrics.row import Row, Table
from hpcrun.patterns import pattern_of

_MOST_COLUMNS = 400
_NAME = pattern_of(r"[^\W\d](?:[\w./@%<>#-]|:(?=\d)|[ ](?=[^\W\d])){0,80}(?:\([\w ./%-]{1,20}\))?")
_DRAWN = str.maketrans("│┃║", "|||")
_BLANKS = pattern_of(r"[ ]{2,}|\t+")
# The table that YOLO's trainers draw, the last columns a bar: epoch/epochs, memory, losses, counts.
_YOLO_HEAD = pattern_of(r"\s{1,12}Epoch\s{1,12}(?:gpu_mem|GPU_mem)\s")
_YOLO_ROW = pattern_of(
    r"\s{0,12}(?P<epoch>\d{1,7})/(?P<of>\d{1,7})\s+(?P<memory>[\d.]{1,10})(?P<unit>[GMK]?)(?P<cells>(?:\s+[\w.+-]{1,14}){3,40})(?=:|\s*\Z|\s+\d+%)"
)
# spaCy: spacy/training/loggers.py (console_logger).
_SPACY_HEAD = pattern_of(r"E\s{2,8}#\s{2,12}LOSS\s")


def read_head(text: str) -> Table | None:
    """Read the head of a table.

    >>> read_head("epoch,train_loss,val_loss")
    Table(kind='csv', columns=('epoch', 'train_loss', 'val_loss'))
    >>> read_head("| step | loss |").kind, read_head("the step, the loss and a half")
    ('pipes', None)
    """
    if _YOLO_HEAD.match(text):
        return Table("yolo", tuple(text.split()))
    text = text.strip().removeprefix("# ").lstrip()  # numpy's savetxt
    if _SPACY_HEAD.match(text):
        return Table("columns", ("epoch", "step", *_BLANKS.split(text)[2:]))
    for kind, cells in _ways_to_part(text.translate(_DRAWN)):
        if 2 <= len(cells) <= _MOST_COLUMNS and _are_names(cells, kind):
            return Table(kind, tuple(cells))
    return None


def _ways_to_part(text: str) -> list[tuple[str, list[str]]]:
    """Part a line into cells in every way that tables are written."""
    if "=" in text or "{" in text:
        return []
    if text.startswith("|") and text.endswith("|"):
        return [("pipes", _cells(text, "pipes"))]
    if "," in text:
        return [("csv", _cells(text, "csv"))]
    if "\t" in text:
        return [("tabs", _cells(text, "tabs"))]
    return [("columns", _BLANKS.split(text)), ("words", text.split())]


def _cells(text: str, kind: str) -> list[str]:
    if kind == "csv":
        return [_own_name(cell.strip().strip("\"'")) for cell in text.split(",")]
    if kind == "pipes":
        return [cell.strip() for cell in text.strip().strip("|").split("|")]
    if kind == "tabs":
        return [cell.strip() for cell in text.split("\t")]
    return text.split() if kind == "words" else _BLANKS.split(text.strip())


def _own_name(cell: str) -> str:
    """Take off the name of the run that an export puts before a column's."""
    return cell.rpartition(" - ")[2]


def _are_names(cells: list[str], kind: str) -> bool:
    if kind == "csv" and cells[0] in ("", "Unnamed: 0"):
        cells = cells[1:]  # the index that pandas writes
    if not all(_NAME.fullmatch(cell) and cell.count(" ") < 4 for cell in cells):
        return False
    folded = [fold(cell) for cell in cells]
    placed = any(cell in STEP_RANK or cell in EPOCH_RANK for cell in folded)
    measured = any(like_a_loss(cell) or like_a_score(cell) for cell in cells)
    if kind in ("csv", "tabs") and all(like_a_loss(cell) or like_a_score(cell) for cell in cells):
        return True
    if kind in ("words", "columns"):  # blanks part words of prose, too
        odd = [cell for cell in cells if not (is_known(cell) or {"_", "/"} & set(cell))]
        # Of single words, wide apart behind a place, one may be unknown: "epoch  train_loss  dur".
        wide = kind == "columns" and len(cells) > 3 and " " not in "".join(cells)
        return placed and measured and len(odd) <= int(wide and "_" in "".join(cells))
    return placed and measured and len(set(folded)) == len(folded)


def read_row(text: str, table: Table) -> Row | None:
    """Read a row of a table, None if the line is none.

    >>> table = read_head("epoch,train_loss,val_loss,note")
    >>> read_row("3,0.5,0.75,best", table).values, read_row("3,0.5", table)
    ((('loss', 0.5), ('eval_loss', 0.75)), None)
    """
    if table.kind == "yolo":
        return _read_yolo(text, table.columns)
    cells = _cells(text.translate(_DRAWN), table.kind)
    if table.kind == "tabs":  # blanks at the end of a line are gone
        cells += [""] * (len(table.columns) - len(cells))
    if len(cells) != len(table.columns):
        return None
    fields: list[Field] = []
    for column, cell in zip(table.columns, cells, strict=True):
        value = number_or_word(cell)
        if isinstance(value, float):
            if column:
                fields.append(Field(column, value))
        elif len(cell) > 40 or (cell and like_a_loss(column) and cell[0].isdigit()):
            return None
    return build_row(fields, Shape(), sure=any(like_a_loss(field.key) for field in fields))


def _read_yolo(text: str, columns: tuple[str, ...]) -> Row | None:
    found = _YOLO_ROW.match(text)
    if found is None:
        return None
    cells = found["cells"].split()
    if len(cells) < len(columns) - 2:
        return None
    # Redraws of an epoch count as one: its step is the epoch.
    epoch = float(found["epoch"])
    fields = [Field("epoch", epoch), Field("step", epoch, of=float(found["of"]))]
    memory = number_or_word(found["memory"])
    if isinstance(memory, float):
        fields.append(Field("gpu_mem", memory, (found["unit"] or "G")))
    for column, cell in zip(columns[2:], cells, strict=False):
        value = number_or_word(cell)
        if isinstance(value, float):
            fields.append(Field("loss" if column == "total" else column, value))
    return build_row(fields, Shape(), sure=True)
