"""docs/reference.md is current and complete."""

from __future__ import annotations

import json
import re

from docs.make_reference import (
    CLUSTER_SCHEMA,
    FILE,
    OF_THE_ATTEMPT,
    PIPELINE_SCHEMA,
    PLACEHOLDERS,
    READ,
    reference,
)
from hpcrun.spec.schema import json_schema, pipeline_schema
from tests.doc_commands import COMMANDS
from tests.source import ROOT, modules, part


def test_reference_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == reference(), "make docs"


def test_schema_of_profiles_is_current() -> None:
    assert json.loads(CLUSTER_SCHEMA.read_text(encoding="utf-8")) == json_schema("cluster"), (
        "make docs"
    )


def test_schema_of_pipelines_is_current() -> None:
    assert json.loads(PIPELINE_SCHEMA.read_text(encoding="utf-8")) == pipeline_schema(), "make docs"


def test_reference_has_every_command_and_option() -> None:
    text = reference()
    for words, command in COMMANDS.items():
        section = text.partition(f"### hpcrun {words}\n")[2].partition("\n###")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
                assert all(f"`{name}" in section for name in parameter.opts), (words, parameter)


def test_every_table_cell_except_defaults_is_filled() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| ")]
    assert len(rows) > 200
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert all(cell or (len(cells) == 4 and at == 2) for at, cell in enumerate(cells)), row


def test_all_variables_that_hpcrun_reads_are_documented() -> None:
    """hpcrun reads them from os.environ and its copies; the job script sets those of a job."""
    pattern = re.compile(r"""environ(?:\.get\(|\[)["'](HPCRUN_\w+)["'](?!\] = )""")
    # These run as the job or for it, and read variables that hpcrun sets.
    paths = [path for path in modules() if part(path) not in ("jobside", "workloads")]
    read = {name for path in paths for name in pattern.findall(path.read_text())}
    shown = {f"HPCRUN_{name.upper()}" for name in PLACEHOLDERS} | set(OF_THE_ATTEMPT)
    assert read - shown == set(READ)
    harness = (ROOT / "templates" / "harness.sh").read_text()
    assert all(name in harness for name in OF_THE_ATTEMPT)
