"""Every message of the type checks, in full, and the accepted values of the types."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from msgspec import Struct, field

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.check import build_struct
from hpcrun.spec.job import (
    Batch,
    Cluster,
    DeepSpeed,
    GpuType,
    JobSpec,
    Partition,
    Resources,
    Setup,
)
from hpcrun.spec.load import load_cluster
from hpcrun.spec.yaml12 import parse_document
from tests.source import ROOT
from tests.spec.reading import problems, read

ALL_KEYS = ", ".join(JobSpec.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # keys
        ("resources:\n  gpus_per_nod: 2", "2: resources.gpus_per_nod: unknown key; "
         "did you mean gpus_per_node?"),
        ("GPUs: 2", "1: GPUs: unknown key; did you mean resources.gpus_per_node?"),
        ("Script: a", "1: Script: unknown key; did you mean script?"),
        ("nodes: 2", "1: nodes: unknown key; did you mean resources.nodes?"),
        ("zero: 2", "1: zero: unknown key; did you mean deepspeed.zero_stage?"),
        ("batch: {batch: 2}", "1: batch.batch: unknown key; did you mean batch?"),
        ("setup: {env: {}}", "1: setup.env: unknown key; did you mean nccl.env or env?"),
        ("qwxz: 1", f"1: qwxz: unknown key; expected one of {ALL_KEYS}"),
        ("a.b: 1", f'1: "a.b": unknown key; expected one of {ALL_KEYS}'),
        # integers
        ("resources: {nodes: 0}", "1: resources.nodes: must be at least 1; got 0"),
        ("deepspeed: {zero_stage: 4}", "1: deepspeed.zero_stage: must be from 0 to 3; got 4"),
        ("resources: {nodes: 1.5}", "1: resources.nodes: expected a whole number; got 1.5"),
        ("resources: {nodes: two}", "1: resources.nodes: expected a whole number; got two"),
        ("resources: {nodes: true}", "1: resources.nodes: expected a whole number; got true"),
        ("resources: {nodes: .inf}", "1: resources.nodes: expected a whole number; got .inf"),
        ("resources: {nodes: [2]}", "1: resources.nodes: expected a whole number; got a list"),
        ('resources: {nodes: "8"}', '1: resources.nodes: expected a whole number, got the text '
         '"8"; write it without quotes'),
        ("resources: {nodes: 1e300}", "1: resources.nodes: 1e300: a whole number that does not "
         "fit into 64 bits"),
        ("resources: {nodes: 1e999}", "1: resources.nodes: 1e999: a number that does not fit "
         "into a double"),
        (
            "resources: {gpus_per_node: [8, 4]}",
            "1: resources.gpus_per_node: expected a whole number; got a list; Slurm allocates the "
            "same number of GPUs on each node of a job; where nodes differ, use the number that "
            "all of them have, and more nodes",
        ),
        # booleans
        ("snapshot: no", "1: snapshot: expected true or false; got no; did you mean false?"),
        ("snapshot: 'true'", '1: snapshot: expected true or false; got "true"; '
         "did you mean true?"),
        (
            "preflight: ful",
            "1: preflight: expected one of true, false, full; got ful; did you mean full?",
        ),
        (
            "preflight: no",
            "1: preflight: expected one of true, false, full; got no; did you mean false?",
        ),
        (
            "preflight: 'true'",
            '1: preflight: expected one of true, false, full; got "true"; did you mean true?',
        ),
        ("snapshot: 1", "1: snapshot: expected true or false; got 1"),
        ("snapshot: {}", "1: snapshot: expected true or false; got a map"),
        # literals
        ("launcher: torchrn", "1: launcher: expected one of accelerate, deepspeed, ray, srun, "
         "torchrun; got torchrn; did you mean torchrun?"),
        ("precision: 16", "1: precision: expected one of bf16, fp16, fp32; got 16; "
         "did you mean fp16?"),
        ("precision: int8", "1: precision: expected one of bf16, fp16, fp32; got int8"),
        ("precision: [bf16]", "1: precision: expected one of bf16, fp16, fp32; got a list"),
        # text
        ("script: {a: b}", "1: script: expected text, got a map; text that holds ': ' "
         "needs quotes"),
        ("args: [{run_dir}]", '1: args[0]: expected text, got a map; write "{run_dir}" '
         "with quotes"),
        ("args: [[a]]", "1: args[0]: expected text, got a list"),
        ("args:\n  - x\n  -", '3: args[1]: expected text, got nothing; write "" for empty text'),
        ("args: [~]", '1: args[0]: expected text, got ~; write "~" for that text, "" for empty '
         "text"),
        ("env:\n  A: 1\n  X:", '3: env.X: expected text, got nothing; write "" for empty text'),
        ("slurm: {qos: }", "1: slurm.qos: has no value: write one line of text, not empty, or "
         "leave the key out"),
        ("resources: {nodes: 4-2}", "1: resources.nodes: 4-2: the smaller number comes first"),
        (f"resources: {{nodes: 1-{10**30}}}", "1: resources.nodes: expected a range of nodes, as "
         f"in 2-4; got 1-{10**30}"),
        ("resources: {nodes: 0-2}", "1: resources.nodes: expected a range of nodes, as in 2-4; "
         "got 0-2"),
        ("resources: {nodes: 1-99}", "1: resources.nodes: 1-99: 99 numbers of nodes; 64 at most"),
        ("resources: {gpus_per_node: 2-4}", "1: resources.gpus_per_node: expected a whole number; "
         "got 2-4"),
        ("setup: {container: a.sif}", "1: setup.container: expected keys, as in {image: a.sif}; "
         "got a.sif"),
        ("setup: {container: {}}", "1: setup.container.image: is missing: a file or registry "
         "reference that the runtime accepts"),
        ("slurm: {qos: null}", "1: slurm.qos: expected one line of text, not empty, got null; "
         'write "null" for that text'),
        ('slurm: {qos: "a\\nb"}', '1: slurm.qos: expected one line of text, not empty; '
         'got "a\\nb"'),
        ('name: ""', '1: name: expected one line of text, not empty; got ""'),
        ('name: "a\\n"', '1: name: expected one line of text, not empty; got "a\\n"'),
        ('script: " "', '1: script: expected text that is not empty; got " "'),
        ('description: "a\\0b"', "1: description: holds a NUL character, which no process can "
         "receive"),
        ('args: [a, "\\0"]', "1: args[1]: holds a NUL character, which no process can receive"),
        ('deepspeed: {config: {a: ["\\0"]}}', "1: deepspeed.config.a[0]: holds a NUL character, "
         "which no process can receive"),
        ('deepspeed: {config: {"\\0": 1}}', '1: deepspeed.config."\\u0000": holds a NUL '
         "character, which no process can receive"),
        ("resources: {time: 24x}", "1: resources.time: expected a time, as in 30m, 2h, 1d12h; or "
         "Slurm's minutes, h:m:s or days-hours; got 24x"),
        ('resources: {time: "90\\n"}', "1: resources.time: expected a time, as in 30m, 2h, 1d12h; "
         'or Slurm\'s minutes, h:m:s or days-hours; got "90\\n"'),
        ("resources: {memory_per_node: 1.5G}", "1: resources.memory_per_node: expected memory as "
         "in 200G; a bare number is MB; got 1.5G"),
        # names
        ("env: {2x: 1}", "1: env.2x: expected the name of an environment variable: letters, "
         'digits and _; got "2x"'),
        ("nccl: {env: {A-B: 1}}", "1: nccl.env.A-B: expected the name of an environment variable: "
         'letters, digits and _; got "A-B"'),
        ("secrets: [A=b]", "1: secrets[0]: expected the name of an environment variable: letters, "
         "digits and _; got A=b"),
        ("slurm: {--qos: x}", "1: slurm.--qos: expected the long name of an sbatch option without "
         'its dashes, as in mail-type; got "--qos"'),
        ("slurm: {q: x}", "1: slurm.q: expected the long name of an sbatch option without its "
         'dashes, as in mail-type; got "q"'),
        # lists, maps, sections
        ("command: bash x", "1: command: expected a list, as in [a, b]; got bash x"),
        ("command: []", "1: command: must not be empty"),
        ("env: [A]", "1: env: expected keys, as in {KEY: VALUE}; got a list"),
        ("batch: 3", "1: batch: expected keys, as in {KEY: VALUE}; got 3"),
        # free form
        ("deepspeed: {config: {a: 1e400}}", "1: deepspeed.config.a: 1e400: a number that does not "
         "fit into a double"),
        ("deepspeed: {config: [a]}", "1: deepspeed.config: expected keys, as in {KEY: VALUE}; "
         "got a list"),
        # a value too long to show
        (f"precision: {'x' * 99}", "1: precision: expected one of bf16, fp16, fp32; "
         f"got {'x' * 60}..."),
    ],
)  # fmt: skip
def test_every_type_error_has_its_message(text: str, expected: str) -> None:
    assert problems(text) == [f"job.yaml:{expected}"]


def test_all_problems_are_reported_in_file_order() -> None:
    text = """\
