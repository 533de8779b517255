"""Position of a point in time in a log, for many time stamp formats."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcrun.actions.logs import start_since
from hpcrun.cli.options import parse_when
from hpcrun.errors import InputError

NOW = time.mktime((2026, 11, 20, 15, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "ago"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1d", 86400), ("14:30", 1800)],
)
def test_relative_times_are_parsed(text: str, ago: float) -> None:
    assert parse_when(text, NOW) == NOW - ago


def test_dates_are_parsed() -> None:
    assert parse_when("2026-11-20T15:00", 0) == NOW
    assert parse_when("2026-11-20", 0) == NOW - 15 * 3600
    assert parse_when("1970-01-02T00:00:00Z", 0) == 86400


@pytest.mark.parametrize("text", ["", "yesterday", "10", "-5m", "25:00", "2026-13-01", "9e9d", "m"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a time"):
        parse_when(text, NOW)


STAMPS = ["%Y-%m-%d %H:%M:%S", "[%H:%M:%S]", "%b %d %H:%M:%S", "[%m/%d %H:%M:%S]"]


@pytest.mark.slow
@pytest.mark.parametrize("stamp", STAMPS)
def test_position_of_a_time_is_found_for_each_stamp_format(tmp_path: Path, stamp: str) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        file.write("a banner\n")
        for number in range(6_000):
            local = time.localtime(NOW - 6_000 + number)
            file.write(f"{time.strftime(stamp, local)} step {number}\n no stamp\n")
    os.utime(path, (NOW, NOW))
    for ago in (1, 600, 5_999):
        with path.open("rb") as file:
            file.seek(start_since(path, NOW - ago))
            assert file.readline().endswith(b" step %d\n" % (6_000 - ago))
    assert start_since(path, NOW - 30_000) == 0
    assert start_since(path, NOW + 1) == path.stat().st_size


def test_log_without_stamps_is_shown_completely(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("Fri Nov 20 01:00:00 2026 banner\n" + "step 1\n" * 20_000)
    os.utime(path, (NOW, NOW))
    assert start_since(path, NOW - 60) == 0
    assert start_since(path, NOW + 60) == path.stat().st_size
