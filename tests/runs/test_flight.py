"""PyTorch's flight recorder: the missing rank and its collective; dumps are parsed safely."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.runs.ends import Collective, Stall, Suspect
from hpcrun.runs.flight import add_flight_dumps, find_missing_ranks, group_collectives, read_dump


def dump(*calls: tuple[str, int, str], group: str = "0", ranks: str = "[0, 1, 2, 3]") -> Any:
    """Return the parts of a torch 2.13 dump that are read."""
    entries = [
        {
            "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 3245}],
            "record_id": number,
            "pg_id": 0,
            "process_group": (group, "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "profiling_name": f"nccl:{name}",
            "state": state,
            "is_p2p": False,
        }
        for number, (name, seq, state) in enumerate(calls)
    ]
    config = {group: {"name": group, "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


DONE = [("all_reduce", seq, "completed") for seq in (4708, 4709, 4710)]
WAITS = ("all_reduce", 4711, "started")


def judged(dumps: dict[int, Any]) -> tuple[list[int], Collective, str] | None:
    return find_missing_ranks(group_collectives(dumps), dumps.keys())


def test_rank_that_never_entered_a_collective_is_named() -> None:
    dumps = {rank: dump(*DONE, WAITS) for rank in (0, 1, 3)} | {2: dump(*DONE)}
    assert judged(dumps) == (
        [2],
        Collective(name="all_reduce", seq=4711),
        "last in all_reduce #4711, where 3 of 4 wait",
    )


def test_first_waiting_collective_is_reported() -> None:
    ahead = dump(*DONE, WAITS, ("broadcast", 4712, "scheduled"), ("broadcast", 4713, "scheduled"))
    dumps = {0: ahead, 1: ahead, 2: dump(*DONE, WAITS), 3: dump(*DONE)}
    found = judged(dumps)
    assert found is not None and (found[0], found[1].seq) == ([3], 4711)


def test_rank_without_any_collective_is_named() -> None:
    found = judged({0: dump(WAITS), 1: dump(WAITS), 2: dump(WAITS), 3: dump()})
    assert found is not None and found[0] == [3]


def test_rank_in_a_different_collective_is_named() -> None:
    other = dump(*DONE, ("broadcast", 4711, "started"))
    found = judged({0: dump(*DONE, WAITS), 1: other, 2: dump(*DONE, WAITS), 3: dump(*DONE, WAITS)})
    assert found is not None
    assert (found[0], found[2]) == ([1], "in broadcast #4711, where 3 of 4 are in all_reduce")


def test_rank_waiting_in_another_group_is_no_cause() -> None:
    # Ranks 0 and 1 wait for 2 in group a, which waits for 3 in group b.
    first = dump(("all_reduce", 9, "started"), group="a", ranks="[0, 1, 2]")
    second = dump(("all_gather", 5, "started"), group="b", ranks="[2, 3]")
    both = {**second, "pg_config": {**first["pg_config"], **second["pg_config"]}}
    last = {**dump(group="b", ranks="[2, 3]")}
    found = judged({0: first, 1: first, 2: both, 3: last})
    assert found is not None and (found[0], found[1].name) == ([3], "all_gather")


def test_rank_without_a_dump_is_named() -> None:
    found = judged({rank: dump(*DONE, WAITS) for rank in (0, 1, 3)})
    assert found is not None
    assert (found[0], found[2]) == ([2], "without a dump, 3 of 4 wait in all_reduce #4711")


@pytest.mark.parametrize(
    "dumps",
    [
        {},
        {0: None, 1: [], 2: {"entries": 7}, 3: {"entries": [7, {}, {"process_group": ()}]}},
        {rank: dump(*DONE) for rank in range(4)},
        {rank: dump(*DONE, WAITS) for rank in range(4)},
        {0: {"entries": [{"process_group": ("0",), "collective_seq_id": "7"}], "pg_config": 3}},
    ],
)
def test_inconclusive_dumps_name_no_rank(dumps: dict[int, Any]) -> None:
    assert judged(dumps) is None


class Harm:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Harm()),
        pickle.dumps(Path("/")),
        b"",
        b"\x80\x02",
        b"\x80\x02]q\x00h\x07.",
        b"cbuiltins\nprint\n.",
        b"\x80\x02(" * 9,
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02B\xff\xff\xff\x7f.",
        b"P7\n.",
    ],
)
def test_malicious_dump_is_refused_without_execution(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        read_dump(data)
    assert not list(tmp_path.iterdir())


def test_stall_record_includes_later_dumps(tmp_path: Path) -> None:
    stacks = Suspect(rank=2, node=1, host="node2", why="at load (data.py:7), 3 of 4 in backward")
    stall = Stall(since=1000.0, silent_seconds=600, threshold=600, suspect=stacks)
    assert add_flight_dumps(stall, tmp_path / "gone") == stall
    for rank in range(4):
        file = tmp_path / f"flight-{rank}"
        file.write_bytes(pickle.dumps(dump(*DONE, *([WAITS] if rank != 2 else [])), protocol=2))
        os.utime(file, (900, 900))
    assert add_flight_dumps(stall, tmp_path) == stall  # of an attempt before
    for rank in range(4):
        os.utime(tmp_path / f"flight-{rank}", (2000 + rank, 2000 + rank))
    found = add_flight_dumps(stall, tmp_path)
    assert found.collective == Collective(name="all_reduce", seq=4711)
    assert found.suspect == Suspect(
        rank=2, node=1, host="node2", why="last in all_reduce #4711, where 3 of 4 wait"
    )
    (tmp_path / "flight-2").write_bytes(pickle.dumps(Harm()))
    found = add_flight_dumps(stall, tmp_path)
    assert found.suspect is not None
    assert found.suspect.why == "without a dump, 3 of 4 wait in all_reduce #4711"


# Each rank enters two collectives, the first rank a third, and both write their dumps.
RECORDED = """
import os, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank, meeting, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
store = dist.FileStore(meeting, 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
for _ in range(2):
    dist.all_reduce(torch.ones(3))
work = dist.broadcast(torch.ones(3), 0, async_op=True) if rank == 1 else None
with open(f"{folder}/flight-{rank}", "wb") as file:
    file.write(_dump_fr_trace())
store.set(f"written-{rank}", "")
store.wait(["written-0", "written-1"])
os._exit(0)
"""


@pytest.mark.thorough
def test_real_flight_recorder_dump_names_the_missing_rank(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", RECORDED]
    places = [str(tmp_path / "meeting"), str(tmp_path)]
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"}
    ranks = [subprocess.Popen([*argv, str(rank), *places], env=env) for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    found = add_flight_dumps(Stall(since=0.0, silent_seconds=600, threshold=600), tmp_path)
    assert found.ranks == [0] and found.collective is not None
    assert found.suspect is not None and found.suspect.rank == 0
    assert found.suspect.why == f"last in broadcast #{found.collective.seq}, where 1 of 2 wait"
