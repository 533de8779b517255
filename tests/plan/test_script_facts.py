"""Facts read from a script's text about its command line, and the job checks based on them."""

from __future__ import annotations

import pytest

from hpcrun.plan.batch import decide_batch
from hpcrun.plan.findings import Findings
from hpcrun.plan.script_arguments import check_arguments
from hpcrun.plan.script_facts import ScriptFacts
from hpcrun.plan.script_notes import (
    ProjectScript,
    assigned_variable_notes,
    batch_notes,
    check_own_deepspeed,
    check_repeated_arguments,
    deepspeed_notes,
    difference_notes,
    reached_values,
    scope_notes,
    secret_notes,
    trained_values,
)
from tests.plan.making import job
from tests.plan.script_text import HEAD, SCRIPT, TAIL, facts, faults


def options(text: str) -> set[str]:
    return {name for option in facts(text).options for name in option.names}


PLAIN = [
    "p.add_argument('--lr', '-l')",
    "g = p.add_argument_group('g')\ng.add_argument('--lr')\np.add_argument('data')",
    "p.add_mutually_exclusive_group().add_argument('--lr')",
    "p.set_defaults(lr=1)\nif os.environ.get('X'):\n    p.error('no')",
    "p.add_argument('--x', nargs='+')",
    "import deepspeed\np = deepspeed.add_config_arguments(p)",
    "def show():\n    p.print_help()",
    "add = p.add_argument\nadd('--lr')",
    "def options():\n    g = p.add_argument_group('g')\n    g.add_argument('--lr')\n"
    "def other(size):\n    g = Geometry(size)\n    return use(g)",
    "def main(words=None):\n    return p.parse_args(words)\nmain()",
    "def read(words=None):\n    return p.parse_args(words)\n"
    "def main(argv=None):\n    read(argv)\nmain()",
]
NOT_PLAIN = [
    "p.parse_known_args()",
    "s = p.add_subparsers()",
    "for n in names:\n    p.add_argument('--' + n)",
    "add_more(p)",
    "models.Net.add_args(parser=p)",
    "p.add_argument(*names)",
    "p.add_argument('--x', **more)",
    "p.add_argument('rest', nargs=argparse.REMAINDER)",
    "p.add_argument('rest', nargs='...')",
    "sys.argv = sys.argv[:1]",
    "q = p",
    "parsers = [p]",
    "p2 = argparse.ArgumentParser(parents=[p])",
    "p.fromfile_prefix_chars = '@'",
    "p._actions.clear()",
    "add = p.add_argument\nadd('--lr')\nothers(add)",
    "add = p.add_argument\nadd(*names)",
    "g = p.add_argument_group('g')\ndef other():\n    use(g)",
    "def main(words=None):\n    return p.parse_args(words)\nmain(['--lr', '1'])",
    "def main(words=None):\n    words = words or more\n    return p.parse_args(words)\nmain()",
    "def main(words=None):\n    return p.parse_args(words)\ndef run(argv):\n    main(argv)",
    "def main(words=[]):\n    return p.parse_args(words)\nmain()",
    "p.add_argument('--x', required=True).required = False",
    "a = p.add_argument('--x', choices=['none'])\na.choices = list(MODELS)",
    "p.error = print",
    "exec(open('configurator.py').read())",
    "with mock.patch.object(sys, 'argv', ['x']):\n    p.print_help()",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_parsers_are_recognized(text: str) -> None:
    assert facts(f"{HEAD}{text}\n{TAIL}").is_complete


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", ["a.py requires --data"]),
        ("def options():\n    {}\noptions()", ["a.py requires --data"]),
        ("if __name__ == '__main__':\n    {}", ["a.py requires --data"]),
        ("if os.environ.get('X'): {}", []),
        ("try:\n    import wandb\n    {}\nexcept ImportError:\n    pass", []),
    ],
)
def test_conditionally_added_option_is_not_required(text: str, message: list[str]) -> None:
    option = "p.add_argument('--data', required=True)"
    script = ProjectScript("a.py", facts(HEAD + text.format(option) + "\n" + TAIL))
    assert faults(script, []) == message


