"""Combinations of a sweep as separate jobs, and the array that they share."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hpcrun.errors import InputError, SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.sweep import (
    MAX_RUNS,
    build_array,
    build_runs,
    check_placeholders,
    fill_drawn_values,
    split_sweep,
)
from hpcrun.plan.types import Plan
from hpcrun.spec.dump import dump_job
from hpcrun.spec.job import JobSpec
from tests.plan.making import PLACE, cluster, job

SWEEP_ID = "20261120-081455-train-7k3q"


def plans(spec: JobSpec, runs_dir: str = "/runs", **changes: Any) -> list[Plan]:
    """Return the plans of all runs, as stored in the folder of a sweep."""
    return [
        build_plan(
            run.spec,
            cluster(**changes),
            structs.replace(
                PLACE,
                run_id=f"20261120-081455-train.{run.index}-7k3q",
                run_dir=f"{runs_dir}/20261120-081455-train.{run.index}-7k3q",
                shared_code=f"{runs_dir}/{SWEEP_ID}.array/code",
            ),
            extra_args=run.extra_args,
        )
        for run in build_runs(spec)
    ]


def problems(text: str, *words: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        build_runs(job(text), words)
    return [str(problem).removeprefix(": ") for problem in caught.value.problems]


def test_sweep_builds_all_combinations_in_key_order() -> None:
    spec = job("name: t\nargs: ['{b}', '{a}']\nsweep: {a: [1, 2], b: [x, y, z]}")
    runs = build_runs(spec)
    assert [run.spec.args for run in runs] == [
        *(["x", "1"], ["y", "1"], ["z", "1"]),
        *(["x", "2"], ["y", "2"], ["z", "2"]),
    ]
    assert [run.index for run in runs] == list(range(6))
    assert [run.spec.name for run in runs] == [f"t.{index}" for index in range(6)]
    assert runs[3].values == {"a": "2", "b": "x"}
    assert all(run.spec.sweep == {} for run in runs)
    assert "sweep" not in dump_job(runs[0].spec)


def test_sweep_values_keep_their_spelling() -> None:
    (run,) = build_runs(job("args: ['{lr}']\nsweep: {lr: [1e-4]}"))
    assert run.spec.args == ["1e-4"]


def test_sweep_fills_its_placeholders_everywhere_and_no_others() -> None:
    spec = job(
        "command: [run, '{x}']\nargs: ['{{x}}', '{run_dir}/{x}']\n"
        "env: {A: '{x}'}\nstage: {'/data/{x}': '{x}'}\n"
        "deepspeed: {offload: {nvme_path: '/d/{x}'}}\n"
        "nccl: {env: {NCCL_DEBUG: '{x}'}}\nsweep: {x: [7]}"
    )
    (run,) = build_runs(spec, ["{x}", "{other}"])
    assert run.spec.command == ["run", "7"]
    assert run.spec.args == ["{{x}}", "{run_dir}/7"]
    assert (run.spec.env, run.spec.nccl.env) == ({"A": "7"}, {"NCCL_DEBUG": "7"})
    assert run.spec.stage == {"/data/7": "7"}
    assert run.spec.deepspeed is not None and run.spec.deepspeed.offload.nvme_path == "/d/7"
    assert run.extra_args == ["7", "{other}"]


def test_swept_job_keys_keep_their_types() -> None:
    spec = job(
        "framework: deepspeed\nsweep:\n  deepspeed.zero_stage: [2, 3]\n  precision: [fp32]\n"
        "  activation_checkpointing: [true]\n"
        "  deepspeed.config.zero_optimization.reduce_bucket_size: [5e7]\n  env.A_B: ['a: b']\n"
    )
    one, two = build_runs(spec)
    assert [run.spec.deepspeed and run.spec.deepspeed.zero_stage for run in (one, two)] == [2, 3]
    assert one.spec.deepspeed is not None
    assert one.spec.deepspeed.config == {"zero_optimization": {"reduce_bucket_size": 5e7}}
    assert one.spec.precision == "fp32" and one.spec.activation_checkpointing is True
    assert one.spec.env == {"A_B": "a: b"}


def test_sweep_fills_extra_arguments() -> None:
    spec = structs.replace(job("sweep: {precision: [fp32], x: [a]}"), command=[])
    (run,) = build_runs(spec, ["echo", "{x}"])
    assert run.spec.command == [] and run.extra_args == ["echo", "a"]
    assert run.spec.precision == "fp32"


def test_each_sweep_combination_is_validated() -> None:
    text = "framework: deepspeed\ndeepspeed: {offload: {param: cpu}, zero_stage: 3}\n"
    found = problems(f"{text}sweep: {{deepspeed.zero_stage: [2, 3, 9], nothing.there: [1]}}")
    assert "deepspeed.offload.param: needs zero_stage 3; it is 2" in found
    assert "sweep.deepspeed.zero_stage: must be from 0 to 3; got 9" in found
    assert sum("nothing" in problem for problem in found) == 1, "told once, not for each run"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("lr", "nothing reads it: write {lr} into args, env or command"),
        ("resources.nodes", "share its resources and options; hpcrun submit makes an array for"),
        ("slurm.qos", "share its resources and options; hpcrun submit makes an array for each"),
        ("group", "are in one group"),
        ("name", "are named after it"),
        ("snapshot", "share one copy of the code"),
        ("environment", "are submitted from one environment"),
        ("secrets", "have the same secrets"),
        ("sweep.x", "cannot change itself"),
        ("sweep_limit", "cannot change itself"),
    ],
)
def test_unsweepable_keys_are_refused(key: str, expected: str) -> None:
    (problem,) = problems(f"args: ['{{{{lr}}}}']\nsweep: {{{key}: [1, 2]}}")
    assert problem.startswith(f"sweep.{key}: ") and expected in problem


def test_combinations_are_runs_in_their_order() -> None:
    spec = job(
        "name: t\nargs: ['{lr}']\nsweep: {seed: [1, 2]}\nenv: {SEED: '{seed}'}\n"
        "sweep_combinations: [{lr: 1e-4, batch.micro_batch_per_gpu: 4}, "
        "{lr: 3e-4, batch.micro_batch_per_gpu: 8}]"
    )
    runs = build_runs(spec)
    found = [(run.spec.args[0], run.spec.batch.micro_batch_per_gpu) for run in runs]
    assert found == [("1e-4", 4), ("1e-4", 4), ("3e-4", 8), ("3e-4", 8)]
    assert [run.spec.env["SEED"] for run in runs] == ["1", "2", "1", "2"]
    assert runs[2].values == {"lr": "3e-4", "batch.micro_batch_per_gpu": "8", "seed": "1"}
    assert "sweep" not in dump_job(runs[0].spec)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[{lr: 1}, {seed: 2}]", "sweep_combinations[1]: it lacks lr, which the first one has"),
        ("[{lr: 1}, {lr: 2, seed: 2}]", "sweep_combinations[1]: it has seed, which the first one"),
        ("[{lr: 1, a: 2}]", "sweep_combinations[0].a: sweep varies a already"),
        ("[{lr: 1, unread: 2}]", "sweep_combinations[0].unread: nothing reads it"),
        ("[{lr: 1, secrets: 2}]", "sweep_combinations[0].secrets: the runs of a sweep have the"),
    ],
)
def test_inconsistent_combinations_are_refused(text: str, problem: str) -> None:
    found = problems(
        f"args: ['{{lr}}', '{{seed}}', '{{a}}']\nsweep: {{a: [1]}}\nsweep_combinations: {text}"
    )
    assert any(each.startswith(problem) for each in found), found


# ---- searches and exclusions

RANDOM = (
    "name: t\nargs: ['{lr}', '{n}', '{act}']\n"
    "sweep: {search: random, trials: TRIALS, lr: {log: [1e-5, 1e-2]}, n: {int: [2, 4]}, "
    "act: [relu, gelu], batch.micro_batch_per_gpu: [4, 8]}\n"
)


def test_random_search_draws_different_runs_and_the_same_ones_again() -> None:
    spec = job(RANDOM.replace("TRIALS", "8"))
    runs = build_runs(spec)
    assert [run.index for run in runs] == list(range(8))
    assert len({tuple(run.values.values()) for run in runs}) == 8
    assert runs == build_runs(spec)
    assert runs[:5] == build_runs(job(RANDOM.replace("TRIALS", "5"))), "more trials add runs"
    for run in runs:
        assert run.spec.args == [run.values[key] for key in ("lr", "n", "act")]
        assert str(run.spec.batch.micro_batch_per_gpu) == run.values["batch.micro_batch_per_gpu"]
        assert "sweep" not in dump_job(run.spec)
    array = build_array(plans(spec), spec, SWEEP_ID)
    assert dict(array.directives)["array"] == "0-7%4"


def test_random_search_covers_a_small_space_once() -> None:
    text = (
        "args: ['{n}', '{act}']\nsweep: {search: random, trials: %d, n: {int: [1, 5]}, act: [a, b]}"
    )
    runs = build_runs(job(text % 10))
    assert len({tuple(run.values.values()) for run in runs}) == 10
    assert problems(text % 11) == [
        "sweep.trials: 11 trials; found 10 different combinations in the space"
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("resources.nodes: [1, 2]", "sweep.resources.nodes: the runs of a search share their"),
        ("unread: {int: [1, 9]}", "sweep.unread: nothing reads it"),
        ("secrets: [A, B]", "sweep.secrets: the runs of a sweep have the same secrets"),
    ],
)
def test_unsearchable_keys_are_refused(change: str, expected: str) -> None:
    spec = job(RANDOM.replace("TRIALS", "3").replace("act:", f"{change}, act:"))
    for build in (build_runs, split_sweep):
        if build is split_sweep and "nodes" not in change:
            continue
        with pytest.raises(SpecError) as caught:
            build(spec)
        assert any(expected in str(each) for each in caught.value.problems), caught.value


def test_search_with_listed_combinations_is_refused() -> None:
    found = problems(
        RANDOM.replace("TRIALS", "3") + "sweep_combinations: [{a: 1}]\nenv: {A: '{a}'}"
    )
    assert found == [
        "sweep_combinations: not with sweep.search: random, which chooses the combinations"
    ]


def test_excluded_combinations_are_not_run() -> None:
    text = (
        "args: ['{lr}', '{n}', '{w}']\nsweep: {lr: [1e-4, 1e-3], n: [6, 12]}\n"
        "sweep_combinations: [{w: 1}, {w: 2}]\nsweep_exclude: [{lr: 0.001, n: 12}, {w: 2, n: 6}]\n"
    )
    found = [run.spec.args for run in build_runs(job(text))]
    assert found == [
        *(["1e-4", "6", "1"], ["1e-4", "12", "1"], ["1e-3", "6", "1"]),
        ["1e-4", "12", "2"],
    ]
    assert [run.index for run in build_runs(job(f"{text}sweep_part: 2/2"))] == [0, 1]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("[{lr: 2}]", "sweep_exclude[0].lr: no run has lr=2; lr is 1e-4 or 1e-3"),
        ("[{lr: 1e-4}, {x: 1}]", "sweep_exclude[1].x: no run has x=1"),
        ("[{lr: 1e-4}, {lr: 1e-3}]", "sweep_exclude: all combinations are excluded"),
    ],
)
def test_exclusions_that_cannot_be_meant_are_refused(entries: str, expected: str) -> None:
    text = f"args: ['{{lr}}']\nsweep: {{lr: [1e-4, 1e-3]}}\nsweep_exclude: {entries}"
    assert problems(text) == [expected]


def test_random_search_leaves_excluded_combinations_out() -> None:
    text = (
        "args: ['{n}', '{act}']\n"
        "sweep: {search: random, trials: 8, n: {int: [1, 5]}, act: [a, b]}\n"
        "sweep_exclude: [{n: 3}]"
    )
    assert {run.values["n"] for run in build_runs(job(text))} == {"1", "2", "4", "5"}


TPE = (
    "name: t\nargs: [--lr, '{lr}', '--x=a{lr}b']\nenv: {A: '{act}'}\n"
    "sweep: {search: tpe, trials: 3, metric: eval_loss, lr: {log: [1e-5, 1e-2]}, act: [a, b]}\n"
)


def test_values_that_are_drawn_later_are_expanded_on_the_node() -> None:
    spec = job(TPE)
    runs = build_runs(spec, ["{lr}", "{other}"])
    assert len(runs) == 3 and all(run.values == {} for run in runs)
    reference = "${HPCRUN_TRIAL_lr}"
    assert runs[1].spec.args == ["--lr", reference, f"--x=a{reference}b"]
    assert runs[1].spec.env == {"A": "${HPCRUN_TRIAL_act}"}
    assert runs[1].extra_args == [reference, "{other}"]
    assert set(runs[0].trial) == {"lr", "act"}, "an example for checks"
    plan = plans(spec)[0]
    assert plan.program[-3:] == ["--lr", reference, f"--x=a{reference}b"]
    (section,) = [each for each in plan.environment if "A" in each.variables]
    assert section.block == "node"
    assert fill_drawn_values(runs[0].spec, {"lr": "1", "act": "b"}).args == ["--lr", "1", "--x=a1b"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("checkpoint: {dir: '/c/{lr}'}", "checkpoint.dir: {lr}: search: tpe draws it when a run"),
        ("stage: {'/d/{act}': x}", "stage: {act}: search: tpe draws it when a run starts"),
        ("sweep_exclude: [{act: a}]", "sweep_exclude: not with search: tpe"),
        ("sweep_part: 1/3", "sweep_part: not with search: tpe"),
        ("sweep_per_node: 2", "sweep_per_node: not with search: tpe"),
    ],
)
def test_what_needs_values_at_submission_is_refused_with_tpe(more: str, expected: str) -> None:
    assert any(each.startswith(expected) for each in problems(TPE + more))


def test_runs_that_cannot_be_ended_alone_are_not_pruned() -> None:
    text = "name: t\nargs: ['{x}']\nsweep: {metric: loss, prune: asha, x: [1, 2]}\n"
    assert problems(text + "sweep_per_node: 2")[0].startswith(
        "sweep_per_node: not with sweep.prune"
    )


def test_keys_of_the_job_are_refused_with_tpe() -> None:
    found = problems(TPE.replace("act: [a, b]", "act: [a], batch.micro_batch_per_gpu: [4, 8]"))
    assert [each.partition(":")[0] for each in found] == ["sweep.batch.micro_batch_per_gpu"]


def test_sweep_over_resources_is_split_into_arrays_and_runs() -> None:
    spec = job(
        "name: t\nargs: ['{lr}']\nsweep: {resources.nodes: [1, 2], lr: [1, 2], "
        "resources.gpu_type: [a100, v100]}\nsweep_limit: 9"
    )
    parts = split_sweep(spec)
    assert [part.name for part in parts] == [
        *("t-nodes-1-gpu_type-a100", "t-nodes-1-gpu_type-v100"),
        *("t-nodes-2-gpu_type-a100", "t-nodes-2-gpu_type-v100"),
    ]
    assert [part.resources.nodes for part in parts] == [1, 1, 2, 2]
    assert [part.resources.gpu_type for part in parts] == ["a100", "v100"] * 2
    assert all(
        [run.values for run in build_runs(part)] == [{"lr": "1"}, {"lr": "2"}] for part in parts
    )
    assert all(part.sweep_limit == 9 for part in parts)


@pytest.mark.parametrize("key", ["resources.time", "slurm.qos", "resources.gpus_per_node"])
def test_sweep_over_resources_alone_is_split_into_plain_runs(key: str) -> None:
    parts = split_sweep(job(f"name: t\nsweep_combinations: [{{{key}: 1}}, {{{key}: 2}}]"))
    assert [part.sweep_keys for part in parts] == [[], []]
    assert parts[0] != parts[1]


def test_arrays_of_a_split_sweep_keep_its_metric_and_pruning() -> None:
    settings = "metric: eval_loss, goal: maximize, prune: asha, prune_from: 9, parallel: 2"
    varied = f"{{{settings}, resources.nodes: [1, 2], lr: [1, 2]}}"
    for part in split_sweep(job(f"name: t\nargs: ['{{lr}}']\nsweep: {varied}")):
        search = part.search
        found = (search.metric, search.goal, search.prune, search.prune_from, part.runs_at_once)
        assert found == ("eval_loss", "maximize", "asha", 9, 2)
        assert len(build_runs(job(dump_job(part)))) == 2
    single = split_sweep(job("name: t\nsweep: {metric: eval_loss, resources.nodes: [1, 2]}"))
    assert [part.sweep for part in single] == [{}, {}]


def test_split_sweep_keeps_other_jobs_and_reports_invalid_values() -> None:
    spec = job("name: t\nargs: ['{lr}']\nsweep: {lr: [1, 2]}")
    assert split_sweep(spec) == [spec]
    with pytest.raises(SpecError) as caught:
        split_sweep(job("name: t\nsweep: {resources.nodes: [1, x], resources.nothing: [1]}"))
    found = [str(problem) for problem in caught.value.problems]
    assert any(each.startswith("sweep.resources.nodes: ") for each in found), found
    assert any(each.startswith("sweep.resources.nothing: unknown key") for each in found), found


def test_too_many_sweep_runs_are_refused() -> None:
    values = list(range(101))
    (problem,) = problems(f"args: ['{{a}}{{b}}']\nsweep: {{a: {values}, b: {values}}}")
    assert problem == f"sweep: 10201 combinations; a sweep has at most {MAX_RUNS} runs"


def test_sweep_over_builtin_placeholder_is_refused() -> None:
    spec = job(
        "args: ['{nodes}', '{lr}', '{precision}']\nsweep: {nodes: [1], lr: [1], precision: [fp32]}"
    )
    with pytest.raises(
        SpecError,
        match=r"sweep.nodes: \{nodes\} is one of hpcrun's own "
        r"placeholders",
    ):
        check_placeholders(spec, {"nodes", "precision"})


# ---- the array


def test_sweep_array_requests_resources_once() -> None:
    spec = job("name: train\nargs: ['{a}']\nsweep: {a: [1, 2, 3]}\nsweep_limit: 2")
    made = plans(spec)
    array = build_array(made, spec, SWEEP_ID)
    directives, of_a_run = dict(array.directives), dict(made[1].directives)
    assert directives["array"] == "0-2%2"
    assert directives["job-name"] == "train" and of_a_run["job-name"] == "train.1"
    assert directives["output"] == "../20261120-081455-train.%a-7k3q/logs/batch.log"
    own = {"array", "job-name", "output"}
    assert {k: v for k, v in directives.items() if k not in own} == {
        k: v for k, v in of_a_run.items() if k not in own
    }
    assert "array" not in of_a_run
    assert made[1].program[1] == f"/runs/{SWEEP_ID}.array/code/train_gpt.py"


SAVING = "args: ['{lr}', '{seed}']\nsweep: {lr: [1, 2], seed: [3, 4]}\ncheckpoint: {dir: DIR}"


@pytest.mark.parametrize(
    ("folder", "runs", "shared", "fix"),
    [
        ("/ckpt", "lr=1, seed=3 and the one with lr=1, seed=4", "/ckpt", "; or /ckpt/{lr}-{seed}"),
        (
            "'/c/{seed}/'",
            "lr=1, seed=3 and the one with lr=2, seed=3",
            "/c/3",
            "; or /c/{seed}/{lr}",
        ),
        ("../c", "lr=1, seed=3 and the one with lr=1, seed=4", "../c", ": checkpoints"),
    ],
)
@pytest.mark.parametrize("part", [None, "1/2", "4/4"])
def test_sweep_runs_with_shared_checkpoint_dir_are_refused(
    folder: str, runs: str, shared: str, fix: str, part: str | None
) -> None:
    """A later part would resume from the checkpoints of an earlier one with other values."""
    spec = structs.replace(job(SAVING.replace("DIR", folder)), sweep_part=part)
    with pytest.raises(InputError) as caught:
        build_runs(spec)
    assert f"{runs} would both save to {shared}, and resume" in str(caught.value)
    assert caught.value.fix is not None and caught.value.fix.endswith(fix)


def test_sweep_over_resources_with_shared_checkpoint_dir_is_refused() -> None:
    sweep = "name: t\nsweep: {resources.nodes: [1, 2]}\ncheckpoint: {dir: DIR}"
    with pytest.raises(InputError, match=r"nodes=1 and the one with resources\.nodes=2 would both"):
        split_sweep(job(sweep.replace("DIR", "/ckpt")))
    assert len(split_sweep(job(sweep.replace("DIR", "checkpoints")))) == 2
    chosen = sweep.replace("nodes: [1, 2]", "nodes: [1, 2], checkpoint.dir: [/a, /b]")
    with pytest.raises(InputError, match="would both save to /a"):
        split_sweep(job(chosen.replace("DIR", "/ckpt")))


def test_sweep_runs_with_own_checkpoint_dirs_are_accepted() -> None:
    for folder in ("checkpoints", "'/ckpt/{lr}-{seed}'"):
        spec = job(SAVING.replace("DIR", folder))
        made = plans(spec)
        assert len({plan.checkpoint_dir for plan in made}) == 4
        build_array(made, spec, SWEEP_ID)
        assert len(build_runs(structs.replace(spec, sweep_part="1/2"))) == 2


def test_array_of_runs_that_save_to_one_folder_is_refused() -> None:
    """The runs of a resubmitted sweep have jobs of their own."""
    spec = job(SAVING.replace("DIR", "checkpoints"))
    made = [structs.replace(plan, checkpoint_dir="/ckpt") for plan in plans(spec)]
    with pytest.raises(InputError, match=r"\.0 and .*\.1 would both save to /ckpt"):
        build_array(made, spec, SWEEP_ID)


def test_ineffective_sweep_limit_is_omitted() -> None:
    spec = job("args: ['{a}']\nsweep: {a: [1, 2, 3]}\nsweep_limit: 3")
    assert dict(build_array(plans(spec), spec, SWEEP_ID).directives)["array"] == "0-2"


def test_array_output_escapes_slurm_filename_patterns() -> None:
    spec = job("args: ['{a}']\nsweep: {a: [1]}")
    array = build_array(plans(spec, "/50%a"), spec, SWEEP_ID)
    assert dict(array.directives)["output"] == (
        r"/50\%a/20261120-081455-train.%a-7k3q/logs/batch.log"
    )


def test_sweep_runs_with_different_resources_are_refused() -> None:
    spec = job(
        "name: t\nscript: a.py\nresources: {gpus_per_node: 4}\nsweep: {launcher: [torchrun, srun]}"
    )
    with pytest.raises(InputError) as caught:
        build_array(plans(spec), spec, SWEEP_ID)
    assert caught.value.message.startswith(
        "sweep: t.0 requests --ntasks-per-node=1 and t.1 requests --ntasks-per-node=4"
    )
