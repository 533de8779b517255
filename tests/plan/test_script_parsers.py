"""Command lines of transformers' and Hydra's parsers, derived from a script."""

from __future__ import annotations

import importlib

import pytest

from hpcrun.plan.script_arguments import check_arguments, order_hydra_arguments
from hpcrun.plan.script_notes import ProjectScript
from tests.plan.script_text import SCRIPT, facts, faults

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
    read = ProjectScript("a.py", facts(DATACLASSES.replace("BASE", "TrainingArguments")))
    assert faults(read, words.split()) == [fault] * bool(fault)
    alone = ProjectScript("a.py", facts(DATACLASSES.replace("(BASE)", "")))
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
    assert (
        faults(ProjectScript("a.py", facts(text)), ["--nonsense", "1", "--model_name", "x"]) == []
    )


def test_dataclasses_that_may_not_be_parsed_have_no_findings() -> None:
    text = DATACLASSES.replace("(BASE)", "")
    beginnings = ("mine.yaml", "--extra", "2")  # of a file that the script itself looks for
    assert faults(ProjectScript("a.py", facts(text)), [*beginnings]) == []
    asked = text.replace("len(sys.argv) == 2 and ", "'--yaml' in sys.argv or ")
    assert faults(ProjectScript("a.py", facts(asked)), ["--yaml", "c.yaml"]) == []
    caught = text.replace("\nmain()", "\ntry:\n    main()\nexcept SystemExit:\n    pass")
    assert faults(ProjectScript("a.py", facts(caught)), ["--nonsense"]) == []
    more = text.replace("@dataclass\nclass Model", "@dataclass\n@with_seed\nclass Model")
    assert faults(ProjectScript("a.py", facts(more)), ["--seed", "1"]) == []
    other = 'field(metadata={"aliases": ["-m"]})'
    alias = text.replace("model_name: str", f"model_name: str = {other}")
    assert faults(ProjectScript("a.py", facts(alias)), ["-m", "x"]) == []


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
    read = ProjectScript("a.py", facts(HYDRA))
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


TRAINER = """
from dataclasses import dataclass, field
from enum import Enum
from transformers import HfArgumentParser, TrainingArguments
class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"
@dataclass
class ModelArguments:
    mode: Mode = Mode.FAST
    dtype: str = field(default="auto", metadata={"choices": ["auto", "bf16"]})
    layers: int = 2
args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--layers x", "--layers: invalid int value: 'x'"),
        ("--mode fats", "did you mean fast?"),
        ("--dtype fp8", "--dtype: invalid choice: 'fp8'"),
        ("--learning_rate fast", "invalid float value: 'fast'"),
        ("--per-device-train-batch-size 1.5", "invalid int value: '1.5'"),
        ("--save_strategy evry --optim adafactor", "invalid choice: 'evry'"),
        ("--mode slow --dtype bf16 --layers 3 --bf16 --optim adafactor --max_steps 5", ""),
    ],
)
def test_types_and_choices_of_trainer_scripts_are_checked(words: str, fault: str) -> None:
    script = facts(TRAINER)
    found = check_arguments("train.py", script, words.split())[0]
    assert fault in " ".join(found) and bool(found) == bool(fault), found


CLICK = """
import click
@click.command()
@click.option("--data", required=True)
@click.option("--epochs", type=int, default=3)
@click.option("--amp/--no-amp", default=False)
def main(data, epochs, amp): ...
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--epochs 3", "train.py requires --data"),
        ("--data x --epoch 3", "--epoch: train.py has no such argument; did you mean --epochs?"),
        ("--data x --no-amp --epochs 3", ""),
        ("--help", ""),
    ],
)
def test_arguments_of_click_commands_are_checked(words: str, fault: str) -> None:
    script = facts(CLICK)
    found = check_arguments("train.py", script, words.split())[0]
    assert fault in " ".join(found) and bool(found) == bool(fault), found


def test_options_of_another_subcommand_are_doubted() -> None:
    text = (
        "import argparse\np = argparse.ArgumentParser()\ns = p.add_subparsers()\n"
        "a = s.add_parser('train')\na.add_argument('--rate')\n"
        "b = s.add_parser('test')\nb.add_argument('--weights', required=True)\np.parse_args()"
    )
    script = facts(text)
    assert check_arguments("m.py", script, ["train", "--rate", "1"]) == ([], [])
    assert "seems to require --weights" in check_arguments("m.py", script, ["test"])[1][0]
    assert "did you mean train?" in check_arguments("m.py", script, ["trian", "--rate", "1"])[1][0]