script: a.py
resources:
  nodes: 0
  gpu: a100
env: {A: }
env: {B: 1}
launcher: torch
module: b
"""
    assert problems(text, "batch=1", "oops") == [
        "job.yaml:3: resources.nodes: must be at least 1; got 0",
        "job.yaml:4: resources.gpu: unknown key; did you mean resources.gpu_type?",
        'job.yaml:5: env.A: expected text, got nothing; write "" for empty text',
        "job.yaml:6: env: key given twice; first on line 5",
        "job.yaml:7: launcher: expected one of accelerate, deepspeed, ray, srun, torchrun; "
        "got torch; did you mean torchrun?",
        "job.yaml:8: module: script is given too; a job has one of script, module, command",
        "--set: oops: expected KEY=VALUE, as in resources.nodes=2",
        "--set: batch: expected keys, as in {KEY: VALUE}; got 1",
    ]


def test_text_is_kept_as_written() -> None:
    spec = read(
        "args: [--lr, 1e-4, true, no, 0x1F, 012, 1.10, 24:00:00, .5, '', \"a\\tb\", null_x]\n"
        "env: {X: 1.10, Y: yes, Z: True, E: ''}\n"
        "resources: {account: 012345, time: 24:00:00, memory_per_node: 200G}\n"
        "name: 007\n"
    )
    assert spec.args == [
        *("--lr", "1e-4", "true", "no", "0x1F", "012", "1.10", "24:00:00", ".5", ""),
        *("a\tb", "null_x"),
    ]
    assert spec.env == {"X": "1.10", "Y": "yes", "Z": "True", "E": ""}
    assert spec.resources == Resources(account="012345", time="24:00:00", memory_per_node="200G")
    assert spec.name == "007"


@pytest.mark.parametrize("text", ["8", "+8", "08", "0x8", "0o10", "8.0", "8e0", ".8e1", "800e-2"])
def test_integers_are_read_in_every_notation(text: str) -> None:
    nodes = read(f"resources: {{nodes: {text}}}").resources.nodes
    assert nodes == 8
    assert type(nodes) is int


def test_sbatch_options_accept_text_and_booleans() -> None:
    spec = read(
        "slurm: {exclusive: true, requeue: False, qos: 'true', mail-type: no, nice: 010, x-y: 1e3}"
    )
    assert spec.slurm == {
        "exclusive": True,
        "requeue": False,
        "qos": "true",
        "mail-type": "no",
        "nice": "010",
        "x-y": "1e3",
    }


def test_free_form_values_have_core_schema_types() -> None:
    spec = read(
        "deepspeed:\n  config: {a: 5e7, b: 0x10, c: no, d: 'true', e: ~, f: [1, {g: auto}], h: {}}"
    )
    assert spec.deepspeed is not None
    config = spec.deepspeed.config
    assert config == {
        "a": 5e7,
        "b": 16,
        "c": "no",
        "d": "true",
        "e": None,
        "f": [1, {"g": "auto"}],
        "h": {},
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "script:\nargs: ~\nresources: null\n",
        "resources: {nodes: , time: ~}\nsnapshot:\ndescription:\nprecision: null\nenv:\n",
        "deepspeed:\nbatch: {}\nnccl: {env: }\nslurm: {}\ncommand: ~\nextends:\n",
    ],
)
def test_null_means_unset(text: str) -> None:
    assert read(text) == JobSpec()


class Host(Struct, frozen=True, kw_only=True):
    """A type with a field that has no default."""

    name: str
    port: int = 22


class Hosts(Struct, frozen=True, kw_only=True):
    """A type that contains such types."""

    hosts: dict[str, Host] = field(default_factory=dict)


def test_field_without_default_is_required() -> None:
    found: list[Problem] = []
    tree = parse_document("hosts:\n  a: {name: x}\n  b: {port: 1}\n  c: {name: }\n", "f", found)
    assert build_struct(Hosts, tree, found) == Hosts(hosts={"a": Host(name="x")})
    assert [str(problem) for problem in found] == [
        "f:3: hosts.b.name: is missing",
        "f:4: hosts.c.name: is missing",
    ]


def test_complete_job_is_read() -> None:
    text = """\