@pytest.mark.parametrize("option", ["'--data', required=True", "'data'"])
def test_option_added_after_parsing_is_not_required(option: str) -> None:
    late = f"{HEAD}{TAIL}p.add_argument({option})\n"
    assert faults(ProjectScript("a.py", facts(late)), []) == []
    assert len(faults(ProjectScript("a.py", facts(late + TAIL)), [])) == 1  # they are read again


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_unknown_parsers_have_no_findings(text: str) -> None:
    found = facts(f"{HEAD}{text}\n{TAIL}")
    assert not found.is_complete
    assert faults(ProjectScript("a.py", found), ["--nonsense"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "import argparse\np = argparse.ArgumentParser(parents=[x])\np.parse_args()",
        "import argparse\np = argparse.ArgumentParser(prefix_chars='+')\np.parse_args()",
        "import argparse\np = argparse.ArgumentParser(conflict_handler='resolve')\np.parse_args()",
        "import argparse\np = argparse.ArgumentParser()\np.parse_args(words)",
        "import argparse\np = argparse.ArgumentParser()",
        # The parser may never run, or its error may be caught.
        "import argparse\np = argparse.ArgumentParser()\n"
        "try:\n    p.parse_args()\nexcept SystemExit:\n    pass",
        "import argparse\np = argparse.ArgumentParser()\n"
        "with contextlib.suppress(SystemExit):\n    p.parse_args()",
        "import argparse\ndef read():\n    if os.path.exists('a.json'):\n        return load()\n"
        "    p = argparse.ArgumentParser()\n    return p.parse_args()\nread()",
        "import argparse\nif done:\n    sys.exit()\np = argparse.ArgumentParser()\np.parse_args()",
        "import argparse\np = argparse.ArgumentParser()\ndef main():\n    p.parse_args()",
        "import argparse\np = argparse.ArgumentParser()\nif x:\n    p.parse_args()",
        # Unrelated classes of the same name.
        "try:\n    import configargparse as argparse\nexcept ImportError:\n    import argparse\n"
        "p = argparse.ArgumentParser()\np.parse_args()",
        "import argparse\nfrom configargparse import ArgumentParser\np = ArgumentParser()\n"
        "p.parse_args()",
        "import argparse, hydra\n@hydra.main()\ndef main(c): ...\np = argparse.ArgumentParser()\n"
        "p.parse_args()\nmain()",
        "import argparse\nself.p = argparse.ArgumentParser()\nself.p.parse_args()",
        "import argparse\nadd(argparse.ArgumentParser()).parse_args()",
        "import argparse\nclass P(argparse.ArgumentParser): pass\nP().parse_args()",
        "from jsonargparse import ArgumentParser\np = ArgumentParser()\np.parse_args()",
        "import argparse\ndef f():\n    p = argparse.ArgumentParser()\n    return p\n"
        "more(f())\nf().parse_args()",
        "import sys\nprint(sys.argv)",
        "print(1)",
    ],
)
def test_partly_visible_parsers_are_not_plain(text: str) -> None:
    assert not facts(text).is_complete


def test_parser_created_by_a_function_is_read() -> None:
    text = (
        "from argparse import ArgumentParser\ndef make():\n    p = ArgumentParser()\n"
        "    p.add_argument('--lr')\n    return p\nparser = make()\n"
        "parser.add_argument('--wd')\nparser.parse_args(sys.argv[1:])\n"
    )
    assert facts(text).is_complete and options(text) == {"--lr", "--wd"}
    assert not facts(text + "more(parser)").is_complete


def test_boolean_optional_action_adds_the_negative_option() -> None:
    text = f"{HEAD}p.add_argument('--amp', action=argparse.BooleanOptionalAction)\n{TAIL}"
    assert options(text) == {"--amp", "--no-amp"}
    added = f"{HEAD}import deepspeed\ndeepspeed.add_config_arguments(p)\n{TAIL}"
    assert "--deepspeed_config" in options(added)


@pytest.mark.parametrize(
    ("text", "parser", "names"),
    [
        ("import click\n@click.option('--a/--no-a', '-x')\ndef f(a): ...", "click", ["--a"]),
        ("from absl import flags\nflags.DEFINE_integer('bs', 1, '')", "absl", ["--bs"]),
        (
            "from transformers import HfArgumentParser\nHfArgumentParser(X)",
            "transformers",
            ["--per_device_train_batch_size"],
        ),
        ("import hydra", "hydra", []),
        ("import os", "", []),
    ],
)
def test_options_of_other_command_line_libraries_are_read(
    text: str, parser: str, names: list[str]
) -> None:
    found = facts(text)
    assert (found.parser, found.is_complete) == (parser, False)
    assert set(names) <= options(text)


