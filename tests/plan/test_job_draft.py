"""The job file drafted from a script: framework, launcher and arguments for hpcrun's values."""

from __future__ import annotations

import ast

import pytest

from hpcrun.plan.job_draft import Draft, draft_job, format_job, imports_training_library
from hpcrun.plan.script_facts import read_script
from hpcrun.spec.job import Batch
from tests.spec.reading import read

PARSER = "import argparse\np = argparse.ArgumentParser()\n"


def drafted(text: str, *others: str) -> Draft:
    return draft_job(
        "train.py",
        read_script(ast.parse(text)),
        [read_script(ast.parse(other)) for other in others],
    )


def options(*names: str, start: str = "import torch.distributed\n") -> Draft:
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
def test_framework_is_detected_from_imports(text: str, framework: str) -> None:
    assert drafted(text).framework == framework


def test_framework_is_detected_in_imported_project_modules() -> None:
    assert drafted("from mine import main\nmain()", "import deepspeed").framework == "deepspeed"


@pytest.mark.parametrize(
    ("option", "placeholder"),
    [
        ("'--batch', default=4", "micro_batch_per_gpu"),
        ("'--batch-size', default=4", "micro_batch_per_gpu"),
        ("'-b', '--batch_size', default=4", "micro_batch_per_gpu"),
        ("'--bs', default=4", "micro_batch_per_gpu"),
        ("'--per_device_train_batch_size', default=4", "micro_batch_per_gpu"),
        ("'--train_micro_batch_size_per_gpu', default=4", "micro_batch_per_gpu"),
        ("'--grad-accum', default=4", "gradient_accumulation_steps"),
        ("'--gradient_accumulation_steps', default=4", "gradient_accumulation_steps"),
        ("'--accum_iter', default=4", "gradient_accumulation_steps"),
        ("'--save-dir'", "checkpoint_dir"),
        ("'--output_dir'", "checkpoint_dir"),
        ("'--precision', choices=['fp32', 'fp16', 'bf16'], default='fp32'", "precision"),
        ("'--global_batch_size', default=64", "effective_batch"),
        ("'--batch', default=64, help='Total batch size'", "effective_batch"),
    ],
)
def test_options_for_known_values_get_placeholders(option: str, placeholder: str) -> None:
    (pair,) = options(option).args
    name = option.split(", default")[0].split(", choices")[0].split("'")[-2]
    assert pair == (name, placeholder)


@pytest.mark.parametrize(
    "option",
    [
        "'--eval-batch-size'",
        "'--num_batches'",
        # A value passed by the job would be one that the user did not choose.
        "'--batch_size', type=int",
        "'--precision', choices=['fp32', 'fp16', 'bf16']",
        "'--mixed_precision', choices=('no', 'fp16', 'bf16'), default='no'",
        # The name does not show whether the batch is per GPU or global.
        "'--train_batch_size', default=8",
        "'--micro_batch_size', default=8, help='total over all GPUs'",
        "'--epochs'",
        "'--precision'",
        "'--precision', choices=['16-mixed', '32']",
        "'--batches'",
        "'--logdir'",
    ],
)
def test_unrelated_options_get_no_placeholder(option: str) -> None:
    assert options(option).args == []


def test_framework_import_in_helper_module_without_use_is_ignored() -> None:
    helpers = "try:\n    import lightning\nexcept ImportError:\n    pass\n"
    assert drafted("import torch, helpers", helpers).framework == "torch"
    assert drafted("import torch, fit", "import lightning\nlightning.Trainer()").framework == (
        "lightning"
    )


def test_most_specific_batch_option_is_used() -> None:
    found = options("'--batch-size', default=4", "'--micro-batch-size', default=2").args
    assert found == [("--micro-batch-size", "micro_batch_per_gpu")]


def test_script_without_batch_option_has_a_note() -> None:
    assert any("HPCRUN_MICRO_BATCH_PER_GPU" in note for note in options("'--lr'").notes)
    assert not options("'--batch', default=4").notes
    (note,) = options("'--batch', default=SIZE").notes
    assert note.startswith("train.py shows no number as the default of --batch: to let the job set")
    (note,) = options("'--train_batch_size', default=8").notes
    assert note.startswith(
        "train.py has the option --train_batch_size, which may be the batch of one "
    )


@pytest.mark.parametrize("parser", ["fire", "hydra", "absl.flags", "click", "typer", "tyro"])
def test_script_with_unknown_options_has_no_batch_note(parser: str) -> None:
    assert drafted(f"import torch.distributed, {parser}").notes == []
    assert drafted("import torch.distributed, mine", f"import {parser}").notes == []


