"""``hpcrun fit``: memory from numbers and from config.json, as text and JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.cli.calling import Caller
from tests.json_schemas import check_json
from tests.source import ROOT

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
NUMBERS = (
    *("--params", "7.6B", "--layers", "28", "--hidden", "3584", "--heads", "28"),
    *("--kv-heads", "4", "--ffn", "18944", "--vocab", "152064"),
)


def test_fit_reads_the_configuration_of_a_model(hpcrun: Caller) -> None:
    hpcrun.write("Qwen2.5-7B/config.json", json.dumps(QWEN))
    options = ("--seq", "4096", "--gpus-per-node", "4", "--gpu", "a100-40g")
    done = hpcrun("fit", "--model", "Qwen2.5-7B", *options)
    assert done.code == 0
    assert "qwen2: 7.62 B parameters" in done.out
    assert "ZeRO-2 on 4 GPUs" in done.out
    assert "of 39.4 GiB: does not fit" in done.out


def test_fit_finds_a_model_in_the_cache_of_the_hub(hpcrun: Caller) -> None:
    cache = hpcrun.project / "hub"
    folder = cache / "models--Qwen--Qwen2.5-7B"
    for revision, layers in (("old", 1), ("new", 28)):
        (folder / "snapshots" / revision).mkdir(parents=True)
        config = json.dumps({**QWEN, "num_hidden_layers": layers})
        (folder / "snapshots" / revision / "config.json").write_text(config)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("new")
    hpcrun.environ["HF_HUB_CACHE"] = str(cache)
    answer = hpcrun("fit", "--model", "Qwen/Qwen2.5-7B", "--json").json
    assert answer["parameters"] == 7_615_616_512


def test_fit_with_numbers_prints_json_that_conforms_to_its_schema(hpcrun: Caller) -> None:
    answer = hpcrun("fit", *NUMBERS, "--seq", "4096", "--table", "--json").json
    check_json("fit", answer)
    assert len(answer["candidates"]) == 11
    assert answer["gpu"]["fits"] is None and answer["gpu"]["capacity"] is None
    sizes = {each["name"]: each["gpu"]["total"] for each in answer["candidates"]}
    assert sizes["ZeRO-3, checkpointing"] < sizes["ZeRO-3"]
    assert list(sizes).index("ZeRO-2, checkpointing") < list(sizes).index("ZeRO-3")


def test_table_compares_numbers_of_gpus_and_names_the_fastest_that_fits(hpcrun: Caller) -> None:
    asked = ("--seq", "4096", "--gpus-per-node", "4", "--gpu", "h100", "--table")
    answer = hpcrun("fit", *NUMBERS, *asked, "--json").json
    check_json("fit", answer)
    assert [(each["gpus"], each["gpus_per_node"]) for each in answer["sizes"]] == [
        *((1, 1), (2, 2), (4, 4), (8, 4), (16, 4))
    ]
    totals = [each["totals"]["ZeRO-3, checkpointing"] for each in answer["sizes"]]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 5
    fastest = {each["gpus"]: each["fastest"] for each in answer["sizes"]}
    assert fastest[4] == "ZeRO-2, checkpointing" and fastest[1] == "ZeRO-2, optimizer on CPU"
    done = hpcrun("fit", *NUMBERS, *asked)
    table = done.out.partition("FASTEST THAT FITS")[2]
    assert re.search(r"4 GPUs +ZeRO-", table) and "1 GPU " in table
    assert "the micro batch per GPU is the same" in done.err


def test_table_has_the_notes_and_the_configuration_asked_for(hpcrun: Caller) -> None:
    done = hpcrun("fit", "--params", "7B", "--zero", "3", "--gpus-per-node", "8", "--table")
    assert "activations are not included" in done.err
    first, asked = done.out.splitlines()[:2]
    assert first.startswith("CONFIGURATION") and asked.startswith("as given: ZeRO-3 on 8 GPUs")


def test_weights_in_16_bits_and_kept_gradients_change_the_estimate(hpcrun: Caller) -> None:
    def sizes(*options: str) -> dict[str, float]:
        answer = hpcrun("fit", *NUMBERS, "--seq", "8192", "--ddp", *options, "--json").json
        parts: dict[str, float] = answer["gpu"]["parts"]
        return parts

    assert sizes("--pure")["parameters"] * 2 == sizes()["parameters"]
    assert sizes("--pure", "--batch", "4")["gradients"] == 0
    kept = sizes("--pure", "--batch", "4", "--keep-gradients")
    assert kept["gradients"] == kept["parameters"]
    done = hpcrun("fit", *NUMBERS, "--seq", "512", "--ddp", "--keep-gradients")
    assert "gradients kept between steps" in done.out


def test_fit_without_dimensions_says_that_activations_are_missing(hpcrun: Caller) -> None:
    done = hpcrun("fit", "--params", "7B", "--zero", "3", "--gpus-per-node", "8", "--gpu", "h100")
    assert "activations are not included" in done.err
    assert "model states fit; activations are unknown" in done.out
    sharded = ("--params", "7B", "--zero", "3", "--gpus-per-node", "8", "--gpu", "h100", "--json")
    assert hpcrun("fit", *sharded).json["gpu"]["fits"] is None
    alone = ("--params", "7B", "--gpu", "h100", "--json")
    assert hpcrun("fit", *alone).json["gpu"]["fits"] is False  # the states alone exceed the GPU


@pytest.mark.parametrize(
    ("argv", "message", "fix"),
    [
        ((), "name a job, or a model", ""),
        (("--model", "nothing"), "nothing: no folder with a config.json", "give numbers"),
        (("--params", "many"), "many: not a number of parameters", "7B"),
        (("--params", "7B", "--gpu", "a100"), "several sizes", "--gpu a100-40g or --gpu a100-80g"),
        (("--params", "7B", "--gpu", "h1000"), "unknown to hpcrun", "did you mean h100?"),
        (("--params", "7B", "--zero", "2", "--offload", "all"), "only ZeRO 3", "--zero 3"),
        (("--params", "7B", "--ddp", "--offload", "optimizer"), "needs ZeRO", "--zero 2"),
        (
            (
                "--params",
                "0",
            ),
            "0: not a number of parameters",
            "7B",
        ),
        (("--params", "1e999"), "1e999: not a number of parameters", "7B"),
        (("--params", "7B", "--trainable", "8B"), "the model has 7,000,000,000 parameters", ""),
        (("--params", "7B", "--gpu", "0G"), "unknown to hpcrun", "48G"),
        (("--params", "7B", "--gpu", ".G"), "unknown to hpcrun", "48G"),
        (("--layers", "4", "--hidden", "512", "--heads", "7"), "do not divide a width", ""),
        (("--layers", "4", "--hidden", "512", "--heads", "8", "--kv-heads", "3"), "key-value", ""),
        (("--params", "7B", "--heads", "32"), "--heads has no effect without", "give both"),
        (("--params", "7B", "--layers", "32"), "--layers has no effect without", "give both"),
        (("--params", "7B", "--zero", "2", "--pure"), "fp32 master weights", "--ddp or --fsdp"),
        (("--params", "7B", "--zero", "2", "--ddp"), "choose one", ""),
        (("--model", "bad", "--layers", "3"), "--model and --layers", ""),
        (("--model", "bad"), "no hidden_size or n_embd or d_model", "give numbers"),
        (("--model", "images"), "the memory of resnet cannot be computed", "fit JOB --trace"),
        (("--model", "broken"), "cannot be read", "give numbers"),
    ],
)
def test_fit_refuses_bad_input(
    hpcrun: Caller, argv: tuple[str, ...], message: str, fix: str
) -> None:
    hpcrun.write("bad/config.json", '{"model_type": "bert", "depths": [3, 4, 6, 3]}')
    hpcrun.write("images/config.json", '{"model_type": "resnet", "depths": [3, 4, 6, 3]}')
    hpcrun.write("broken/config.json", "{")
    done = hpcrun("fit", *argv)
    assert done.code == 2 and done.out == ""
    assert message in done.err and fix in done.err
    assert "Traceback" not in done.err


def test_fit_imports_neither_torch_nor_numpy(hpcrun: Caller) -> None:
    hpcrun.write("m/config.json", json.dumps(QWEN))
    program = (
        "import sys; from hpcrun.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "fit", "--model", "m", "--seq", "128"],
        cwd=hpcrun.project,
        env=hpcrun.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name.partition(".")[0] for name in done.stderr.split()}
    assert "hpcrun" in found and not found & {"torch", "numpy", "yaml", "jinja2", "paramiko"}


# ---- jobs

SCRIPT = """\
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
parser.add_argument("--max_seq_length", type=int)
parser.add_argument("--deepspeed_config")
args = parser.parse_args()
"""
JOB = """\
script: train.py
framework: deepspeed
args: [--model_name_or_path, qwen, --max_seq_length, 512, --deepspeed_config, "{deepspeed_config}"]
resources: {gpus_per_node: 4, gpu_type: a100, time: 1h}
batch: {micro_batch_per_gpu: 2}
deepspeed: {zero_stage: 2}
"""


@pytest.fixture
def project(hpcrun: Caller) -> Caller:
    """A DeepSpeed job of a model with 7.6 billion parameters, on GPUs of 40 GB."""
    profile = (hpcrun.project / "hpcrun.yaml").read_text()
    hpcrun.write("hpcrun.yaml", profile + "gpu_types: {a100: {gres: a100-40g}}\n")
    hpcrun.write("qwen/config.json", json.dumps(QWEN))
    hpcrun.write("train.py", SCRIPT)
    hpcrun.write("job.yaml", JOB)
    return hpcrun


def test_fit_of_a_job_uses_its_model_and_settings(project: Caller) -> None:
    answer = project("fit", "job.yaml", "--json").json
    check_json("fit", answer)
    assert answer["parameters"] == 7_615_616_512
    assert answer["gpu"]["capacity"] == round(39.38 * 2**30) and not answer["gpu"]["fits"]
    assert answer["gpu"]["parts"]["master weights"] == 7_615_616_512
    smaller = project("fit", "job.yaml", "--set", "deepspeed.zero_stage=3", "--json").json
    assert smaller["gpu"]["total"] < answer["gpu"]["total"]
    text = project("fit", "job.yaml").out
    assert "ZeRO-2 on 4 GPUs" in text and "2 per GPU x 512 tokens" in text


def test_host_memory_beyond_that_of_the_job_does_not_fit(project: Caller) -> None:
    options = ("--set", "deepspeed.offload.optimizer=cpu", "--set", "resources.memory_per_node=60G")
    done = project("fit", "job.yaml", *options)
    assert "of 60 GiB of host memory: does not fit" in done.out
    assert (
        "of 60 GiB of host memory: does not fit"
        in project("fit", "job.yaml", "--table", *options).out
    )
    assert project("fit", "job.yaml", "--json", *options).json["gpu"]["fits"] is False


def test_fit_of_a_lora_job_has_a_note_and_no_verdict(project: Caller) -> None:
    project.write("train.py", SCRIPT + "model = get_peft_model(model, config)\n")
    done = project("fit", "job.yaml", "--set", "activation_checkpointing=true")
    assert "computed as if all parameters were trained" in done.err
    assert "does not fit" not in done.out and "activation checkpointing" in done.out
    assert project("fit", "job.yaml", "--json").json["gpu"]["fits"] is None


def test_fit_of_a_job_refuses_options_that_the_job_has(project: Caller) -> None:
    done = project("fit", "job.yaml", "--zero", "3")
    assert done.code == 2 and "--zero with a job" in done.err and "--set" in done.err
    done = project("fit", "job.yaml", "--keep-gradients")
    assert done.code == 2 and "its script decides that" in done.err and "--trace" in done.err


def test_fit_of_a_job_without_a_known_model_names_the_options(project: Caller) -> None:
    done = project("fit", "job.yaml", "--set", "args=[--model_name_or_path, other/model]")
    assert done.code == 2 and "name no model" in done.err and "--model DIR" in done.err
    known = project("fit", "job.yaml", "--set", "args=[]", "--model", "qwen", "--json").json
    assert known["parameters"] == 7_615_616_512
    assert any("activations are not included" in note for note in known["notes"])


def test_submit_refuses_model_states_larger_than_the_gpu(project: Caller) -> None:
    done = project("submit", "job.yaml", "--dry-run")
    assert done.code == 2
    assert "qwen needs 42.6 GiB per GPU for parameters, gradients and optimizer alone" in done.err
    assert "--set deepspeed.zero_stage=2 --set deepspeed.offload.optimizer=cpu" in done.err
    ignored = project("submit", "job.yaml", "--dry-run", "--no-check", "--json").json
    assert any("--no-check: memory: qwen needs" in note for note in ignored["notes"])


def test_submit_shows_the_memory_of_a_known_model(project: Caller) -> None:
    options = ("--set", "deepspeed.zero_stage=3", "--set", "deepspeed.offload.optimizer=cpu")
    notes = project("submit", "job.yaml", "--dry-run", "--json", *options).json["notes"]
    (line,) = [note for note in notes if note.startswith("memory: ")]
    assert "of 39.4 GiB per GPU (parameters" in line and "activations" in line
    assert "may not fit" not in line
    files = project("submit", "job.yaml", "--dry-run", "--json", *options).json
    total = json.loads(files["plan.json"])["estimated_memory"] / 2**30
    assert f"about {total:.1f} of" in line


OFFLOADED = ("--set", "deepspeed.offload.optimizer=cpu")


def test_submit_refuses_offload_beyond_the_host_memory_of_the_job(project: Caller) -> None:
    small = (*OFFLOADED, "--set", "resources.memory_per_node=100G")
    done = project("submit", "job.yaml", "--dry-run", *small)
    assert done.code == 2
    assert "what DeepSpeed offloads for qwen needs 131.7 GiB of host memory" in done.err
    assert "and the job has 100.0 GiB; --set resources.memory_per_node=153G" in done.err
    ignored = project("submit", "job.yaml", "--dry-run", "--no-check", "--json", *small).json
    assert any("--no-check: memory: what DeepSpeed" in note for note in ignored["notes"])
    # Between the states alone and the estimate, which has uncertain parts, nothing is refused.
    middle = (*OFFLOADED, "--set", "resources.memory_per_node=140G")
    notes = project("submit", "job.yaml", "--dry-run", "--json", *middle).json["notes"]
    assert any("about 153 of 140 GiB per node, it may not fit" in note for note in notes)
    suggested = (*OFFLOADED, "--set", "resources.memory_per_node=153G")
    notes = project("submit", "job.yaml", "--dry-run", "--json", *suggested).json["notes"]
    assert not any("host memory" in note for note in notes)


def test_submit_suggests_nodes_where_one_has_too_little_host_memory(project: Caller) -> None:
    text = (project.project / "hpcrun.yaml").read_text()
    node = "{gpus_per_node: 4, memory_per_node: 120G}"
    project.write("hpcrun.yaml", text + f"partition: gpu\npartitions: {{gpu: {node}}}\n")
    done = project("submit", "job.yaml", "--dry-run", *OFFLOADED)
    assert done.code == 2 and "and the job has 120.0 GiB; on 2 nodes, each needs" in done.err
    assert "--set resources.nodes=2 --set resources.memory_per_node=" in done.err


def test_submit_notes_ranks_that_load_more_than_the_host_memory(project: Caller) -> None:
    project.write("train.py", SCRIPT + "model = AutoModel.from_pretrained(args.model)\n")
    options = ("--set", "deepspeed.zero_stage=3")
    memory = ("--set", "resources.memory_per_node=40G")
    notes = project("submit", "job.yaml", "--dry-run", "--json", *options, *memory).json["notes"]
    assert any("57 GiB if all ranks of a node load the whole model" in note for note in notes)


def test_fit_reads_the_deepspeed_json_that_the_script_reads_itself(project: Caller) -> None:
    own = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    project.write("own.json", json.dumps(own))
    job = JOB.replace('"{deepspeed_config}"', "own.json").replace("deepspeed: {zero_stage: 2}", "")
    project.write("job.yaml", job)
    assert "ZeRO-3 on 4 GPUs" in project("fit", "job.yaml").out
    project.write("job.yaml", job.replace("own.json", "lost.json"))
    done = project("fit", "job.yaml")
    assert done.code == 2 and "a file that cannot be read" in done.err


def test_workers_of_the_data_loader_are_in_host_memory(project: Caller) -> None:
    def loader(*options: str) -> int | None:
        parts: dict[str, int] = project("fit", "job.yaml", "--json", *options).json["node"]["parts"]
        return parts.get("data loader")

    assert loader() is None
    project.write("train.py", SCRIPT + "loader = DataLoader(data, num_workers=8)\n")
    batch = 2 * 512 * 3 * 8  # micro batch, tokens, three numbers of 8 bytes
    assert loader() == pytest.approx(4 * 8 * (0.05 * 2**30 + 2 * batch), abs=1)
    arguments = JOB.replace("args: [", "args: [--dataloader_num_workers, 2, ")
    project.write("job.yaml", arguments)
    assert loader() == pytest.approx(4 * 2 * (0.05 * 2**30 + 2 * batch), abs=1)


@pytest.mark.parametrize(
    "change",
    [
        {"args": "args=[--deepspeed_config, '{deepspeed_config}']"},  # names no model
        {"args": "args=[--model_name_or_path, other/model]"},  # is not on this machine
        {"args": "args=[--model_name_or_path, qwen, --deepspeed_config, own.json]"},
        {"args": "args=[--model_name_or_path, qwen]"},  # without hpcrun's settings of DeepSpeed
        {"script": SCRIPT + "from peft import LoraConfig\n"},  # trains a part of the model
        {"script": SCRIPT + "for p in model.parameters(): p.requires_grad = False\n"},
        {"script": SCRIPT + "model = get_peft_model(model, config)\n"},
        {"script": SCRIPT + "model.encoder.requires_grad_(False)\n"},
        {"script": SCRIPT + "import adapting\n"},  # a module that has LoRA
        {"arguments": "--use_lora"},
        {"gpu": "fastgpu"},  # has an unknown size
        {"config": json.dumps({**QWEN, "model_type": "unheard"})},
        {"config": "{"},
    ],
)
def test_submit_refuses_nothing_where_the_memory_is_uncertain(
    project: Caller, change: dict[str, str]
) -> None:
    if "script" in change:
        project.write("train.py", change["script"])
    if "config" in change:
        project.write("qwen/config.json", change["config"])
    if "gpu" in change:
        text = (project.project / "hpcrun.yaml").read_text()
        project.write("hpcrun.yaml", text.replace("a100-40g", change["gpu"]))
    if "arguments" in change:
        text = SCRIPT.replace("args =", f'parser.add_argument("{change["arguments"]}")\nargs =')
        project.write("train.py", text)
        project.write("job.yaml", JOB.replace("args: [", f"args: [{change['arguments']}=1, "))
    project.write("adapting.py", "layer = LoraLinear(8)\n")
    options = ("--set", change["args"]) if "args" in change else ()
    done = project("submit", "job.yaml", "--dry-run", *options)
    assert done.code == 0, done
    assert "--no-check" not in done.err


# ---- traces

TRACED_JOB = """\
script: traced.py
args: [--batch, "{micro_batch_per_gpu}"]
precision: bf16
resources: {gpus_per_node: 4, gpu_type: a100, time: 1h}
batch: {micro_batch_per_gpu: 64}
"""


@pytest.fixture
def traced(project: Caller) -> Caller:
    """A job of a script that is written for GPUs."""
    script = ROOT / "tests" / "workloads" / "traced_script.py"
    project.write("traced.py", script.read_text())
    project.write("traced.yaml", TRACED_JOB)
    return project


@pytest.mark.slow
def test_fit_traces_the_script_of_a_job_and_computes_its_sharding(traced: Caller) -> None:
    answer = traced("fit", "traced.yaml", "--trace", "--table", "--json").json
    check_json("fit", answer)
    numbers = 2 * 1024 * 4096 + 4096 + 1024
    assert answer["parameters"] == answer["trainable"] == numbers
    parts = answer["gpu"]["parts"]
    assert parts["parameters"] == parts["gradients"] == parts["buckets"] == 4 * numbers
    assert parts["optimizer"] == pytest.approx(8 * numbers, rel=1e-5)
    assert answer["gpu"]["fits"]
    names = [each["name"] for each in answer["candidates"]]
    assert names[:2] == ["DDP", "ZeRO-1"] and not any("checkpointing" in name for name in names)


@pytest.mark.slow
def test_fit_says_where_a_script_cannot_be_traced(traced: Caller) -> None:
    done = traced("fit", "traced.yaml", "--trace", "--set", "args=[--fail]")
    assert done.code == 2
    assert "traced.yaml cannot be traced: traced.py:26: ValueError: no data in" in done.err
    assert "--layers" in done.err


def test_fit_refuses_to_trace_without_a_script_in_python(traced: Caller) -> None:
    assert traced("fit", "--params", "7B", "--trace").code == 2
    with_model = traced("fit", "traced.yaml", "--trace", "--model", "qwen")
    assert with_model.code == 2 and "the script determines them" in with_model.err
    traced.write(
        "shell.yaml", "command: [bash, train.sh]\nresources: {gpus_per_node: 1, time: 1h}\n"
    )
    shell = traced("fit", "shell.yaml", "--trace")
    assert shell.code == 2 and "needs a Python script" in shell.err


def _write_weights(hpcrun: Caller, name: str, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Write the header of a safetensors file; the numbers themselves are not read."""
    header = {
        key: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]}
        for key, (kind, shape) in tensors.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path = hpcrun.write(name, "")
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def test_states_of_a_unet_are_computed_by_the_weights_beside_its_config(hpcrun: Caller) -> None:
    hpcrun.write("pipe/model_index.json", '{"_class_name": "StableDiffusionPipeline"}')
    hpcrun.write("pipe/unet/config.json", '{"_class_name": "UNet2DConditionModel"}')
    name = "diffusion_pytorch_model"
    refused = hpcrun("fit", "--model", "pipe/unet")
    assert refused.code == 2 and "UNet2DConditionModel cannot be computed" in refused.err
    assert "--model" in hpcrun("fit", "--model", "pipe").err
    assert "pipe/unet" in hpcrun("fit", "--model", "pipe").err

    _write_weights(hpcrun, f"pipe/unet/{name}.safetensors", {"a": ("F32", [1000, 2000])})
    _write_weights(hpcrun, f"pipe/unet/{name}.fp16.safetensors", {"a": ("F16", [1000, 2000])})
    done = hpcrun("fit", "--model", "pipe/unet", "--json")
    assert done.json["parameters"] == 2_000_000
    assert done.json["gpu"]["fits"] is None
    assert f"of the parameters in {name}.safetensors" in done.json["notes"][0]

    for number in (1, 2):
        _write_weights(hpcrun, f"pipe/unet/part-{number}.safetensors", {"a": ("BF16", [500])})
    parts = {"a": "part-1.safetensors", "b": "part-2.safetensors"}
    hpcrun.write(f"pipe/unet/{name}.safetensors.index.json", json.dumps({"weight_map": parts}))
    assert hpcrun("fit", "--model", "pipe/unet", "--json").json["parameters"] == 1000


