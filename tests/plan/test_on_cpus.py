"""Frameworks on CPUs: the request is trained as given, or refused before the job waits."""

from __future__ import annotations

import ast

import pytest

from hpcrun.plan.on_cpus import check_on_cpus, configures_deepspeed, find_deepspeed_argument
from hpcrun.plan.script_facts import read_script
from tests.plan.making import job

TRAINER = "from transformers import Trainer, TrainingArguments\nTrainer(model)\n"


def found(text: str, script: str = "", *words: str, **known: object) -> tuple[list[str], list[str]]:
    """Return problems and notes for four ranks in fp32, unless ``known`` overrides them."""
    spec, facts = job(f"script: a.py\n{text}"), read_script(ast.parse(script))
    given = {
        "elsewhere": find_deepspeed_argument(words),
        "precision": "fp32",
        "world_size": 4,
        **known,
    }
    all_found = check_on_cpus(spec, facts, words, **given)  # type: ignore[arg-type]
    return [str(problem) for problem in all_found.problems], all_found.notes


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--deepspeed", "ds.json"], "--deepspeed ds.json"),
        (["--deepspeed=ds.json", "--lr", "1"], "--deepspeed=ds.json"),
        (["training.deepspeed=ds.json"], "training.deepspeed=ds.json"),
        (["accelerate", "launch", "--use_deepspeed", "a.py"], "--use_deepspeed"),
        (["deepspeed", "a.py", "--deepspeed"], ""),
        (["--deepspeed", "--lr", "1"], ""),
        (["--deepspeed", "none"], ""),
        (["--deepspeed_config", "ds.json"], ""),
    ],
)
def test_deepspeed_arguments_are_found_on_the_command_line(words: list[str], asked: str) -> None:
    assert find_deepspeed_argument(words) == asked


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ('{"deepspeed": "ds.json"}', True),
        ("deepspeed: {zero_optimization: {stage: 2}}", True),
        ("distributed_type: DEEPSPEED\n", True),
        ("deepspeed:\nlr: 1", False),
        ("distributed_type: MULTI_GPU", False),
        ("no: [yaml", False),
    ],
)
def test_accelerate_configs_with_deepspeed_are_recognized(text: str, asked: bool) -> None:
    assert configures_deepspeed(text) == asked


@pytest.mark.parametrize(
    ("script", "own"),
    [
        ("TrainingArguments(deepspeed='ds.json')", ["deepspeed"]),
        ("TrainingArguments(deepspeed=args.deepspeed, ddp_backend=None)", []),
        ("class A:\n    deepspeed: str = field(default='ds.json')", ["deepspeed"]),
        ("class A:\n    deepspeed: str | None = None\n    use_cpu: bool = True", ["use_cpu"]),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin())", ["deepspeed_plugin"]),
        ("p.add_argument('--deepspeed')", []),
    ],
)
def test_own_settings_of_a_script_are_found(script: str, own: list[str]) -> None:
    assert read_script(ast.parse(script)).own_settings == own


def test_trainer_with_own_deepspeed_on_several_cpu_ranks_is_refused() -> None:
    words = ("--deepspeed", "ds.json")
    for text, script in (("framework: transformers", ""), ("", TRAINER)):
        problems, _ = found(text, script, *words)
        assert len(problems) == 1 and "set deepspeed.config_file instead, and" in problems[0]
        (problem,), _ = found(text, script, *words, precision="bf16")
        assert "instead and precision: fp32, and give --ddp_backend gloo" in problem
        assert found(text, script, *words, world_size=1) == ([], [])
    # Scripts that call DeepSpeed themselves, with a transformers model.
    assert found("", "", *words) == found("", "import transformers", *words) == ([], [])
    (problem,), _ = found("framework: transformers\ndeepspeed: {}", "", *words)
    assert "the job's deepspeed section reaches it without" in problem


def test_use_cpu_with_deepspeed_is_refused() -> None:
    for text, words in (("deepspeed: {}", ["--ddp_backend", "gloo"]), ("", ["--deepspeed", "d"])):
        text = f"framework: transformers\n{text}"
        problems, _ = found(text, "", *words, "--use_cpu", world_size=1)
        assert len(problems) == 1 and "silently disables DeepSpeed" in problems[0]
    assert found("framework: transformers", "", "--use_cpu") == ([], [])


def test_note_on_trainer_ranks_disappears_with_ddp_backend() -> None:
    text, gloo = "framework: transformers\ndeepspeed: {}", ("--ddp_backend", "gloo")
    assert any("ddp_backend" in note for note in found(text)[1])
    assert any("ddp_backend" in note for note in found(text, "", *gloo, precision="bf16")[1])
    in_script = f"{TRAINER}TrainingArguments(ddp_backend='gloo')"
    with_file = f"{TRAINER}TrainingArguments(ddp_backend='gloo', deepspeed='ds.json')"
    assert any("ddp_backend" in note for note in found(text, with_file)[1])
    assert found(text, "", *gloo) == found(text, in_script) == ([], [])
    assert found(text, world_size=1) == found("framework: transformers") == ([], [])


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("from accelerate import Accelerator", True),
        ("from accelerate.utils import InitProcessGroupKwargs", False),
        ("import os\nAccelerator(backend=os.environ['HPCRUN_BACKEND'])", False),
    ],
)
def test_script_without_a_backend_has_a_note(script: str, shown: bool) -> None:
    text = "framework: accelerate\n"
    assert len(found(f"{text}deepspeed: {{}}", script)[1]) == shown
    assert found(text, script) == found(f"{text}deepspeed: {{}}", script, world_size=1) == ([], [])


def test_fp16_on_cpus_is_refused_or_noted() -> None:
    (problem,), _ = found("deepspeed: {}", precision="fp16")
    assert problem.startswith("precision: fp16: DeepSpeed refuses it on a CPU")
    problems, (note,) = found("framework: accelerate", precision="fp16")
    assert not problems and "trains in fp32" in note
    assert found("", precision="fp16") == ([], [])


def test_fp16_argument_on_cpus_has_a_note() -> None:
    text = "framework: transformers"
    note = "args: --fp16: without GPUs Accelerate silently trains in fp32"
    for words in (["--fp16"], ["--fp16", "--lr", "1"], ["--fp16=true"], ["--fp16", "True"]):
        assert found(text, "", *words) == ([], [note])
    for words in (["--fp16", "False"], ["--fp16=False"], ["--bf16"]):
        assert found(text, "", *words) == ([], [])


@pytest.mark.parametrize(
    ("call", "is_noted"),
    [
        ("Trainer(max_epochs=1)", True),
        ('Trainer(accelerator="cpu", devices="auto")', True),
        ("Fabric(devices=-1)", True),
        ("Trainer(devices=4)", False),
        ("Trainer(devices=args.devices)", False),
        ("Trainer(**settings)", False),
    ],
)
def test_devices_that_lightning_chooses_on_cpus_are_noted(call: str, is_noted: bool) -> None:
    script = f"from lightning.pytorch import Trainer\n{call}\n"
    problems, notes = found("framework: lightning", script)
    assert not problems and any("HPCRUN_RANKS_PER_NODE" in note for note in notes) == is_noted
    assert found("framework: lightning", script, world_size=1) == ([], [])
