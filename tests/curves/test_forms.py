"""How people print a loss: where it stands, in whose words, behind what punctuation.

forms.txt has lines below what they say: a step, an epoch, a training loss of 0.59, an evaluation
loss of 0.61. Those below "nothing" hold the same words and numbers. A tab is drawn as ␉, a blank
at the end of a line as ␠.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcrun.curves.lines.line import read_line
from hpcrun.curves.row import Row

FORMS = Path(__file__).parent / "forms.txt"
VALUES = {"loss": 0.59, "eval_loss": 0.61}


def forms() -> Iterator[tuple[str, str]]:
    """Yield each line with what it says."""
    says = ""
    for line in FORMS.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            says = line.removeprefix("== ")
        else:
            yield line.replace("␉", "\t").replace("␠", " "), says


def reading_of(line: str) -> str:
    """Return what a line is read as, in the words of forms.txt."""
    shown = read_line(line)
    row = shown[1] if shown is not None and isinstance(shown[1], Row) else None
    if row is None or not row.is_sure:
        return "nothing"
    values = dict(row.values)
    places = {"step": row.step, "epoch": row.epoch}
    words = [f"{name}={number:g}" for name, number in places.items() if number is not None]
    words += [
        name if values[name] == VALUES[name] else f"{name}={values[name]:g}"
        for name in VALUES
        if name in values
    ]
    return " ".join(words)


def test_each_way_to_print_a_loss_is_read_and_no_look_alike() -> None:
    misread = {line: reading_of(line) for line, says in forms() if reading_of(line) != says}
    assert misread == {}
    assert len([*forms()]) > 300
