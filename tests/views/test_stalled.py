"""How status, its listing and top show a stalled run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.runs.ends import Collective, Stall, Suspect
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Attempt, Begin, End, History
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Verdict
from hpcrun.text.table import Display
from hpcrun.views.status import describe_stall, format_listing, format_run, run_json
from hpcrun.views.top import format_top, top_json

SUSPECT = Suspect(rank=5, node=1, host="node2", why="last in all_reduce #4711, where 7 of 8 wait")
STALL = Stall(
    since=1000.0,
    silent_seconds=600.0,
    threshold=600.0,
    step=40,
    ranks=[5],
    suspect=SUSPECT,
    collective=Collective(name="all_reduce", seq=4711),
    stacks=["stacks/rank-0.txt"],
)
LINE = "no step for 14 min: rank 5 on node2 is last in all_reduce #4711, where 7 of 8 wait"
PLAIN = Display(width=200)


def status(stall: Stall | None, exit_code: int | None = None) -> JobStatus:
    begin = Begin(attempt=0, job_id="7", host="node1", pid=1, nodes="node[1-2]", begun_at=500.0)
    end = exit_code is not None and End(
        attempt=0,
        job_id="7",
        exit_code=exit_code or 0,
        signal=None,
        stopped_by=None,
        first_failure=None,
        begun_at=500.0,
        ended_at=1900.0,
    )
    attempt = Attempt(index=0, begin=begin, beat=1840.0, end=end or None, stall=stall)
    run = RunFolder(Path("/runs/20261120-081455-a-7k3q"))
    return JobStatus(
        verdict=Verdict(state="FAILED" if exit_code else "RUNNING", final=exit_code is not None),
        history=History(run_id=run.run_id, attempts=[attempt]),
        run=run,
        job_id="7",
        name="a",
    )


@pytest.mark.parametrize(
    ("stall", "text"),
    [
        (STALL, LINE),
        (None, ""),
        (
            structs.replace(STALL, suspect=None),
            "no step for 14 min: all ranks are in all_reduce",
        ),
        (structs.replace(STALL, suspect=None, collective=None), "no step for 14 min"),
        (
            structs.replace(STALL, step=None, suspect=Suspect(rank=1, why="at \x1b[2J (a.py:1)")),
            "no step yet for 14 min: rank 1 is at ?[2J (a.py:1)",
        ),
    ],
)
def test_stall_text_is_one_sentence(stall: Stall | None, text: str) -> None:
    assert describe_stall(status(stall)) == text


def test_stall_is_shown_in_status_listing_top_and_json() -> None:
    shown = status(STALL)
    lines = format_run(shown, PLAIN, local_time=str, has_checkpoints=False)
    assert any(line.split(None, 1) == ["stalled", LINE] for line in lines)
    assert any(
        line.split() == ["stacks", f"{shown.folder.path}/attempts/0/stacks"] for line in lines
    )
    assert any(LINE in line for line in format_listing([shown], 0, PLAIN))
    assert [line for block in format_top([shown], PLAIN) for line in block].count(f"  {LINE}") == 1
    assert run_json(shown)["attempts"][0]["stall"]["suspect"]["rank"] == 5
    assert top_json([shown], cluster="c", at=0, left_out=0)["jobs"][0]["stall"]["ranks"] == [5]


def test_ended_run_shows_its_stall_only_if_it_failed() -> None:
    assert describe_stall(status(STALL, 1)).startswith("no step for 15 min")
    assert describe_stall(status(STALL, 0)) == ""
