"""From a job name to its plan: interpreter and arguments."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.prepare import (
    Prepared,
    all_at_once,
    draft_command_job,
    load_spec,
    prepare_job,
    prepare_spec,
    query_host,
)
from hpcrun.actions.run import adapt_to_this_machine, assign_cpus
from hpcrun.actions.submit import write_run
from hpcrun.context import Context, load_context
from hpcrun.errors import InputError, SpecError
from hpcrun.remote import Answers, ClockOffset
from hpcrun.runs.layout import RUN_ID, parse_creation_time
from hpcrun.spec.load import Origin
from tests.plan.making import cluster, job


@pytest.fixture
def context(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    """A project with interpreters of every kind."""
    project = tmp_path / "project"
    for name in ("job", "job-venv/bin", "setup", "setup-venv/bin", "profile"):
        path = project / name / "python"
        path.parent.mkdir(parents=True)
        path.touch(0o755)
    (Path(clean_environ["HOME"]) / "python").touch(0o755)
    (project / "hpcrun.yaml").touch()
    return load_context(clean_environ, project)


# ---- specs and plans


def test_job_name_defaults_to_the_file_name(context: Context) -> None:
    (context.project / "jobs").mkdir()
    (context.project / "jobs" / "mine.yaml").write_text("command: [a]\n")
    assert load_spec(context, "mine").name == "mine"
    assert load_spec(context, "mine", ["name=other"]).name == "other"
    odd = context.project / os.fsdecode(b"b\xffd.yaml")
    odd.write_text("command: [a]\n")
    assert load_spec(context, str(odd)).name == "b\ufffdd"


@pytest.mark.parametrize(
    ("words", "name"),
    [(["hostname"], "hostname"), (["/usr/bin/env", "x"], "env"), (["/"], "command")],
)
def test_bare_command_is_named_after_its_program(words: list[str], name: str) -> None:
    spec = draft_command_job(words)
    assert (spec.name, spec.resources.gpus_per_node) == (name, 0)


def test_bare_command_may_request_gpus(context: Context) -> None:
    spec = draft_command_job(["nvidia-smi"], ["resources.gpus_per_node=2"])
    assert prepare_spec(context, spec, extra_args=["nvidia-smi"]).plan.gpus_per_node == 2


def test_each_preparation_gets_a_new_run_id_and_writes_nothing(context: Context) -> None:
    before = sorted(context.project.rglob("*"))
    spec = job("command: [a]\nname: x")
    plans = [prepare_spec(context, spec).plan for _ in range(20)]
    assert len({plan.run_id for plan in plans}) == 20
    assert all(RUN_ID.fullmatch(plan.run_id) for plan in plans)
    assert sorted(context.project.rglob("*")) == before and not context.runs_dir.exists()


def test_run_id_has_the_time_of_the_clusters_clock(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job("command: [a]\nname: x")
    before = prepare_spec(context, spec).plan.run_id
    host = query_host(context, spec, [])
    # This machine's clock is two hours fast: the cluster's is behind.
    host.answers = host.answers | Answers({ClockOffset(): -7200.0})
    late = time.time() + 7200
    monkeypatch.setattr("hpcrun.actions.prepare.time.time", lambda: late)
    after = prepare_spec(context, spec, host=host).plan.run_id
    assert before < after
    assert parse_creation_time(after) - parse_creation_time(before) < 600
    assert prepare_spec(context, spec).plan.run_id > after


def test_command_line_arguments_are_recorded_unchanged(context: Context) -> None:
    words = ["echo", "{run_id}", "{x}", "a { b", "\udcff"]
    made = prepare_spec(context, draft_command_job(words), extra_args=words)
    assert made.plan.program == ["echo", made.plan.run_id, "{x}", "a { b", "\udcff"]
    texts = {file.name: file.text for file in made.files}
    again = job(texts["spec.yaml"])
    assert again.command is not None
    # As written in a job file, except for bytes that YAML cannot represent.
    assert prepare_spec(context, again).plan.program[2:4] == ["{x}", "a { b"]
    assert json.loads(texts["plan.json"])["program"] == made.plan.program


# ---- a range of nodes

RANGE = """
script: a.py
name: x
args: ["{nodes}", "--global-batch={effective_batch}", "--steps={gradient_accumulation_steps}"]
framework: deepspeed
launcher: accelerate
resources: {nodes: 2-4, gpus_per_node: 2}
batch: {micro_batch_per_gpu: 2, gradient_accumulation_steps: 3}
"""


def read_script(context: Context, text: str = "print(1)") -> None:
    (context.project / "a.py").write_text(text)


def prepared(context: Context, text: str) -> Prepared:
    return prepare_spec(context, job(text), checks=Checks(strict=False))


def test_node_range_renders_files_for_each_node_count(context: Context) -> None:
    read_script(context)
    made = prepared(context, RANGE)
    plan, files = made.plan, {file.name: file.text for file in made.files}
    assert (plan.nodes, plan.node_range, plan.world_size) == (4, "2-4", 8)
    directives = dict(plan.directives)
    assert directives["nodes"] == "2-4" and "ntasks-per-node" not in directives
    assert made.spec.resources.nodes == "2-4"
    assert job(files["spec.yaml"]) == made.spec
    assert plan.notes[0].endswith("stays 48, by accumulated steps (6 on 2, 4 on 3, 3 on 4 nodes)")
    names = {name.rpartition("/")[2] for name in files if "/" in name}
    assert names == {"job.sbatch", "node.sh", "deepspeed.json", "accelerate.yaml", "plan.json"}
    assert all(files[f"nodes-4/{name}"] == files[name] for name in names)
    for nodes, steps in ((2, 6), (3, 4), (4, 3)):
        of = {name: files[f"nodes-{nodes}/{name}"] for name in names}
        ds, its = json.loads(of["deepspeed.json"]), json.loads(of["plan.json"])
        assert (ds["train_batch_size"], ds["gradient_accumulation_steps"]) == (48, steps)
        assert f"num_processes: {2 * nodes}\n" in of["accelerate.yaml"]
        assert f"export HPCRUN_NODES={nodes}\n" in of["job.sbatch"]
        assert f" --nodes={nodes} --ntasks={nodes} " in of["job.sbatch"]
        assert "#SBATCH --nodes=2-4\n" in of["job.sbatch"]
        assert f"--steps={steps}" in of["node.sh"]
        assert its["program"][-3:] == [str(nodes), "--global-batch=48", f"--steps={steps}"]
        assert (its["nodes"], its["world_size"], its["node_range"]) == (nodes, 2 * nodes, "2-4")


def test_zero_checkpoints_with_a_node_range_have_a_note(context: Context) -> None:
    read_script(context)
    again = "survive: {when: [preempted]}\n"
    noted = [
        any("ZeRO's checkpoints" in note for note in prepared(context, text).plan.notes)
        for text in (RANGE, RANGE + again, RANGE + again + "deepspeed: {zero_stage: 0}")
    ]
    assert noted == [False, True, False]


def test_batch_impossible_for_some_node_count_is_refused(context: Context) -> None:
    read_script(context)
    with pytest.raises(SpecError) as caught:
        prepared(context, RANGE.replace("steps: 3", "steps: 4"))
    (problem,) = caught.value.problems
    assert str(problem) == (
        "x: resources.nodes: 2-4: on 3 nodes no whole number of accumulated steps gives the "
        "effective batch of 64 of 4 nodes; batch.gradient_accumulation_steps: 6 works "
        "with all of them"
    )


def test_effective_batch_of_a_bare_command_is_unknown(context: Context) -> None:
    made = prepare_spec(context, job("command: [a]\nresources: {nodes: 2-4}"))
    assert made.plan.effective_batch is None
    assert made.plan.notes[0] == (
        "nodes 2-4: Slurm decides as the job starts; the job sets no batch, so the effective one "
        "grows with the nodes (batch: {effective: N} keeps it, where the program accumulates "
        "{gradient_accumulation_steps})"
    )


@pytest.mark.parametrize(
    ("nodes", "arguments", "steps", "expected"),
    [
        # Without accumulation, as in a plain script, no divisibility is required.
        ("1-2", "--micro={micro_batch_per_gpu}", 1, {1: None, 2: 2}),
        ("3-4", "--micro={micro_batch_per_gpu}", 1, {3: None, 4: 4}),
        # The written number applies to one node count only.
        ("2-4", "--micro={micro_batch_per_gpu} --accumulate=3", 3, {2: 6, 3: 9, 4: 12}),
    ],
)
def test_unpassed_accumulation_makes_the_batch_grow_with_nodes(
    context: Context, nodes: str, arguments: str, steps: int, expected: dict[int, int | None]
) -> None:
    read_script(context)
    text = f"batch: {{gradient_accumulation_steps: {steps}}}\nargs: {arguments.split()}"
    made = prepared(context, f"script: a.py\nresources: {{nodes: {nodes}}}\n{text}")
    assert made.plan.notes[0].endswith("its effective batch grows with the nodes")
    files = {file.name: file.text for file in made.files}
    plans = {count: json.loads(files[f"nodes-{count}/plan.json"]) for count in expected}
    assert {count: plan["effective_batch"] for count, plan in plans.items()} == expected


def test_node_files_are_writable_only_by_the_user(context: Context) -> None:
    """With the umask of a group that shares a project."""
    read_script(context)
    made = prepared(context, RANGE)
    umask = os.umask(0o002)
    try:
        write_run(context, made, [])
    finally:
        os.umask(umask)
    modes = {
        str(path.relative_to(made.path)): path.stat().st_mode & 0o777
        for folder in made.path.glob("nodes-*")
        for path in (folder, *folder.iterdir())
    }
    assert {"nodes-2", "nodes-2/job.sbatch", "nodes-2/node.sh", "nodes-4"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o022} == {}


STEPS = "batch: {gradient_accumulation_steps: 2}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "profile", "problem"),
    [
        (
            "survive: {when: [node_fail], spare_nodes: 1}",
            "",
            "spare nodes (survive.spare_nodes) require a fixed",
        ),
        ("sweep_per_node: 2\nsweep: {env.A: [b]}", "", "the runs share one node"),
        (
            "",
            "rename: {gres: gpus}",
            "requests the GPUs of all nodes together (--gpus): give one number of nodes",
        ),
        (f"{STEPS}deepspeed: {{config: {{gradient_accumulation_steps: 2}}}}", "", "(on 1 node)"),
        (
            "batch: {gradient_accumulation_steps: 1}\ndeepspeed: {config: {train_batch_size: 3}}",
            "",
            "(on 2 nodes)",
        ),
    ],
)
def test_options_incompatible_with_a_node_range_are_refused(
    context: Context, text: str, profile: str, problem: str
) -> None:
    read_script(context)
    there = structs.replace(context, cluster=cluster(profile)) if profile else context
    spec = job(f"script: a.py\nresources: {{nodes: 1-3}}\n{text}")
    with pytest.raises(InputError) as caught:
        prepare_job(there, spec, checks=Checks(strict=False))
    assert problem in str(caught.value)


def test_accumulation_for_a_wide_node_range_is_found_quickly() -> None:
    steps = job("script: a.py\nresources: {nodes: 1-64}").even_steps
    assert all(steps * 64 % count == 0 for count in range(1, 65))
    spec = job("script: a.py\nresources: {nodes: 2-4}\nbatch: {gradient_accumulation_steps: 4}")
    assert spec.even_steps == 6


def test_error_common_to_all_node_counts_is_reported_once() -> None:
    errors = [InputError("which Python trains?", fix="setup: {venv: .venv}")] * 3
    assert str(all_at_once(errors, Origin())) == "which Python trains?; setup: {venv: .venv}"


# ---- a run on this machine


def test_local_run_ignores_partition_and_gpu_type(context: Context) -> None:
    site = cluster(
        "partition: gpu\npartitions: {gpu: {gpus_per_node: 2}}\ngpu_types: {a: {gres: x}}\n"
        "env: {A: b}\naccelerator: cuda"
    )
    local = adapt_to_this_machine(structs.replace(context, cluster=site))
    plan = prepare_spec(
        local, job("command: [a]\nresources: {gpus_per_node: 4, gpu_type: h100}")
    ).plan
    assert plan.cluster == "here" and "partition" not in dict(plan.directives)
    inside = structs.replace(
        context, cluster=site, environ={**context.environ, "SLURM_JOB_ID": "7"}
    )
    assert adapt_to_this_machine(inside) == inside


def test_ranks_of_a_local_run_share_the_cpus(context: Context) -> None:
    spec = assign_cpus(context, job("command: [a]\nresources: {gpus_per_node: 1000}"))
    assert spec.resources.cpus_per_gpu == 1
    expected = job("command: [a]\nresources: {cpus_per_gpu: 3}")
    assert assign_cpus(context, expected) == expected


# ---- bash commands of the setup


def test_setup_commands_with_bash_syntax_errors_are_refused(context: Context) -> None:
    spec = job("command: [a]\nsetup: {commands: [if true, then], node_commands: ['echo \"x']}")
    with pytest.raises(SpecError) as caught:
        prepare_spec(context, spec)
    expected = [problem.path for problem in caught.value.problems]
    assert expected == ["setup.commands", "setup.node_commands"]
    assert all("no bash: line " in problem.message for problem in caught.value.problems)


@pytest.mark.parametrize(
    "commands",
    [
        ["if true; then", "  true", "fi"],
        ["shopt -s extglob", "echo !(x)"],
        ["cat <<END\nan open ' quote\nEND"],
        ['export WHERE={run_dir}/"a b"'],
    ],
)
def test_setup_commands_accept_any_valid_bash(context: Context, commands: list[str]) -> None:
    spec = job(f"command: [a]\nsetup: {{commands: {json.dumps(commands)}}}")
    assert prepare_spec(context, spec).plan.setup.commands


def test_unresolvable_sandbox_node_names_have_a_note(context: Context) -> None:
    names = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
    sandbox = structs.replace(context, cluster=structs.replace(context.cluster, name="sandbox"))
    script = context.project / "run.sh"

    def notes(text: str, where: Context = sandbox) -> list[str]:
        script.write_text(text)
        made = prepare_spec(where, draft_command_job(["bash"]), extra_args=["bash", "run.sh"])
        return [note for note in made.plan.notes if "do not resolve" in note]

    assert len(notes(f"export MASTER_ADDR={names}\n")) == 1
    assert notes(f"export MASTER_ADDR={names}\n", context) == []
    assert notes(f"export MASTER_ADDR=${{MASTER_ADDR:-{names}}}\n") == []