def test_deepspeed_script_gets_its_config_argument() -> None:
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


def test_transformers_script_gets_trainer_arguments() -> None:
    found = drafted(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "p = HfArgumentParser(TrainingArguments)\nTrainer()\n"
    )
    assert found.framework == "transformers"
    assert ("--per_device_train_batch_size", "micro_batch_per_gpu") in found.args
    # The script's own defaults.
    assert found.batch == {"micro_batch_per_gpu": 8, "gradient_accumulation_steps": 1}
    own = drafted(
        "from transformers import HfArgumentParser\n@dataclass\nclass A:\n"
        "    batch_size: int = 24\n"
        "HfArgumentParser(A).parse_args_into_dataclasses()\n"
    )
    assert own.args == [("--batch-size", "micro_batch_per_gpu")]
    assert own.batch == {"micro_batch_per_gpu": 24}


def test_required_arguments_are_left_to_the_user() -> None:
    found = options("'--data', required=True", "'corpus'", "'extra', nargs='?'", "'--batch'")
    assert found.required == ["--data", "CORPUS"]


def test_draft_keeps_batch_defaults_of_the_script() -> None:
    found = options("'-b', '--batch-size', type=int, default=8", "'--grad_accum', default=4")
    spec = read(format_job(found, {}, {}, "../x.json"))
    assert spec.batch.micro_batch_per_gpu == 8 and spec.batch.gradient_accumulation_steps == 4
    for text in (
        "import click\n@click.option('--batch-size', default=16)\ndef f(batch_size): ...",
        "from absl import flags\nflags.DEFINE_integer('batch_size', 16, '')",
    ):
        assert drafted(text).batch == {"micro_batch_per_gpu": 16}
    odd = options("'--batch', default=0", "'--gas', default=True", "'--eval_batch', default=64")
    spec = read(format_job(odd, {}, {}, "../x.json"))
    assert spec.batch == Batch()


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
def test_drafted_job_file_loads(draft: Draft) -> None:
    resources = {"gpus_per_node": 8, "gpu_type": "a100_3g.20gb", "time": "30"}
    spec = read(format_job(draft, resources, {"venv": "my env"}, "../x.json"))
    assert (spec.script, spec.framework, spec.launcher) == (
        draft.script,
        draft.framework,
        draft.launcher,
    )
    assert spec.args == [word for pair in draft.args for word in (pair[0], f"{{{pair[1]}}}")]
    assert spec.resources.gpu_type == "a100_3g.20gb" and spec.resources.time == "30"
    assert spec.setup.venv == "my env" and (spec.deepspeed is None) == (draft.framework == "torch")


def test_training_scripts_are_recognized_by_imports() -> None:
    assert imports_training_library(read_script(ast.parse("import torch.nn as nn")))
    assert not imports_training_library(read_script(ast.parse("import numpy, setuptools")))


DIVIDES = "args.batch_size = int(args.batch_size / args.world_size)\n"


@pytest.mark.parametrize(
    ("option", "use", "placeholder"),
    [
        ("'--batch-size'", "", "micro_batch_per_gpu"),
        ("'--batch-size'", "DataLoader(data, batch_size=args.batch_size)", "micro_batch_per_gpu"),
        ("'--batch-size'", "Loader(d, batch_size=args.batch_size // world)", "effective_batch"),
        ("'--batch-size'", DIVIDES + "DataLoader(d, args.batch_size)", "effective_batch"),
        ("'--batch-size'", "args.batch_size //= torch.cuda.device_count()", "effective_batch"),
        ("'--train_batch_size'", "Loader(d, args.train_batch_size)", "micro_batch_per_gpu"),
        ("'--micro_train_batch_size'", "", "micro_batch_per_gpu"),
        ("'--batch-size', help='batch size per GPU'", "", "micro_batch_per_gpu"),
        ("'--batch-size', help=f'per-device batch, {x}'", "", "micro_batch_per_gpu"),
        ("'--train_batch_size', help='Global batch size'", "", "effective_batch"),
        ("'--batch-gpu', help='Limit per GPU'", "", None),
        ("'--total-batch-size'", "", "effective_batch"),
        ("'--batch-size', help='mini-batch size, this is the total batch size of all GPUs'", "",
         "effective_batch"),
        ("'--batch-size', help='total batch size'", "DataLoader(d, batch_size=a.batch_size)", None),
    ],
)  # fmt: skip
def test_batch_scope_follows_from_option_name_help_and_use(
    option: str, use: str, placeholder: str | None
) -> None:
    found = drafted(f"import torch\n{PARSER}p.add_argument({option}, default=512)\n{use}\n")
    assert [filled for _, filled in found.args] == ([placeholder] if placeholder else [])


