"""The generated YAML of accelerate launch: accepted by Accelerate, and its refused keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrun.errors import SpecError
from hpcrun.plan.launchers import KNOWN_KEYS
from tests.plan.making import PLACE, plan

JOB = "script: a.py\nlauncher: accelerate\nresources: {nodes: 2, gpus_per_node: 4}\n"


def config(text: str = "") -> dict[str, Any]:
    made = plan(JOB + text).accelerate_config
    assert made is not None
    return made


def refusals(over: str, rest: str = "") -> list[str]:
    with pytest.raises(SpecError) as caught:
        plan(f"{JOB}accelerate: {{config: {over}}}\n{rest}")
    return [str(problem) for problem in caught.value.problems]


def test_accelerate_yaml_without_deepspeed_is_multi_gpu() -> None:
    assert config("precision: fp16") == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "mixed_precision": "fp16",
        "num_machines": 2,
        "num_processes": 8,
    }
    assert config("precision: fp32")["mixed_precision"] == "no"


def test_accelerate_yaml_repeats_no_values_of_deepspeed_json() -> None:
    made = config("deepspeed: {zero_stage: 3, offload: {optimizer: cpu}}")
    assert made["distributed_type"] == "DEEPSPEED"
    assert made["deepspeed_config"] == {
        "deepspeed_config_file": f"{PLACE.run_dir}/deepspeed.json",
        "deepspeed_multinode_launcher": "standard",
    }
    assert "mixed_precision" not in made


def test_accelerate_keys_of_the_job_override_generated_keys() -> None:
    made = config(
        "accelerate: {config: {distributed_type: FSDP, fsdp_config: {fsdp_version: 2}, "
        "mixed_precision: fp8, num_machines: 2}}"
    )
    assert made["distributed_type"] == "FSDP"
    assert made["fsdp_config"] == {"fsdp_version": 2}
    assert made["mixed_precision"] == "fp8"


@pytest.mark.parametrize(
    ("over", "rest", "message"),
    [
        ("{num_proceses: 8}", "", "no such key of Accelerate; did you mean num_processes?"),
        ("{frobnicate: 1}", "", "no such key of Accelerate; accelerate launch would refuse it"),
        ("{num_processes: 4}", "", "hpcrun sets it: set resources.nodes and gpus_per_node instead"),
        ("{machine_rank: 0}", "", "hpcrun sets it: each node has its own"),
        ("{main_process_port: 29500}", "", "hpcrun sets it: it is known when the job starts"),
        ("{same_network: false}", "", "hpcrun sets it: hpcrun's rendezvous is static"),
        ("{distributed_type: 'NO'}", "", "NO starts one process on a node; MULTI_GPU starts all"),
        ("{distributed_type: MULTI_CPU}", "", "MULTI_CPU starts one process on a node"),
        ("{distributed_type: DEEPSPEED}", "", "DEEPSPEED: set deepspeed: {} instead"),
        ("{distributed_type: FSDP}", "deepspeed: {}", "FSDP: the job has a deepspeed section"),
        ("{mixed_precision: fp16}", "precision: bf16", "fp16: set precision instead"),
        ("{mixed_precision: bf16}", "deepspeed: {}", "DeepSpeed's JSON has it"),
        ("{use_cpu: true}", "", "the cluster profile sets it, as accelerator: cpu"),
        ("{deepspeed_config: {zero_stage: 2}}", "", "the job has no deepspeed section"),
        (
            "{deepspeed_config: {zero_stage: 2}}",
            "deepspeed: {}",
            "set deepspeed.zero_stage",
        ),
        (
            "{deepspeed_config: {gradient_accumulation_steps: 2}}",
            "deepspeed: {}",
            "Accelerate refuses it beside DeepSpeed's JSON: set batch.gradient_acc",
        ),
        (
            "{deepspeed_config: {deepspeed_multinode_launcher: pdsh}}",
            "deepspeed: {}",
            "pdsh: it would start a launcher inside the launcher",
        ),
        ("{deepspeed_config: {deepspeed_hostfile: h}}", "deepspeed: {}", "nothing reads it"),
        ("{deepspeed_config: 3}", "deepspeed: {}", "not a map"),
    ],
)
def test_accelerate_keys_that_contradict_the_job_are_refused(
    over: str, rest: str, message: str
) -> None:
    found = refusals(over, rest)
    assert len(found) == 1 and "accelerate.config." in found[0] and message in found[0], found


def test_all_problems_of_accelerate_config_are_reported_together() -> None:
    assert len(refusals("{gpu_ids: '0', num_machines: 3, mixed_precison: bf16}")) == 3


# ---- against Accelerate itself, whose import brings torch


@pytest.mark.slow
def test_known_keys_match_those_of_accelerate() -> None:
    from accelerate.commands.config.config_args import ClusterConfig

    here = set(ClusterConfig.__dataclass_fields__)
    assert here <= KNOWN_KEYS
    # Keys of older versions, which Accelerate converts or has removed.
    assert KNOWN_KEYS - here == {"dynamo_backend", "fp16", "ipex_config"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "deepspeed: {zero_stage: 3}", "precision: fp32"])
def test_accelerate_launch_accepts_the_generated_yaml(tmp_path: Path, text: str) -> None:
    from accelerate.commands import launch

    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump(config(text)))
    argv = [f"--config_file={path}", "--machine_rank=1", "--main_process_ip=10.0.0.1"]
    argv += [
        "--main_process_port=12345",
        "--rdzv_backend=static",
        "--no_python",
        "bash",
        "-c",
        "true",
    ]
    args = launch.launch_command_parser().parse_args(argv)
    args, _, mixed_from_file = launch._validate_launch_command(args)
    assert (args.num_processes, args.num_machines, int(args.machine_rank)) == (8, 2, 1)
    assert (args.main_process_ip, int(args.main_process_port)) == ("10.0.0.1", 12345)
    assert args.rdzv_backend == "static"
    assert args.use_deepspeed == ("deepspeed" in text)
    assert args.multi_gpu == ("deepspeed" not in text)
    if args.use_deepspeed:
        assert args.deepspeed_multinode_launcher == "standard"
        assert not mixed_from_file, "DeepSpeedPlugin would refuse the JSON"