def test_parameters_of_an_unknown_type_are_those_of_the_weights_beside_it(hpcrun: Caller) -> None:
    hpcrun.write("m/config.json", json.dumps({**QWEN, "model_type": "new"}))
    options = ("fit", "--model", "m", "--seq", "128", "--gpu", "b200", "--json")
    guessed = hpcrun(*options).json
    assert guessed["gpu"]["fits"] is None and "is unknown to hpcrun" in guessed["notes"][0]
    _write_weights(hpcrun, "m/model.safetensors", {"a": ("BF16", [5, 10**9])})
    counted = hpcrun(*options).json
    assert counted["parameters"] == 5 * 10**9 and counted["gpu"]["fits"] is not None
    assert "the number of parameters is that of model.safetensors" in counted["notes"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x02" + b"\0" * 7 + b"[]"])
def test_damaged_or_quantized_weights_are_not_counted(hpcrun: Caller, content: bytes) -> None:
    hpcrun.write("m/config.json", '{"_class_name": "UNet2DConditionModel"}')
    hpcrun.write("m/model.safetensors", "").write_bytes(content)
    damaged = hpcrun("fit", "--model", "m")
    _write_weights(hpcrun, "m/model.safetensors", {"a": ("U8", [1000])})
    for done in (damaged, hpcrun("fit", "--model", "m")):
        assert done.code == 2 and "cannot be computed" in done.err, done


def test_fit_names_the_base_model_of_an_adapter(hpcrun: Caller) -> None:
    hpcrun.write("lora/adapter_config.json", '{"peft_type": "LORA"}')
    assert "an adapter without its base model" in hpcrun("fit", "--model", "lora").err


# ---- --measure


def test_measure_refuses_what_it_cannot_measure(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "print(1)\n")
    hpcrun.write(
        "bash.yaml", "command: [bash, train.sh]\nresources: {gpus_per_node: 1, time: 1h}\n"
    )
    hpcrun.write("sweep.yaml", "script: train.py\nsweep: {lr: [1, 2]}\nargs: ['--lr={lr}']\n")
    for argv, message in (
        (["--measure"], "--measure runs the script of a job: name one"),
        (["bash.yaml", "--steps", "3"], "--steps is an option of --measure"),
        (["bash.yaml", "--measure", "--table"], "--measure with --table"),
        (["bash.yaml", "--measure"], "--measure needs a Python script"),
        (["sweep.yaml", "--measure"], "--measure does not measure a sweep"),
    ):
        done = hpcrun("fit", *argv)
        assert done.code == 2 and message in done.err, done
    assert not hpcrun.runs.exists() or not list(hpcrun.runs.iterdir())


def test_measure_submits_nothing_without_a_yes(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("job.yaml", "script: train.py\nresources: {gpus_per_node: 1, time: 1h}\n")
    done = hpcrun("fit", "job.yaml", "--measure")
    assert done.code != 0 and "makes 2 optimizer steps and ends" in done.err, done
    assert not hpcrun.runs.exists() or not list(hpcrun.runs.iterdir())


def test_fit_reads_the_files_of_arguments_in_the_workdir(project: Caller) -> None:
    """A model and a DeepSpeed JSON of these names in the project are others."""
    layers = {**QWEN, "num_hidden_layers": 2}
    project.write("train/qwen/config.json", json.dumps(layers))
    project.write("train/ds.json", '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    project.write("ds.json", '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}')
    job = JOB.replace('"{deepspeed_config}"', "ds.json").replace("deepspeed: {zero_stage: 2}\n", "")
    project.write("job.yaml", job)
    at_root = project("fit", "job.yaml", "--json").json
    project.write("job.yaml", f"{job}workdir: train\n")
    below = project("fit", "job.yaml", "--json").json
    assert at_root["parameters"] == 7_615_616_512 > below["parameters"]
    assert "ZeRO-3 on 4 GPUs" in project("fit", "job.yaml").out
    named = project("fit", "job.yaml", "--model", "qwen", "--json").json
    assert named["parameters"] == at_root["parameters"]