def test_draft_keeps_global_batch_of_the_script() -> None:
    found = options("'--global-batch-size', default=512")
    for resources in ({"gpus_per_node": 8}, {"nodes": 2, "gpus_per_node": 4}):
        spec = read(format_job(found, resources, {}, "../x.json"))
        assert spec.batch == Batch(effective=512)
    # OpenRLHF's three options; the missing sizes are derived.
    both = options(
        "'--train_batch_size', default=128, help='Global training batch size'",
        "'--micro_train_batch_size', default=4, help='batch size per GPU'",
    )
    assert [name for name, _ in both.args] == ["--micro_train_batch_size", "--train_batch_size"]
    spec = read(format_job(both, {"gpus_per_node": 8}, {}, "../x.json"))
    assert spec.batch == Batch(effective=128, micro_batch_per_gpu=4)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("from accelerate import Accelerator\nAccelerator(mixed_precision='fp16')", "fp16"),
        ("from transformers import Trainer\nTrainer(m, TrainingArguments(bf16=True))", "bf16"),
        ("import lightning\nlightning.Trainer(precision='bf16-mixed')", "bf16"),
        ("from accelerate import Accelerator\nAccelerator()", None),
        ("from accelerate import Accelerator\nAccelerator(mixed_precision=args.p)", None),
    ],
)
def test_draft_keeps_precision_of_the_script(text: str, precision: str | None) -> None:
    spec = read(format_job(drafted(text), {}, {}, "../x.json"))
    assert spec.precision == precision


HF = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
HF += "p = HfArgumentParser(TrainingArguments)\n"


@pytest.mark.parametrize(
    ("text", "resume"),
    [
        ("p.add_argument('--resume')", "--resume {resume}"),
        ("p.add_argument('--resume', action='store_true')", "--resume"),
        ("p.add_argument('--ckpt')", "--ckpt {resume}"),
        ("p.add_argument('--resume_from_checkpoint', default=None)",
         "--resume_from_checkpoint {resume}"),
        ("p.add_argument('--auto-resume', action='store_true')", "--auto-resume"),
        ("p.add_argument('--ckpt'); p.add_argument('--resume-from')", "--resume-from {resume}"),
        ("p.add_argument('--ckpt', default='checkpoints', help='where to save')", ""),
        ("p.add_argument('--checkpoint-dir')", ""),
    ],
)  # fmt: skip
def test_resume_option_of_the_script_is_used(text: str, resume: str) -> None:
    found = drafted(f"import torch\n{PARSER}{text}\n")
    assert found.resume == resume
    spec = read(format_job(found, {}, {}, "../x.json"))
    assert spec.checkpoint.resume == resume


def test_trainer_and_lightning_without_resume_have_a_note() -> None:
    passed = "trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)"
    assert drafted(f"{HF}{passed}").resume == "--resume_from_checkpoint {resume}"
    never = drafted(f"{HF}Trainer(m).train()")
    assert never.resume == "" and any("always starts at step 0" in note for note in never.notes)
    lightning = "import lightning as L\nt = L.Trainer()\n"
    assert any("fit(ckpt_path=" in note for note in drafted(f"{lightning}t.fit(m)").notes)
    assert not drafted(f"{lightning}t.fit(m, ckpt_path=path)").notes[1:]
    cli = "from lightning.pytorch.cli import LightningCLI\nLightningCLI(M)"
    assert drafted(cli).resume == "--ckpt_path {resume}"


@pytest.mark.parametrize(
    ("text", "other", "launcher"),
    [
        ("rank = int(os.environ['SLURM_PROCID'])", "", "srun"),
        ("import distributed", "import torch\nw = os.environ.get('SLURM_NTASKS')", "srun"),
        ("job = os.environ.get('SLURM_JOB_ID')", "", None),
        ("rank = os.environ['RANK']", "", None),
    ],
)
def test_script_that_reads_slurm_ranks_is_started_by_srun(
    text: str, other: str, launcher: str | None
) -> None:
    assert drafted(f"import os, torch\n{text}\n", f"import os\n{other}").launcher == launcher


# ---- parsers of other modules, subcommands, other starters ---------------------------------------


