"""Reserved names, and fields that depend on each other."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.spec.job import DeepSpeed, JobSpec, Offload
from hpcrun.spec.load import load_cluster
from hpcrun.spec.rules import REFUSED
from tests.spec.reading import problems, read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", JobSpec()),
        ("framework: torch", JobSpec(framework="torch")),
        ("framework: deepspeed", JobSpec(framework="deepspeed", deepspeed=DeepSpeed())),
        ("deepspeed: {}", JobSpec(framework="deepspeed", deepspeed=DeepSpeed())),
        ("deepspeed: ", JobSpec()),
        ("framework: torch\ndeepspeed:", JobSpec(framework="torch")),
        (
            "deepspeed: {zero_stage: 3, offload: {param: cpu, optimizer: cpu}}",
            JobSpec(
                framework="deepspeed",
                deepspeed=DeepSpeed(zero_stage=3, offload=Offload(param="cpu", optimizer="cpu")),
            ),
        ),
        (
            "deepspeed: {zero_stage: 1, offload: {optimizer: cpu}}",
            JobSpec(
                framework="deepspeed",
                deepspeed=DeepSpeed(zero_stage=1, offload=Offload(optimizer="cpu")),
            ),
        ),
        # config takes precedence over zero_stage.
        (
            "deepspeed: {offload: {param: cpu}, config: {zero_optimization: {stage: 3}}}",
            JobSpec(
                framework="deepspeed",
                deepspeed=DeepSpeed(
                    offload=Offload(param="cpu"), config={"zero_optimization": {"stage": 3}}
                ),
            ),
        ),
    ],
)
def test_framework_and_deepspeed_section_imply_each_other(text: str, expected: JobSpec) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "deepspeed: {}\nframework: torch",
            "2: framework: torch, but there is a deepspeed section; remove one of the two",
        ),
        (
            "deepspeed:\n  zero_stage: 1\n  offload: {param: cpu}",
            "3: deepspeed.offload.param: needs zero_stage 3; it is 1",
        ),
        (
            "deepspeed:\n  offload:\n    param: cpu",
            "3: deepspeed.offload.param: needs zero_stage 3; it is 2",
        ),
        (
            "deepspeed: {zero_stage: 3, offload: {param: cpu}, "
            "config: {zero_optimization: {stage: 1.0}}}",
            "1: deepspeed.offload.param: needs zero_stage 3; it is 1",
        ),
        (
            "deepspeed: {zero_stage: 0, offload: {optimizer: cpu}}",
            "1: deepspeed.offload.optimizer: needs zero_stage 1, 2 or 3; it is 0",
        ),
    ],
)
def test_contradicting_fields_are_refused(text: str, expected: str) -> None:
    assert problems(text) == [f"job.yaml:{expected}"]


def test_null_deepspeed_with_framework_deepspeed_is_refused() -> None:
    files = {"base": "framework: deepspeed\ndeepspeed: {config: {optimizer: {type: AdamW}}}"}
    message = "deepspeed: null, but framework deepspeed trains with it; set framework too, as torch"
    assert problems("extends: base\ndeepspeed: null", files=files) == [f"job.yaml:2: {message}"]
    assert problems("framework: deepspeed\ndeepspeed: null") == [f"job.yaml:2: {message}"]
    over = "extends: base\ndeepspeed: null\nframework: torch"
    assert read(over, files=files).deepspeed is None
    assert read("framework: deepspeed").deepspeed is not None


def test_rule_is_skipped_if_its_field_is_invalid() -> None:
    assert problems("deepspeed: {zero_stage: 9, offload: {param: cpu}}") == [
        "job.yaml:1: deepspeed.zero_stage: must be from 0 to 3; got 9"
    ]


def test_contradiction_between_files_names_the_file() -> None:
    assert problems(
        "extends: zero3\ndeepspeed:\n  zero_stage: 2",
        files={"zero3": "deepspeed:\n  zero_stage: 3\n  offload:\n    param: cpu"},
    ) == ["zero3.yaml:4: deepspeed.offload.param: needs zero_stage 3; it is 2"]


@pytest.mark.parametrize(
    "name",
    [
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("HPCRUN_RUN_DIR", "HPCRUN_"),
    ],
)
def test_variables_set_by_hpcrun_are_refused(name: str) -> None:
    text = f"env:\n  {name}: 1\nnccl:\n  env:\n    {name}: 1\nsecrets:\n  - A\n  - {name}\n"
    assert problems(text) == [
        f"job.yaml:2: env.{name}: hpcrun sets this variable itself",
        f"job.yaml:5: nccl.env.{name}: hpcrun sets this variable itself",
        "job.yaml:8: secrets[1]: hpcrun sets this variable itself",
    ]


def test_similar_variables_are_accepted() -> None:
    names = ["RANKS", "MY_RANK", "rank", "HPCRUN", "XHPCRUN_A", "_", "MASTER_ADDRESS"]
    spec = read("env: {" + ", ".join(f"{name}: 1" for name in names) + "}")
    assert list(spec.env) == names


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("job-name", "set name instead"),
        ("nodes", "set resources.nodes instead"),
        ("ntasks", "set resources.gpus_per_node instead"),
        *REFUSED.items(),
    ],
)
@pytest.mark.parametrize("value", ["1", "false"])
def test_sbatch_options_controlled_by_hpcrun_are_refused(
    option: str, message: str, value: str
) -> None:
    assert problems(f"slurm:\n  {option}: {value}") == [f"job.yaml:2: slurm.{option}: {message}"]


@pytest.mark.parametrize(
    ("option", "field"),
    [
        *((option, "gpus_per_node") for option in ("gres", "gpus", "gpus-per-node")),
        *((option, "gpus_per_node") for option in ("gpus-per-task", "gpus-per-socket")),
        *((option, "gpus_per_node") for option in ("ntasks-per-node", "tres-per-task")),
        *((option, "cpus_per_gpu") for option in ("cpus-per-task", "cpus-per-gpu")),
        *((option, option) for option in ("time", "partition", "account")),
    ],
)
def test_sbatch_options_with_a_field_are_refused(option: str, field: str) -> None:
    message = f"slurm.{option}: set resources.{field} instead; false drops the line"
    assert problems(f"slurm: {{{option}: 1}}") == [f"job.yaml:1: {message}"]
    assert problems(f"slurm: {{{option}: 'false'}}") == [f"job.yaml:1: {message}"]
    assert read(f"slurm: {{{option}: false}}").slurm == {option: False}


def test_profile_renames_only_supported_options() -> None:
    text = "rename:\n  gres: gpus-per-node\n  mem: mem-per-gpu\n  cpus-per-task: cpus-per-gpu\n"
    assert load_cluster(text, source="c.yaml").rename["mem"] == "mem-per-gpu"
    wrong = "rename:\n  gres: gpus-per-task\n  mem: gpus\n  nodes: ntasks\n"
    with pytest.raises(SpecError) as caught:
        load_cluster(wrong, source="c.yaml")
    assert str(caught.value).splitlines() == [
        "c.yaml:2: rename.gres: each rank would see one GPU only; use gpus-per-node or gpus",
        "c.yaml:3: rename.mem: expected mem-per-cpu or mem-per-gpu; got gpus; slurm: {mem: false} "
        "leaves it out",
        "c.yaml:4: rename.nodes: hpcrun can rename gres, mem, cpus-per-task, ntasks-per-node, "
        "constraint; slurm: {nodes: false} leaves it out",
    ]


def test_log_patterns_are_checked() -> None:
    spec = read(r"log_patterns: ['it (?P<step>\d+) L (?P<loss>\S+)']")
    assert spec.log_patterns == [r"it (?P<step>\d+) L (?P<loss>\S+)"]
    assert problems(r"log_patterns: ['it (?P<step>\d+', 'it (?P<step>\d+)', 'loss (\d+)']") == [
        "job.yaml:1: log_patterns[0]: not a regular expression: missing ), unterminated subpattern "
        "at position 3",
        "job.yaml:1: log_patterns[1]: names no value; give one a name, as in (?P<loss>[0-9.]+)",
        "job.yaml:1: log_patterns[2]: names no value; give one a name, as in (?P<loss>[0-9.]+)",
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("ntasks: 8", "ntasks: srun gets it from hpcrun: it is the world's, which hpcrun lays out"),
        ("cpus-per-task: 7", "cpus-per-task: srun gets it from hpcrun: set resources.cpus_per_gpu"),
        ("output: x", "output: srun gets it from hpcrun: what the job prints is in its run's logs"),
        ("partition: x", "partition: an option of the whole job, not of srun's step: see slurm"),
        ("cpu-binds: x", "cpu-binds: srun has no such option; did you mean cpu-bind?"),
        ("netwrok: x", "netwrok: srun has no such option; did you mean network?"),
    ],
)
def test_srun_options_are_checked(option: str, message: str) -> None:
    [found] = problems(f"srun: {{{option}}}")
    assert found.startswith(f"job.yaml:1: srun.{message}")


def test_srun_options_of_the_step_and_of_plugins_are_accepted() -> None:
    text = (
        "srun: {cpu-bind: 'mask_cpu:0xfe,0xfe00', network: x, environment: ./a.toml, nvmps: true}"
    )
    assert read(text).srun["environment"] == "./a.toml"


def test_gpu_bind_none_is_accepted_for_launchers() -> None:
    assert read("slurm: {gpu-bind: none}").slurm == {"gpu-bind": "none"}
    assert "launcher: srun" in problems("slurm: {gpu-bind: closest}")[0]


@pytest.mark.parametrize("key", ["slurm", "srun"])
def test_a_heterogeneous_job_is_refused(key: str) -> None:
    (problem,) = problems(f"script: a.py\n{key}: {{het-group: 1}}")
    assert f"{key}.het-group: " in problem and "one kind of nodes" in problem
