"""``hpcrun fit``: memory from numbers and from config.json, as text and JSON."""

from __future__ import annotations

import json
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


def test_fit_without_dimensions_says_that_activations_are_missing(hpcrun: Caller) -> None:
    done = hpcrun("fit", "--params", "7B", "--zero", "3", "--gpus-per-node", "8", "--gpu", "h100")
    assert "activations are not included" in done.err
    assert "model states fit; activations are unknown" in done.out
    assert hpcrun("fit", "--params", "7B", "--gpu", "h100", "--json").json["gpu"]["fits"] is None


@pytest.mark.parametrize(
    ("argv", "message", "fix"),
    [
        ((), "name a model", ""),
        (("--model", "nothing"), "nothing: no folder with a config.json", "give numbers"),
        (("--params", "many"), "many: not a number of parameters", "7B"),
        (("--params", "7B", "--gpu", "a100"), "several sizes", "--gpu a100-40g or --gpu a100-80g"),
        (("--params", "7B", "--gpu", "h1000"), "unknown to hpcrun", "did you mean h100?"),
        (("--params", "7B", "--zero", "2", "--offload", "all"), "only ZeRO 3", "--zero 3"),
        (("--params", "7B", "--ddp", "--offload", "optimizer"), "needs ZeRO", "--zero 2"),
        (("--params", "7B", "--zero", "2", "--ddp"), "choose one", ""),
        (("--model", "bad", "--layers", "3"), "--model and --layers", ""),
        (("--model", "bad"), "no hidden_size or n_embd or d_model", "give numbers"),
        (("--model", "broken"), "cannot be read", "give numbers"),
    ],
)
def test_fit_refuses_bad_input(
    hpcrun: Caller, argv: tuple[str, ...], message: str, fix: str
) -> None:
    hpcrun.write("bad/config.json", '{"model_type": "resnet", "depths": [3, 4, 6, 3]}')
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
