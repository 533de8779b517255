"""Jobs of each launcher that show what each rank gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.site import Submitted

WORKLOADS = Path(__file__).parent / "workloads"


def shown(run: Submitted) -> list[dict[str, Any]]:
    """Return the reports of all ranks, in order."""
    found = []
    for log in sorted((run.folder / "logs" / "0").glob("rank-*.log")):
        lines = [line for line in log.read_text().splitlines() if line.startswith("told ")]
        found += [json.loads(line.removeprefix("told ")) for line in lines]
    return found
