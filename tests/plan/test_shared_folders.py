"""A sweep has a note on output folders that its runs would share."""

from __future__ import annotations

import ast

import pytest

from hpcrun.plan.script_facts import read_script
from hpcrun.plan.script_notes import ProjectScript, shared_folder_notes

HEAD = "import argparse\np = argparse.ArgumentParser()\n"
CLICK = "import click\n@click.command()\n@click.option"
LR = [["--lr", "1e-3"], ["--lr", "1e-2"]]


def notes(options: str, given: list[list[str]], *, reads: bool = False) -> list[str]:
    text = options if options.startswith("import") else f"{HEAD}{options}\np.parse_args()\n"
    facts = read_script(ast.parse(text))
    script = ProjectScript(
        "train.py", facts, frozenset([*facts.variables, *["HPCRUN_RUN_DIR"] * reads])
    )
    return shared_folder_notes(script, given)


def with_words(*words: str) -> list[list[str]]:
    return [[*each, *words] for each in LR]


@pytest.mark.parametrize(
    ("options", "given", "name", "folder", "own"),
    [
        *(
            (f"p.add_argument('{name}', default='out')", LR, name, "out", own)
            for name, own in (
                ("--checkpoint-dir", "{checkpoint_dir}"),
                ("--checkpoint_dir", "{checkpoint_dir}"),
                ("--ckpt_path", "{checkpoint_dir}"),
                ("--save-dir", "{run_dir}/out"),
                ("--output_dir", "{run_dir}/out"),
                ("--out", "{run_dir}/out"),
            )
        ),
        # No default, and the same folder for all runs.
        (
            "p.add_argument('-o', '--output_dir')",
            with_words("-o", "/scratch/me/x"),
            "--output_dir",
            "/scratch/me/x",
            "{run_dir}/out",
        ),
        (
            "p.add_argument('--ckpt-dir', type=Path, default=Path('ckpt'))",
            with_words("--ckpt-dir=here"),
            "--ckpt-dir",
            "here",
            "{checkpoint_dir}",
        ),
        (
            f"{CLICK}('--save-dir', default='w')\ndef f(): pass",
            LR,
            "--save-dir",
            "w",
            "{run_dir}/out",
        ),
    ],
)
def test_one_output_folder_for_all_runs_has_a_note(
    options: str, given: list[list[str]], name: str, folder: str, own: str
) -> None:
    (message,) = notes(options, given)
    assert message.startswith(
        f"sweep: all 2 runs give train.py the folder {folder} for {name}: "
    ), message
    assert message.endswith(f'args: [{name}, "{own}"]'), message
    assert ("resume from each other's" in message) == (own == "{checkpoint_dir}")


DIR = "p.add_argument('--checkpoint-dir', default='checkpoints')"


@pytest.mark.parametrize(
    ("options", "given"),
    [
        # Each run has its own folder.
        (DIR, [[*LR[0], "--checkpoint-dir", "/r/a"], [*LR[1], "--checkpoint-dir", "/r/b"]]),
        (DIR, [[*LR[0], "--checkpoint-dir=/r/a"], [*LR[1], "--checkpoint-dir=/r/b"]]),
        (DIR, LR[:1]),
        # A folder that is not written to, or no folder.
        (DIR, with_words("--checkpoint-dir", "$HPCRUN_LOCAL_DIR/x")),
        (DIR, with_words("--checkpoint-dir", "")),
        ("p.add_argument('--checkpoint-dir')", LR),
        ("p.add_argument('--checkpoint-dir', default=os.environ.get('CKPT', 'x'))", LR),
        ("p.add_argument('--checkpoint-every', default='20')", LR),
        ("p.add_argument('--save', default='1000')", LR),
        ("p.add_argument('--resume-ckpt-dir', default='old')", LR),
        ("p.add_argument('--load-checkpoint-path', default='old')", LR),
        ("p.add_argument('--data-dir', default='data')", LR),
        # The runs may use different folders below it.
        (
            f"{DIR}\np.add_argument('--run-name')",
            [[*LR[0], "--run-name", "a"], [*LR[1], "--run-name", "b"]],
        ),
        # The script may determine its folder itself.
        (f"{DIR}\nos.environ['HPCRUN_CHECKPOINT_DIR']", LR),
    ],
)
def test_possibly_separate_folders_have_no_note(options: str, given: list[list[str]]) -> None:
    assert notes(options, given) == []


def test_variable_read_by_a_module_may_set_the_folder() -> None:
    assert notes(DIR, LR, reads=True) == []
    assert len(notes(f"{DIR}\nos.environ['HPCRUN_PRECISION']", LR)) == 1
