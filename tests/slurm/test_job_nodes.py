"""Resources of a job on each node, from (shortened) output of Slurm 22.05.8."""

from __future__ import annotations

import pytest

from hpcrun.slurm.jobs import count_gpus, parse_sacct, parse_show_job
from tests.slurm_answers import sacct_row

HEAD = """\
JobId={id} JobName=x NodeList=forged[1-3]
   JobState={state} Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={nodes}
"""
GPUS = """\
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=2,mem=4000M,node=2,billing=2,gres/gpu=2
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:2
     Nodes=n[1-2] CPU_IDs=0 Mem=2000 GRES={gres}
   MinCPUsNode=1 MinMemoryCPU=2000M MinTmpDiskNode=0
   {asked}
"""
UNEVEN_GPUS = """\
   NumNodes=2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=3,mem=6000M,node=2,billing=3,gres/gpu=3
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:3
     Nodes=n2 CPU_IDs=1 Mem=2000 GRES=gpu:1(IDX:1)
     Nodes=n1 CPU_IDs=1-2 Mem=4000 GRES=gpu:2(IDX:1-2)
   TresPerJob=gres:gpu:3
"""
TASKS = """\
   NumNodes=2 NumCPUs=5 NumTasks={tasks} CPUs/Task={each} ReqB:S:C:T=0:0:*:*
   TRES=cpu=5,mem=10000M,node=2,billing=5
   Socks/Node=* NtasksPerN:B:S:C={per_node}:0:*:* CoreSpec=*
   JOB_GRES=(null)
     Nodes=n1 CPU_IDs=0-2,7 Mem=8000 GRES=
     Nodes=n2 CPU_IDs=2 Mem=2000 GRES=
"""


def slots(rest: str, nodes: str = "n[1-2]", state: str = "RUNNING") -> list[int]:
    (job,) = parse_show_job(HEAD.format(id=7, state=state, nodes=nodes) + rest)
    assert (job.job_id, job.state) == ("7", state)
    return list(job.slots)


def test_gpus_per_node_are_parsed() -> None:
    assert slots(GPUS.format(gres="gpu:1(IDX:0)", asked="TresPerNode=gres:gpu:1")) == [1, 1]
    assert slots(GPUS.format(gres="gpu:a100:4(IDX:0-3),gpu:v100:1(IDX:5)", asked="")) == [5, 5]
    assert slots(UNEVEN_GPUS) == [2, 1]


def test_gpus_of_an_ended_job_are_not_guessed() -> None:
    """Slurm clears GRES= at the end of a job, so only the total is known; tasks would be wrong."""
    ended = GPUS.format(gres="", asked="TresPerNode=gres:gpu:1")
    assert slots(ended, state="COMPLETED") == [1, 1]
    assert slots(GPUS.format(gres="", asked="TresPerJob=gres:gpu:2"), state="COMPLETED") == []
    one = GPUS.format(gres="", asked="")
    assert slots(one, nodes="n1", state="COMPLETED") == [2]
    by_tres = one.replace("JOB_GRES=gpu:2", "JOB_GRES=")
    assert slots(by_tres, nodes="n1", state="COMPLETED") == [2]
    since_23_02 = by_tres.replace("TRES=cpu", "ReqTRES=gres/gpu=8,cpu=2\n   AllocTRES=cpu")
    assert slots(since_23_02, nodes="n1", state="COMPLETED") == [2]


@pytest.mark.parametrize(
    ("tasks", "each", "per_node", "expected"),
    [
        (5, 1, 0, [4, 1]),
        (2, 1, 0, [1, 1]),
        (4, 1, 2, [2, 2]),
        (5, 1, 4, [4, 1]),  # with --ntasks, --ntasks-per-node is only a limit
        (4, 2, 0, []),
        (3, 1, 0, []),
    ],
)
def test_tasks_per_node_are_parsed(
    tasks: int, each: int, per_node: int, expected: list[int]
) -> None:
    assert slots(TASKS.format(tasks=tasks, each=each, per_node=per_node)) == expected


def test_job_without_nodes_has_no_slots() -> None:
    for nodes in ("", " SchedNodeList=n2", "(null)"):
        (job,) = parse_show_job(HEAD.format(id=7, state="PENDING", nodes=nodes) + TASKS)
        assert (job.hosts, job.slots) == ((), ())
        assert job.reason == "None"
    assert parse_show_job("") == []


def test_every_job_of_an_answer_is_parsed() -> None:
    text = "\n".join(
        HEAD.format(id=words, state="RUNNING", nodes="n1")
        for words in (
            "5 ArrayJobId=5 ArrayTaskId=1",
            "8 ArrayJobId=5 ArrayTaskId=0",
            "6 HetJobId=6 HetJobOffset=0",
            "7 HetJobId=6 HetJobOffset=1",
        )
    )
    assert [job.job_id for job in parse_show_job(text)] == ["5_1", "5_0", "6+0", "6+1"]


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("", 0),
        ("gpu:4(S:0-1)", 4),
        ("gpu:4090:2(IDX:0,3)", 2),  # a type name of digits
        ("gres/gpu:h100:8", 8),
        ("gpu:1g.5gb:2,shard:7,gpumem:3", 2),
        ("license:gpu:4", 0),
    ],
)
def test_count_gpus_accepts_all_notations(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_slots_are_parsed_from_the_accounting() -> None:
    jobs = parse_sacct(
        "sacct: note\n"
        + sacct_row("5_0", AllocTRES="billing=1,cpu=1,gres/gpu=2,gres/gpu:a100=2,node=1")
        + sacct_row("6", "CANCELLED by 0", NNodes="2", NodeList="n[1-2]", AllocTRES="gres/gpu=4")
        + sacct_row("9", "PENDING", NodeList="None assigned")
    )
    assert [(job.job_id, job.state, job.hosts, job.gpus, job.slots) for job in jobs] == [
        ("5_0", "COMPLETED", ("n1",), 2, (2,)),
        ("6", "CANCELLED", ("n1", "n2"), 4, ()),
        ("9", "PENDING", (), None, ()),
    ]