description: "ZeRO-2: one node"
module: pkg.train
args: ["--config={deepspeed_config}", --epochs, 3]
launcher: torchrun
resources: {nodes: 2, gpus_per_node: 4, gpu_type: a100}
precision: fp16
batch: {micro_batch_per_gpu: 4, gradient_accumulation_steps: 2}
deepspeed: {zero_stage: 3, config: {zero_optimization: {reduce_bucket_size: 5e7}}}
secrets: [WANDB_API_KEY]
setup:
  modules: [cuda/12.4]
  commands:
    - |
      ulimit -l unlimited
      ulimit -c 0
snapshot: false
"""
    assert read(text) == JobSpec(
        description="ZeRO-2: one node",
        module="pkg.train",
        args=["--config={deepspeed_config}", "--epochs", "3"],
        launcher="torchrun",
        framework="deepspeed",
        resources=Resources(nodes=2, gpus_per_node=4, gpu_type="a100"),
        precision="fp16",
        batch=Batch(micro_batch_per_gpu=4, gradient_accumulation_steps=2),
        deepspeed=DeepSpeed(
            zero_stage=3, config={"zero_optimization": {"reduce_bucket_size": 5e7}}
        ),
        secrets=["WANDB_API_KEY"],
        setup=Setup(modules=["cuda/12.4"], commands=["ulimit -l unlimited\nulimit -c 0\n"]),
        snapshot=False,
    )


def test_complete_cluster_profile_is_read() -> None:
    text = """\
