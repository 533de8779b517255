"""From a job's name to its plan: which Python trains, and what the command line's words become."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.controller.context import Context, load_context
from hpcrun.controller.interpreter import find_interpreter
from hpcrun.controller.prepare import command_spec, load_spec, prepare
from hpcrun.controller.run import here, share_cpus
from hpcrun.errors import InputError
from hpcrun.runs.layout import RUN_ID
from hpcrun.spec.cluster import Cluster
from hpcrun.spec.job import JobSpec, Setup
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


def python(context: Context, job_setup: Setup, profile: Cluster, **spec: object) -> str:
    with_profile = structs.replace(context, cluster=profile)
    made = JobSpec(setup=job_setup, **spec)  # type: ignore[arg-type]
    found = find_interpreter(with_profile, made).python
    return found.removeprefix(f"{context.project}/")


BOTH = Setup(python="setup/python", venv="setup-venv")
VENV = Setup(venv="setup-venv")


@pytest.mark.parametrize(
    ("setup", "profile", "found"),
    [
        (Setup(python="job/python", venv="job-venv"), BOTH, "job/python"),
        (Setup(venv="job-venv/"), BOTH, "job-venv/bin/python"),
        (Setup(), BOTH, "setup/python"),
        (Setup(), VENV, "setup-venv/bin/python"),
        (Setup(), Setup(), "profile/python"),
    ],
)
def test_the_order_in_which_python_is_found(
    context: Context, setup: Setup, profile: Setup, found: str
) -> None:
    site = Cluster(python="profile/python", setup=profile)
    assert python(context, setup, site) == found


def test_hpcruns_own_python_only_if_it_has_torch(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec, found in ((object(), sys.executable), (None, None)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        if found is not None:
            assert python(context, Setup(), Cluster()) == found
        else:
            with pytest.raises(InputError, match="which Python trains"):
                python(context, Setup(), Cluster())
    # A bare command needs none.
    assert python(context, Setup(), Cluster(), command=["hostname"]) == ""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("python3.11", "python3.11"),  # found on the node, after the setup
        ("~/python", "{home}/python"),
        (sys.executable, sys.executable),
    ],
)
def test_how_an_interpreter_is_spelled(context: Context, given: str, found: str) -> None:
    expected = found.format(home=context.environ["HOME"])
    assert python(context, Setup(python=given), Cluster()) == expected


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (Setup(python="no/python"), "setup.python: "),
        (Setup(venv="no"), "setup.venv: "),
        (Setup(python="/no/such/python"), "setup.python: /no/such/python: no such interpreter"),
    ],
)
def test_an_interpreter_that_is_not_there(context: Context, setup: Setup, said: str) -> None:
    with pytest.raises(InputError, match=said):
        python(context, setup, Cluster(python="profile/python"))


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
    local = here(structs.replace(context, cluster=site))
    plan = prepare(local, job("command: [a]\nresources: {gpus_per_node: 4, gpu_type: h100}")).plan
    assert plan.cluster == "here" and "partition" not in dict(plan.directives)
    inside = structs.replace(
        context, cluster=site, environ={**context.environ, "SLURM_JOB_ID": "7"}
    )
    assert here(inside) == inside


def test_ranks_share_this_machines_cpus(context: Context) -> None:
    spec = share_cpus(context, job("command: [a]\nresources: {gpus_per_node: 1000}"))
    assert spec.resources.cpus_per_gpu == 1
    said = job("command: [a]\nresources: {cpus_per_gpu: 3}")
    assert share_cpus(context, said) == said
