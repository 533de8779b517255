"""The first job file of a script: framework, launcher, the arguments that carry hpcrun's values."""

from __future__ import annotations

import ast

import pytest

from hpcrun.plan.job_draft import Draft, draft_job, is_training, job_text
from hpcrun.plan.script_facts import read_script
from tests.spec.reading import read

PARSER = "import argparse\np = argparse.ArgumentParser()\n"


def drafted(text: str, *others: str) -> Draft:
    return draft_job(
        "train.py",
        read_script(ast.parse(text)),
        [read_script(ast.parse(other)) for other in others],
    )


def options(*names: str, start: str = "import torch\n") -> Draft:
    added = "".join(f"p.add_argument({name})\n" for name in names)
    return drafted(f"{start}{PARSER}{added}args = p.parse_args()\n")


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import torch", "torch"),
        ("import torch, deepspeed", "deepspeed"),
        ("def f():\n    from deepspeed.ops import x", "deepspeed"),
        ("from accelerate import Accelerator\na = Accelerator()", "accelerate"),
        ("import deepspeed\nfrom accelerate import Accelerator\nAccelerator()", "accelerate"),
        ("from transformers import Trainer\nTrainer(model)", "transformers"),
        ("from trl import SFTTrainer\nSFTTrainer(model=m)", "transformers"),
        ("from transformers import AutoModel\nimport torch", "torch"),
        ("import lightning as L\nL.Trainer()", "lightning"),
        ("import pytorch_lightning as pl", "lightning"),
        ("x = 1", "torch"),
    ],
)
def test_framework(text: str, framework: str) -> None:
    assert drafted(text).framework == framework


def test_framework_of_the_projects_own_modules() -> None:
    assert drafted("from mine import main\nmain()", "import deepspeed").framework == "deepspeed"


@pytest.mark.parametrize(
    ("option", "placeholder"),
    [
        ("'--batch'", "micro_batch_per_gpu"),
        ("'--batch-size'", "micro_batch_per_gpu"),
        ("'-b', '--batch_size'", "micro_batch_per_gpu"),
        ("'--bs'", "micro_batch_per_gpu"),
        ("'--per_device_train_batch_size'", "micro_batch_per_gpu"),
        ("'--train_micro_batch_size_per_gpu'", "micro_batch_per_gpu"),
        ("'--grad-accum'", "gradient_accumulation_steps"),
        ("'--gradient_accumulation_steps'", "gradient_accumulation_steps"),
        ("'--accum_iter'", "gradient_accumulation_steps"),
        ("'--save-dir'", "checkpoint_dir"),
        ("'--output_dir'", "checkpoint_dir"),
        ("'--precision', choices=['fp32', 'fp16', 'bf16']", "precision"),
        ("'--mixed_precision', choices=('no', 'fp16', 'bf16')", "precision"),
    ],
)
def test_options_that_carry_a_value(option: str, placeholder: str) -> None:
    (pair,) = options(option).args
    name = option.split("'")[-2] if "choices" not in option else option.split("'")[1]
    assert pair == (name, placeholder)


@pytest.mark.parametrize(
    "option",
    [
        "'--eval-batch-size'",
        "'--global_batch_size'",
        "'--num_batches'",
        "'--epochs'",
        "'--precision'",
        "'--precision', choices=['16-mixed', '32']",
        "'--batches'",
        "'--logdir'",
    ],
)
def test_options_that_are_something_else(option: str) -> None:
    assert options(option).args == []


def test_a_module_that_imports_a_framework_need_not_train_with_it() -> None:
    helpers = "try:\n    import lightning\nexcept ImportError:\n    pass\n"
    assert drafted("import torch, helpers", helpers).framework == "torch"
    assert drafted("import torch, fit", "import lightning\nlightning.Trainer()").framework == (
        "lightning"
    )


def test_the_option_that_says_the_most() -> None:
    found = options("'--batch-size'", "'--micro-batch-size'").args
    assert found == [("--micro-batch-size", "micro_batch_per_gpu")]


def test_a_script_that_takes_no_batch_is_reported() -> None:
    assert any("HPCRUN_MICRO_BATCH_PER_GPU" in note for note in options("'--lr'").notes)
    assert not options("'--batch', default=4").notes
    (note,) = options("'--batch', default=SIZE").notes
    assert note.startswith("train.py shows no number as the default of --batch: the job passes ")


