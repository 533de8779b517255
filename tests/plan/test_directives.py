"""The sbatch directives of a plan: whole nodes, renamed options, conflicting options."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.directives import CONVERSIONS
from hpcrun.plan.launchers import launch_argv
from hpcrun.plan.types import Dependency
from hpcrun.spec.rules import RENAMES
from tests.plan.making import PLACE, cluster, job, plan

JOB = "script: a.py\nresources: {nodes: 2, gpus_per_node: 4}\n"
FACTS = "partitions: {gpu: {gpus_per_node: 8, cpus_per_node: 64, memory_per_node: 800}}\n"


def directives(
    text: str = JOB, profile: str = FACTS, after: str | None = None
) -> dict[str, str | None]:
    first = None if after is None else Dependency(after)
    return dict(build_plan(job(text), cluster(profile), PLACE, after=first).directives)


def test_every_rename_pair_has_a_conversion() -> None:
    assert {(old, new) for old, known in RENAMES.items() for new in known} == CONVERSIONS.keys()


@pytest.mark.parametrize(
    ("rename", "wanted"),
    [
        ("gres: gpus-per-node", {"gpus-per-node": "a100:4"}),
        ("gres: gpus", {"gpus": "a100:8"}),
        ("mem: mem-per-cpu", {"mem-per-cpu": "12M"}),
        ("mem: mem-per-gpu", {"mem-per-gpu": "100M"}),
        ("cpus-per-task: cpus-per-gpu", {"cpus-per-gpu": "8"}),
        ("ntasks-per-node: ntasks", {"ntasks": "2"}),
        ("constraint: prefer", {"prefer": "ib"}),
        (
            "gres: gpus-per-node, mem: mem-per-gpu, cpus-per-task: cpus-per-gpu",
            {"gpus-per-node": "a100:4", "mem-per-gpu": "100M", "cpus-per-gpu": "8"},
        ),
    ],
)
def test_renamed_options_keep_their_values(rename: str, wanted: dict[str, str]) -> None:
    typed = JOB.replace("}", ", gpu_type: a100}")
    types = f"{FACTS}gpu_types: {{a100: {{gres: a100, constraint: ib}}}}\n"
    made = directives(typed, f"{types}rename: {{{rename}}}")
    old = [pair.split(":")[0] for pair in rename.split(", ")]
    assert not made.keys() & set(old)
    assert wanted.items() <= made.items()
    # Each option appears under its new name; only those that 20.11 cannot combine are missing.
    usual = directives(typed, types)
    lost = usual.keys() - made.keys() - set(old)
    assert lost == ({"ntasks-per-node"} if "cpus-per-gpu" in made else set())
    assert len(made) == len(usual) - len(lost)


BY_FEATURE = f"{FACTS}gpu_types: {{h80: {{constraint: hbm80g}}}}\n"


@pytest.mark.parametrize(
    ("profile", "text", "wanted"),
    [
        ("", "", "hbm80g"),
        ("slurm: {constraint: gpu}", "", "hbm80g&gpu"),
        ("", "slurm: {constraint: 'rome|milan'}", "hbm80g&(rome|milan)"),
        ("slurm: {constraint: gpu}", "slurm: {constraint: gpu&nvme}", "hbm80g&gpu&nvme"),
        ("slurm: {constraint: hbm80g}", "", "hbm80g"),
        ("", "slurm: {constraint: false}", None),
    ],
)
def test_constraint_of_gpu_type_is_joined_with_other_constraints(
    profile: str, text: str, wanted: str | None
) -> None:
    """Regression: a constraint of the profile replaced that of the type, so the job got any GPU."""
    typed = JOB.replace("}", ", gpu_type: h80}")
    assert directives(f"{typed}{text}", f"{BY_FEATURE}{profile}").get("constraint") == wanted


def test_unjoinable_constraint_is_refused() -> None:
    typed = JOB.replace("}", ", gpu_type: h80}")
    with pytest.raises(SpecError, match=r"slurm\.constraint: .*cannot be combined with hbm80g"):
        directives(f"{typed}slurm: {{constraint: '[rack1|rack2]'}}", BY_FEATURE)
    renamed = f"{BY_FEATURE}slurm: {{constraint: gpu}}\nrename: {{constraint: prefer}}"
    made = directives(typed, renamed)
    assert (made["prefer"], made["constraint"]) == ("hbm80g", "gpu")


EITHER = (
    "partitions:\n"
    "  old: {gpus_per_node: 4, cpus_per_node: 32, memory_per_node: 400G}\n"
    "  new: {gpus_per_node: 4, cpus_per_node: 64, memory_per_node: 200G}\n"
    "gpu_types:\n"
)


@pytest.mark.parametrize(
    ("types", "more", "wanted"),
    [
        (
            "a: {constraint: x, cpus_per_gpu: 8}, b: {constraint: y, cpus_per_gpu: 6}",
            "",
            {"constraint": "[x|y]", "gres": "gpu:4", "cpus-per-task": "24"},
        ),
        (
            "a: {gres: A, constraint: x}, b: {gres: B, constraint: y}",
            "slurm: {constraint: z}",
            {"constraint": "(x|y)&z", "gres": "gpu:4"},
        ),
        (
            "a: {partition: old}, b: {partition: new}",
            "",
            {"partition": "old,new", "cpus-per-task": "32", "mem": "204800M"},
        ),
    ],
)
def test_several_gpu_types_become_one_request(
    types: str, more: str, wanted: dict[str, str]
) -> None:
    """With features all nodes have the same type; with partitions the shares fit each type."""
    either = JOB.replace("}", ", gpu_type: [a, b]}")
    made = directives(either, f"{EITHER}  {{{types}}}\n{more}")
    assert {key: made.get(key) for key in wanted} == wanted
    alone = directives(either.replace("nodes: 2", "nodes: 1"), f"{EITHER}  {{{types}}}\n")
    assert "[" not in (alone.get("constraint") or "")


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("a: {gres: A}, b: {gres: B}", "a job can request one gres type"),
        ("a: {constraint: x}, b: {gres: B}", "a job can request one gres type"),
        (
            "a: {constraint: x, partition: old}, b: {constraint: y}",
            "a job can request one gres type",
        ),
        ("a: {constraint: x, account: p@a}, b: {constraint: y}", "they differ in account"),
        ("a: {constraint: x}", "b: cluster default has a; name one of these"),
    ],
)
def test_gpu_types_that_slurm_cannot_combine_are_refused(types: str, message: str) -> None:
    either = JOB.replace("}", ", gpu_type: [a, b]}")
    with pytest.raises(SpecError, match=rf"resources\.gpu_type: .*{message}"):
        directives(either, f"{EITHER}  {{{types}}}\n")


def test_rename_applies_to_untyped_gpus() -> None:
    assert directives(JOB, "rename: {gres: gpus-per-node}")["gpus-per-node"] == "4"
    assert directives(JOB, "rename: {gres: gpus}")["gpus"] == "8"


@pytest.mark.parametrize(
    ("text", "rename", "message"),
    [
        (
            f"{JOB}slurm: {{exclusive: true}}",
            "mem: mem-per-gpu",
            "rename.mem: the memory of whole nodes cannot be requested per GPU; "
            "slurm: {mem: false} leaves it out",
        ),
        (
            JOB,
            "mem: mem-per-cpu",
            "rename.mem: all of a node's memory cannot be requested per CPU: set memory_per_node",
        ),
        (
            "script: a.py\nresources: {gpus_per_node: 0, memory_per_node: 100M}",
            "mem: mem-per-gpu",
            "rename.mem: the job has no GPUs to share its memory",
        ),
        (
            "script: a.py\nresources: {gpus_per_node: 0}",
            "cpus-per-task: cpus-per-gpu",
            "rename.cpus-per-task: the job has no GPUs to share its CPUs",
        ),
    ],
)
def test_rename_that_loses_information_is_refused(text: str, rename: str, message: str) -> None:
    facts = FACTS.replace("}}", ", exclusive: true}}") if text == JOB else FACTS
    with pytest.raises(SpecError) as caught:
        plan(text, f"{facts}rename: {{{rename}}}")
    assert f"cluster default: {message}" in str(caught.value)
    # The advice in the message works.
    old, _, new = rename.partition(": ")
    profile = f"{FACTS}rename: {{{rename}}}\nslurm: {{{old}: false}}"
    assert not {old, new} & directives(text, profile).keys()


def test_step_gets_its_cpus_with_any_cpu_option() -> None:
    def step(text: str, profile: str = FACTS) -> list[str]:
        return [word for word in launch_argv(plan(text, profile)) if word.startswith("--cpus")]

    assert step(JOB) == ["--cpus-per-task=32"]
    assert step(f"{JOB}launcher: srun") == ["--cpus-per-task=8"]
    assert step(f"{JOB}slurm: {{cpus-per-task: false}}") == []
    # 23.11 and later refuse both in one step; the batch job's SLURM_CPUS_PER_GPU reaches it.
    assert step(JOB, f"{FACTS}rename: {{cpus-per-task: cpus-per-gpu}}") == []
    assert step("script: a.py\nresources: {exclusive: true}", "") == []
    # At TACC the CPUs follow from the GPUs or the node, and sbatch refuses options for them.
    assert step(JOB, f"{FACTS}slurm: {{cpus-per-task: false}}") == ["--cpus-per-task=32"]


def test_job_without_ntasks_gives_all_cpus_to_its_single_task() -> None:
    text = f"{JOB}launcher: srun\nslurm: {{ntasks-per-node: false}}"
    made = plan(text, FACTS)
    assert dict(made.directives)["cpus-per-task"] == "32"
    assert "ntasks-per-node" not in dict(made.directives)
    # The step still starts one rank per GPU, each with its share of the CPUs.
    assert {"--ntasks-per-node=4", "--cpus-per-task=8"} <= set(launch_argv(made))


@pytest.mark.parametrize("option", ["mem", "mem-per-cpu", "mem-per-gpu"])
def test_memory_is_specified_once(option: str) -> None:
    made = directives(f"{JOB}slurm: {{{option}: 7G}}")
    assert {name: value for name, value in made.items() if name.startswith("mem")} == {option: "7G"}


def test_exclusive_nodes_drop_cpus_per_gpu() -> None:
    text = "script: a.py\nresources: {gpus_per_node: 2, exclusive: true}"
    made = plan(text, f"{FACTS}rename: {{cpus-per-task: cpus-per-gpu}}")
    # All CPUs come with --exclusive; so many for each of all GPUs would be more than there are.
    assert not {"cpus-per-gpu", "cpus-per-task"} & dict(made.directives).keys()
    assert "--cpus-per-task=64" in launch_argv(made)


def test_whole_nodes_request_exclusive_and_all_memory() -> None:
    made = directives("script: a.py\nresources: {gpus_per_node: 2, exclusive: true}")
    assert (made["exclusive"], made["mem"], made["cpus-per-task"]) == (None, "0", "64")
    made = directives("script: a.py\nresources: {exclusive: true}\nslurm: {exclusive: false}")
    assert "exclusive" not in made
    # A partition that allocates whole nodes needs no option.
    whole = directives(JOB, FACTS.replace("}}", ", exclusive: true}}"))
    assert "exclusive" not in whole and (whole["mem"], whole["cpus-per-task"]) == ("0", "64")


def test_dependencies_of_after_and_slurm_options_are_joined() -> None:
    text = f"{JOB}slurm: {{dependency: 'afterany:5'}}"
    assert directives(text)["dependency"] == "afterany:5"
    assert directives(text, after="17")["dependency"] == "afterok:17,afterany:5"
    with pytest.raises(SpecError, match=r"slurm.dependency: a:1\?b:2: it cannot be combined"):
        directives(f"{JOB}slurm: {{dependency: 'a:1?b:2'}}", after="17")


JEAN_ZAY = """\
account: abc@v100
slurm: {hint: nomultithread, qos: qos_gpu-t3}
setup: {modules: [git]}
gpu_types:
  v100-32g: {constraint: v100-32g}
  a100:
    {partition: gpu_p5, constraint: a100, account: abc@a100, qos: qos_gpu_a100-t3, cpus_per_gpu: 8,
     modules: [arch/a100]}
