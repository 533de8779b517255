"""Read the project's Hydra configuration to check the overrides of a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpcrun.actions.program import content_of
from hpcrun.plan import ScriptFacts, check_hydra_overrides, parse_hydra_arguments

# A larger folder is not read: each submission would take longer than the mistake costs.
_MAX_FILES = 500


def check_hydra_config(
    project: Path, script: Path, facts: ScriptFacts, args: Sequence[str]
) -> list[str]:
    """Return the overrides that Hydra would reject; none if its configuration is not known."""
    given = parse_hydra_arguments(args)
    if facts.hydra_config is None or given is None or (project / "hydra_plugins").exists():
        return []
    path, name = facts.hydra_config
    folder = Path(os.path.normpath(script.parent / (given.config_path or path)))
    if not folder.is_relative_to(project) or not folder.is_dir():
        return []
    files: dict[str, str] = {}
    for number, file in enumerate(sorted(folder.rglob("*.yaml"))):
        data = content_of(file)
        # The key adds folders of configurations, also of installed packages.
        if number >= _MAX_FILES or data is None or b"searchpath" in data:
            return []
        files[str(file.relative_to(folder).with_suffix(""))] = data.decode("utf-8", "replace")
    name = (given.config_name or name).removesuffix(".yaml")
    return check_hydra_overrides(name, files, given.overrides)
