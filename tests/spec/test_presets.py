"""The presets load, and the schema that they name is the present one.

Effects: reads files.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrun.assets import shipped
from hpcrun.errors import InputError
from hpcrun.spec.load import load_job
from hpcrun.spec.schema import json_schema

PRESETS = sorted(shipped("jobs").glob("*.yaml"))


def _no_base(name: str) -> tuple[str, str]:
    raise InputError(f"{name}: not expected")


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_loads_and_describes_itself(path: Path) -> None:
    spec = load_job(path.read_text(), source=path.name, resolve=_no_base)
    assert spec.description
    assert path.read_text().startswith("# yaml-language-server: $schema=job.schema.json\n")


def test_presets_are_there() -> None:
    assert {"ddp-4gpu", "zero2-4gpu", "zero3-4gpu", "zero2-8gpu-2node"} <= {
        path.stem for path in PRESETS
    }


def test_schema_beside_the_presets_is_current() -> None:
    """If not: hpcrun schema > jobs/job.schema.json."""
    assert json.loads((shipped("jobs") / "job.schema.json").read_text()) == json_schema("job")