"""


def test_gpu_type_sets_account_qos_cpus_and_modules() -> None:
    """IDRIS has one account and one module tree per GPU type."""
    text = (
        "script: a.py\nresources: {gpus_per_node: 4, gpu_type: a100}\nsetup: {modules: [torch]}\n"
    )
    made = plan(text, JEAN_ZAY)
    wanted = {
        "partition": "gpu_p5",
        "account": "abc@a100",
        "qos": "qos_gpu_a100-t3",
        "cpus-per-task": "32",
        "hint": "nomultithread",
    }
    assert wanted.items() <= dict(made.directives).items()
    assert made.setup.modules == ["git", "arch/a100", "torch"]
    other = dict(plan(text.replace("a100", "v100-32g"), JEAN_ZAY).directives)
    assert (other["account"], other["qos"]) == ("abc@v100", "qos_gpu-t3")
    own = text.replace("a100}", "a100, account: x, cpus_per_gpu: 2}") + "slurm: {qos: y}"
    said = dict(plan(own, JEAN_ZAY).directives)
    assert (said["account"], said["qos"], said["cpus-per-task"]) == ("x", "y", "8")


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        ("", {"gres": "gpu:4,nvme:100,tmpfs:50G"}),
        ("rename: {gres: gpus-per-node}", {"gres": "nvme:100,tmpfs:50G", "gpus-per-node": "4"}),
        ("slurm: {gres: false}", {"gres": "nvme:100,tmpfs:50G"}),
    ],
)
def test_other_gres_are_requested_together_with_gpus(profile: str, wanted: dict[str, str]) -> None:
    text = "script: a.py\nresources: {gpus_per_node: 4, gres: {nvme: 100, tmpfs: 50G}}"
    made = dict(plan(text, profile).directives)
    assert {key: made[key] for key in made if key in ("gres", "gpus-per-node")} == wanted
