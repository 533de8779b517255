"""The number of files that a listing opens, for all states and cached results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import submit
from tests.cli.status_runs import NOW, answers, make_run, opened, queued, write_sweep
from tests.cli.status_tables import HEADED
from tests.slurm_answers import sacct_row

pytestmark = pytest.mark.slow

SHOWN = 20


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    """Return the folder for Slurm's commands."""
    return hpcrun.tools


def read(hpcrun: Caller, *argv: str) -> list[str]:
    """Return the files of runs that a call reads, without those that it writes."""
    return [name for name in opened(hpcrun, *argv) if ".part" not in name]


@pytest.fixture
def mixture(hpcrun: Caller, tools: Path) -> Caller:
    """Create four runs each: running, pending, failed, cancelled, and unknown to Slurm."""
    rows = ""
    for number in range(SHOWN):
        job_id = str(500 + number)
        name = f"20261120-0815{number:02d}-train-7k{number:02d}"
        kind = number % 5
        ended = {2: NOW - 60, 3: NOW - 90, 4: NOW - 1800}.get(kind)
        run = make_run(
            hpcrun,
            name,
            job_id,
            ended=ended,
            exit_code=kind if ended else 0,
            log="step=1 loss=2.5\n",
            attempts=0 if kind == 1 else 1,
        )
        if kind == 3:
            run.cancelled.write_text(json.dumps({"cancelled_at": NOW - 91, "user": "me"}))
        state = ("RUNNING", "PENDING", "FAILED", "CANCELLED", "")[kind]
        rows += queued(run, job_id, state) if state else ""
    answers(tools, "squeue", rest=rows)
    answers(tools, "sacct")
    answers(tools, "scontrol")
    return hpcrun


def test_listing_opens_at_most_three_files_per_row(mixture: Caller) -> None:
    # The first listing also diagnoses the eight failed runs, from their logs and records.
    cold = read(mixture, "status")
    assert SHOWN < len(cold) <= 3 * SHOWN + 8 * 8, cold
    states = [row["state"] for row in mixture("status", "--json").json["runs"]]
    # All kinds are shown; runs unknown to Slurm are known from their records.
    assert {state: states.count(state) for state in states} == {
        "FAILED": 8,
        "CANCELLED": 4,
        "PENDING": 4,
        "RUNNING": 4,
    }
    # Runs that have ended without success now need two files, cache/seen.json and cache/why.json.
    # The rest belongs to the running and pending runs.
    warm = read(mixture, "status")
    assert len(warm) <= 4 * 3 + 4 + 2 * 12, warm


def test_states_from_records_are_cached_until_slurm_responds(hpcrun: Caller, tools: Path) -> None:
    """Without or with late accounting, a row of a failed run needs two files: state and cause.

    Slurm's answer has precedence.
    """
    run = make_run(hpcrun, "20261120-081519-train-7k19", "519", ended=NOW - 600, exit_code=1)
    answers(tools, "squeue", HEADED)
    answers(tools, "sacct")
    rows = [hpcrun("status", "--json").json["runs"][0] for _ in range(2)]
    assert [(row["state"], row["source"]) for row in rows] == [("FAILED", "record")] * 2
    assert len(read(hpcrun, "status")) == 2
    reported = sacct_row("519", "OUT_OF_MEMORY", ExitCode="0:125", WorkDir=str(run.path))
    answers(tools, "sacct", rest=reported)
    for source in ("sacct", "seen"):
        row = hpcrun("status", "--json").json["runs"][0]
        assert (row["state"], row["source"]) == ("OUT_OF_MEMORY", source)


def test_state_cached_by_detail_view_saves_files_in_the_listing(
    mixture: Caller,
) -> None:
    for number in range(SHOWN):
        mixture("status", str(500 + number))  # caches states, but no rows
    # The states of eight ended runs, and the causes of eight failures.
    assert len(read(mixture, "status")) <= 3 * SHOWN + 8 + 8
    assert len(read(mixture, "status")) <= 3 * SHOWN


