"""The ground truth about external logs is well-formed; python -m bench.unseen compares with it."""

from __future__ import annotations

import re
from typing import Any

from bench.unseen import TRUTH, read_truth

ENTRIES = read_truth(TRUTH)


def numbers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_unseen_logs_cover_enough_projects_in_two_parts() -> None:
    assert len(ENTRIES) >= 60
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)
    parts = {entry["repo"]: entry["part"] for entry in ENTRIES}
    assert len(parts) >= 50
    assert all(parts[entry["repo"]] == entry["part"] for entry in ENTRIES)
    sizes = [list(parts.values()).count(part) for part in ("open", "aside")]
    assert min(sizes) >= 30
    assert set(parts.values()) == {"open", "aside", "development"}


def test_unseen_log_entries_have_commit_digest_and_consistent_fields() -> None:
    for entry in ENTRIES:
        assert re.fullmatch(r"[0-9a-f]{40}", entry["commit"]), entry["id"]
        assert re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]), entry["id"]
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry["repo"]), entry["id"]
        assert entry["path"] and entry["kind"], entry["id"]
        ways = [way for way in ("ambiguous", "nothing", "loss") if way in entry]
        assert len(ways) == 1, entry["id"]


def test_unseen_readings_name_points() -> None:
    for entry in ENTRIES:
        for reading in [*entry.get("loss", []), *entry.get("eval_loss", [])]:
            assert all(isinstance(count, int) for count in numbers(reading["points"]))
            places = [place for place in ("first", "last") if place in reading]
            assert bool(places) == (reading["points"] != 0), entry["id"]
            for place in places:
                point = reading[place]
                assert all(isinstance(each, (int, float)) for each in numbers(point["value"]))
                steps = numbers(point.get("step"))
                assert all(step is None or isinstance(step, int) for step in steps), entry["id"]
