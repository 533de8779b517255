"""Jobs that extend others: replacing, merging, and the file named by problems."""

from __future__ import annotations

import pytest

from hpcrun.spec.job import JobSpec
from tests.spec.reading import problems, read

BASE = """\
script: train.py
args: [--epochs, 3]
resources: {nodes: 2, gpus_per_node: 4, time: 1-0}
env: {A: 1, B: 2}
slurm: {qos: high, exclusive: true}
setup: {modules: [cuda, gcc]}
deepspeed:
  zero_stage: 3
  config: {zero_optimization: {stage: 3, x: 1}, y: [1, 2]}
"""


def over_base(text: str, *overrides: str) -> JobSpec:
    return read(f"extends: base\n{text}", *overrides, files={"base": BASE})


def test_empty_job_equals_its_base() -> None:
    assert over_base("") == read(BASE)


def test_maps_are_merged_and_lists_replaced() -> None:
    spec = over_base(
        "resources: {nodes: 4}\nenv: {B: 3, C: 4}\nslurm: {qos: low}\nsetup: {modules: [rocm]}\n"
        "deepspeed: {config: {zero_optimization: {x: 2, z: 3}, y: [3]}}\n"
    )
    assert (spec.resources.nodes, spec.resources.gpus_per_node) == (4, 4)
    assert spec.env == {"A": "1", "B": "3", "C": "4"}
    assert spec.slurm == {"qos": "low", "exclusive": True}
    assert spec.setup.modules == ["rocm"]
    assert spec.deepspeed is not None
    assert spec.deepspeed.zero_stage == 3
    assert spec.deepspeed.config == {
        "zero_optimization": {"stage": 3, "x": 2, "z": 3},
        "y": [3],
    }


def test_null_removes_a_value_of_the_base() -> None:
    spec = over_base(
        "resources: {nodes: , time: ~}\nenv: {A: }\nslurm: {qos: null}\nsetup:\n"
        "deepspeed: {zero_stage: , config: {zero_optimization: {x: }, y: }}\n"
    )
    assert spec.resources.nodes == 1
    assert spec.resources.time is None
    assert spec.resources.gpus_per_node == 4
    assert spec.env == {"B": "2"}
    assert spec.slurm == {"exclusive": True}
    assert spec.setup.modules == []
    assert spec.deepspeed is not None
    assert spec.deepspeed.zero_stage is None
    assert spec.deepspeed.config == {"zero_optimization": {"stage": 3}}


def test_null_without_a_base_value_is_an_error_in_text_and_a_value_in_free_form() -> None:
    message = 'job.yaml:2: env.Z: expected text, got nothing; write "" for empty text'
    assert problems("extends: base\nenv: {Z: }", files={"base": BASE}) == [message]
    spec = over_base("deepspeed: {config: {new: null}}")
    assert spec.deepspeed is not None
    assert spec.deepspeed.config["new"] is None


@pytest.mark.parametrize(
    ("text", "program", "args"),
    [
        ("name: x", ("train.py", None, None), ["--epochs", "3"]),
        ("args: [--lr, 1]", ("train.py", None, None), ["--lr", "1"]),
        ("args:", ("train.py", None, None), []),
        ('args: ["{args}", --lr, 1]', ("train.py", None, None), ["--epochs", "3", "--lr", "1"]),
        ('args: [-x, "{args}", -y]', ("train.py", None, None), ["-x", "--epochs", "3", "-y"]),
        # Only once: a second one is an unknown placeholder, which the plan reports.
        ('args: ["{args}", "{args}"]', ("train.py", None, None), ["--epochs", "3", "{args}"]),
        # The arguments of another program are not inherited.
        ('script: b.py\nargs: ["{args}"]', ("b.py", None, None), ["{args}"]),
        ("script: b.py", ("b.py", None, None), []),
        ("script: b.py\nargs: [x]", ("b.py", None, None), ["x"]),
        ("module: pkg.b", (None, "pkg.b", None), []),
        ("command: [b]\nargs: [y]", (None, None, ["b"]), ["y"]),
        ("script: b.py\nmodule:", ("b.py", None, None), []),
        # The program is removed, and its arguments with it.
        ("script:", (None, None, None), []),
        # There is no module to remove.
        ("module:", ("train.py", None, None), ["--epochs", "3"]),
    ],
)
@pytest.mark.parametrize("by", ["extends", "--set"])
def test_program_replaces_the_program_of_the_base(
    text: str, program: tuple[object, ...], args: list[str], by: str
) -> None:
    if by == "extends":
        spec = over_base(text)
    else:
        spec = read(BASE, *(line.replace(": ", "=").rstrip(":") for line in with_equals(text)))
    assert (spec.script, spec.module, spec.command) == program
    assert spec.args == args