def test_hpcrun_variables_and_imported_modules_are_read() -> None:
    text = (
        "import os, a.b\nfrom .c import d\nfrom e import *\nfrom . import f\n"
        "x = os.environ['HPCRUN_MICRO_BATCH_PER_GPU']\ny = f'{os.getenv(\"HPCRUN_RUN_DIR\")}/x'"
    )
    found = facts(text)
    assert found.variables == ["HPCRUN_MICRO_BATCH_PER_GPU", "HPCRUN_RUN_DIR"]
    assert found.imports == ["os", "a.b", ".c", ".c.d", "e", ".", ".f"]


# ---- arguments


@pytest.mark.parametrize(
    "words",
    [
        "--batch_size 4 --epochs 3",
        "--batch_size=4 -n3 -n 3 -lr 1",
        "--batch 4",  # argparse takes beginnings
        "--help",
        "data/x -1 -1e-4 -.5 - -- --what",
    ],
)
def test_arguments_accepted_by_argparse_have_no_findings(words: str) -> None:
    assert faults(ProjectScript("a.py", SCRIPT), [*words.split(), "-x y"]) == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--batchsize 4", "--batchsize: a.py has no such argument; did you mean --batch_size?"),
        ("--batch-size=4", "--batch-size: a.py has no such argument; did you mean --batch_size?"),
        ("--epoch-s 4", "--epoch-s: a.py has no such argument; did you mean --epochs?"),
        ("--zz", "--zz: a.py has no such argument"),
        ("-x", "-x: a.py has no such argument"),
    ],
)
def test_arguments_refused_by_argparse_are_reported(words: str, hint: str) -> None:
    assert faults(ProjectScript("a.py", SCRIPT), words.split()) == [hint]


@pytest.mark.parametrize(
    ("option", "words", "fault"),
    [
        ("'--lr', type=float", "--lr small", "--lr: invalid float value: 'small'"),
        ("'--n', type=int", "--n 1e3", "--n: invalid int value: '1e3'"),
        ("'--n', nargs=2", "--n 1", "--n: expected 2 arguments"),
        ("'--n'", "--n", "--n: expected one argument"),
        (
            "'--fast', action='store_true'",
            "--fast yes",
            "yes: a.py does not accept these arguments",
        ),
        (
            "'--size', choices=['base', 'large']",
            "--size larg",
            "--size: invalid choice: 'larg' (choose from 'base', 'large'); did you mean large?",
        ),
        ("'data'", "", "a.py requires DATA"),
        ("'--a', type=int", "more", "more: a.py does not accept these arguments"),
    ],
)
def test_values_refused_by_argparse_are_reported(option: str, words: str, fault: str) -> None:
    read = ProjectScript("a.py", facts(f"{HEAD}p.add_argument({option})\n{TAIL}"))
    assert faults(read, words.split()) == [fault]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("'--lr', type=parse", "--lr small"),
        ("'--size', choices=SIZES", "--size any"),
        ("'--size', choices=['a', *MORE]", "--size any"),
        ("'--size', type=str.lower, choices=['a']", "--size A"),
        ("'--n', type=int, choices=[1, 2]", "--n 02"),
        ("'--no-amp', dest='amp', action='store_false'", "--no-amp"),
        ("'--amp', action=argparse.BooleanOptionalAction", "--no-amp"),
        ("'-v', action='count'", "-vvv"),
        ("'--x', nargs='*', type=int", "--x 1 2 -3"),
        ("'--shift', type=float", "--shift -1e-4"),
        ("'--x', action=Own", "--x"),
    ],
)
def test_values_possibly_accepted_by_argparse_have_no_findings(option: str, words: str) -> None:
    read = ProjectScript("a.py", facts(f"{HEAD}p.add_argument({option})\n{TAIL}"))
    assert faults(read, words.split()) == []


def test_misspelling_is_doubtful_with_parse_known_args() -> None:
    text = f"{HEAD}p.add_argument('--batch_size', type=int, required=True)\np.parse_known_args()"
    read = facts(text)
    assert (read.is_certain, read.is_complete) == (True, False)
    doubt = ["--batchsize: did you mean --batch_size, of a.py?"]
    assert check_arguments("a.py", read, ["--batchsize", "4"]) == ([], doubt)
    assert check_arguments("a.py", read, ["--other", "4"])[0] == ["a.py requires --batch_size"]
    assert check_arguments("a.py", read, ["--batch_size", "4", "--other", "4"]) == ([], [])


# ---- accesses outside the copy of the code