def test_loss_of_the_last_rank_opens_no_file_twice(hpcrun: Caller, tools: Path) -> None:
    """Frameworks like Megatron print the loss on the last rank, and other output on rank 0."""
    run = make_run(hpcrun, "20261120-081519-train-7k19", "519", log="building model ...\n")
    answers(tools, "squeue", rest=queued(run, "519", "RUNNING"))
    (run.logs / "0" / "node-0.log").write_text("step=9 loss=9.5\n")
    for rank in (2, 10, 15):
        (run.logs / "0" / f"rank-{rank}.log").write_text(f"[rank{rank}]: step=7 loss=2.{rank}\n")
    row = hpcrun("status", "--json").json["runs"][0]
    assert (row["step"], row["loss"]) == (7, 2.15)
    assert hpcrun("status", "519", "--json").json["runs"][0]["loss"] == 2.15
    # Its record, begin record, two logs and their folder.
    assert len(read(hpcrun, "status")) <= 5


def test_listing_uses_the_log_patterns_of_a_job(hpcrun: Caller, tools: Path) -> None:
    pattern = r"@(?P<step>\d+) L (?P<loss>\S+)"
    words = f"resources: {{gpus_per_node: 0}}\nlog_patterns: ['{pattern}']\n"
    hpcrun.write("job.yaml", f"command: [hostname]\n{words}")
    replay(tools, "sbatch", (0, "519\n", ""))
    folder = Path(submit(hpcrun, "--json").json["run_dir"])
    record = json.loads((folder / "submitted.json").read_text()) | {"run_id": None}
    shutil.rmtree(hpcrun.runs)
    run = make_run(hpcrun, "20261120-081519-train-7k19", "519", log="@7 L 2.5\n@8 L 2.25\n")
    answers(tools, "squeue", rest=queued(run, "519", "RUNNING"))
    # The second one is of a newer hpcrun.
    for patterns, reported in ((record["log_patterns"], (8, 2.25)), (["("], (None, None))):
        run.submitted.write_text(json.dumps(record | {"log_patterns": patterns}))
        for word in ((), ("519",)):
            row = hpcrun("status", "--json", *word).json["runs"][0]
            assert (row["step"], row["loss"]) == reported
    assert len(read(hpcrun, "status")) <= 4


