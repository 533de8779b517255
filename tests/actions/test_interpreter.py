"""Selection of the training Python, and checks of it that are possible at submission."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.interpreter import (
    Interpreter,
    find_interpreter,
    find_missing_modules,
    plan_module_check,
)
from hpcrun.actions.prepare import prepare_spec, query_host
from hpcrun.context import Context, load_context
from hpcrun.errors import InputError, SpecError
from hpcrun.spec.job import Cluster, Container, JobSpec, Setup
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
    (project / "a.py").touch()
    return load_context(clean_environ, project)


def found(
    context: Context, setup: Setup, profile: Cluster | None = None, **more: object
) -> Interpreter:
    """Find the interpreter for a job with this setup."""
    spec = JobSpec(setup=setup, **more)  # type: ignore[arg-type]
    where = structs.replace(context, cluster=profile or Cluster())
    return find_interpreter(where, spec, query_host(where, spec, ()))


BOTH = Setup(python="setup/python", venv="setup-venv")


@pytest.mark.parametrize(
    ("setup", "profile", "python", "venv"),
    [
        (Setup(python="job/python", venv="job-venv"), BOTH, "job/python", "job-venv"),
        (Setup(venv="job-venv/"), BOTH, "job-venv/bin/python", "job-venv"),
        (Setup(modules=["m"]), BOTH, "setup/python", "setup-venv"),
        (Setup(), Setup(venv="setup-venv"), "setup-venv/bin/python", "setup-venv"),
        (Setup(), Setup(), "profile/python", None),
    ],
)
def test_python_is_found_in_order_of_precedence(
    context: Context, setup: Setup, profile: Setup, python: str, venv: str | None
) -> None:
    answer = found(context, setup, Cluster(python="profile/python", setup=profile))
    assert answer.python == str(context.project / python)
    assert answer.venv == (None if venv is None else str(context.project / venv))


def test_own_python_of_hpcrun_is_used_only_with_torch(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert found(context, Setup()).python == sys.executable
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="no Python for the training"):
        found(context, Setup())
    # A bare command needs no Python.
    assert found(context, Setup(), command=["hostname"]).python == ""


@pytest.mark.parametrize(
    ("given", "python"),
    [
        ("python3.11", "python3.11"),  # found on the node, after the setup
        ("~/python", "{home}/python"),
        ("$HOME/python", "{home}/python"),
        (sys.executable, sys.executable),
    ],
)
def test_interpreter_paths_are_expanded(context: Context, given: str, python: str) -> None:
    expected = python.format(home=context.environ["HOME"])
    assert found(context, Setup(python=given)).python == expected


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        (Setup(python="no/python"), "setup.python: "),
        (Setup(venv="no"), "setup.venv: "),
        (Setup(python="/no/such/python"), "setup.python: /no/such/python: no such interpreter"),
        (Setup(python="$NO/python"), "setup.python: .*is not set"),
        (Setup(python="hpcrun.yaml/python"), "no such interpreter"),
        (Setup(python="./hpcrun.yaml"), "hpcrun.yaml: cannot be executed"),
        (Setup(conda="./no"), "setup.conda: .*/no: no such environment"),
        (Setup(uv=True), r"setup.uv: .*/uv\.lock: no such file"),
        (Setup(container=Container(image="no.sif")), "setup.container.image: .*no such image"),
    ],
)
def test_missing_environment_is_refused(context: Context, setup: Setup, text: str) -> None:
    with pytest.raises(InputError, match=text):
        found(context, setup, Cluster(python="profile/python"))


def test_missing_venv_error_contains_the_creation_command(context: Context) -> None:
    with pytest.raises(InputError) as caught:
        found(context, Setup(venv="none yet"))
    assert caught.value.fix == f"python3 -m venv '{context.project}/none yet'"


def test_venv_together_with_conda_is_refused(context: Context) -> None:
    with pytest.raises(SpecError, match="setup: venv and conda: take one of the two"):
        found(context, Setup(venv="job-venv", conda="x"))
    with pytest.raises(SpecError, match=r"venv and container.*setup\.python names"):
        found(context, Setup(venv="job-venv", container=Container(image="x.sif")))


# ---- conda, uv, containers


@pytest.mark.parametrize(
    "where", ["active", "CONDA_EXE", "MAMBA_ROOT_PREFIX", "CONDA_ENVS_PATH", "home", "register"]
)
def test_conda_environment_is_found_by_name(context: Context, tmp_path: Path, where: str) -> None:
    """Resolved like conda does, so the job does not depend on the node's conda."""
    home = Path(context.environ["HOME"])
    base = home / "miniforge3" if where == "home" else tmp_path / "conda"
    prefix = base / "envs" / "ml"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").touch(0o755)
    more = {
        "active": {"CONDA_DEFAULT_ENV": "ml", "CONDA_PREFIX": str(prefix)},
        "CONDA_EXE": {"CONDA_EXE": f"{base}/bin/conda"},
        "MAMBA_ROOT_PREFIX": {"MAMBA_ROOT_PREFIX": str(base)},
        "CONDA_ENVS_PATH": {"CONDA_ENVS_PATH": f"/nowhere:{base}/envs"},
    }.get(where, {})
    if where == "register":
        (home / ".conda").mkdir()
        (home / ".conda" / "environments.txt").write_text(f"/x/other\n{prefix}\n")
    context = structs.replace(context, environ={**context.environ, **more})
    answer = found(context, Setup(conda="ml"))
    assert (answer.conda, answer.python) == (str(prefix), f"{prefix}/bin/python")
    # A container invisible from here is resolved on the node, with the python on its PATH.
    unseen = found(context, Setup(conda="unseen"))
    assert (unseen.conda, unseen.python) == ("unseen", "python")
    named = found(context, Setup(conda=str(prefix), python="python3"))
    assert (named.conda, named.python) == (str(prefix), "python3")