@pytest.mark.parametrize(
    "text",
    [
        "sys.path.insert(0, os.getcwd())",
        "sys.path.insert(0, str(Path.cwd() / 'src'))",
        "sys.path.insert(0, '.')",
        "sys.path.insert(1, os.path.abspath('..'))",
        "sys.path.append('src')",
        "sys.path[0] = os.getcwd()",
        "sys.path = [os.getcwd()] + sys.path",
        "exec(open('model.py').read())",
        "OmegaConf.load('conf/a.yaml')",
    ],
)
def test_uses_of_the_working_folder_are_found(text: str) -> None:
    assert len(facts(f"def main():\n    {text}").uncopied_reads) == 1


@pytest.mark.parametrize(
    "text",
    [
        "sys.path.append(os.getcwd())",
        "sys.path.append('.')",
        "sys.path.insert(0, '/opt/lib')",
        "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))",
        "sys.path.insert(0, str(Path(__file__).parent / 'src'))",
        "sys.path.insert(0, os.path.join(ROOT, 'src'))",
        "sys.path.insert(0, os.environ['X'])",
        "open('data.txt')",
        "open('/etc/a.yaml')",
        "shown.insert(0, '.')",
    ],
)
def test_uses_of_other_folders_are_ignored(text: str) -> None:
    assert facts(text).uncopied_reads == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("x = os.path.join(os.path.dirname(__file__), 'data', 'a.bin')", "data/a.bin"),
        ("ROOT = Path(__file__).resolve().parent\nx = ROOT / 'data' / 'a.bin'", "data/a.bin"),
        ("x = Path(__file__).parents[1] / 'data'", "../data"),
        ("d = os.path.dirname(os.path.abspath(__file__))\nopen(d + '/x')", "x"),
    ],
)
def test_files_next_to_the_script_are_found(text: str, path: str) -> None:
    assert path in facts(text).sibling_paths


def test_abbreviations_are_reported_with_allow_abbrev_false() -> None:
    strict = facts(
        "import argparse\np = argparse.ArgumentParser(allow_abbrev=False)\n"
        f"p.add_argument('--batch_size')\n{TAIL}"
    )
    assert strict.is_complete and len(faults(ProjectScript("a.py", strict), ["--batch"])) == 1


def test_missing_required_options_are_reported() -> None:
    needs = facts(f"{HEAD}p.add_argument('--data', required=True)\n{TAIL}")
    assert faults(ProjectScript("a.py", needs), []) == ["a.py requires --data"]
    assert faults(ProjectScript("a.py", needs), ["--data=x"]) == []
    assert faults(ProjectScript("a.py", needs), ["--help"]) == []


# ---- the batch

BATCH = "batch: {micro_batch_per_gpu: 4, gradient_accumulation_steps: 2}\n"


def notes(text: str, script: ScriptFacts = SCRIPT, *, reads: bool = False) -> list[str]:
    spec = job(f"script: a.py\n{text}")
    read = ProjectScript("a.py", script, frozenset(["HPCRUN_"] if reads else []))
    sizes = decide_batch(spec.batch, 4, Findings())
    return [
        *batch_notes(spec, sizes, read, spec.args, spec.args),
        *deepspeed_notes(spec, read, spec.args, 32),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        BATCH + "args: ['{micro_batch_per_gpu}', '{gradient_accumulation_steps}']",
        BATCH + "env: {TOTAL: '{effective_batch}'}",
        BATCH + "args: [--batch-size, 4, --accum=2]",
        BATCH + "framework: accelerate\nargs: ['{micro_batch_per_gpu}']",
        BATCH + "framework: transformers\ndeepspeed: {}",
        BATCH + "framework: deepspeed\nargs: ['{deepspeed_config}']",
    ],
)
def test_batch_that_reaches_the_script_has_no_note(text: str) -> None:
    assert notes(text) == []


def test_batch_that_does_not_reach_the_script_has_a_note() -> None:
    [note] = notes(BATCH + "args: [--epochs, 3]")
    assert note.startswith(
        "batch.micro_batch_per_gpu and batch.gradient_accumulation_steps: found no argument that "
        "passes it to a.py, which does not read a HPCRUN_* variable: it may train with another "
        "effective batch than 32; let it read HPCRUN_MICRO_BATCH_PER_GPU"
    )
    [note] = notes(BATCH + "args: ['{micro_batch_per_gpu}']")
    assert note.startswith("batch.gradient_accumulation_steps: ")
    [note] = notes("batch: {micro_batch_per_gpu: 4}\nargs: [--batch-size, 8]")
    assert note.endswith('; args: [--batch_size, "{micro_batch_per_gpu}"]')
    assert notes(BATCH, reads=True) == []