def test_parser_of_an_imported_module_is_the_scripts() -> None:
    text = "import torch\nfrom options import get_args\nargs = get_args()"
    parser = (
        "import argparse\ndef get_args():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--batch-size', type=int, default=16)\n"
        "    p.add_argument('--data', required=True)\n    return p.parse_args()"
    )
    tool = "import argparse\nif __name__ == '__main__':\n    argparse.ArgumentParser().parse_args()"
    found = draft_job(
        "train.py",
        read_script(ast.parse(text)),
        [read_script(ast.parse(one), is_imported=True) for one in (tool, parser)],
    )
    assert found.batch == {"micro_batch_per_gpu": 16} and found.required == ["--data"]


ARGPARSE_COMMANDS = """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument('--seed', type=int, default=0)
sub = p.add_subparsers(dest='cmd', required=True)
a = sub.add_parser('train')
g = a.add_argument_group('data')
g.add_argument('--batch-size', type=int, default=8)
a.add_argument('--data', required=True)
b = sub.add_parser('eval')
b.add_argument('--weights', required=True)
args = p.parse_args()
"""
CLICK_COMMANDS = """
import click, torch
@click.group()
def cli(): ...
@cli.command()
@click.option('--data', required=True)
@click.option('--batch-size', default=8)
def train(data, batch_size): ...
@cli.command('eval')
@click.option('--weights', required=True)
def evaluate(weights): ...
cli()
"""
TYPER_COMMANDS = """
import typer, torch
app = typer.Typer()
@app.command()
def train(data: str = typer.Option(...), batch_size: int = 8): ...
@app.command('eval')
def evaluate(weights: str = typer.Option(...)): ...
app()
"""


@pytest.mark.parametrize("text", [ARGPARSE_COMMANDS, CLICK_COMMANDS, TYPER_COMMANDS])
def test_subcommand_that_trains_begins_the_arguments(text: str) -> None:
    found = drafted(text)
    assert found.args == [("train", ""), ("--batch-size", "micro_batch_per_gpu")]
    assert found.required == ["--data"]
    assert read(format_job(found, {}, {}, "x")).args[:2] == ["train", "--batch-size"]


def test_unclear_subcommands_are_listed_in_a_note() -> None:
    text = ARGPARSE_COMMANDS.replace("'train'", "'stage1'")
    assert any("has the commands stage1, eval" in note for note in drafted(text).notes)


@pytest.mark.parametrize(
    ("text", "required"),
    [
        (
            "@click.command()\n@click.option('--data', required=True)\n@click.argument('out')\n"
            "@click.option('--lr', default=1e-3)\ndef f(data, out, lr): ...",
            ["--data", "OUT"],
        ),
        (
            "@click.command()\n@click.option('--key', required=True, envvar='KEY')\n"
            "@click.argument('out', required=False)\n@click.argument('more', nargs=-1)\n"
            "def f(key, out, more): ...",
            [],
        ),
        (
            "import typer\ndef f(data: str, lr: float = 1.0, out: Annotated[str, typer.Option()] "
            "= 'x', *, key: str = typer.Option(..., '--key')): ...\ntyper.run(f)",
            ["--key", "DATA"],
        ),
    ],
)
def test_required_arguments_of_click_and_typer_are_left_to_the_user(
    text: str, required: list[str]
) -> None:
    assert drafted(
        f"import torch\n{'' if 'typer' in text else 'import click'}\n{text}"
    ).required == (required)


@pytest.mark.parametrize("nargs", ["argparse.REMAINDER", "'...'", "'*'"])
def test_remaining_arguments_are_not_required(nargs: str) -> None:
    assert options("'--cfg', required=True", f"'opts', nargs={nargs}").required == ["--cfg"]


@pytest.mark.parametrize(
    ("option", "args"),
    [
        ("'--deepspeed', action='store_true'", [("--deepspeed", "")]),
        ("'--deepspeed', type=str, default=None", [("--deepspeed", "deepspeed_config")]),
    ],
)
def test_deepspeed_option_of_the_script_is_drafted(
    option: str, args: list[tuple[str, str]]
) -> None:
    found = options(option, start="import torch, deepspeed\n")
    assert found.args == args
    both = options(
        option.replace("type=str, default=None", "action='store_true'"),
        "'--deepspeed_config'",
        start="import torch, deepspeed\n",
    )
    assert both.args == [("--deepspeed_config", "deepspeed_config"), ("--deepspeed", "")]


