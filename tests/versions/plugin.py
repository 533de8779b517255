"""Run cluster tests on another release: pytest -p tests.versions.plugin tests/cluster/test_X.py.

HPCRUN_TEST_RELEASE names the release's root folder. Tests that train with torch need the machine's
own Python and are not for this.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import Rig
from tests.versions.rig import ReleaseRig
from tests.versions.road import ReleaseSite
from tests.versions.roots import slurm_version


def pytest_configure(config: pytest.Config) -> None:
    """Make the fixtures create rigs and sites of the release."""
    import tests.cluster.conftest as fixtures

    tree = Path(os.environ["HPCRUN_TEST_RELEASE"])
    version = slurm_version(tree)

    def rig(root: Path, **options: Any) -> Rig:
        return ReleaseRig(root, tree=tree, version=version, **options)

    patch = pytest.MonkeyPatch()
    path = os.environ["PATH"]

    def site(rig: ReleaseRig, project: Path, profile: dict[str, Any] | None = None) -> ReleaseSite:
        made = ReleaseSite(rig, project, {"python": "/usr/bin/python3", **(profile or {})})
        # For tests that put commands of their own before Slurm's.
        patch.setenv("PATH", f"{made.clients}:{path}")
        return made

    patch.setattr(fixtures, "Rig", rig)
    patch.setattr(fixtures, "Site", site)
    config.add_cleanup(patch.undo)
