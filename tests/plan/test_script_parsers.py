"""Command lines of transformers' and Hydra's parsers, derived from a script."""

from __future__ import annotations

import importlib

import pytest

from hpcrun.plan.script_arguments import order_hydra_arguments
from hpcrun.plan.script_notes import Script
from tests.plan.test_script_facts import SCRIPT, facts, faults

# ---- dataclasses

DATACLASSES = """
from dataclasses import dataclass, field
from typing import List, Literal, Optional
import sys
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class Model:
    model_name: str
    rank: Optional[int] = field(default=None, metadata={"help": "x"})
    kind: Literal["a", "b"] = "a"
    names: List[str] = field(default_factory=list)
    tied: bool = True
@dataclass
class Training(BASE):
    extra: float = 1.0
def main():
    parser = HfArgumentParser((Model, Training))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        a = parser.parse_json_file(sys.argv[1])
    else:
        a = parser.parse_args_into_dataclasses()
main()
"""


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--extra 2", "a.py requires --model-name"),
        ("--model_name x --rank two", "--rank: invalid int value: 'two'"),
        ("--model_name x --extra much", "--extra: invalid float value: 'much'"),
        ("--model_name x --kind c", "--kind: invalid choice: 'c' (choose from 'a', 'b')"),
        ("mine.json", ""),
        ("--model-name x --names a b --tied false --no_tied --rank=3 --output_dir /x", ""),
    ],
)
def test_dataclass_fields_of_the_script_are_its_options(words: str, fault: str) -> None:
    read = Script("a.py", facts(DATACLASSES.replace("BASE", "TrainingArguments")))
    assert faults(read, words.split()) == [fault] * bool(fault)
    alone = Script("a.py", facts(DATACLASSES.replace("(BASE)", "")))
    assert faults(alone, ["--model_name", "x", "--nonsense"]) != []


@pytest.mark.parametrize(
    "change",
    [
        "parser.add_argument('--nonsense')",
        "sys.argv += ['--model_name', 'x']",
        "sys.argv.extend(more)",
        "sys.argv[1:] = rest",
        "argv = sys.argv",
    ],
)
def test_dataclasses_with_dynamic_fields_have_no_findings(change: str) -> None:
    text = DATACLASSES.replace("(BASE)", "")
    text = text.replace("    if len", f"    {change}\n    if len")
    assert faults(Script("a.py", facts(text)), ["--nonsense", "1", "--model_name", "x"]) == []


def test_dataclasses_that_may_not_be_parsed_have_no_findings() -> None:
    text = DATACLASSES.replace("(BASE)", "")
    beginnings = ("mine.yaml", "--extra", "2")  # of a file that the script itself looks for
    assert faults(Script("a.py", facts(text)), [*beginnings]) == []
    asked = text.replace("len(sys.argv) == 2 and ", "'--yaml' in sys.argv or ")
    assert faults(Script("a.py", facts(asked)), ["--yaml", "c.yaml"]) == []
    caught = text.replace("\nmain()", "\ntry:\n    main()\nexcept SystemExit:\n    pass")
    assert faults(Script("a.py", facts(caught)), ["--nonsense"]) == []
    more = text.replace("@dataclass\nclass Model", "@dataclass\n@with_seed\nclass Model")
    assert faults(Script("a.py", facts(more)), ["--seed", "1"]) == []
    other = 'field(metadata={"aliases": ["-m"]})'
    alias = text.replace("model_name: str", f"model_name: str = {other}")
    assert faults(Script("a.py", facts(alias)), ["-m", "x"]) == []


# ---- Hydra

HYDRA = "import hydra\n@hydra.main(config_name='c')\ndef main(cfg): ...\nmain()"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("a.b=1 +c=2 ~d -cn mine --multirun e=1,2 hydra.run.dir=/x", ""),
        ("--config-name=mine --info config a=1", ""),
        ("a=1 --config-n mine", ""),
        ("--lr=1", "--lr: a.py has no such argument; did you mean lr=VALUE?"),
        ("--confg-dir=x", "--confg-dir: a.py has no such argument; did you mean --config-dir?"),
        ("lr 1", "'lr': Hydra accepts KEY=VALUE, +KEY=VALUE and ~KEY"),
        ("--cfg=x", "--cfg: invalid choice: 'x' (choose from 'job', 'hydra', 'all')"),
    ],
)  # fmt: skip
def test_hydra_overrides_are_checked_by_its_grammar(words: str, fault: str) -> None:
    read = Script("a.py", facts(HYDRA))
    ordered = order_hydra_arguments(read.facts, words.split())
    assert faults(read, ordered)[:1] == [fault] * bool(fault)


def test_known_hydra_options_match_hydra() -> None:
    utils = importlib.import_module("hydra._internal.utils")
    hydras = {
        name: (action.nargs, list(action.choices or []))
        for action in utils.get_args_parser()._actions
        for name in action.option_strings
    }
    ours = facts(HYDRA).options
    assert hydras == {name: (one.nargs, one.choices) for one in ours for name in one.names}


def test_hydra_options_are_moved_before_overrides() -> None:
    words = ["bs=4", "--config-name=mine", "--info", "config", "-cn", "x", "lr=1", "-m"]
    assert order_hydra_arguments(facts(HYDRA), words) == [*words[1:6], "-m", "bs=4", "lr=1"]
    assert order_hydra_arguments(SCRIPT, words) == words
    # A script that only imports Hydra parses its arguments itself.
    assert not facts("import hydra\nhydra.initialize()").is_certain
