"""hpcrun nodes: nodes that failed a check of the user's own runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.json_schemas import check_json


@pytest.fixture
def folder(hpcrun: Caller) -> Path:
    made = hpcrun.project.parent / "cache/bad-nodes"
    made.mkdir(parents=True)
    return made


def record(folder: Path, node: str, age: float = 60, **changed: object) -> Path:
    values: dict[str, object] = {
        "node": node,
        "why": "no GPU",
        "at": time.time() - age,
        "run_id": f"r-{node}",
    }
    path = folder / node
    path.write_text(json.dumps({**values, "user": "me", "cluster": "default", **changed}))
    path.chmod(0o644)
    return path


def test_bad_nodes_are_listed_for_a_day_and_can_be_cleared(hpcrun: Caller, folder: Path) -> None:
    assert hpcrun("nodes").out == "no nodes excluded\n"
    record(folder, "n1", age=7300, why="it\x1b[2J hangs")
    record(folder, "n2", age=30)
    record(folder, "n3", age=86401)
    record(folder, "n4", cluster="another")
    rows = [line.split() for line in hpcrun("nodes").out.splitlines()]
    assert rows[0] == ["NODE", "FOUND", "EXCLUDED", "FOR", "BY", "RUN", "WHY"]
    assert rows[1][0] == "n2" and rows[2][:5] == ["n1", "2", "h", "1", "min"]
    assert "\\x1b[2J" in hpcrun("nodes").out
    answer = hpcrun("nodes", "--json").json
    check_json("nodes", answer)
    assert [one["node"] for one in answer["nodes"]] == ["n2", "n1"]
    assert answer["nodes"][0]["until"] - answer["nodes"][0]["at"] == 86400
    assert hpcrun("nodes", "--clear", "n9").code == 2
    done = hpcrun("nodes", "--clear", "n1", "--json").json
    check_json("nodes", done)
    assert done == {"nodes": [], "cleared": ["n1"]}
    assert hpcrun("nodes", "--clear").out == "n2 may be used again\n"
    assert hpcrun("nodes", "--clear").out == "no node was excluded\n"
    assert sorted(path.name for path in folder.iterdir()) == ["n3", "n4"]


def test_only_records_of_the_user_are_used(hpcrun: Caller, folder: Path) -> None:
    record(folder, "open").chmod(0o666)
    (folder / "n1").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    record(folder, "n5").rename(folder / "other")
    record(folder, "a,b --wrap=x")
    (folder / ".n1.part").write_text("{")
    if os.geteuid() == 0:
        os.chown(record(folder, "theirs"), 12345, 12345)
    assert hpcrun("nodes", "--json").json["nodes"] == []