def test_batch_hard_coded_in_the_script_is_compared_with_the_job() -> None:
    called = "T(per_device_train_batch_size={}, gradient_accumulation_steps=2, x=True)"
    assert notes(BATCH, facts(called.format(4))) == []
    assert notes(BATCH, facts(called.format(4) + "; L(val, batch_size=64)")) == []
    [note] = notes(BATCH, facts(called.format(8)))
    assert note.startswith(
        "batch.micro_batch_per_gpu: found no argument that passes it to a.py, which "
    )
    assert "which sets per_device_train_batch_size=8, not 4, and does not read a HPCRUN_* " in note


def test_deepspeed_json_that_does_not_reach_the_script_has_a_note() -> None:
    [note] = notes("framework: deepspeed\nargs: [--deepspeed_config, mine.json]")
    assert note.startswith("deepspeed: found no argument that passes hpcrun's JSON to a.py: ")
    assert notes("framework: deepspeed", reads=True) == []
    assert notes("framework: accelerate\ndeepspeed: {}") == []


def test_shown_values_are_those_that_reach_the_program() -> None:
    """A job shows the values its program trains with, or none."""

    def reached(text: str, script: str | None = "", *reads: str, program: str = "script") -> str:
        spec = job(f"{program}: {'[a.sh]' if program == 'command' else 'a.py'}\n{text}")
        read = None if script is None else ProjectScript("a.py", facts(script), frozenset(reads))
        sizes = decide_batch(spec.batch, 1, Findings())
        found = reached_values(spec, sizes, read, spec.args, spec.args)
        return " ".join(key for key in ("precision", "effective_batch") if key in found)

    both = "precision effective_batch"
    assert reached("") == reached("framework: torch\nargs: [--batch_size, 16]") == ""
    assert reached("precision: bf16\nbatch: {micro_batch_per_gpu: 2}") == ""
    assert reached("", "", "HPCRUN_CHECKPOINT_DIR") == ""
    assert reached("", "", "HPCRUN_PRECISION", "HPCRUN_EFFECTIVE_BATCH") == both
    assert reached("", "", "HPCRUN_") == both
    assert reached("args: ['{precision}', '{micro_batch_per_gpu}']") == both
    own_steps = HEAD + "p.add_argument('--accum', type=int, default=4)\n" + TAIL
    assert reached("args: ['{precision}', '{micro_batch_per_gpu}']", own_steps) == "precision"
    assert (
        reached("env: {B: '{effective_batch}', P: '{precision}'}", None, program="command") == both
    )
    assert reached("framework: torch", None, program="command") == ""
    # Accelerate reads precision and accumulation from the environment, but not the batch.
    assert reached("framework: accelerate", "L(batch_size=8)") == ""
    text = "framework: accelerate\nprecision: bf16\n"
    assert reached(text, "L(batch_size=8)") == "precision"
    assert reached(text, "Accelerator(mixed_precision=args.amp)") == ""
    assert reached(f"{text}batch: {{micro_batch_per_gpu: 8}}", "L(batch_size=8)") == both
    assert reached("framework: accelerate", "Accelerator(mixed_precision=args.amp)") == ""
    assert reached("framework: transformers\nargs: [--fp16, --x]") == ""
    assert reached("framework: transformers\ndeepspeed: {}") == ""
    text = "framework: transformers\ndeepspeed: {}\nprecision: bf16\nbatch: {effective: 8}"
    assert reached(text) == both
    # A data loader created by the script is not DeepSpeed's.
    json = "framework: deepspeed\nargs: [--c, '{deepspeed_config}', --batch_size, 8]"
    assert reached(json) == "precision"
    assert reached(json + "\nbatch: {micro_batch_per_gpu: 8}") == both
    assert reached("framework: deepspeed\nargs: [--c, mine.json]") == ""


