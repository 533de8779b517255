"""From a job's name to its plan: which Python trains, and what becomes of arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.controller.context import Context, load_context
from hpcrun.controller.prepare import command_spec, load_spec, prepare
from hpcrun.controller.run import on_this_machine, share_cpus
from hpcrun.errors import SpecError
from hpcrun.runs.layout import RUN_ID
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


def test_a_jobs_name_is_its_files(context: Context) -> None:
    (context.project / "jobs").mkdir()
    (context.project / "jobs" / "mine.yaml").write_text("command: [a]\n")
    assert load_spec(context, "mine").name == "mine"
    assert load_spec(context, "mine", ["name=other"]).name == "other"


@pytest.mark.parametrize(
    ("words", "name"),
    [(["hostname"], "hostname"), (["/usr/bin/env", "x"], "env"), (["/"], "command")],
)
def test_a_bare_commands_name_is_its_programs(words: list[str], name: str) -> None:
    spec = command_spec(words)
    assert (spec.name, spec.resources.gpus_per_node) == (name, 0)


def test_a_command_can_have_gpus(context: Context) -> None:
    spec = command_spec(["nvidia-smi"], ["resources.gpus_per_node=2"])
    assert prepare(context, spec, extra_args=["nvidia-smi"]).plan.gpus_per_node == 2


def test_each_preparation_is_a_run_of_its_own_and_changes_nothing(context: Context) -> None:
    before = sorted(context.project.rglob("*"))
    spec = job("command: [a]\nname: x")
    plans = [prepare(context, spec).plan for _ in range(20)]
    assert len({plan.run_id for plan in plans}) == 20
    assert all(RUN_ID.fullmatch(plan.run_id) for plan in plans)
    assert sorted(context.project.rglob("*")) == before and not context.runs_dir.exists()


def test_the_words_of_the_command_line_are_recorded(context: Context) -> None:
    words = ["echo", "{run_id}", "{x}", "a { b", "\udcff"]
    made = prepare(context, command_spec(words), extra_args=words)
    assert made.plan.program == ["echo", made.plan.run_id, "{x}", "a { b", "\udcff"]
    texts = {file.name: file.text for file in made.files}
    again = job(texts["spec.yaml"])
    assert again.command is not None
    # As a job file has it: the same words, but for bytes that YAML cannot hold.
    assert prepare(context, again).plan.program[2:4] == ["{x}", "a { b"]
    assert json.loads(texts["plan.json"])["program"] == made.plan.program


# ---- a run on this machine


def test_here_there_is_no_partition_and_no_other_gpu(context: Context) -> None:
    site = cluster(
        "partition: gpu\npartitions: {gpu: {gpus_per_node: 2}}\ngpu_types: {a: {gres: x}}\n"
        "env: {A: b}\naccelerator: cuda"
    )
    local = on_this_machine(structs.replace(context, cluster=site))
    plan = prepare(local, job("command: [a]\nresources: {gpus_per_node: 4, gpu_type: h100}")).plan
    assert plan.cluster == "here" and "partition" not in dict(plan.directives)
    inside = structs.replace(
        context, cluster=site, environ={**context.environ, "SLURM_JOB_ID": "7"}
    )
    assert on_this_machine(inside) == inside


def test_ranks_share_this_machines_cpus(context: Context) -> None:
    spec = share_cpus(context, job("command: [a]\nresources: {gpus_per_node: 1000}"))
    assert spec.resources.cpus_per_gpu == 1
    expected = job("command: [a]\nresources: {cpus_per_gpu: 3}")
    assert share_cpus(context, expected) == expected


# ---- bash commands of the setup


def test_commands_that_are_no_bash_are_refused(context: Context) -> None:
    spec = job("command: [a]\nsetup: {commands: [if true, then], node_commands: ['echo \"x']}")
    with pytest.raises(SpecError) as caught:
        prepare(context, spec)
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
def test_commands_may_be_any_bash(context: Context, commands: list[str]) -> None:
    spec = job(f"command: [a]\nsetup: {{commands: {json.dumps(commands)}}}")
    assert prepare(context, spec).plan.setup.commands


def test_node_names_that_a_sandbox_does_not_resolve_are_noted(context: Context) -> None:
    names = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
    sandbox = structs.replace(context, cluster=structs.replace(context.cluster, name="sandbox"))
    script = context.project / "run.sh"

    def notes(text: str, where: Context = sandbox) -> list[str]:
        script.write_text(text)
        made = prepare(where, command_spec(["bash"]), extra_args=["bash", "run.sh"])
        return [note for note in made.plan.notes if "nothing resolves the names" in note]

    assert len(notes(f"export MASTER_ADDR={names}\n")) == 1
    assert notes(f"export MASTER_ADDR={names}\n", context) == []
    assert notes(f"export MASTER_ADDR=${{MASTER_ADDR:-{names}}}\n") == []