name: mpp3
read_on: 2026-11-20
runs_dir: /scratch/%u/runs
account: 0123
partitions:
  gpu: {gpus_per_node: 4, memory_per_node: 1000G, max_time: 2-00}
  cpu:
gpu_types: {a100: {gres: "a100:sxm"}}
internet: true
env: {HF_HOME: /scratch/hf}
slurm: {gres: false, qos: normal}
"""
    assert load_cluster(text, source="c.yaml") == Cluster(
        name="mpp3",
        read_on="2026-11-20",
        runs_dir="/scratch/%u/runs",
        account="0123",
        partitions={
            "gpu": Partition(gpus_per_node=4, memory_per_node="1000G", max_time="2-00"),
            "cpu": Partition(),
        },
        gpu_types={"a100": GpuType(gres="a100:sxm")},
        env={"HF_HOME": "/scratch/hf"},
        slurm={"gres": False, "qos": "normal"},
    )


def test_problems_of_a_cluster_profile_are_reported() -> None:
    text = """\
partitions: {gpu: {gpu_per_node: 4, max_time: x}}
accelerator: cpu
fabric: infinband
slurm: {time: 60, partition: gpu, output: x, nodes: 1}
env: {RANK: 0}
extends: base
"""
    with pytest.raises(SpecError) as caught:
        load_cluster(text, source="c.yaml")
    assert str(caught.value).splitlines() == [
        "c.yaml:1: partitions.gpu.gpu_per_node: unknown key; did you mean gpus_per_node?",
        "c.yaml:1: partitions.gpu.max_time: expected a time, as in 30m, 2h, 1d12h; or "
        "Slurm's minutes, h:m:s or days-hours; got x",
        "c.yaml:3: fabric: expected one of auto, efa, ethernet, fastrak, gib, infiniband, roce, "
        "slingshot; got infinband; did you mean infiniband?",
        "c.yaml:4: slurm.time: a job sets it, as resources.time; false drops the line",
        "c.yaml:4: slurm.partition: set partition instead; false drops the line",
        "c.yaml:4: slurm.output: what the job prints is in its run's logs, where hpcrun logs finds "
        "it",
        "c.yaml:4: slurm.nodes: a job sets it, as resources.nodes",
        "c.yaml:5: env.RANK: hpcrun sets this variable itself",
        "c.yaml:6: extends: unknown key; expected one of " + ", ".join(Cluster.__struct_fields__),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("-1", "cost.per_gpu_hour: must be at least 0; got -1"),
        ("much", "cost.per_gpu_hour: expected a number; got much"),
        ('"1.5"', 'cost.per_gpu_hour: expected a number; got "1.5"'),
        ("true", "cost.per_gpu_hour: expected a number; got true"),
        (".inf", "cost.per_gpu_hour: expected a number; got .inf"),
        ("1e999", "cost.per_gpu_hour: expected a number; got 1e999"),
        ("[1]", "cost.per_gpu_hour: expected a number; got a list"),
    ],
)
def test_problems_of_a_price_are_reported(value: str, expected: str) -> None:
    with pytest.raises(SpecError, match=re.escape(expected)):
        load_cluster(f"cost: {{per_gpu_hour: {value}}}", source="c.yaml")


@pytest.mark.parametrize("value", ["1.5", "15e-1", "+1.50"])
def test_prices_are_read_in_any_spelling(value: str) -> None:
    cost = load_cluster(f"cost: {{per_gpu_hour: {value}}}", source="c.yaml").cost
    assert (cost.per_gpu_hour, cost.per_node_hour, cost.currency) == (1.5, None, "")


def test_cluster_profile_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster("a: [", source="c.yaml")
    assert str(caught.value) == "c.yaml:2: column 1: expected a value here"


@pytest.mark.parametrize("text", ["200", "200G", "200GB", "4T", "512K", "512MB", "0"])
def test_memory_in_units_of_slurm_is_accepted(text: str) -> None:
    assert read(f"resources: {{memory_per_node: {text}}}").resources.memory_per_node == text


@pytest.mark.parametrize("text", ["200B", "0B", "200GBB", "G", "200 G", "2g"])
def test_memory_in_other_units_is_refused(text: str) -> None:
    (problem,) = problems(f"resources: {{memory_per_node: {text}}}")
    assert "expected memory as in 200G; a bare number is MB" in problem


def test_types_are_freed_without_a_fault_in_development_mode() -> None:
    """msgspec 0.22 crashes on unions of text with a pattern and a list or map."""
    program = (
        "import gc, msgspec\n"
        "from hpcrun.spec import Cluster, JobSpec\n"
        "print(msgspec.convert({'resources': {'gpu_type': 'a100'}}, JobSpec).resources.gpu_type)\n"
        "msgspec.convert({'name': 'x'}, Cluster)\n"
    )
    argv = [sys.executable, "-X", "dev", "-c", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "a100\n"), done