@pytest.mark.parametrize(
    "text",
    [
        "import ray\nray.init()",
        "from ray.train.torch import TorchTrainer\nTorchTrainer(f).fit()",
        "from ray import tune\ntune.Tuner(f).fit()",
    ],
)
def test_ray_driver_runs_once_per_node(text: str) -> None:
    found = drafted(f"import torch\n{text}")
    assert found.command == ["python", "train.py"]
    spec = read(format_job(found, {"gpus_per_node": 4}, {}, "x"))
    assert spec.command == ["python", "train.py"] and spec.script is None


def test_thin_script_has_the_framework_of_its_modules() -> None:
    driver = "from tuner import run_exp\nrun_exp()"
    trainer = "from transformers import Seq2SeqTrainer\nSeq2SeqTrainer(m).train()"
    assert drafted(driver, "import deepspeed, accelerate", trainer).framework == "transformers"
    loop = "from accelerate import Accelerator\nAccelerator()"
    assert drafted(driver, loop).framework == "accelerate"
    assert drafted("import torch\nimport helper", trainer).framework == "torch"


def test_devices_and_nodes_of_lightning_are_the_jobs() -> None:
    start = "import lightning as L\nL.Trainer()\n"
    found = options("'--devices', type=int", "'--num-nodes', type=int", start=start)
    assert found.args == [("--devices", "gpus_per_node"), ("--num-nodes", "nodes")]
    fixed = drafted("import lightning as L\nL.Trainer(devices=2, num_nodes=3).fit(m)").notes
    assert any("devices=2" in note for note in fixed)
    assert any("num_nodes=3" in note for note in fixed)


@pytest.mark.parametrize(
    ("text", "is_single"),
    [
        ("import torch, numpy", True),
        ("import torch\nfrom model import Net", True),
        ("import torch\nmodel = torch.nn.DataParallel(model)", True),
        ("import torch\nfrom torch.nn.parallel import DistributedDataParallel", False),
        ("import os, torch\nrank = os.environ['LOCAL_RANK']", False),
        ("import torch\ntorch.distributed.init_process_group()", False),
        ("import torch, horovod.torch as hvd", False),
        ("import torch, unidecode", False),
        ("import torch, unidecode\nloss.backward()", True),
        ("import torch, transformers, dgl\nlosses[0].mean().backward()", True),
        ("import torch, horovod.torch as hvd\nloss.backward()", False),
        ("import torch, idr_torch\nloss.backward()", False),
        ("import torch, torch_xla\nloss.backward()", False),
        ("import torch\nfrom accelerate import Accelerator\nAccelerator()", False),
    ],
)
def test_script_that_joins_no_processes_is_drafted_for_one_gpu(text: str, is_single: bool) -> None:
    facts = read_script(ast.parse(text))
    assert draft_job("train.py", facts, [], ["model"]).is_single == is_single
    helper = read_script(ast.parse("import torch.distributed as dist"), is_imported=True)
    assert not draft_job("train.py", facts, [helper], ["model"]).is_single


@pytest.mark.parametrize(
    "option",
    [
        "'--save', default='model.pt'",
        "'--output', default='runs/loss.json'",
        "'--save', action='store_true'",
        "'--checkpoint', type=int, default=5",
        "'--out', nargs='+'",
        "'--save', default=name + '.pt', help='path to save the final model'",
        "'--output'",
        "'--save_path', help='file for the weights'",
        "'--save-path', help='where to save the best model'",
        "'--out', help='for example model.pth'",
    ],
)
def test_option_for_a_file_or_a_switch_does_not_get_the_checkpoint_folder(option: str) -> None:
    assert options(option).args == []
    assert options("'--save', default='results/v1.0/'").args == [("--save", "checkpoint_dir")]
    for named in ("'--out', help='output directory'", "'--save_path'", "'--save-dir'"):
        assert [place for _, place in options(named).args] == ["checkpoint_dir"]


@pytest.mark.parametrize(
    ("use", "is_folder"),
    [
        ("os.path.join(args.out, 'm.pt')", True),
        ("os.makedirs(args.out, exist_ok=True)", True),
        ("model.save_pretrained(args.out)", True),
        ("torch.save(model, args.out)", False),
        ("','.join(args.out)", False),
    ],
)
def test_option_that_the_script_uses_as_a_folder_gets_the_checkpoint_folder(
    use: str, is_folder: bool
) -> None:
    text = f"{PARSER}p.add_argument('--out', required=True)\nargs = p.parse_args()\n{use}\n"
    found = drafted(f"import os, torch.distributed\n{text}")
    assert found.args == ([("--out", "checkpoint_dir")] if is_folder else [])
    assert found.required == ([] if is_folder else ["--out"])