@pytest.mark.parametrize("parser", ["fire", "hydra", "absl.flags", "click", "typer", "tyro"])
def test_options_that_cannot_all_be_seen_may_take_a_batch(parser: str) -> None:
    assert drafted(f"import torch, {parser}").notes == []
    assert drafted("import torch, mine", f"import {parser}").notes == []


def test_deepspeed() -> None:
    start = "import deepspeed\n"
    added = "'--deepspeed_config'"
    found = options(added, start=start)
    assert found.args == [("--deepspeed_config", "deepspeed_config")] and not found.notes
    assert any("HPCRUN_DEEPSPEED_CONFIG" in note for note in options("'--x'", start=start).notes)
    # DeepSpeed's launcher passes it; torchrun does not.
    assert options(added, "'--local_rank'", start=start).launcher == "deepspeed"
    reads = "import os, deepspeed\nr = os.environ['LOCAL_RANK']\n"
    assert options(added, "'--local_rank'", start=reads).launcher is None
    assert any("LOCAL_RANK" in note for note in options("'--local_rank'", "'--batch'").notes)


def test_hugging_face() -> None:
    found = drafted(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "p = HfArgumentParser(TrainingArguments)\nTrainer()\n"
    )
    assert found.framework == "transformers"
    assert ("--per_device_train_batch_size", "micro_batch_per_gpu") in found.args
    assert found.batch == {"micro_batch_per_gpu": 8}  # its own default
    own = drafted(
        "from transformers import HfArgumentParser\n@dataclass\nclass A:\n"
        "    batch_size: int = 24\n"
        "HfArgumentParser(A).parse_args_into_dataclasses()\n"
    )
    assert own.args == [("--batch-size", "micro_batch_per_gpu")]
    assert own.batch == {"micro_batch_per_gpu": 24}


def test_what_only_the_user_knows() -> None:
    found = options("'--data', required=True", "'corpus'", "'extra', nargs='?'", "'--batch'")
    assert found.required == ["--data", "CORPUS"]


def test_the_batch_is_the_scripts_own() -> None:
    found = options("'-b', '--batch-size', type=int, default=8", "'--grad_accum', default=4")
    spec = read(job_text(found, {}, {}, "../x.json"))
    assert spec.batch.micro_batch_per_gpu == 8 and spec.batch.gradient_accumulation_steps == 4
    for text in (
        "import click\n@click.option('--batch-size', default=16)\ndef f(batch_size): ...",
        "from absl import flags\nflags.DEFINE_integer('batch_size', 16, '')",
    ):
        assert drafted(text).batch == {"micro_batch_per_gpu": 16}
    odd = options("'--batch', default=0", "'--gas', default=True", "'--eval_batch', default=64")
    spec = read(job_text(odd, {}, {}, "../x.json"))
    assert spec.batch.micro_batch_per_gpu == spec.batch.gradient_accumulation_steps == 1


@pytest.mark.parametrize(
    "draft",
    [
        Draft(script="train.py", framework="torch"),
        Draft(
            script="my scripts/train: it.py",
            framework="deepspeed",
            launcher="deepspeed",
            args=[("--deepspeed_config", "deepspeed_config"), ("-b", "micro_batch_per_gpu")],
            required=["--data"],
        ),
    ],
)
def test_the_text_loads(draft: Draft) -> None:
    resources = {"gpus_per_node": 8, "gpu_type": "a100_3g.20gb", "time": "30"}
    spec = read(job_text(draft, resources, {"venv": "my env"}, "../x.json"))
    assert (spec.script, spec.framework, spec.launcher) == (
        draft.script,
        draft.framework,
        draft.launcher,
    )
    assert spec.args == [word for pair in draft.args for word in (pair[0], f"{{{pair[1]}}}")]
    assert spec.resources.gpu_type == "a100_3g.20gb" and spec.resources.time == "30"
    assert spec.setup.venv == "my env" and (spec.deepspeed is None) == (draft.framework == "torch")


def test_what_is_training() -> None:
    assert is_training(read_script(ast.parse("import torch.nn as nn")))
    assert not is_training(read_script(ast.parse("import numpy, setuptools")))
