"""The ground truth about external failed logs is well-formed, and bench.why scores it correctly."""

from __future__ import annotations

import re
from typing import Any

from bench.unseen import read_truth
from bench.why import TRUTH, judge

ENTRIES = read_truth(TRUTH)
CLASSES = {
    *("oom_gpu", "oom_host", "shm", "disk", "time_limit", "preempted", "node_fail"),
    *("nccl", "rendezvous", "port", "driver", "import", "missing_file", "auth_network"),
    *("cancelled", "code_error", "numerics", "other"),
}


def values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_unseen_logs_cover_enough_projects_in_two_halves() -> None:
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)
    assert len({entry["sha256"] for entry in ENTRIES}) == len(ENTRIES)
    parts = {entry["repo"]: entry["part"] for entry in ENTRIES}
    assert all(parts[entry["repo"]] == entry["part"] for entry in ENTRIES)
    for part in ("open", "held"):
        counted = [e for e in ENTRIES if e["part"] == part and "ambiguous" not in e]
        assert sum("class" in entry for entry in counted) >= 25
        assert sum("nothing" in entry for entry in counted) >= 15


def test_unseen_log_entries_have_commit_digest_and_consistent_fields() -> None:
    for entry in ENTRIES:
        assert re.fullmatch(r"[0-9a-f]{40}", entry["commit"]), entry["id"]
        assert re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]), entry["id"]
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry["repo"]), entry["id"]
        assert entry["path"] and entry["kind"], entry["id"]
        assert ("nothing" in entry) != ("class" in entry), entry["id"]
        if "class" in entry:
            assert CLASSES.issuperset(values(entry["class"])), entry["id"]
            assert all(line >= 1 for line in values(entry["line"])), entry["id"]


def test_cause_is_scored_by_class_and_then_by_line() -> None:
    failed = {"class": ["oom_host", "other"], "line": [7, 9], "host": "n1"}
    cause = {"class": "other", "line": 9, "text": "Killed", "host": "n1", "rank": None}
    assert judge(failed, cause, "") == {"class": True, "line": True, "host": True, "wrong": ""}
    other_line = judge(failed, cause | {"line": 8}, "")
    assert other_line["class"] and not other_line["line"] and "line 8" in other_line["wrong"]
    assert not judge(failed, cause | {"class": "port"}, "")["line"]
    assert not judge(failed, None, "")["class"]
    assert judge({"nothing": True}, None, "")["class"]
    assert not judge({"nothing": True}, cause, "")["class"]
    assert not judge({"nothing": True}, None, "no answer, exit code 2")["class"]
