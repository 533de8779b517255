"""The whole plan: program, environment, directives, batch."""

from __future__ import annotations

import msgspec
import pytest

from hpcrun.errors import InputError
from hpcrun.plan.build import RUN_MODULE, build_plan
from hpcrun.plan.directives import MAX_NAME, check_slurm_values
from hpcrun.plan.types import Dependency, Plan
from tests.plan.making import PLACE, cluster, job, plan, variables

CODE = f"{PLACE.run_dir}/code"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("script: a.py\nargs: [--x]", [PLACE.python, f"{CODE}/a.py", "--x"]),
        ("script: sub/a.py", [PLACE.python, f"{CODE}/sub/a.py"]),
        ("script: ./sub/../a.py", [PLACE.python, f"{CODE}/a.py"]),
        (f"script: {PLACE.project_dir}/a.py", [PLACE.python, f"{CODE}/a.py"]),
        ("script: /abs/a.py", [PLACE.python, "/abs/a.py"]),
        ("script: a.py\nsnapshot: false", [PLACE.python, f"{PLACE.project_dir}/a.py"]),
        ("module: pkg.t\nargs: [1]", [PLACE.python, "-c", RUN_MODULE, "pkg.t", "1"]),
        ("module: pkg.t\nsnapshot: false", [PLACE.python, "-m", "pkg.t"]),
        ("script: ../a.py", [PLACE.python, f"{PLACE.project_dir}/../a.py"]),
        ("command: [echo, '{run_id}']\nargs: [x]", ["echo", PLACE.run_id, "x"]),
        ("{}", [PLACE.python, f"{CODE}/train_gpt.py"]),
        ("snapshot: false", [PLACE.python, f"{CODE}/train_gpt.py"]),
    ],
)
def test_program_of_the_plan_is_the_full_command(text: str, program: list[str]) -> None:
    assert plan(text).program == program


@pytest.mark.parametrize(
    ("text", "launcher", "tasks", "cpus"),
    [
        ("script: a.py", "torchrun", "1", "16"),
        ("script: a.py\nlauncher: srun", "srun", "4", "4"),
        ("command: [nvidia-smi]", "none", "1", "16"),
        ("command: [a]\nlauncher: srun", "srun", "4", "4"),
    ],
)
def test_tasks_per_node_is_one_unless_srun_starts_the_ranks(
    text: str, launcher: str, tasks: str, cpus: str
) -> None:
    made = plan(f"{text}\nresources: {{nodes: 2, gpus_per_node: 4}}")
    directives = dict(made.directives)
    assert made.launcher == launcher
    assert directives["ntasks-per-node"] == tasks == str(made.tasks_per_node)
    assert directives["cpus-per-task"] == cpus
    assert made.world_size == 8


@pytest.mark.parametrize(
    ("nodes", "gpus", "micro", "accumulation", "effective"),
    [(1, 1, 1, 1, 1), (1, 4, 2, 3, 24), (2, 4, 4, 1, 32), (2, 0, 5, 2, 20)],
)
def test_effective_batch_is_the_product_of_its_factors(
    nodes: int, gpus: int, micro: int, accumulation: int, effective: int
) -> None:
    made = plan(
        f"script: a.py\nresources: {{nodes: {nodes}, gpus_per_node: {gpus}}}\n"
        f"batch: {{micro_batch_per_gpu: {micro}, gradient_accumulation_steps: {accumulation}}}"
    )
    assert made.effective_batch == effective
    assert made.world_size == nodes * max(1, gpus)


# ---- directives


def test_directives_have_a_fixed_order() -> None:
    made = plan(
        "name: x\nscript: a.py\nresources: {time: '1:00', partition: p, account: a, gpu_type: t, "
        "memory_per_node: 1G}\nslurm: {qos: high}",
        "gpu_types: {t: {constraint: c}}",
        after=Dependency("17"),
    )
    assert [f"{k}={v}" for k, v in made.directives] == [
        "job-name=x",
        "partition=p",
        "account=a",
        "nodes=1",
        "ntasks-per-node=1",
        "cpus-per-task=4",
        "gres=gpu:1",
        "constraint=c",
        "mem=1G",
        "time=1:00",
        "dependency=afterok:17",
        "kill-on-invalid-dep=yes",
        "output=logs/batch.log",
        "propagate=CORE",
        "open-mode=append",
        "no-requeue=None",
        "qos=high",
    ]


def test_slurm_options_of_the_job_override_the_profile() -> None:
    made = plan(
        "script: a.py\nslurm: {mail-type: END, mem: '5G', exclusive: true, gres: false}",
        "slurm: {mail-type: ALL, reservation: maint}",
    )
    directives = dict(made.directives)
    assert directives["mail-type"] == "END"
    assert directives["reservation"] == "maint"
    assert directives["mem"] == "5G"
    assert directives["exclusive"] is None
    assert "gres" not in directives
    assert len(directives) == len(made.directives)


@pytest.mark.parametrize(
    ("job", "profile", "there", "gone"),
    [
        ("", "", {"no-requeue"}, {"requeue"}),
        ("slurm: {requeue: true}", "", {"requeue"}, {"no-requeue"}),
        ("", "slurm: {requeue: true}", {"requeue"}, {"no-requeue"}),
        ("slurm: {requeue: false}", "slurm: {requeue: true}", set(), {"requeue"}),
        ("slurm: {no-requeue: false}", "", set(), {"requeue", "no-requeue"}),
    ],
)
def test_requeue_is_allowed_only_on_request(
    job: str, profile: str, there: set[str], gone: set[str]
) -> None:
    directives = dict(plan(f"script: a.py\n{job}", profile).directives)
    assert there <= directives.keys() and not gone & directives.keys()