@pytest.mark.parametrize(
    ("text", "script", "expected"),
    [
        # Values set by the script are shown unless the job sets them.
        (
            "framework: accelerate",
            "Accelerator(mixed_precision='fp16', gradient_accumulation_steps=4)\nL(batch_size=8)",
            ("fp16", 8, 4),
        ),
        ("framework: accelerate", "Accelerator()", (None, None, 1)),
        (
            "framework: transformers",
            "TrainingArguments(bf16=True, per_device_train_batch_size=2)",
            ("bf16", 2, 1),
        ),
        ("framework: lightning", "Trainer(precision='16-mixed')", ("fp16", None, 1)),
        # One of the two numbers may belong to the evaluation.
        ("", "L(batch_size=8); L(batch_size=16)", (None, None, 1)),
        # The job's values apply if they replace those of the script.
        (
            "framework: accelerate\nbatch: {gradient_accumulation_steps: 2}",
            "Accelerator(gradient_accumulation_steps=4)",
            (None, None, 2),
        ),
    ],
)
def test_trained_values_include_those_set_by_the_script(
    text: str, script: str, expected: tuple[str | None, int | None, int | None]
) -> None:
    spec = job(f"script: a.py\n{text}")
    sizes = decide_batch(spec.batch, 1, Findings())
    found = trained_values(spec, sizes, ProjectScript("a.py", facts(script)), [], [], None)
    batch = (found.micro_batch_per_gpu, found.gradient_accumulation_steps)
    assert (found.precision, *batch) == expected
    assert not found.is_precision_set


@pytest.mark.parametrize(
    ("text", "script", "note"),
    [
        (
            "framework: accelerate\nprecision: bf16",
            "Accelerator(mixed_precision='fp16')",
            "precision: bf16, but a.py sets mixed_precision for fp16: the script's value applies",
        ),
        (
            "framework: transformers\nprecision: fp32",
            "TrainingArguments(bf16=True)",
            "precision: fp32, but a.py sets bf16 for bf16: the script's value applies",
        ),
        (
            "framework: accelerate\nbatch: {gradient_accumulation_steps: 2}",
            "Accelerator(gradient_accumulation_steps=4)",
            "batch.gradient_accumulation_steps: 2 replaces the 4 that a.py sets",
        ),
        ("framework: accelerate\nprecision: fp16", "Accelerator(mixed_precision='fp16')", ""),
        ("framework: accelerate", "Accelerator(gradient_accumulation_steps=4)", ""),
        ("framework: accelerate\nprecision: bf16", "Accelerator(mixed_precision=x)", ""),
    ],
)
def test_difference_between_job_and_script_has_a_note(text: str, script: str, note: str) -> None:
    spec = job(f"script: a.py\n{text}")
    sizes = decide_batch(spec.batch, 1, Findings())
    found = difference_notes(spec, sizes, ProjectScript("a.py", facts(script)), [], [])
    assert found == ([note] if note else [])


GLOBAL = f"{HEAD}p.add_argument('--train_batch_size', type=int, default=64, help='Global batch')\n"


@pytest.mark.parametrize(
    ("script", "words", "wanted"),
    [
        (GLOBAL, ["--train_batch_size", "{micro_batch_per_gpu}"], "{effective_batch}"),
        (GLOBAL, ["--train_batch_size={micro_batch_per_gpu}"], "{effective_batch}"),
        (
            f"{HEAD}p.add_argument('--batch-gpu', help='Samples per GPU')\n",
            ["--batch-gpu", "{effective_batch}"],
            "{micro_batch_per_gpu}",
        ),
        (GLOBAL, ["--train_batch_size", "{effective_batch}"], None),
        (f"{HEAD}p.add_argument('--batch')\n", ["--batch", "{micro_batch_per_gpu}"], None),
    ],
)
def test_per_gpu_batch_for_a_global_option_has_a_note(
    script: str, words: list[str], wanted: str | None
) -> None:
    found = scope_notes(ProjectScript("a.py", facts(script + TAIL)), words)
    assert len(found) == (wanted is not None)
    if wanted is not None:
        assert found[0].endswith(f'"{wanted}"]')


def test_global_batch_is_not_shown_as_per_gpu_batch() -> None:
    spec = job("script: a.py\nresources: {gpus_per_node: 4}")
    sizes = decide_batch(spec.batch, 4, Findings())
    for words in ([], ["--train_batch_size", "512"]):
        read = ProjectScript("a.py", facts(GLOBAL + TAIL))
        found = trained_values(spec, sizes, read, words, words, None)
        assert found.micro_batch_per_gpu is None


