"""Jobs whose ranks report their environment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import probe
from tests.cluster.site import Site, Submitted

RANKS_PER_NODE = 2


def shown_by(run: Submitted, attempt: int = 0) -> list[dict[str, Any]]:
    """Return the reports of an attempt, by rank."""
    files = (run.folder / "probe").glob(f"{attempt}-rank-*.json")
    return sorted((json.loads(file.read_text()) for file in files), key=lambda shown: shown["rank"])


def write_job(site: Site, name: str, **job: Any) -> str:
    """Write a job that runs the probe; return the arguments of submit."""
    shutil.copy2(Path(probe.__file__), site.project / "probe.py")
    text = {"script": "probe.py", "resources": {"gpus_per_node": RANKS_PER_NODE}, **job}
    (site.project / f"{name}.yaml").write_text(yaml.safe_dump(text, allow_unicode=True))
    return f"./{name}.yaml"
