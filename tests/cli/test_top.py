"""hpcrun top with scripted answers of Slurm; tests/cluster/test_top.py uses the real one."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from hpcrun.actions.top import Top
from hpcrun.context import load_context
from hpcrun.runs.records import History
from hpcrun.runs.status import GpuUse, JobStatus, NodeUse, Progress
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.text.table import Display, text_width
from hpcrun.views.top import format_top
from tests.cli.calling import Caller, replay
from tests.json_schemas import check_json
from tests.slurm_answers import show_job, squeue_row
from tests.waiting import PATIENCE

# An srun that runs its command on this machine.
SRUN = """\
#!/bin/sh
if [ "$1" = --version ]; then echo slurm-wlm 22.05.8; exit; fi
echo "$*" | head -c 400 >>"$0.calls"
while [ "$1" != bash ]; do shift; done
SLURMD_NODENAME=n1 exec "$@"
"""
SMI = "#!/bin/sh\necho '0, GPU-8932f937, 5, 61234, 81920, [N/A], 64'\n"


def row(work_dir: Path | str, job_id: str, state: str = "RUNNING", reason: str = "None") -> str:
    known = {"M": "1:02:03", "l": "1-00:00:00", "u": str(os.getuid()), "j": "a name"}
    return squeue_row(job_id, state, r=reason, Z=str(work_dir), **known)


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for commands."""
    folder = hpcrun.tools
    for name in ("timeout", "head", "sleep"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(f"/usr/bin/{name}")
    replay(folder, "scontrol", (1, "", "slurm_load_jobs error: Invalid job id specified\n"))
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def a_run(hpcrun: Caller, log: str) -> Path:
    run = hpcrun.runs / "20261120-081455-zero2-7k3q"
    (run / "attempts" / "0").mkdir(parents=True)
    (run / "logs" / "0").mkdir(parents=True)
    (run / "logs" / "0" / "rank-0.log").write_text(log)
    return run


@pytest.mark.slow
def test_top_prints_one_snapshot(hpcrun: Caller, tools: Path) -> None:
    log = "".join(f"step={n} loss={9 - n / 100} tokens_per_second=900\n" for n in range(300))
    run = a_run(hpcrun, log)
    asked = replay(
        tools, "squeue", (0, row(run, "7_3") + row("/x", "9", "PENDING", "Priority"), "")
    )
    program(tools, "srun", SRUN)
    program(tools, "nvidia-smi", SMI)
    done = hpcrun.process("top", "--json")
    assert (done.code, done.err) == (0, ""), done
    check_json("top", done.json)
    job, waiting = done.json["jobs"]
    assert (job["job_id"], job["run_id"], job["step"]) == ("7_3", run.name, 299)
    assert (job["value"], job["rate"], job["rate_unit"]) == (6.01, 900, "tokens_per_second")
    assert (job["limit_seconds"], len(job["recent"])) == (86400, 200)
    (node,) = job["nodes"]
    assert node["cpus_busy"] is not None
    assert (node["gpus"][0]["utilization"], node["gpus"][0]["power_watts"]) == (5, None)
    assert (waiting["state"], waiting["elapsed_seconds"]) == ("PENDING", None)
    assert waiting["why"]
    # By the job number of the task, which every srun accepts, with one query.
    assert "--jobid=703 --overlap --mem=0" in (tools / "srun.calls").read_text()
    assert asked.read_text().count("--me") == 1
    assert hpcrun.left() == []


@pytest.mark.slow
def test_output_of_other_jobs_needs_one_query(
    hpcrun: Caller, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs are not queried again; the states are, twice a minute."""
    monkeypatch.setenv("PATH", hpcrun.environ["PATH"])
    asked = replay(tools, "squeue", (0, "".join(row("/x", job_id) for job_id in "789"), ""))
    known = {job_id: show_job(job_id, StdOut=str(tmp_path / job_id)) for job_id in "79"}
    shown = replay(tools, "scontrol", (1, "".join(known.values()), "Invalid job id specified\n"))
    for job_id in known:
        (tmp_path / job_id).write_text(f"step=3 loss={job_id}.5\n")
    others = set(threading.enumerate())
    top, now = Top(load_context(hpcrun.environ, hpcrun.project), usage=False), time.monotonic()
    while not top.has_all():
        top.poll()
    values = {job.job_id: job.progress.value for job in top.jobs()}
    assert values == {"9": 9.5, "8": None, "7": 7.5}
    for clock in range(121):
        monkeypatch.setattr(time, "monotonic", lambda clock=clock: now + clock)
        top.poll()
        for thread in set(threading.enumerate()) - others:
            thread.join(PATIENCE)
    assert shown.read_text().count("--details") == 1
    assert 4 <= asked.read_text().count("--me") <= 5


@pytest.mark.slow
def test_top_works_without_a_job_step(hpcrun: Caller, tools: Path) -> None:
    replay(tools, "squeue", (0, row("/x", "9"), ""))
    refusal = "srun: error: Unable to create step for job 9: Access/permission denied\n"
    replay(tools, "srun", (1, "", refusal))
    done = hpcrun("top")
    assert done.code == 0, done
    assert "9    a name  1:02:0" in done.out
    assert (
        "no utilization shown: Unable to create step for job 9: Access/permission denied"
        in done.out
    )
    (tools / "srun").unlink()
    assert "no utilization shown: srun: command not found" in hpcrun("top").out
    without = hpcrun("top", "--no-usage")
    assert without.code == 0
    assert "n1" not in without.out


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (
            (1, "", "slurm_load_jobs error: Unable to contact slurm controller"),
            4,
            "does not answer",
        ),
        ((0, "<html>busy</html>", ""), 4, "other than a list of jobs"),
        ((0, "\x1f\x1e" * 40, ""), 4, "other than a list of jobs"),
    ],
)
def test_top_without_response_of_slurm_is_reported(
    hpcrun: Caller, tools: Path, answer: tuple[int, str, str], code: int, message: str
) -> None:
    replay(tools, "squeue", answer)
    done = hpcrun("top")
    assert done.code == code, done
    assert message in done.err
    assert "Traceback" not in done.err


def test_top_reports_missing_jobs(hpcrun: Caller, tools: Path) -> None:
    replay(tools, "squeue", (0, "", ""))
    assert "you have no running or pending jobs" in hpcrun("top").out
    done = hpcrun("top", "12")
    assert done.code == 2
    assert "12: neither running nor pending" in done.err
    assert hpcrun("top", "no-such-run").code == 2


def submitted(run: Path, job_id: str, conf: Path | None) -> None:
    record: dict[str, object] = {"job_id": job_id, "cluster": "c"}
    record["slurm_conf"] = conf and str(conf)
    record |= {"submitted_at": 1.0, "host": "h", "user": "me"}
    (run / "submitted.json").write_text(json.dumps(record))


def test_top_queries_the_slurm_of_the_run(hpcrun: Caller, tools: Path) -> None:
    """The slurm.conf with which the run was submitted is used, as in all commands."""
    run, other = a_run(hpcrun, ""), hpcrun.runs / "20261120-081456-zero2-7k3r"
    other.mkdir()
    own = tools / "own.conf"
    own.touch()
    submitted(run, "7", own)
    submitted(other, "8", None)
    for name, text in (("squeue", row(run, "7")), ("srun", "no\n")):
        (tools / f"{name}.out").write_text(text)
        program(tools, name, '#!/bin/sh\necho "$SLURM_CONF" >>"$0.conf"\ncat "$0.out"\n')
    assert hpcrun("top", "7", "--json").json["jobs"][0]["job_id"] == "7"
    asked = {name: (tools / f"{name}.conf").read_text().split() for name in ("squeue", "srun")}
    assert all(set(confs) == {str(own)} for confs in asked.values()), asked
    done = hpcrun("top", "7", "8")
    assert done.code == 2 and "jobs of several clusters" in done.err, done
    own.unlink()
    done = hpcrun("top", "7")
    assert done.code == 4 and f"{own}, with which the job was submitted, is not" in done.err, done


def job(*, nodes: int = 1, state: str = "RUNNING", name: str = "zero2") -> JobStatus:
    gpu = GpuUse(index=0, utilization=97, memory_used=60 << 30, memory_total=80 << 30)
    use = [
        NodeUse(
            node=f"node{n}",
            cpus=64,
            cpus_busy=12.5,
            cpu_of="node",
            memory_used=200 << 30,
            memory_total=512 << 30,
            memory_of="node",
            gpus=(gpu,) * 8,
        )
        for n in range(nodes)
    ]
    slurm = SlurmJob(
        job_id="7", source="squeue", state=state, reason="QOSMaxGRESPerUser", node_list="n"
    )
    return JobStatus(
        job_id="7",
        job=slurm,
        history=History(run_id="7"),
        verdict=Verdict(state=state, final=False, source="squeue", reason=slurm.reason),
        name=name,
        elapsed=3725.0,
        limit=86400.0,
        progress=Progress(
            step=120000,
            total_steps=1000000,
            metric="loss",
            value=2.4312,
            recent=[9.0 / (n + 1) for n in range(200)],
            steps=list(range(200)),
            rate=20123.0,
            unit="tokens_per_second",
            seconds_left=7800.0,
        ),
        uses=use if state == "RUNNING" else [],
        why_no_use="",
    )


@pytest.mark.parametrize("width", [1, 10, 20, 40, 79, 109, 110, 199, 300])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_rows_fit_the_window(width: int, ascii_only: bool) -> None:
    jobs = [job(), job(nodes=3, name="損失" * 30), job(nodes=99), job(state="PENDING")]
    rows = [
        row for block in format_top(jobs, Display(width, 24, False, ascii_only)) for row in block
    ]
    assert max(map(text_width, rows)) <= width
    # Names are not changed.
    assert not ascii_only or all(row.replace("損", "").replace("失", "").isascii() for row in rows)


def test_truncated_reason_is_marked() -> None:
    for look, mark in ((Display(30, 24), "…"), (Display(30, 24, ascii_only=True), "..")):
        row = format_top([job(state="PENDING")], look)[1][0]
        assert text_width(row) <= 30 and row.endswith(mark)


def test_table_shows_jobs_and_nodes() -> None:
    jobs = [job(), job(nodes=99), job(state="PENDING")]
    narrow = ["\n".join(block) for block in format_top(jobs, Display(79, 24))]
    wide = ["\n".join(block) for block in format_top(jobs, Display(199, 24))]
    for text in (narrow[1], wide[1]):
        assert "1:02:05/1d" in text
        assert "120000/1000000" in text
        assert "2.431" in text
        assert "20,123 tokens/s" in text
        assert "2 h 10 min left" in text
        assert "node0  GPU 97 97 97 97 97 97 97 97%  60.0/80.0 GiB" in text
        assert "█" in text
    assert "99 nodes  GPU 97%, lowest 97% on" in wide[2]
    assert "your QOS" in wide[3]
    assert "\x1b[" not in "".join(wide)
    coloured = "".join(row for block in format_top(jobs, Display(79, 24, True)) for row in block)
    assert "\x1b[1m" in coloured
