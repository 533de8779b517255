"""The conda recipe has the version, the requirements and the command of setup.cfg."""

from __future__ import annotations

import configparser
import re

import yaml

from hpcrun.version import __version__
from tests.source import ROOT

# Packages that conda-forge has under another name than PyPI.
CONDA_NAMES = {"hjson": "hjson-py"}


def test_conda_recipe_agrees_with_the_package() -> None:
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    options = setup["options"]
    wanted = [f"python {options['python_requires']}"]
    for line in options["install_requires"].split():
        name, version = re.fullmatch(r"([\w-]+)(>=.*)", line).groups()  # type: ignore[union-attr]
        wanted.append(f"{CONDA_NAMES.get(name, name)} {version}")
    assert recipe["requirements"]["run"] == wanted
    assert recipe["context"]["version"] == __version__
    assert recipe["package"]["name"] == setup["metadata"]["name"]
    assert recipe["about"]["summary"] == setup["metadata"]["description"]
    commands = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    assert recipe["build"]["python"]["entry_points"] == commands
