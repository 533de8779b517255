"""Settings of a job's plan as the memory model reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from hpcrun.actions.job_memory import (
    JobMemory,
    _list_unmodelled,
    _read_deepspeed,
    _read_training,
    estimate_options,
    find_capacity,
    find_host_capacity,
    find_own_deepspeed_file,
    parse_arguments,
    suggest_smaller,
)
from hpcrun.actions.program import Program, command_program
from hpcrun.actions.start_folder import StartFolder
from hpcrun.fit import estimate_memory
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import build_shape
from hpcrun.plan import Plan
from hpcrun.spec import Cluster, GpuType, JobSpec, Partition, Resources
from hpcrun.text import GIB

SHAPE = build_shape(layers=2, hidden=1024)


def read(config: dict[str, Any], **arguments: str) -> Training | None:
    return _read_deepspeed(Training(), config, arguments, SHAPE)


def test_deepspeed_settings_are_read_from_its_json() -> None:
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme"},
        "reduce_bucket_size": 2e8,
    }
    found = read({"zero_optimization": zero, "bf16": {"enabled": True}})
    assert found is not None
    assert (found.zero_stage, found.precision, found.weights) == (3, "bf16", "master")
    assert (found.offload_optimizer, found.offload_param) == ("cpu", "nvme")
    assert found.reduce_bucket == 200_000_000 and found.prefetch_bucket == 50_000_000


def test_auto_sizes_are_those_of_the_trainer() -> None:
    zero = {"stage": 2, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    found = read({"zero_optimization": zero, "bf16": {"enabled": "auto"}}, bf16="true")
    assert found is not None and found.precision == "bf16"
    assert (found.reduce_bucket, found.prefetch_bucket) == (1024**2, int(0.9 * 1024**2))


@pytest.mark.parametrize(
    "config",
    [
        {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}},
        {"zero_optimization": {"stage": "auto"}},
        {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 4}},
    ],
)
def test_unknown_settings_give_no_estimate(config: dict[str, Any]) -> None:
    assert read(config) is None


@pytest.mark.parametrize(
    ("wanted", "types", "gib"),
    [
        ("a100", {"a100": GpuType(gres="a100-80gb")}, 79.14),
        ("a100", {"a100": GpuType()}, None),
        (["h100", "h200"], {}, 79.1),
        (["h100", "fast"], {}, None),
        (None, {"h200": GpuType()}, 139.7),
        (None, {}, None),
    ],
)
def test_capacity_is_that_of_the_smallest_gpu_that_the_job_may_get(
    wanted: Any, types: dict[str, GpuType], gib: float | None
) -> None:
    spec = JobSpec(resources=Resources(gpu_type=wanted))
    found = find_capacity(spec, Cluster(gpu_types=types))
    assert found == (None if gib is None else gib * GIB)


def test_options_are_estimated_for_a_job_whose_model_is_known(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8}
    config |= {"num_attention_heads": 16, "vocab_size": 32000, "intermediate_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = Planned(["python", "t.py", "--model", str(tmp_path), "--max_length", "512"])
    options = ["deepspeed.zero_stage=3", "deepspeed.offload.optimizer=cpu"]
    found = estimate_options(cast(Plan, plan), options, {}, StartFolder.local(tmp_path))
    assert list(found) == options and all(2 < size < 5 for size in found.values())
    unknown = Planned(["python", "t.py", "--model", "other/model", "--max_length", "512"])
    assert (
        estimate_options(
            cast(Plan, unknown), options, {"HOME": "/none"}, StartFolder.local(tmp_path)
        )
        == {}
    )
    endless = Planned(["python", "t.py", "--model", str(tmp_path)])
    assert estimate_options(cast(Plan, endless), options, {}, StartFolder.local(tmp_path)) == {}


def test_paths_of_a_remote_cluster_name_no_files_of_this_machine(tmp_path: Path) -> None:
    """Files with the same path here are different ones; the copy of the project is the same."""
    far = StartFolder(path=tmp_path, project=tmp_path, project_dir="/far/code", is_remote=True)
    (tmp_path / "fsdp.json").write_text('{"activation_checkpointing": true}')
    config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8}
    config |= {"num_attention_heads": 16, "vocab_size": 32000, "intermediate_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, is_known in ((str(tmp_path), False), (".", True), ("/far/code", True)):
        words = ["python", "t.py", "--model", name, "--max_length", "512"]
        found = estimate_options(cast(Plan, Planned(words)), ["deepspeed.zero_stage=3"], {}, far)
        assert bool(found) is is_known, name
    for name, is_known in ((f"{tmp_path}/fsdp.json", False), ("fsdp.json", True)):
        words = ["--fsdp", "full_shard", "--fsdp_config", name]
        training = read_plain(*words, folder=far)
        assert training.checkpointing is is_known and bool(training.unknown) is not is_known
    program = Program()
    assert command_program(far, [f"{tmp_path}/run.sh"], program) == [] and not program.problems
    command_program(far, ["./run.sh"], program)
    assert "no such file" in str(program.problems[0])


HERE = StartFolder.local(Path("/project"))


class Planned:
    """What the memory model reads of a plan."""

    precision = "bf16"
    world_size = ranks_per_node = gpus_per_node = 4
    micro_batch_per_gpu, gradient_accumulation_steps, effective_batch = 1, 1, 4
    accelerate_config: dict[str, Any] | None = None
    framework = "transformers"
    deepspeed_config: dict[str, Any] | None
    directives: list[tuple[str, str | None]]
    run_dir, project_dir = "/runs/1", "/project"

    def __init__(self, program: list[str]) -> None:
        self.program = program
        zero = {"stage": 2, "reduce_bucket_size": 1000}
        self.deepspeed_config = {"bf16": {"enabled": True}, "zero_optimization": zero}


def read_plain(
    *words: str, fsdp: dict[str, Any] | None = None, folder: StartFolder = HERE
) -> Training:
    """Read the settings of a job without DeepSpeed."""
    plan = Planned(list(words))
    plan.deepspeed_config = None
    if fsdp is not None:
        plan.accelerate_config = {"distributed_type": "FSDP", "fsdp_config": fsdp}
    found = _read_training(cast(Plan, plan), parse_arguments(words), None, SHAPE, folder)
    assert found is not None
    return found


def test_weights_loaded_in_16_bits_are_not_counted_in_fp32() -> None:
    assert read_plain().weights == "autocast"
    assert read_plain("--torch_dtype", "bfloat16").weights == "pure"
    assert read_plain("--dtype", "bfloat16", "--bf16").weights == "pure"
    assert "dtype auto" in read_plain("--dtype", "auto").unknown[0]


@pytest.mark.parametrize(
    ("words", "config", "strategy", "unknown"),
    [
        (["--fsdp="], None, "ddp", ""),
        (["--fsdp", "full_shard auto_wrap"], None, "fsdp", ""),
        (["--fsdp", "no_shard"], None, "ddp", ""),
        (["--fsdp", "shard_grad_op auto_wrap"], None, "fsdp", "shard_grad_op"),
        (["--fsdp", "full_shard offload"], None, "fsdp", "offload"),
        (["--fsdp", "full_shard", "--fsdp_config", "f.json"], None, "fsdp", "fsdp_config"),
        (["--fsdp", "full_shard", "--fsdp_config", "{}"], None, "fsdp", ""),
        (["--fsdp", "true", "--fsdp_config", "[1]"], None, "fsdp", "fsdp_config"),
        (
            ["--fsdp", "full_shard", "--fsdp_config", '{"reshard_after_forward": false}'],
            None,
            "fsdp",
            "reshard_after_forward: false",
        ),
        ([], {"fsdp_sharding_strategy": "NO_SHARD"}, "ddp", ""),
        ([], {"fsdp_sharding_strategy": 4}, "fsdp", "hybrid_shard"),
        ([], {"fsdp_offload_params": True}, "fsdp", "fsdp_offload_params"),
        ([], {"fsdp_reshard_after_forward": False}, "fsdp", "reshard_after_forward: false"),
        ([], {"fsdp_reshard_after_forward": "FULL_SHARD"}, "fsdp", ""),
    ],
)
def test_fsdp_settings_are_modelled_or_named(
    words: list[str], config: dict[str, Any] | None, strategy: str, unknown: str
) -> None:
    found = read_plain(*words, fsdp=config)
    assert found.strategy == strategy
    assert unknown in " ".join(found.unknown) and bool(found.unknown) == bool(unknown)
    assert estimate_memory(SHAPE, found).is_comparable == (not unknown)


@pytest.mark.parametrize(
    ("name", "optimizer", "is_known"),
    [
        ("adamw_torch_fused", "adamw", True),
        ("paged_adamw_8bit", "adamw_8bit", True),
        ("rmsprop", "momentum", True),
        ("adafactor", "adafactor", True),
        ("lion_8bit", "adamw", False),
        ("adamw_torch_4bit", "adamw", False),
        ("apollo_adamw", "adamw", False),
    ],
)
def test_optimizers_of_the_trainer_are_modelled_or_named(
    name: str, optimizer: str, is_known: bool
) -> None:
    found = read_plain("--optim", name)
    assert found.optimizer == optimizer and bool(found.unknown) != is_known
    assert is_known or f"optim {name}" in found.unknown[0]


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer onebitadam"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "hpz_partition_size"),
        (
            {
                "zero_optimization": {
                    "stage": 3,
                    "offload_optimizer": {"device": "cpu", "ratio": 0.3},
                }
            },
            "offload_optimizer.ratio",
        ),
        ({"optimizer": {"type": "AdamW"}}, ""),
    ],
)
def test_deepspeed_settings_are_modelled_or_named(config: dict[str, Any], unknown: str) -> None:
    found = read(config)
    assert found is not None
    assert unknown in " ".join(found.unknown) and bool(found.unknown) == bool(unknown)
    adagrad = read({"optimizer": {"type": "Adagrad"}})
    assert adagrad is not None and adagrad.optimizer == "momentum"


@pytest.mark.parametrize(
    ("words", "script", "unknown"),
    [
        (["--tp_size", "8"], "", "tp_size 8"),
        (["--tensor-model-parallel-size", "4"], "", "tensor_model_parallel_size 4"),
        (["--tp_size", "1"], "", ""),
        (["--ref_model", "m"], "", "ref_model"),
        ([], "trainer = DPOTrainer(model)", "DPOTrainer"),
        ([], "ema = EMAModel(model.parameters())", "EMAModel"),
        (["--use_liger_kernel"], "", "use_liger_kernel"),
        (["--sp", "x"], "step_size = 3", ""),
    ],
)
def test_further_models_and_parallelism_are_named(
    words: list[str], script: str, unknown: str
) -> None:
    found = _list_unmodelled(cast(Plan, Planned(["python", "t.py", *words])), script)
    assert unknown in " ".join(found) and bool(found) == bool(unknown)


def test_checkpointing_of_arguments_and_accelerate_is_counted() -> None:
    assert not read_plain().checkpointing
    for words in (["--use_gradient_checkpointing"], ["model.activation_checkpointing=true"]):
        assert read_plain(*words).checkpointing
    assert read_plain(fsdp={"fsdp_activation_checkpointing": True}).checkpointing
    own = ["--fsdp", "full_shard", "--fsdp_config", '{"activation_checkpointing": true}']
    assert read_plain(*own).checkpointing


def test_suggested_offload_fits_into_the_host_memory_of_the_job() -> None:
    shape = build_shape(layers=32, hidden=4096)
    training = Training(strategy="zero", zero_stage=2, weights="master", gpus=2, gpus_per_node=2)
    memory = JobMemory(
        model="m",
        shape=shape,
        training=training,
        estimate=estimate_memory(shape, training),
        capacity=39.4 * GIB,
        is_certain=True,
    )
    assert "GiB of host memory per node: --set deepspeed.zero_stage=2" in suggest_smaller(memory)
    keys = {"zero_stage": ["deepspeed.config.zero_optimization.stage"]}
    own = suggest_smaller(structs.replace(memory, zero_keys=keys))
    assert "--set deepspeed.config.zero_optimization.stage=2 --set deepspeed.offload" in own
    assert suggest_smaller(structs.replace(memory, host_capacity=20 * GIB)) == ""


def test_nvme_buffers_of_an_own_json_are_read() -> None:
    optimizer = {"device": "nvme", "buffer_count": 6, "pin_memory": False}
    parameters = {"device": "nvme", "buffer_count": 9, "buffer_size": 2e8, "max_in_cpu": 5e8}
    zero = {"stage": 3, "offload_optimizer": optimizer, "offload_param": parameters}
    found = read({"zero_optimization": zero, "bf16": {"enabled": True}})
    assert found is not None and not found.pins_memory and found.optimizer_buffers == 6
    assert (found.parameter_buffers, found.parameter_buffer_size) == (9, 200_000_000)
    assert found.max_in_cpu == 500_000_000
    host = {
        part.name: part.bytes
        for part in estimate_memory(build_shape(parameters=20_000_000_000), found).host
    }
    assert host["NVMe buffers"] == 6 * 1e9 * 4 and host["parameter buffers"] == 9 * 2e8 * 2
    assert host["parameters"] == 5e8 * 2 and "rounding of pinned memory" not in host


def test_pinned_memory_is_rounded_to_powers_of_two() -> None:
    training = Training(strategy="zero", zero_stage=3, weights="master", offload_optimizer="cpu")
    shape = build_shape(parameters=1_500_000_000)
    (part,) = [each for each in estimate_memory(shape, training).host if "pinned" in each.name]
    # The gradients in 16 bits, and in fp32 of sub-groups of 1e9 and 0.5e9.
    assert part.bytes == (2**32 - 3e9) + (2**32 - 4e9) + (2**31 - 2e9)


def test_script_that_reads_its_own_deepspeed_json_is_recognized(tmp_path: Path) -> None:
    plan = Planned(["python", "t.py", "--deepspeed", "conf/deepspeed.json"])
    assert find_own_deepspeed_file(cast(Plan, plan)) == "conf/deepspeed.json"
    plan.program[-1] = "/runs/1/deepspeed.json"
    assert find_own_deepspeed_file(cast(Plan, plan)) == ""


def test_host_memory_is_that_of_the_request_or_the_whole_node() -> None:
    plan = Planned([])
    cluster = Cluster(partition="gpu", partitions={"gpu": Partition(memory_per_node="480G")})
    for asked, gib in (("64G", 64), ("0", 480)):
        plan.directives = [("mem", asked)]
        assert find_host_capacity(cast(Plan, plan), cluster) == gib * GIB
    assert find_host_capacity(cast(Plan, plan), Cluster()) is None
    plan.directives = [("mem-per-gpu", "50G")]
    assert find_host_capacity(cast(Plan, plan), cluster) == 200 * GIB