def with_equals(text: str) -> list[str]:
    return [line if ": " in line else line.replace(":", "=") for line in text.split("\n")]


def test_args_placeholder_collects_arguments_through_a_chain() -> None:
    files = {
        "a": 'extends: b\nargs: ["{args}", a]',
        "b": "extends: c\nname: b",
        "c": "script: s.py\nargs: [c]",
    }
    assert read('extends: a\nargs: [z, "{args}"]', files=files).args == ["z", "c", "a"]


def test_chain_of_three_files_is_merged() -> None:
    files = {
        "a": "extends: b\nargs: [a]\nenv: {L: a}",
        "b": "extends: c\nmodule: m\nenv: {M: b}",
        "c": "script: s.py\nargs: [c]\nenv: {L: c, M: c, N: c}",
    }
    spec = read("extends: a\nenv: {M: }", files=files)
    assert (spec.script, spec.module, spec.args) == (None, "m", ["a"])
    assert spec.env == {"L": "a", "N": "c"}


def test_problems_name_the_file_that_holds_them() -> None:
    files = {"base": "script: a\nmodule: b\nresources:\n  nodes: x\n  gpus: 3\nenv: {A: 1}"}
    assert problems("extends: base\nresources:\n  time: y\nenv:\n  B:\n", files=files) == [
        "base.yaml:2: module: script is given too; a job has one of script, module, command",
        "base.yaml:4: resources.nodes: expected a whole number; got x",
        "base.yaml:5: resources.gpus: unknown key; did you mean resources.gpus_per_node?",
        "job.yaml:3: resources.time: expected a time, as in 30m, 2h, 1d12h; or Slurm's "
        "minutes, h:m:s or days-hours; got y",
        'job.yaml:5: env.B: expected text, got nothing; write "" for empty text',
    ]


def test_replaced_values_are_not_checked() -> None:
    assert read("extends: base\nscript: b.py", files={"base": "script: [x]\nargs: 3"}).args == []


def test_broken_base_does_not_hide_other_problems() -> None:
    assert problems(
        "extends: base\nbatch: 1\ndeepspeed: {offload: {param: cpu}}",
        files={"base": "a: ["},
    ) == [
        "base.yaml:2: column 1: expected a value here",
        "job.yaml:2: batch: expected keys, as in {KEY: VALUE}; got 1",
    ]


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("extends: job", {"job": "extends: job"},
         "job.yaml:1: extends: a circle: job.yaml -> job.yaml"),
        ("extends: a", {"a": "name: x\nextends: b", "b": "extends: a"},
         "b.yaml:1: extends: a circle: job.yaml -> a.yaml -> b.yaml -> a.yaml"),
        ("name: x\nextends: nope", {},
         "job.yaml:2: extends: no job is called nope; hpcrun list shows them"),
        ("extends: [a, b]", {}, "job.yaml:1: extends: expected the name of a job; got a list"),
        ("extends: ''", {}, 'job.yaml:1: extends: expected the name of a job; got ""'),
        ("extends: a", {"a": "- x"},
         "a.yaml:1: column 1: expected keys, as in KEY: VALUE, got a list"),
    ],
)  # fmt: skip
def test_invalid_extends_is_refused(text: str, files: dict[str, str], expected: str) -> None:
    assert problems(text, files=files) == [expected]


def test_chain_of_more_than_sixteen_files_is_refused() -> None:
    files = {f"j{i}": f"extends: j{i + 1}" for i in range(20)}
    names = " -> ".join(["job.yaml", *(f"j{i}.yaml" for i in range(15))])
    assert problems("extends: j0", files=files) == [
        f"j14.yaml:1: extends: more than 16 files: {names}"
    ]


def test_null_extends_nothing() -> None:
    assert read("extends:\nname: x") == JobSpec(name="x")


def test_explicit_null_unsets_a_variable() -> None:
    assert over_base("env: {A: null, C: ~}").env == {"A": None, "B": "2", "C": None}
    assert over_base("nccl: {env: {NCCL_DEBUG: null}}").nccl.env == {"NCCL_DEBUG": None}
    assert read("env: {A: 0}", "env.A=null").env == {"A": None}
    assert read("env: {A: null}", "env.A=1").env == {"A": "1"}
    assert read('env: {A: "null"}').env == {"A": "null"}
