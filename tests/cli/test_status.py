"""hpcrun status: its output, its queries, and malformed answers of Slurm."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.cli import output, show_status
from hpcrun.runs.layout import RunFolder
from tests.cli.calling import Caller
from tests.cli.status_runs import (
    NOW,
    answers,
    make_run,
    opened,
    queued,
    write_sweep,
)
from tests.json_schemas import check_json


def test_listing_shows_the_newest_runs(several: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    done = several("status")
    assert done.code == 0 and done.err == "", done
    assert done.out.splitlines() == [
        "ID  JOB    STATE      AGE     TIME     LIMIT  NODES  STEP  LOSS  GPU-H",
        "15  train  RUNNING     2h  1:00:00  24:00:00  2x4     120  2.25   8.00",
        "14  train  PENDING     2h           24:00:00  2x4                       "
        "your QOS allows 8 GPUs at once; 8 are in use",
        "13  train  PENDING     2h           24:00:00  2x4                       "
        "waits for job 12 to succeed",
        "12  train  FAILED      2h    30:00            2x4                 4.00",
        "11  train  COMPLETED   2h    30:00            2x4     120  2.25   4.00",
    ], done


def test_listing_json_conforms_to_its_schema(several: Caller) -> None:
    done = several("status", "--json", "-n", "4")
    check_json("status", done.json)
    assert (done.json["older"], done.json["out_of_reach"]) == (1, None)
    train, limit, after, failed = done.json["runs"]
    assert (train["id"], train["step"], train["loss"], train["limit_seconds"]) == (
        *("15", 120, 2.25, 86400),
    )
    assert limit["why"] == "your QOS allows 8 GPUs at once; 8 are in use"
    assert after["reason"] == "Dependency" and after["why"] == "waits for job 12 to succeed"
    assert (failed["state"], failed["exit_code"], failed["elapsed_seconds"]) == ("FAILED", 3, 1800)


@pytest.mark.parametrize(
    ("logged", "shown"), [("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")]
)
def test_non_finite_loss_is_shown_and_valid_json(
    hpcrun: Caller, tools: Path, logged: str, shown: str
) -> None:
    log = f"step=119 loss=2.5\nstep=120 loss={logged}\n"
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", log=log)
    answers(tools, "squeue", rest=queued(run, "15", "RUNNING"))
    for word in ((), ("15",)):
        done = hpcrun("status", "--json", *word)
        check_json("status", done.json)
        assert done.json["runs"][0]["loss"] == shown


@pytest.mark.parametrize("word", ["15", "7k3q", "20261120-081455-train-7k3q"])
def test_status_of_one_run_shows_details(several: Caller, word: str) -> None:
    done = several("status", word)
    assert done.code == 0, done
    for message in ("state     RUNNING, by squeue", "progress  step 120, loss 2.25", "n[1-2]"):
        assert message in done.out, done
    assert "  hpcrun logs -f 15 " in done.out and "  hpcrun cancel 15 " in done.out
    detail = several("status", "--json", word).json
    check_json("status", detail)
    (run,) = detail["runs"]
    assert run["id"] == run["run_id"] == "20261120-081455-train-7k3q"
    assert run["job_id"] == "15"


def test_pending_run_shows_next_commands(several: Caller) -> None:
    done = several("status", "14")
    assert "why       your QOS allows 8 GPUs at once; 8 are in use\n" in done.out, done
    assert "fix" not in done.out
    assert several("status", "--json", "13").json["runs"][0]["why"].startswith("waits for job 12")


def test_attempts_are_listed(hpcrun: Caller, tools: Path) -> None:
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", ended=NOW - 30, attempts=2)
    answers(tools, "squeue", rest=queued(run, "15", "COMPLETED"))
    done = hpcrun("status", "15")
    shown = [line.split(None, 1)[1] for line in done.out.splitlines() if "  attempt " in line]
    assert len(shown) == 2, done
    assert "left no end record" in shown[0] and "exit code 0" in shown[1]
    check_json("status", hpcrun("status", "15", "--json").json)


def test_elapsed_time_is_the_same_in_listing_and_detail(hpcrun: Caller, tools: Path) -> None:
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", attempts=0)
    answers(tools, "squeue", rest=queued(run, "15", "TIMEOUT"))
    shown = [hpcrun("status", "--json", *word).json["runs"][0] for word in ((), ("15",))]
    assert [each["elapsed_seconds"] for each in shown] == [3600, 3600]


def test_elapsed_time_without_an_end_record_comes_from_slurm(hpcrun: Caller, tools: Path) -> None:
    """For example, its folder became unwritable soon after it had started."""
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", attempts=1)
    beat = run.attempts / "0/beat"
    beat.touch()
    os.utime(beat, (NOW - 3600, NOW - 3600))
    answers(tools, "squeue", rest=queued(run, "15", "CANCELLED", M="58:00"))
    for word in ((), ("15",)):
        assert hpcrun("status", "--json", *word).json["runs"][0]["elapsed_seconds"] == 3480


def test_timed_out_job_suggests_a_longer_limit(hpcrun: Caller, tools: Path) -> None:
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15", attempts=1)
    answers(tools, "squeue", rest=queued(run, "15", "TIMEOUT"))
    shown = hpcrun("status", "15").out
    assert " of 1-00:00:00;" in shown and "hpcrun resubmit 15 --time 48:00:00 " in shown
    answers(tools, "squeue", rest=queued(run, "15", "FAILED"))
    assert "--time" not in hpcrun("status", "15").out


def test_final_state_is_cached(several: Caller, tools: Path) -> None:
    first = several("status", "--json").json
    asked = [(tools / "squeue.calls"), (tools / "sacct.calls")]
    for calls in asked:
        calls.unlink(missing_ok=True)
    again = several("status", "--json").json
    assert [run["state"] for run in again["runs"]] == [run["state"] for run in first["runs"]]
    assert not asked[1].exists()  # sacct no longer knows it
    old = asked[0].read_text().split("\n")[0]
    assert "--jobs=" in old and "11" not in old.split("--jobs=")[1]  # ended long ago
    assert "12" in old  # may still be requeued


def test_cached_state_is_replaced_after_a_requeue(several: Caller, tools: Path) -> None:
    several("status")
    run = RunFolder(several.runs / "20261120-081452-train-7k3m")
    answers(tools, "squeue", rest=queued(run, "12", "PENDING", "BeginTime"))
    row = next(row for row in several("status", "--json").json["runs"] if row["id"] == "12")
    assert (row["state"], row["why"]) == (
        "PENDING",
        "its requested begin time has not been reached",
    )


def test_unreadable_run_does_not_hide_others(several: Caller) -> None:
    record = several.runs / "20261120-081454-train-7k3p" / "submitted.json"
    record.unlink()
    record.mkdir()
    (several.runs / "20261120-081456-lr-7k3z.array" / "sweep.json").mkdir(parents=True)
    done = several("status")
    assert done.code == 0 and "Traceback" not in done.err, done
    assert "unreadable: " in done.out and "15  " in done.out
    check_json("status", several("status", "--json").json)


def test_sweep_is_one_row_and_opens_few_files(hpcrun: Caller, tools: Path) -> None:
    sweep = RunFolder(write_sweep(hpcrun, 30))
    states = ["RUNNING"] * 4 + ["COMPLETED"] * 6 + ["PENDING"] * 20
    rows = [queued(sweep, f"40_{index}", state) for index, state in enumerate(states)]
    answers(tools, "squeue", rest="".join(rows))
    done = hpcrun("status")
    assert "20 PENDING, 6 COMPLETED, 4 RUNNING" in done.out and "30 RUNS" in done.out, done
    shown = hpcrun("status", "--json").json
    check_json("status", shown)
    (row,) = shown["runs"]
    assert (row["kind"], row["id"], row["state"]) == ("sweep", "40", "RUNNING")
    # The script of its first run shows whether its tasks may continue as other jobs.
    assert len(opened(hpcrun, "status")) <= 4
    each = hpcrun("status", "--all", "--json").json
    check_json("status", each)
    assert [run["job_id"] for run in each["runs"]] == [f"40_{index}" for index in range(30)]
    assert len(hpcrun("status", "40", "--json").json["runs"]) == 30


# ---- many runs


@pytest.fixture
def ten_thousand(hpcrun: Caller, tools: Path) -> Caller:
    """Create 40 complete runs, and 10,000 older ones that a listing must not open."""
    for number in range(40):
        run_id = f"20261120-0000{number:02d}-train-aa{number:02d}"
        log = f"step={number} loss=2.5\n"
        make_run(hpcrun, run_id, str(20_000 + number), ended=NOW - 200_000, log=log)
    for number in range(10_000):
        os.mkdir(hpcrun.runs / f"20261001-{number:06d}-old-{number:04d}")  # noqa: PTH102
    answers(tools, "squeue")
    answers(tools, "sacct")
    return hpcrun


@pytest.mark.slow
def test_listing_of_10_000_runs_opens_few_files(ten_thousand: Caller) -> None:
    first = [name for name in opened(ten_thousand, "status") if ".part" not in name]
    assert 20 < len(first) <= 3 * 20, first[:8]
    again = opened(ten_thousand, "status")
    assert len(again) <= 20, again
    shown = ten_thousand("status", "--json").json
    assert [run["id"] for run in shown["runs"]] == [str(20_039 - number) for number in range(20)]
    assert shown["older"] == 10_020 and {run["step"] for run in shown["runs"]} == set(range(20, 40))


@pytest.mark.slow
def test_job_id_lookup_opens_few_of_10_000_files(ten_thousand: Caller) -> None:
    assert len(opened(ten_thousand, "status", "20035")) < 30
    assert ten_thousand("status", "20005", "--json").json["runs"][0]["job_id"] == "20005"


# ---- missing and malformed responses


def nonsense() -> dict[str, bytes]:
    row = "\x1f".join(["15", "RUNNING", "None"])
    return {
        "random": bytes(range(256)) * 40,
        "html": b"<html><body><h1>502 Bad Gateway</h1></body></html>\n",
        "half": row.encode(),
        "separators": b"\x1f" * 40 + b"\x1e\n" * 3,
        "many": b"x" * 3_000_000 + b"\n",
        "null": b"\0" * 4096,
    }


@pytest.mark.parametrize("case", nonsense())
@pytest.mark.parametrize("argv", [(), ("15",), ("--json",), ("999",)])
def test_malformed_response_is_not_an_answer(
    several: Caller, tools: Path, case: str, argv: Sequence[str]
) -> None:
    for name in ("squeue", "sacct", "scontrol"):
        (tools / f"{name}.bytes").write_bytes(nonsense()[case])
        (tools / name).write_text(f'#!/bin/sh\nexec cat "{tools}/{name}.bytes"\n')
    done = several("status", *argv)
    assert done.code == 4, done
    assert "Traceback" not in done.err + done.out
    assert "squeue answered with something other than a list of jobs" in done.err + done.out
    if argv == ():
        assert "15  train  UNKNOWN" in done.out and "its own record shows that it began" in done.out
    if argv == ("--json",):
        check_json("status", done.json)


def test_malformed_limits_are_ignored(several: Caller, tools: Path) -> None:
    (tools / "scontrol").write_text("#!/bin/sh\nhead -c 4096 /dev/urandom\n")
    done = several("status")
    assert done.code == 0 and "you have reached your QOS's limit of GPUs" in done.out, done


@pytest.mark.slow
def test_slow_slurm_is_reported(
    several: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SLOW_ANSWER_S", 0.1)
    text = (tools / "squeue").read_text()
    (tools / "squeue").write_text(text.replace("case", "sleep 0.6\ncase", 1))
    for argv in (["status", "15"], ["wait", "15", "--timeout", "0"], ["cancel", "--pending", "15"]):
        done = several(*argv)
        assert done.err.count("Slurm is slow to answer; still waiting ...") == 1, done


def test_missing_runs_folder_is_distinguished_from_an_empty_one(hpcrun: Caller) -> None:
    """The folder may be on a file system that is not mounted."""
    missing = f"no runs yet in {hpcrun.runs}, which does not exist (is its file system mounted?)"
    done = hpcrun("status")
    assert done.code == 0 and done.out.startswith(f"{missing}; hpcrun jobs lists"), done
    for verb in ("logs", "parse"):
        done = hpcrun(verb)
        assert done.code == 2 and missing in done.err, done
    hpcrun.runs.mkdir()
    assert hpcrun("status").out.startswith(f"no runs yet in {hpcrun.runs}; hpcrun jobs lists")


def test_all_clusters_are_listed_in_one_table(
    hpcrun: Caller, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster without response is named and does not hide others; --cluster selects one."""
    answers(tools, "squeue")

    make_run(hpcrun, "20261120-101112-here-aaaa", "7", ended=NOW - 60)
    clusters = Path(hpcrun.environ["HOME"]) / ".config/hpcrun/clusters"
    clusters.mkdir(parents=True)
    second = hpcrun.project.parent / "second"
    here, hpcrun.runs = hpcrun.runs, second
    make_run(hpcrun, "20261121-101112-there-bbbb", "9", ended=NOW - 60)
    hpcrun.runs = here
    (clusters / "second.yaml").write_text(f"runs_dir: {second}\n")
    alone = hpcrun("status", "--all", "--cluster", "second")
    assert alone.code == 0 and "CLUSTER" not in alone.out and "here" not in alone.out
    done = hpcrun("status", "--all", "--json")
    check_json("status", done.json)
    assert [(row["cluster"], row["job_id"]) for row in done.json["runs"]] == [
        ("second", "9"),
        ("default", "7"),
    ]
    ssh = Path(hpcrun.environ["HOME"]) / ".ssh"
    ssh.mkdir()
    (ssh / "config").write_text("Host away\n  HostName 127.0.0.1\n  Port 1\n")
    (clusters / "away.yaml").write_text("name: away\nhost: away\nruns_dir: ~/runs\n")
    done = hpcrun("status", "--all")
    assert done.code == 4
    assert "Slurm cannot be reached: away: " in done.err
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["CLUSTER", "ID"],
        ["second", "9"],
        ["default", "7"],
    ]
    # An unreadable profile is reported, and the runs of the others are shown.
    (clusters / "away.yaml").write_text("nmae: away\nhots: away\n")
    done = hpcrun("status", "--all")
    assert done.code == 4 and re.search(r"away.yaml:1: nmae: unknown key.*; .*hots", done.err)
    assert [line.split()[0] for line in done.out.splitlines()] == ["CLUSTER", "second", "default"]
    (clusters / "away.yaml").write_text("name: away\nhost: away\nruns_dir: ~/runs\n")
    # If one cluster cannot be reached, runs may be missing.
    assert hpcrun("status", "--cluster", "away").code == 4
    # A cluster that accepts the connection but does not respond is not waited for.
    monkeypatch.setattr(show_status, "_CLUSTER_TIMEOUT_S", 600)
    monkeypatch.setattr(show_status, "_SLOW_CLUSTER_WAIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (ssh / "config").write_text(f"Host away\n  HostName 127.0.0.1\n  Port {port}\n")
        done = hpcrun("status", "--all")
    assert done.code == 4 and "away: no answer yet (hpcrun status --cluster away" in done.err
    assert done.out.count("\n") == 3, done
