"""Find the Python environments of a project."""

from __future__ import annotations

import base64
import hashlib
import shutil
import tempfile
from pathlib import Path

import pytest

from hpcrun.actions.environments import describe_missing_environment, list_environments
from hpcrun.context import load_context
from tests.actions.made_environments import make_environment

PROFILE = "name: mine\nruns_dir: /tmp/runs\ncache_dir: /tmp/cache\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / ".conda").mkdir(parents=True)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("place", "kind", "found"),
    [
        (".venv", "venv", ("venv", ".venv")),
        ("env", "venv", ("venv", "env")),
        ("env", "conda", ("conda", "env")),
        (".pixi/envs/default", "conda", ("conda", ".pixi/envs/default")),
        (".conda", "conda", ("conda", ".conda")),
    ],
)
def test_environment_inside_the_project_is_found(
    project: Path, home: Path, place: str, kind: str, found: tuple[str, str]
) -> None:
    make_environment(project / place, kind=kind)
    first = next(list_environments(project, {"HOME": str(home)}))
    assert (first.key, first.value, first.of_project) == (*found, True)


def test_environment_of_poetry_in_the_home_is_found(project: Path, home: Path) -> None:
    (project / "poetry.lock").touch()
    digest = hashlib.sha256(str(project.resolve()).encode()).digest()
    mark = base64.urlsafe_b64encode(digest).decode()[:8]
    folders = home / ".cache" / "pypoetry" / "virtualenvs"
    mine = make_environment(folders / f"lab-{mark}-py3.11")
    make_environment(folders / "lab-AAAAAAAA-py3.11")
    found = list(list_environments(project, {"HOME": str(home)}))
    assert [(one.key, one.value) for one in found] == [("venv", str(mine))]


def test_environment_of_pipenv_in_the_home_is_found(project: Path, home: Path) -> None:
    (project / "Pipfile").touch()
    mine = make_environment(home / ".local/share/virtualenvs/project-x1")
    (mine / ".project").write_text(f"{project}\n")
    assert next(list_environments(project, {"HOME": str(home)})).value == str(mine)


def test_conda_environment_named_by_the_project_comes_first(project: Path, home: Path) -> None:
    (project / "environment.yml").write_text("name: vision\ndependencies: [pytorch]\n")
    for name in ("aaa", "vision"):
        make_environment(home / "miniconda3" / "envs" / name, kind="conda")
    far = make_environment(home.parent / "elsewhere" / "big", kind="conda")
    (home / ".conda" / "environments.txt").write_text(f"{far}\n")
    found = [(one.key, one.value) for one in list_environments(project, {"HOME": str(home)})]
    assert found[0] == ("conda", "vision")
    assert {value for _, value in found} == {"vision", "aaa", str(far)}


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("uv.lock", "uv sync"),
        ("pixi.lock", "pixi install"),
        ("poetry.lock", "poetry install"),
        ("environment.yml", "conda env create"),
        ("requirements.txt", "pip install -r requirements.txt"),
        ("README", "python3 -m venv .venv"),
    ],
)
def test_command_that_creates_the_environment_is_named(
    project: Path, file: str, command: str
) -> None:
    (project / file).touch()
    assert command in describe_missing_environment(project)


@pytest.mark.parametrize(
    ("given", "python"),
    [
        ("setup: {venv: .venv}\n", ".venv/bin/python"),
        ("python: .venv/bin/python\n", ".venv/bin/python"),
        ("setup: {conda: ./conda}\n", "conda/bin/python"),
        ("setup: {venv: gone}\n", None),
        ("host: far\nsetup: {venv: .venv}\n", None),
    ],
)
def test_python_of_the_projects_profile_counts_in_the_sandbox(
    project: Path, home: Path, given: str, python: str | None
) -> None:
    (project / "hpcrun.yaml").write_text(PROFILE + given)
    make_environment(project / ".venv")
    make_environment(project / "conda", kind="conda")
    sandbox = Path(tempfile.mkdtemp(prefix="hps", dir="/tmp"))  # a sandbox needs a short path
    (sandbox / "sandbox.json").touch()
    (sandbox / "cluster.yaml").write_text(PROFILE.replace("mine", "sandbox"))
    environ = {"HOME": str(home), "HPCRUN_SANDBOX_DIR": str(sandbox)}
    try:
        cluster = load_context(environ, project, "sandbox").cluster
    finally:
        shutil.rmtree(sandbox)
    named = cluster.setup.venv or cluster.setup.conda
    chosen = f"{named}/bin/python".removeprefix("./") if named else cluster.python
    assert cluster.name == "sandbox" and chosen == python
