"""Time limits: Slurm's grammar, times with units, and likely mistakes."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from tests.plan.making import plan


def limit(text: str, rest: str = "") -> str | None:
    made = plan(f"script: a.py\nresources: {{time: {text}{rest}}}")
    return dict(made.directives).get("time")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", "2:00:00"),
        ("30m", "0:30:00"),
        ("1d12h", "36:00:00"),
        ("90s", "0:01:30"),
        ("1h30m", "1:30:00"),
        ("24:00:00", "24:00:00"),
        ("2-12", "2-12"),
        ("90", "90"),
        ("UNLIMITED", "UNLIMITED"),
    ],
)
def test_time_limit_is_converted_to_slurm_format(text: str, expected: str) -> None:
    assert limit(text) == expected


@pytest.mark.parametrize("text", ["2hours", "12h1d", "h", "1.5h", "2 h", "-1h", "1h30"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="as in 30m, 2h, 1d12h"):
        limit(f"'{text}'")


def test_every_time_of_job_and_profile_accepts_units() -> None:
    made = plan(
        "script: a.py\nresources: {time: 2h, partition: gpu}\nslurm: {time-min: 1h30m}\n"
        "survive: {when: [stalled], save_before_end: 1m30s, stalled_after: 1h30m}",
        "partitions: {gpu: {max_time: 1d12h, default_time: 30m}}",
    )
    assert dict(made.directives)["time-min"] == "1:30:00"
    assert (made.survive.warned, made.survive.stalled_after) == (90, 5400)


@pytest.mark.parametrize(
    ("text", "nodes", "note"),
    [
        ("2:00", 1, "2:00 is 2 minutes to Slurm (minutes:seconds); 2h, or 2:00:00, is 2 hours"),
        ("24:00", 1, "24:00 is 24 minutes to Slurm"),
        ("3", 2, "3 is 3 minutes to Slurm, hardly enough to start 2 nodes; 3h"),
        ("0:02:00", 4, "0:02:00: 120 s, hardly enough to start 4 nodes"),
        ("90s", 2, "90s: 90 s, hardly enough to start 2 nodes"),
        ("3", 1, None),
        ("2h", 2, None),
        ("2:30", 1, None),
        ("2:00:00", 2, None),
        ("10", 2, None),
    ],
)
def test_likely_mistaken_time_limit_has_a_note(text: str, nodes: int, note: str | None) -> None:
    made = plan(f"script: a.py\nresources: {{time: '{text}', nodes: {nodes}}}")
    found = [one for one in made.notes if one.startswith("resources.time: ")]
    assert len(found) == (note is not None)
    assert note is None or found[0].startswith(f"resources.time: {note}")