def test_uv_environment_may_be_missing_at_submission(context: Context) -> None:
    (context.project / "uv.lock").touch()
    venv = f"{context.project}/.venv"
    answer = found(context, Setup(uv=True))
    assert (answer.venv, answer.python) == (venv, f"{venv}/bin/python")
    elsewhere = {**context.environ, "UV_PROJECT_ENVIRONMENT": "/envs/p"}
    assert found(structs.replace(context, environ=elsewhere), Setup(uv=True)).venv == "/envs/p"


@pytest.mark.parametrize(
    "image", ["here.sif", "docker://python:3.11", "/only-on-nodes/x.sif", "$ON_NODES/x.sif"]
)
def test_container_image_uses_its_own_python(context: Context, image: str) -> None:
    (context.project / "here.sif").touch()
    answer = found(context, Setup(container=Container(image=image)))
    assert (answer.python, answer.inside) == ("python3", True)
    inside = Setup(container=Container(image=image), python="/opt/venv/bin/python")
    assert found(context, inside).python == "/opt/venv/bin/python"


def test_stage_sources_are_checked_where_visible(context: Context) -> None:
    site = cluster("python: profile/python")
    context = structs.replace(context, cluster=site)
    (context.project / "data").mkdir()
    fine = "{data: a, $NODES_OWN/x: b, /only-on-nodes/x: c, $HOME/python: d}"
    made = prepare_spec(context, job(f"script: a.py\nstage: {fine}"))
    assert len(made.plan.setup.stage) == 4
    with pytest.raises(SpecError) as caught:
        prepare_spec(context, job("script: a.py\nstage: {data: a, no: b, $HOME/no: c}"))
    assert [problem.path for problem in caught.value.problems] == [
        f"stage.{context.project}/no",
        "stage.$HOME/no",
    ]


def test_modules_with_own_python_of_hpcrun_have_a_note(context: Context) -> None:
    assert sys.executable in found(context, Setup(modules=["pytorch/2.9"])).note
    assert found(context, Setup(modules=["pytorch/2.9"], python="python")).note == ""
    assert found(context, Setup()).note == ""
    spec = JobSpec(script="a.py", setup=Setup(modules=["pytorch/2.9"]))
    assert any("modules are loaded" in note for note in prepare_spec(context, spec).plan.notes)


def test_node_local_environment_is_created_and_activated_on_the_node(context: Context) -> None:
    """The Alliance's clusters place it on the node-local disk, whose path only the job knows."""
    answer = found(context, Setup(venv="$SLURM_TMPDIR/env"))
    assert (answer.python, answer.venv) == ("python", None)
    assert answer.node_venv == "$SLURM_TMPDIR/env"
    with pytest.raises(InputError, match="NOPE' is not set"):
        found(context, Setup(venv="$NOPE/env"))
    here = structs.replace(context, environ={**context.environ, "SLURM_TMPDIR": "."})
    with pytest.raises(InputError, match="no such interpreter"):
        found(here, Setup(venv="$SLURM_TMPDIR/env"))


def test_python_below_a_non_utf8_path_is_found(context: Context) -> None:
    folder = context.project / os.fsdecode(b"b\xff")
    folder.mkdir()
    (folder / "python").touch(0o755)
    (folder / "python").write_text("#!/bin/sh\necho -\n")
    answer = found(context, Setup(python=str(folder / "python")))
    for _ in range(2):  # the second time it is known
        check = plan_module_check(context, answer, ["torch"], "")
        if check is not None:
            answers = context.transport().run_queries([check.query])
            assert find_missing_modules(check, answers) == ([], "")
    assert check is None
    assert len(list((context.cache_dir / "python-modules").iterdir())) == 1