def test_trainer_of_the_project_is_not_that_of_transformers() -> None:
    script = "import torch\nfrom lab.trainer import Trainer\nTrainer(model).run()"
    model = "from transformers import GPT2LMHeadModel"
    assert drafted(script, "class Trainer: ...", model).framework == "torch"
    derived = "from transformers import Trainer as Base\nclass Trainer(Base): ..."
    assert drafted(script, derived, model).framework == "transformers"


FIRE = """
import fire, torch
def train(data_path: str, micro_batch_size: int = 4, lr=3e-4, fp16=False): ...
if __name__ == "__main__":
    fire.Fire({component})
"""


@pytest.mark.parametrize(
    ("component", "args"),
    [
        ("train", [("--micro_batch_size", "micro_batch_per_gpu")]),
        ("component=train", [("--micro_batch_size", "micro_batch_per_gpu")]),
        ("", [("train", ""), ("--micro_batch_size", "micro_batch_per_gpu")]),
        (
            "{'train': train, 'test': print}",
            [("train", ""), ("--micro_batch_size", "micro_batch_per_gpu")],
        ),
    ],
)
def test_options_of_fire_are_the_parameters_of_the_function(
    component: str, args: list[tuple[str, str]]
) -> None:
    found = drafted(FIRE.replace("{component}", component))
    assert (found.args, found.required) == (args, ["--data_path"])


def test_options_of_fire_are_the_parameters_of_the_methods_of_a_class() -> None:
    found = drafted(
        "import fire, torch\nclass Job:\n"
        "    def __init__(self, seed, width=8): ...\n"
        "    def train(self, batch_size=4): ...\n"
        "    def evaluate(self, weights): ...\n"
        "    def _load(self, path): ...\n"
        "fire.Fire(Job)"
    )
    assert found.args == [("train", ""), ("--batch_size", "micro_batch_per_gpu")]
    assert found.required == ["--seed"]


TYRO = """
import torch, tyro
from dataclasses import dataclass, field
from typing import Literal, Optional
@dataclass
class Optim:
    lr: float = 1e-3
    kind: Literal["adam", "sgd"] = "adam"
@dataclass
class Args:
    data: str
    batch_size: int = 8
    compile: bool = True
    resume_from: Optional[str] = None
    optim: Optim = field(default_factory=Optim)
    layers: list[int] = field(default_factory=list)
"""


@pytest.mark.parametrize(
    "end",
    [
        "args = tyro.cli(Args)",
        "from tyro import cli\ncli(Args)",
        "def main(data: str, batch_size: int = 8, *, optim: Optim): ...\ntyro.cli(main)",
    ],
)
def test_options_of_tyro_are_the_fields_of_a_dataclass_or_function(end: str) -> None:
    found = drafted(TYRO + end)
    assert found.args[0] == ("--batch-size", "micro_batch_per_gpu")
    assert found.required == ["--data"]


def test_nested_and_switched_options_of_tyro_are_known() -> None:
    facts = read_script(ast.parse(TYRO + "tyro.cli(Args)"))
    names = {option.names[-1].replace("no-", ""): option for option in facts.options}
    assert [*names] == [
        *("--data", "--batch-size", "--compile", "--resume-from", "--optim.lr", "--optim.kind"),
        "--layers",
    ]
    assert names["--compile"].names == ["--compile", "--no-compile"]
    assert names["--optim.kind"].choices == ["adam", "sgd"]


def test_field_of_tyro_that_the_script_computes_is_no_batch_option() -> None:
    """As in CleanRL, where batch_size is num_envs * num_steps."""
    text = TYRO.replace("batch_size: int = 8", "batch_size: int = 0") + "tyro.cli(Args)"
    found = drafted(text)
    assert (found.args, found.notes) == ([], [])


@pytest.mark.parametrize(
    ("option", "is_output"),
    [
        ("'--work-dir', default='out', help='output working directory'", True),
        ("'--work_dir', help='the dir to save logs and models'", True),
        ("'--workdir', default='./work_dirs/a'", True),
        ("'--work-dir', help='the project'", False),
    ],
)
def test_working_directory_that_the_script_writes_to_is_the_jobs(
    option: str, is_output: bool
) -> None:
    placeholders = [placeholder for _, placeholder in options(option).args]
    assert ("checkpoint_dir" in placeholders) == is_output