def sweep_of(hpcrun: Caller, tools: Path, *, live: int = 0) -> Path:
    """A sweep of 500 runs that has just ended or partly runs, without accounting."""
    sweep = write_sweep(hpcrun, 500)
    for index in range(500):
        run = RunFolder(hpcrun.runs / f"20261121-000000-lr.{index}-7k3q")
        if index < live:
            continue
        where = run.attempts / "0"
        where.mkdir()
        end = {"attempt": 0, "job_id": f"40_{index}", "exit_code": index % 2, "signal": None}
        end |= {"stopped_by": None, "first_failure": None, "begun_at": NOW - 90, "ended_at": NOW}
        (where / "end.json").write_text(json.dumps(end))
    shown = (queued(RunFolder(sweep), f"40_{index}", "RUNNING") for index in range(live))
    answers(tools, "squeue", HEADED, rest="".join(shown))
    (tools / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (tools / "sacct").chmod(0o755)
    return sweep


@pytest.mark.parametrize("live", [0, 4])
def test_forgotten_sweep_of_500_runs_is_read_once(hpcrun: Caller, tools: Path, live: int) -> None:
    sweep_of(hpcrun, tools, live=live)
    cold = read(hpcrun, "status")
    assert 500 - live <= len(cold) <= 3 * 500
    warm = read(hpcrun, "status")
    assert len(warm) <= 4, warm
    (row,) = hpcrun("status", "--json").json["runs"]
    over = {"COMPLETED": 250 - live // 2, "FAILED": 250 - live // 2}
    assert row["states"] == over | ({"RUNNING": live} if live else {})


def test_requeued_task_is_read_again(hpcrun: Caller, tools: Path) -> None:
    sweep_of(hpcrun, tools)
    assert "250 FAILED" in hpcrun("status").out
    run = RunFolder(hpcrun.runs / "20261121-000000-lr.1-7k3q")
    (run.attempts / "1").mkdir()
    end = json.loads((run.attempts / "0" / "end.json").read_text())
    (run.attempts / "1" / "end.json").write_text(json.dumps(end | {"attempt": 1, "exit_code": 0}))
    assert "251 COMPLETED, 249 FAILED" in hpcrun("status").out
    # Slurm shows one of them running, although its cached state is final.
    sweep = RunFolder(hpcrun.runs / "20261121-000000-lr-7k3q.array")
    answers(tools, "squeue", HEADED, rest=queued(sweep, "40_3", "RUNNING"))
    assert "251 COMPLETED, 248 FAILED, 1 RUNNING" in hpcrun("status").out


def test_later_answer_of_slurm_overrides_records_of_a_sweep(hpcrun: Caller, tools: Path) -> None:
    sweep = sweep_of(hpcrun, tools)
    assert "250 COMPLETED, 250 FAILED" in hpcrun("status").out
    rows = "".join(
        sacct_row(f"40_{index}", "TIMEOUT", WorkDir=str(sweep)) for index in range(1, 500, 2)
    )
    answers(tools, "sacct", rest=rows)
    assert "250 COMPLETED, 250 TIMEOUT" in hpcrun("status").out


def test_sweep_shows_the_lowest_loss_of_its_runs(hpcrun: Caller, tools: Path) -> None:
    sweep = RunFolder(write_sweep(hpcrun, 4))
    logs = ("step=9 loss=2.5\n", "step=7 loss=1.5\n", "step=8 loss=nan\n")
    for index, text in enumerate(logs):
        run = RunFolder(hpcrun.runs / f"20261121-000000-lr.{index}-7k3q")
        (run.attempts / "0").mkdir()
        (run.logs / "0").mkdir(parents=True)
        (run.logs / "0" / "rank-0.log").write_text(text)
    states = ("COMPLETED", "RUNNING", "COMPLETED", "PENDING")
    rows = [queued(sweep, f"40_{index}", state) for index, state in enumerate(states)]
    answers(tools, "squeue", HEADED, rest="".join(rows))
    for _ in range(2):
        (row,) = hpcrun("status", "--json").json["runs"]
        assert (row["step"], row["loss"]) == (7, 1.5)
    # The logs of ended runs are read once.
    assert not any("lr.0-7k3q/logs" in path for path in opened(hpcrun, "status"))
    line = hpcrun("status").out.splitlines()[1]
    assert " 7 " in line and " 1.5 " in line


def test_sweep_with_equal_states_shows_the_state(hpcrun: Caller, tools: Path) -> None:
    sweep = RunFolder(write_sweep(hpcrun, 2))
    rows = [queued(sweep, f"40_{index}", "COMPLETED") for index in range(2)]
    answers(tools, "squeue", rest="".join(rows))
    line = hpcrun("status").out.splitlines()[1]
    assert line.split()[:3] == ["40", "lr", "COMPLETED"] and line.endswith("2 runs"), line


def test_folder_deleted_meanwhile_causes_no_traceback(mixture: Caller) -> None:
    # A dangling link with the name of a run.
    (mixture.runs / "20261120-081600-train-7kzz").symlink_to(mixture.runs / "gone")
    done = mixture("status")
    assert done.code == 0 and "Traceback" not in done.err, done


@pytest.mark.parametrize("argv", [(), ("519",), ("--all",), ("--json",), ("519", "--json")])
def test_run_deleted_during_the_query_causes_no_traceback(
    mixture: Caller, tools: Path, argv: tuple[str, ...]
) -> None:
    shown = tools / "squeue"
    real = shown.rename(tools / "squeue.real")
    gone = mixture.runs / "20261120-081519-train-7k19"
    shown.write_text(f'#!/bin/sh\nrm -r "{gone}"\nexec "{real}" "$@"\n')
    shown.chmod(0o755)
    done = mixture("status", *argv)
    assert "Traceback" not in done.err and done.code in (0, 2, 4), done
    assert not gone.exists()  # and no reader has recreated it
    if not argv:
        assert done.code == 0 and "518  train" in done.out, done


def test_sweep_deleted_during_the_query_causes_no_traceback(hpcrun: Caller, tools: Path) -> None:
    write_sweep(hpcrun, 3)
    (tools / "squeue").write_text(f'#!/bin/sh\nrm -r "{hpcrun.runs}"/2026*\necho JOBID >&2\n')
    (tools / "squeue").chmod(0o755)
    for argv in ((), ("40",)):
        done = hpcrun("status", *argv)
        assert "Traceback" not in done.err and done.code in (0, 2, 4), done
