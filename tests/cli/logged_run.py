"""A run with logs of several ranks and attempts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.calling import Caller, replay
from tests.json_schemas import check_json

DRAWN = "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD3fG5"


class Run:
    """A run on two nodes with two ranks each, with configurable logs."""

    def __init__(self, hpcrun: Caller) -> None:
        hpcrun.write("train.py", "")
        hpcrun.write(
            "job.yaml",
            "script: train.py\nlauncher: torchrun\nsecrets: [MY_WORD]\n"
            "resources: {nodes: 2, gpus_per_node: 2}\n",
        )
        replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
        hpcrun.environ["MY_WORD"] = DRAWN
        done = hpcrun("submit", "job.yaml")
        assert done.code == 0, done
        (self.path,) = hpcrun.runs.iterdir()
        del hpcrun.environ["MY_WORD"]
        self.hpcrun = hpcrun

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def logs(self, *options: str) -> str:
        done = self.hpcrun("logs", *options)
        assert done.code == 0, done
        return done.out

    def json(self, *options: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.logs("--json", *options).splitlines()]
        for each in found:
            check_json("logs", each)
        return found
