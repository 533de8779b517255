"""The recorded use of a run's nodes: totals and series, from complete, torn and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.runs.layout import RunFolder
from hpcrun.runs.usage import NodeSeries, parse_node_usage, read_node_usage

HEADER = "hpcrun-usage 1 n1 15 job 16 job 64000 nvidia:GPU-a:81920 nvidia:GPU-b:81920"
UUIDS = ["GPU-a", "GPU-b"]


def lines(count: int) -> list[str]:
    """Return the lines of a node with 8 busy CPUs, a GPU at 90 % and an idle one."""
    made = [HEADER]
    for n in range(1, count + 1):
        host = f"{1_000_000 + 60 * n} {500 + 60 * n}.25 {8 * 60 * n}000000000 {n} {n} {4 * n}"
        made.append(f"{host} {360 * n} {1000 + n} {1000 + n} {1200 * n} 0 4 4 -")
    return made


def write(run: RunFolder, rank: int, text: str, attempt: int = 0) -> None:
    folder = run.path / "usage" / str(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    (run.path / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
    (folder / f"node-{rank}").write_text(text)


def parse(found: list[str]) -> NodeSeries:
    series = parse_node_usage(found, rank=0, attempt=0)
    assert series is not None
    return series


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def test_totals_are_read_from_the_ends_of_a_long_file(run: RunFolder) -> None:
    write(run, 0, "\n".join(lines(5000)) + "\n")
    (whole,), (total,) = read_node_usage(run), read_node_usage(run, with_series=False)
    assert len(whole.times) == 5000 and len(total.times) == 2
    empty: dict[str, list[int]] = {"times": [], "cpus_busy_series": [], "memories": [], "gpus": []}
    assert structs.replace(whole, **empty) == structs.replace(total, **empty)
    for each in (whole, total):
        assert (each.node, each.cpus, each.cpus_busy) == ("n1", 16, 8.0)
        assert [gpu.name for gpu in each.gpus] == UUIDS
        assert [gpu.utilization for gpu in each.gpus] == [90.0, 0.0]
        assert [gpu.power_watts for gpu in each.gpus] == [300.0, None]
        assert [gpu.memory_peak for gpu in each.gpus] == [6000 << 20, 4 << 20]
    assert whole.gpus[0].utilizations == [90.0] * 5000
    assert whole.cpus_busy_series[1:] == [8.0] * 4999


def test_files_cut_at_any_byte_are_read_up_to_the_last_complete_line(run: RunFolder) -> None:
    text = "\n".join(lines(6)) + "\n"
    for cut in range(len(text) + 1):
        write(run, 0, text[:cut])
        found = read_node_usage(run)
        complete = text[:cut].count("\n") - 1
        assert [len(node.times) for node in found] == ([complete] if complete > 0 else [])
        assert all(gpu.utilization in (90.0, 0.0) for node in found for gpu in node.gpus)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "\x00" * 40,
        "1 2",
        "1000200 700.25 9 9 9 x 1 1 1 1 1 1 1 1",
        "1000200 700.25 9 9 9 -5 1 1 1 1 1 1 1 1",
        "1000200 1e9 9 9 9 4 1 1 1 1 1 1 1 1",
        # Another boot of the node: its counters start again.
        "1000200 3.25 9 9 9 99 1 1 1 1 1 1 1 1",
    ],
)
def test_malformed_lines_change_nothing(bad: str) -> None:
    good = lines(4)
    assert parse([*good[:3], bad, *good[3:]]) == parse(good)


def test_clock_steps_change_times_but_no_rates() -> None:
    stepped = lines(4)
    stepped[3] = stepped[3].replace("1000180", "900000")
    found = parse(stepped)
    assert found.times == [1000060, 1000120, 900000, 1000240]
    assert found.cpus_busy_series[1:] == [8.0] * 3 and found.seconds == 180


@pytest.mark.parametrize(
    "header", ["", "hpcrun-usage 2 n1 15 job 16 job 64000", "hpcrun-usage 1 n1", "\x7fELF"]
)
def test_unknown_files_are_ignored(run: RunFolder, header: str) -> None:
    write(run, 0, "\n".join([header, *lines(3)[1:]]) + "\n")
    assert read_node_usage(run) == []


def test_last_attempt_with_a_record_is_read(run: RunFolder) -> None:
    assert read_node_usage(run) == []
    for rank in (10, 9, 0):
        write(run, rank, "\n".join(lines(rank + 1)) + "\n")
    write(run, 0, "", attempt=1)
    (run.path / "usage" / "0" / "node-1").symlink_to("/dev/zero")
    (run.path / "usage" / "0" / "node-x").write_text("")
    assert [(node.attempt, node.rank) for node in read_node_usage(run)] == [(0, 0), (0, 9), (0, 10)]
    assert read_node_usage(run, 1) == []