@pytest.mark.parametrize(
    ("option", "words"), [("job-name", "name: "), ("comment", "slurm.comment: ")]
)
@pytest.mark.parametrize("char", ["\n", "\r", "\0", "\x1e", "\x1f"])
def test_control_characters_in_directives_are_refused(option: str, words: str, char: str) -> None:
    good = plan("script: a.py")
    bad: Plan = msgspec.structs.replace(good, directives=[(option, f"a{char}b")])
    check_slurm_values(good)
    with pytest.raises(InputError) as caught:
        check_slurm_values(bad)
    assert caught.value.message.startswith(words)


def test_too_long_job_name_is_refused() -> None:
    plan_of = plan(f"script: a.py\nname: {'é' * (MAX_NAME // 2)}")
    check_slurm_values(plan_of)
    with pytest.raises(InputError, match=f"name: {MAX_NAME + 2} bytes long"):
        check_slurm_values(plan(f"script: a.py\nname: {'é' * (MAX_NAME // 2 + 1)}"))


@pytest.mark.parametrize(
    ("run_dir", "output"),
    [
        ("/scratch/my runs/r", "logs/batch.log"),
        ("/scratch/100%j/r", r"/scratch/100\%j/r/logs/batch.log"),
    ],
)
def test_run_folder_is_escaped_against_slurm_filename_patterns(run_dir: str, output: str) -> None:
    place = msgspec.structs.replace(PLACE, run_dir=run_dir)
    made = build_plan(job("script: a.py"), cluster(), place)
    assert dict(made.directives)["output"] == output


# ---- environment


def test_user_variables_come_last_and_override_others() -> None:
    made = plan(
        "script: a.py\nresources: {nodes: 2}\nnccl: {env: {NCCL_DEBUG: INFO, BOTH: nccl}}\n"
        "env: {OMP_NUM_THREADS: '2', BOTH: job, CLUSTER: job}",
        "fabric: infiniband\nenv: {CLUSTER: profile, PROFILE: profile, OMP_NUM_THREADS: '7'}",
    )
    assert [section.block for section in made.environment] == [
        *("run", "environment", "nccl", "environment", "environment", "nccl", "job_environment"),
        "node",
    ]
    # Each variable is set once, so the order of the template's blocks does not matter.
    pairs = [pair for section in made.environment for pair in section.variables.items()]
    final = dict(pairs)
    assert len(pairs) == len(final)
    assert final["OMP_NUM_THREADS"] == "2"
    assert final["NCCL_DEBUG"] == "INFO"
    assert final["BOTH"] == "job"
    assert (final["CLUSTER"], final["PROFILE"]) == ("job", "profile")


def test_cpu_cluster_selects_cpu_backends() -> None:
    made = plan("script: a.py\nresources: {gpus_per_node: 4}", "accelerator: cpu")
    env = variables(made)
    assert (env["DS_ACCELERATOR"], env["LOCAL_SIZE"]) == ("cpu", "4")
    assert (env["HPCRUN_DEVICE"], env["HPCRUN_BACKEND"]) == ("cpu", "gloo")
    assert not [name for name in env if name.startswith("NCCL")]
    env = variables(plan("script: a.py"))
    assert (env["HPCRUN_DEVICE"], env["HPCRUN_BACKEND"]) == ("cuda", "nccl")
    assert "DS_ACCELERATOR" not in env


def test_nodes_without_internet_set_offline_variables() -> None:
    offline = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "WANDB_MODE"}
    assert offline <= variables(plan("script: a.py", "internet: false")).keys()
    assert not offline & variables(plan("script: a.py")).keys()


def test_search_paths_prepend_interpreter_and_hook() -> None:
    def prepended(text: str) -> dict[str, str]:
        return {k: v for section in plan(text).environment for k, v in section.prepend.items()}

    hook = f"{PLACE.run_dir}/hook.pyz"
    assert prepended("script: a.py") == {"PATH": "/opt/env/bin", "PYTHONPATH": f"{CODE}:{hook}"}
    in_place = prepended("script: a.py\nsnapshot: false")["PYTHONPATH"]
    assert in_place == f"{PLACE.project_dir}:{hook}"
    assert prepended("script: a.py\npreflight: false")["PYTHONPATH"] == CODE
    assert "PYTHONPATH" not in prepended("command: [a]")


def test_torch_extensions_are_cached_per_interpreter() -> None:
    def folder(python: str) -> str:
        place = msgspec.structs.replace(PLACE, python=python)
        made = build_plan(job("script: a.py"), cluster(), place)
        return variables(made)["TORCH_EXTENSIONS_DIR"]

    assert folder("/a/python").startswith("/scratch/cache/torch_extensions/")
    assert folder("/a/python") != folder("/b/python")
    assert folder("/a/python") == folder("/a/python")
    assert folder("/a\udcff/python") != folder("/a/python")


def test_setup_of_the_cluster_precedes_setup_of_the_job() -> None:
    made = plan(
        "script: a.py\nsetup: {modules: [b], commands: [two]}",
        "setup: {modules: [a], commands: [one]}",
    )
    assert (made.setup.modules, made.setup.commands) == (["a", "b"], ["one", "two"])
