"""docs/reference.md is what the code says today, and says all of it."""

from __future__ import annotations

import re

from docs.make_reference import FILE, OF_THE_ATTEMPT, PLACEHOLDERS, READ, reference
from tests.source import ROOT, modules
from tests.test_docs import COMMANDS


def test_the_reference_is_of_today() -> None:
    assert FILE.read_text(encoding="utf-8") == reference(), "make docs"


def test_every_verb_and_option_is_there() -> None:
    text = reference()
    for words, command in COMMANDS.items():
        section = text.partition(f"### hpcrun {words}\n")[2].partition("\n###")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
                assert all(f"`{name}" in section for name in parameter.opts), (words, parameter)


def test_every_cell_of_a_table_is_filled_but_defaults() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| ")]
    assert len(rows) > 200
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert all(cell or (len(cells) == 4 and at == 2) for at, cell in enumerate(cells)), row


def test_variables_that_hpcrun_reads_are_all_there() -> None:
    """Read: os.environ and its copies; set for the job: the harness."""
    pattern = re.compile(r"""environ(?:\.get\(|\[)["'](HPCRUN_\w+)""")
    read = {name for path in modules() for name in pattern.findall(path.read_text())}
    # A program that runs inside the job reads what the job has.
    shown = {f"HPCRUN_{name.upper()}" for name in PLACEHOLDERS} | set(OF_THE_ATTEMPT)
    assert read - shown == set(READ)
    harness = (ROOT / "templates" / "harness.sh").read_text()
    assert all(name in harness for name in OF_THE_ATTEMPT)
