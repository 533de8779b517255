"""Formats of printed losses: position, names and punctuation.

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
    """Yield each line with its expected values."""
    says = ""
    for line in FORMS.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            says = line.removeprefix("== ")
        else:
            yield line.replace("␉", "\t").replace("␠", " "), says


def reading_of(line: str) -> str:
    """Return the values read from a line, in the notation of forms.txt."""
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


def test_printed_losses_are_read_and_look_alikes_are_not() -> None:
    misread = {line: reading_of(line) for line, says in forms() if reading_of(line) != says}
    assert misread == {}
    assert len([*forms()]) > 300