@pytest.mark.parametrize(
    ("framework", "text", "words", "replaced"),
    [
        ("transformers", "TrainingArguments(deepspeed='ds.json')", [], "ds.json"),
        ("transformers", "TrainingArguments(deepspeed={'a': 1})", [], "{...}"),
        ("transformers", "", ["--deepspeed", "conf/ds.json"], "conf/ds.json"),
        ("transformers", "", ["--deepspeed=ds.json"], "ds.json"),
        ("accelerate", "DeepSpeedPlugin(hf_ds_config='ds.json')", [], "ds.json"),
        ("transformers", "TrainingArguments(deepspeed=None)", [], None),
        ("transformers", "TrainingArguments(deepspeed=args.deepspeed)", [], None),
        ("transformers", "", ["--deepspeed", "{deepspeed_config}"], None),
        ("transformers", "T(deepspeed=os.environ['HPCRUN_DEEPSPEED_CONFIG'])", [], None),
        ("accelerate", "DeepSpeedPlugin(gradient_clipping=0.5)", [], None),
        ("deepspeed", "T(deepspeed='ds.json')", [], None),
    ],
)
def test_deepspeed_config_inside_the_script_is_refused(
    framework: str, text: str, words: list[str], replaced: str | None
) -> None:
    spec = job(f"script: a.py\nframework: {framework}\ndeepspeed: {{zero_stage: 3}}")
    read = facts(text)
    found = Findings()
    check_own_deepspeed(spec, ProjectScript("a.py", read, frozenset(read.variables)), words, found)
    assert found.notes == []
    messages = [str(problem) for problem in found.problems]
    assert len(messages) == (replaced is not None)
    if replaced is not None:
        assert (
            messages[0].startswith("deepspeed: ") and f"{replaced} replaces the job" in messages[0]
        )
    # A job without a deepspeed section leaves DeepSpeed to the script.
    alone = Findings()
    check_own_deepspeed(job("script: a.py"), ProjectScript("a.py", read), words, alone)
    assert alone == Findings()


def test_unreadable_deepspeed_config_of_the_script_has_a_note() -> None:
    spec = job("script: a.py\nframework: transformers\ndeepspeed: {zero_stage: 3}")
    found = Findings()
    script = ProjectScript("a.py", facts("TrainingArguments(deepspeed=choose())"))
    check_own_deepspeed(spec, script, [], found)
    assert found.problems == [] and len(found.notes) == 1
    assert "which replaces the job's section" in found.notes[0]


# ---- secrets

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("env", "words", "commands", "message"),
    [
        ({"WANDB_API_KEY": KEY}, [], [], "env.WANDB_API_KEY"),
        ({"X": "hf_" + KEY}, [], [], "env.X"),
        ({}, [], [f"export WANDB_API_KEY={KEY}"], "setup.commands"),
        ({}, [], [f"export A=1 MY_TOKEN='{KEY}'"], "setup.commands"),
        ({}, ["--token", "hf_" + KEY], [], "args"),
    ],
)
def test_secrets_have_a_note_without_their_value(
    env: dict[str, str], words: list[str], commands: list[str], message: str
) -> None:
    [note] = secret_notes(env, words, commands, {})
    assert note.startswith(f"{message}: ") and KEY not in note


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("HF_TOKEN", "{run_dir}/token"),
        ("HF_TOKEN", "/home/me/.cache/token"),
        ("WANDB_API_KEY", "$WANDB_API_KEY"),
        ("MAX_TOKENS", "123456789012"),
        ("PASSWORD", "none"),
        ("WANDB_PROJECT", "a-project-with-a-long-name"),
        ("MODEL", "risk-assessment-of-a-long-name"),
    ],
)
def test_harmless_values_have_no_secret_note(name: str, value: str) -> None:
    assert secret_notes({name: value}, [value], [f"export {name}={value}"], {name: value}) == []


def test_secrets_of_the_profile_have_a_note() -> None:
    [note] = secret_notes({}, [], [], {"HF_TOKEN": "hf_" + KEY})
    assert note.startswith("the profile's env.HF_TOKEN: ")


def test_alias_of_add_argument_adds_options() -> None:
    found = facts(f"{HEAD}add = p.add_argument\nadd('--lr', required=True)\n{TAIL}")
    assert [(option.names, option.required) for option in found.options] == [(["--lr"], True)]
    assert faults(ProjectScript("a.py", found), ["--lr", "1", "--nonsense"]) != []


