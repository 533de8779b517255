"""hpcrun hostfile: sources, outputs and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import click
import pytest

from hpcrun.cli import verbs_setup
from hpcrun.render.hostfile import Form
from tests.cli.calling import Caller, replay
from tests.slurm_answers import sacct_row

DETAILS = """\
JobId=7 JobName=x
   JobState={state} Reason={reason} Dependency=(null)
   NodeList={nodes}
   NumNodes=2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
     Nodes=n1 CPU_IDs=1-2 Mem=4000 GRES=gpu:2(IDX:1-2)
     Nodes=n2 CPU_IDs=1 Mem=2000 GRES=gpu:1(IDX:1)
"""


def scontrol(hpcrun: Caller, state: str, nodes: str, reason: str = "None") -> Path:
    text = DETAILS.format(state=state, nodes=nodes, reason=reason)
    return replay(hpcrun.tools, "scontrol", (0, text, ""))


def test_options_accept_all_formats() -> None:
    taken = {option.name: option.type for option in verbs_setup.hostfile.params}
    for name in ("form", "source"):
        choice = taken[name]
        assert isinstance(choice, click.Choice) and tuple(choice.choices) == get_args(Form)


def test_hostfile_from_a_node_list(hpcrun: Caller) -> None:
    done = hpcrun("hostfile", "node[01-02,07]", "--slots", "4")
    assert (done.code, done.err) == (0, "")
    assert done.out == "node01 slots=4\nnode02 slots=4\nnode07 slots=4\n"
    assert hpcrun("hostfile", "n[1-2]", "--slots", "8", "--to", "mpich").out == "n1:8\nn2:8\n"
    assert hpcrun("hostfile", "n1,n2", "--to", "slurm").out == "n[1-2]\n"
    many = ",".join(f"a-long-host-name-{i}-x" for i in range(100))  # too long for a file name
    assert len(hpcrun("hostfile", many, "--to", "plain").out.split()) == 100


def test_hostfile_json(hpcrun: Caller) -> None:
    assert hpcrun("hostfile", "n[1-2]", "--slots", "4", "--json").json == {
        "source": "n[1-2]",
        "node_list": "n[1-2]",
        "hosts": [{"host": "n1", "slots": 4}, {"host": "n2", "slots": 4}],
        "slots": 8,
    }
    unknown = hpcrun("hostfile", "n[1-2]", "--to", "plain", "--json").json
    assert unknown["slots"] is None and unknown["hosts"][0]["slots"] is None


def test_hostfile_is_converted_from_a_file(hpcrun: Caller) -> None:
    hpcrun.write("pools/lab", "# lab\nlab1 slots=4 max_slots=8\nlab2 slots=2\n")
    done = hpcrun("hostfile", "pools/lab", "--to", "mpich")
    assert done.out == "lab1:4\nlab2:2\n", done
    assert hpcrun("hostfile", "pools/lab").out == "lab1 slots=4\nlab2 slots=2\n"
    assert (
        "lab1 slots=9\n" in hpcrun("hostfile", "pools/lab", "--slots", "9", "--to", "openmpi").out
    )
    assert hpcrun("hostfile", "./pools/lab", "--to", "slurm").out == "lab[1-2]\n"
    hpcrun.write("twice", "a slots=2\na slots=2\n")
    assert hpcrun("hostfile", "twice").code == 2
    assert hpcrun("hostfile", "twice", "--from", "openmpi").out == "a slots=4\n"


def test_hostfile_from_a_job(hpcrun: Caller) -> None:
    asked = scontrol(hpcrun, "RUNNING", "n[1-2]")
    done = hpcrun("hostfile", "7")
    assert (done.code, done.out, done.err) == (0, "n1 slots=2\nn2 slots=1\n", "")
    assert asked.read_text().endswith("|--details show job 7\n")
    hpcrun.environ["SLURM_JOB_ID"] = "7"
    assert hpcrun("hostfile").out == done.out  # the surrounding job
    scontrol(hpcrun, "COMPLETED", "n[1-2]")
    ended = hpcrun("hostfile", "7")
    assert ended.out == done.out
    assert ended.err == "job 7 has ended (COMPLETED): these were its nodes\n"


def test_hostfile_from_a_job_known_only_to_sacct(hpcrun: Caller) -> None:
    tools = hpcrun.tools
    replay(tools, "scontrol", (1, "", "slurm_load_jobs error: Invalid job id specified\n"))
    done = hpcrun("hostfile", "7")  # without sacct
    assert done.code == 2 and "7: Slurm knows no such job" in done.err
    shown = sacct_row("7", NodeList="n[1-2]", NNodes="2", AllocTRES="cpu=2,gres/gpu=4,node=2")
    replay(tools, "sacct", (0, shown, ""))
    done = hpcrun("hostfile", "7")
    assert done.code == 2 and "n1: the number of slots of a host is not given" in done.err
    assert hpcrun("hostfile", "7", "--slots", "2").out == "n1 slots=2\nn2 slots=2\n"


@pytest.mark.parametrize(
    ("state", "reason", "message"),
    [
        ("PENDING", "Resources", "job 7 has no nodes yet (PENDING, Resources)"),
        ("CANCELLED", "None", "job 7 has had no nodes (CANCELLED)"),
    ],
)
def test_job_without_nodes_is_refused(
    hpcrun: Caller, state: str, reason: str, message: str
) -> None:
    scontrol(hpcrun, state, "", reason)
    done = hpcrun("hostfile", "7", "--slots", "4")
    assert done.code == 2 and done.out == "" and message in done.err


def test_array_id_is_refused(hpcrun: Caller) -> None:
    tasks = [DETAILS.format(state="RUNNING", nodes="n1", reason="None") for _ in "01"]
    text = "\n".join(
        task.replace("JobId=7", f"JobId={7 + i} ArrayJobId=7 ArrayTaskId={i}")
        for i, task in enumerate(tasks)
    )
    replay(hpcrun.tools, "scontrol", (0, text, ""))
    done = hpcrun("hostfile", "7")
    assert done.code == 2
    assert "7: that is 2 jobs" in done.err and "fix: name one: 7_0, 7_1" in done.err


def test_hostfile_from_a_run(hpcrun: Caller) -> None:
    hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    run_id = hpcrun("submit", "job.yaml", "--json").json["run_id"]
    scontrol(hpcrun, "RUNNING", "n[1-2]")
    assert hpcrun("hostfile", run_id).out == "n1 slots=2\nn2 slots=1\n"
    gone = hpcrun("hostfile", "20200101-000000-job-aaaa")
    assert gone.code == 2 and "no such run in" in gone.err


def test_hostfile_needs_a_response_of_slurm(hpcrun: Caller) -> None:
    answer = (
        1,
        "",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    )
    replay(hpcrun.tools, "scontrol", answer)
    assert hpcrun("hostfile", "7").code == 4
    (hpcrun.tools / "scontrol").unlink()
    done = hpcrun("hostfile", "7")
    assert done.code == 4 and "scontrol: command not found" in done.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["n[1-2"], "n[1-2: the bracket [ is not closed"),
        (["n[1-2]"], "n1: the number of slots of a host is not given"),
        (["n[1-2]", "--slots", "0"], "0 is not in the range x>=1"),
        (["n1,n1", "--slots", "2"], "n1: the host is named twice"),
        ([""], "no hosts are named"),
        ([","], "no hosts are named"),
        ([], "no hosts given, and this is not a Slurm job"),
        (["hostfile"], "hostfile: no such file"),
        (["pool.txt", "--slots", "1"], "pool.txt: no such file"),
        (["no/such/pool"], "no/such/pool: no such file"),
        (["."], ".: a folder"),
        (["bad"], "bad:2: slots=0: slots are a number from 1 to 65536"),
        (["binary"], "not UTF-8 text"),
        (["n1", "--slots", "2", "-o", "no/such/folder"], "no/such/folder: no such folder"),
        (["n1", "--slots", "2", "-o", "."], ".: a folder"),
    ],
)
def test_invalid_arguments_are_refused(hpcrun: Caller, argv: list[str], message: str) -> None:
    hpcrun.write("bad", "n1 slots=4\nn2 slots=0\n")
    hpcrun.write("binary", "").write_bytes(b"n1 slots=4\n\xff\xfe")
    done = hpcrun("hostfile", *argv)
    assert done.code in (1, 2) and done.out == ""
    assert message in done.err


def test_output_file_is_written_atomically(hpcrun: Caller) -> None:
    path = hpcrun.write("hosts.out", "old\n")
    assert hpcrun("hostfile", "n[1-2", "-o", "hosts.out").code == 2
    assert path.read_text() == "old\n"
    done = hpcrun("hostfile", "n1", "--slots", "2", "-o", "hosts.out")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert path.read_text() == "n1 slots=2\n"
    assert hpcrun("hostfile", "hosts.out", "--to", "mpich", "-o", "hosts.out").code == 0
    assert path.read_text() == "n1:2\n"
    link = hpcrun.project / "link"
    link.symlink_to("hosts.out")
    assert hpcrun("hostfile", "n2", "--slots", "2", "-o", "link").code == 0
    assert link.is_symlink() and path.read_text() == "n2 slots=2\n"
    assert [p.name for p in hpcrun.project.iterdir() if "part" in p.name] == []


def test_output_pipe_is_not_replaced(hpcrun: Caller) -> None:
    pipe = hpcrun.project / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert hpcrun("hostfile", "n1", "--slots", "2", "-o", "pipe").code == 0
        assert os.read(reader, 100) == b"n1 slots=2\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
