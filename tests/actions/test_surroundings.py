"""Properties of a machine: file systems, fabrics, Pythons; and the scripts of a project."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcrun.actions.cluster_host import open_host
from hpcrun.actions.init.job import find_script, read_named_script
from hpcrun.actions.init.survey import (
    DEVICES,
    find_scratch_folders,
    first_queries,
    guess_fabric,
    survey_site,
)
from hpcrun.context import load_context
from hpcrun.errors import InputError
from hpcrun.remote.queries import RunCommand


def test_scratch_folders_are_found(tmp_path: Path) -> None:
    for name in ("home", "scratch", "work"):
        (tmp_path / name).mkdir()
    environ = {
        "HOME": str(tmp_path / "home"),
        "SCRATCH": str(tmp_path / "scratch"),
        "WORK": str(tmp_path / "gone"),
        "PSCRATCH": str(tmp_path / "scratch"),  # the same again
        "GLOBALSCRATCH": "relative",
    }
    host = open_host(load_context(environ, tmp_path), first_queries(has_slurm=False))
    found = find_scratch_folders(host)
    assert [folder.text for folder in found] == ["$SCRATCH", "~"]
    assert all(folder.free > 0 for folder in found)


@pytest.mark.parametrize(
    ("files", "fabric"),
    [
        ({}, None),
        ({"sys/class/net/eth0/x": ""}, None),
        ({"sys/class/net/hsn0/x": ""}, "slingshot"),
        ({"sys/class/cxi/cxi0/x": ""}, "slingshot"),
        ({"sys/class/infiniband/efa_0/ports/1/link_layer": "Unspecified\n"}, "efa"),
        ({"opt/amazon/efa/bin/fi_info": ""}, "efa"),
        ({"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n"}, "infiniband"),
        ({"sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet\n"}, "roce"),
        ({"sys/class/infiniband/odd/ports/1/x": ""}, None),
    ],
)
def test_fabric_is_detected_from_sysfs(
    tmp_path: Path, files: dict[str, str], fabric: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    here = load_context({"PATH": os.environ["PATH"]}, tmp_path)
    query = RunCommand(("bash", "-c", DEVICES, "bash", str(tmp_path)))
    guess = guess_fabric(here.transport().run_queries([query])[query].stdout)
    assert (guess and guess[0]) == fabric


def fake_python(path: Path, answer: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_pythons_with_torch_are_listed_first(tmp_path: Path) -> None:
    project, conda = tmp_path / "project", tmp_path / "conda"
    fake_python(project / ".venv/bin/python", "echo 0")
    (project / ".venv/pyvenv.cfg").touch()
    fake_python(conda / "bin/python", "echo 1")
    fake_python(tmp_path / "broken/bin/python", "exit 3")
    environ = {
        "CONDA_PREFIX": str(conda),
        "CONDA_DEFAULT_ENV": "mine",
        "VIRTUAL_ENV": str(tmp_path / "broken"),
        "PATH": "/usr/bin:/bin",
    }
    host = open_host(load_context(environ, project), first_queries(has_slurm=False))
    seen = survey_site(host, project, has_slurm=False)
    found = [one for one in seen.pythons if one.path.startswith(str(tmp_path))]
    assert [(one.key, one.value, one.has_torch) for one in found] == [
        ("conda", "mine", True),
        ("venv", ".venv", False),
        ("venv", str(tmp_path / "broken"), False),
    ]


MAIN = "if __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("files", "script"),
    [
        ({}, None),
        ({"a.py": f"import torch\n{MAIN}"}, "a.py"),
        ({"a.py": f"import torch\n{MAIN}", "train.py": f"import deepspeed\n{MAIN}"}, "train.py"),
        ({"a.py": f"import torch\n{MAIN}", "b.py": f"import torch\n{MAIN}"}, None),
        (
            {"model.py": "import torch\nx = 1\n", "scripts/x.py": f"import torch\n{MAIN}"},
            "scripts/x.py",
        ),
        ({"setup.py": "import setuptools\nsetuptools.setup()\n"}, None),
        ({"bad.py": "def (", "nul.py": "\0"}, None),
    ],
)
def test_training_script_of_a_project_is_found(
    tmp_path: Path, files: dict[str, str], script: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_script(tmp_path) == script


def test_linked_and_external_scripts_are_handled(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "shared.py").write_text("import torch\n")
    (project / "mine.py").symlink_to(tmp_path / "shared.py")
    assert read_named_script(project, "mine.py")[0] == project / "mine.py"
    with pytest.raises(InputError, match="outside the project"):
        read_named_script(project, str(tmp_path / "shared.py"))