# ---- variables that a script sets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "os.environ['NCCL_IB_DISABLE'] = '1'",
            "sets NCCL_IB_DISABLE=1: a switch for",
        ),
        (
            "os.environ.update(NCCL_P2P_DISABLE='1')",
            "NCCL_P2P_DISABLE=1: it turns off",
        ),
        (
            "os.environ.update({'NCCL_TIMEOUT': str(1800)})",
            "sets NCCL_TIMEOUT=1800: nothing",
        ),
        (
            "os.putenv('CUDA_LAUNCH_BLOCKING', '1')",
            "CUDA_LAUNCH_BLOCKING=1: each kernel",
        ),
        ("environ.setdefault('NCCL_ALGO', 'Ring')", "it sets NCCL_ALGO=Ring: NCCL chooses it"),
        ("os.environ['NCCL_SOCKET_IFNAMES'] = 'ib0'", "did you mean NCCL_SOCKET_IFNAME?"),
        (
            "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'",
            "Slurm assigns the job's GPUs; this selects",
        ),
        ("os.environ['MASTER_ADDR'] = 'localhost'", "hpcrun sets it for all 2 nodes, and this"),
        (
            "os.environ['OMP_NUM_THREADS'] = '1'",
            "the job OMP_NUM_THREADS=8: the script",
        ),
    ],
)
def test_variables_set_in_the_script_are_noticed(text: str, expected: str) -> None:
    script = ProjectScript("a.py", facts(f"import os\nfrom os import environ\n{text}\n"))
    (note,) = assigned_variable_notes(script, {"OMP_NUM_THREADS": "8"}, "slingshot", 2)
    assert note.startswith("a.py:3: ") and expected in note


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['NCCL_IB_DISABLE'] = '0'",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ['NCCL_IB_DISABLE'] = value",
        "print(os.environ['NCCL_IB_DISABLE'])",
        "settings['NCCL_IB_DISABLE'] = '1'",
        "settings.update(NCCL_IB_DISABLE='1')",
        "os.environ.setdefault('MASTER_ADDR', 'localhost')",
        "if 'MASTER_ADDR' not in os.environ:\n    os.environ['MASTER_ADDR'] = 'localhost'",
        "if os.getenv('RANK') is None:\n    os.environ.update(RANK='0', WORLD_SIZE='1')",
        "os.environ['OMP_NUM_THREADS'] = '8'",
        "os.environ.setdefault('OMP_NUM_THREADS', '1')",
    ],
)
def test_harmless_variables_in_the_script_are_not_noticed(text: str) -> None:
    script = ProjectScript("a.py", facts(f"import os\n{text}\n"))
    assert assigned_variable_notes(script, {"OMP_NUM_THREADS": "8"}, "slingshot", 2) == []


def test_rendezvous_set_in_the_script_is_harmless_on_one_node() -> None:
    script = ProjectScript("a.py", facts("import os\nos.environ['MASTER_PORT'] = '29500'\n"))
    assert assigned_variable_notes(script, {}, "single-node", 1) == []
    assert len(assigned_variable_notes(script, {}, "auto", 4)) == 1


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--bs {micro_batch_per_gpu} --bs 4", "batch.micro_batch_per_gpu: 4"),
        ("--bs={micro_batch_per_gpu} --lr 1 -b 4", "batch.micro_batch_per_gpu: 4"),
        ("--amp {precision} --amp fp32", "precision: fp32"),
        ("--lr {lr} --lr=3e-4", "remove one of them"),
        ("--grad_acc {gradient_accumulation_steps} --grad_acc 2", "accumulation_steps: 2"),
        ("data.batch={effective_batch} data.batch=64", "batch.effective: 64"),
    ],
)
def test_argument_that_replaces_a_value_of_the_job_is_refused(words: str, key: str) -> None:
    read = facts(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('-b', '--bs')\n"
        "p.add_argument('--amp')\np.add_argument('--lr')\np.parse_args()"
    )
    check_repeated_arguments(ProjectScript("a.py", read), words.split(), found := Findings())
    (problem,) = found.problems
    assert key in str(problem) and not found.notes


@pytest.mark.parametrize(
    "words",
    [
        "--bs {micro_batch_per_gpu} --bs {micro_batch_per_gpu}",
        "--bs 4 --bs {micro_batch_per_gpu}",
        "--bs {micro_batch_per_gpu} --set {lr} --set lr=1",
        "--set batch={micro_batch_per_gpu} --set lr=1",
        "--unknown {lr} --unknown x",
        "--bs {micro_batch_per_gpu} 4 -- --bs",
    ],
)
def test_arguments_that_replace_no_value_of_the_job_are_accepted(words: str) -> None:
    read = facts(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--bs')\n"
        "p.add_argument('--set', action='append')\np.parse_args()"
    )
    for script in (ProjectScript("a.py", read), None):
        check_repeated_arguments(script, words.split(), found := Findings())
        assert found == Findings()


def test_folder_given_after_the_checkpoint_folder_has_a_note() -> None:
    read = facts(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--out')\np.parse_args()"
    )
    words = ["--out", "{checkpoint_dir}", "--out", "mine"]
    check_repeated_arguments(ProjectScript("a.py", read), words, found := Findings())
    assert not found.problems and "does not find checkpoints" in found.notes[0]
