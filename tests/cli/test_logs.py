"""hpcrun logs: selection of files and lines, for runs and other jobs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions.logs import JobLogs
from tests.cli.calling import Caller, replay
from tests.cli.logged_run import DRAWN, Run
from tests.json_schemas import check_json

HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def run(hpcrun: Caller) -> Run:
    made = Run(hpcrun)
    for rank in range(4):
        made.write(f"logs/0/rank-{rank}.log", f"rank {rank} step 1\nrank {rank} step 2\n")
    for node in range(2):
        made.write(f"logs/0/node-{node}.log", f"launcher {node}\n")
    made.write("logs/batch.log", "hpcrun: attempt 0 of job 7 begins on n[1-2]\nbatch\n")
    made.write("attempts/0/hostfile", "n1 slots=2\nn2 slots=2\n")
    return made


def begun(attempt: int, nodes: str) -> str:
    record = {"attempt": attempt, "job_id": "7", "host": "n1", "pid": 1, "begun_at": 1.0}
    return json.dumps({**record, "nodes": nodes})


def ended(attempt: int, **changes: Any) -> str:
    record = {"attempt": attempt, "job_id": "7", "exit_code": 1, "signal": None}
    record |= {"stopped_by": None, "first_failure": None, "begun_at": 1.0, "ended_at": 2.0}
    return json.dumps({**record, **changes})


def failure(rank: int) -> dict[str, Any]:
    where = {"node": rank // 2, "local_rank": rank % 2, "host": f"n{rank // 2 + 1}"}
    return {"rank": rank, **where, "exit_code": 1, "signal": None, "at": 1.0}


def test_logs_are_filtered_by_rank_and_node(run: Run) -> None:
    assert run.logs("--rank", "1").splitlines() == [
        "[rank1]: rank 1 step 1",
        "[rank1]: rank 1 step 2",
    ]
    assert {each["rank"] for each in run.json("--rank", "0,2-3")} == {0, 2, 3}
    assert {each["rank"] for each in run.json("--rank", "0", "--rank", "3")} == {0, 3}
    for node in ("1", "n2"):
        assert {each["rank"] for each in run.json("--node", node)} == {2, 3, None}
    assert {each["node"] for each in run.json("--node", "n1")} == {0}


def test_lines_option_shows_the_last_lines_of_each_file(run: Run) -> None:
    assert [each["line"] for each in run.json("-n", "1", "--rank", "0-3")] == [
        f"rank {rank} step 2" for rank in range(4)
    ]
    assert run.logs("-n", "0") == ""
    assert run.logs("-n", "all") == run.logs()


def test_grep_shows_matching_lines(run: Run) -> None:
    assert run.logs("--grep", "(2|3) step 1$") == "[rank2]: rank 2 step 1\n[rank3]: rank 3 step 1\n"
    assert run.logs("--grep", "step", "-n", "1", "--rank", "0") == "rank 0 step 2\n"
    run.write("logs/0/rank-0.log", "\x1b[32mlo\x1b[0mss é 1\n".encode() + b"\xff loss\nx\rloss 2\r")
    assert [each["line"] for each in run.json("--grep", "loss", "--rank", "0")] == [
        "\x1b[32mlo\x1b[0mss é 1",
        "� loss",
        "loss 2",
    ]


def test_since_shows_lines_after_a_time(run: Run) -> None:
    now = time.time()
    lines = [
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now - 60 * ago))} {ago} min ago\n"
        for ago in (180, 90, 30, 5)
    ]
    run.write("logs/0/rank-0.log", "".join(lines))
    os.utime(run.write("logs/0/rank-1.log", "old\n"), (now - 9000, now - 9000))
    found = [each["line"][20:] for each in run.json("--since", "1h", "--rank", "0-1")]
    assert found == ["30 min ago", "5 min ago"]
    assert len(run.json("--since", "2h30m", "--rank", "0")) == 3
    assert len(run.json("--since", "2h30m", "-n", "1", "--rank", "0")) == 1


def test_attempts_are_distinguished(run: Run) -> None:
    run.write("attempts/0/begin.json", begun(0, "n[1-2]"))
    run.write("attempts/0/end.json", ended(0, exit_code=143, stopped_by="TERM"))
    run.write("attempts/1/begin.json", begun(1, "n[3-4]"))
    run.write("logs/1/rank-0.log", "again\n")
    batch = run.path / "logs/batch.log"
    batch.write_text(batch.read_text() + "hpcrun: attempt 1 of job 7 begins on n[3-4]\nmore\n")
    marker = "==> attempt 1 on n[3-4]; attempt 0 was stopped by SIGTERM <==\nagain\n"
    assert marker in run.logs()
    assert run.json("--attempt", "1")[0]["line"] == "again"
    assert "more" not in run.logs("--attempt", "0") and "batch" in run.logs("--attempt", "0")
    assert "batch" not in run.logs("--attempt", "last") and "more" in run.logs("--attempt", "1")


def test_err_shows_the_traceback_of_the_first_failure(run: Run) -> None:
    trace = "Traceback (most recent call last):\n  File x\n{}\n"
    caught = trace.format("OSError: caught long ago") + "step 3\n"
    run.write("logs/0/rank-0.log", caught + "\n" + trace.format("RuntimeError: NCCL"))
    run.write("logs/0/rank-1.log", trace.format("RuntimeError: NCCL"))
    run.write("logs/0/rank-3.log", "step 1\n" + trace.format("ValueError: the cause"))
    run.write("logs/batch.log", "batch\nslurmstepd: error: Detected 1 oom_kill event\n")
    run.write("attempts/0/begin.json", begun(0, "n[1-2]"))
    run.write("attempts/0/end.json", ended(0, first_failure=failure(3)))
    out = run.logs("--err")
    assert out.startswith("==> rank 3 failed first <==\n[rank3]: Traceback")
    assert out.index("ValueError: the cause") < out.index("RuntimeError: NCCL")
    assert out.count("RuntimeError") == 1 and "rank 1 ended like rank 0" in out
    assert "caught" not in out and "step 1" not in out and "batch\n" not in out
    assert "slurmstepd: error: Detected 1 oom_kill event\n" in out


def test_err_lists_ranks_that_failed_alike_on_one_line(run: Run) -> None:
    trace = "Traceback (most recent call last):\n  File x\nRuntimeError: no answer on {}\n"
    for rank in range(4):
        place = f"rank {rank}, cuda:{rank}, 0x7f{rank}a"
        run.write(f"logs/0/rank-{rank}.log", trace.format(place))
    out = run.logs("--err")
    assert out.count("RuntimeError") == 1 and "==> ranks 1-3 ended like rank 0 <==" in out, out


@pytest.mark.slow
def test_grep_works_in_a_locale_other_than_utf8(run: Run) -> None:
    run.write("logs/0/rank-0.log", "step 1 perte\nstep 2 coût é日本\n")
    run.hpcrun.environ |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run.hpcrun.process("logs", "--grep", "coût [é]日", "--rank", "0")
    assert (done.code, done.out) == (0, "step 2 coût é日本\n"), done


def test_err_reports_logs_without_errors(run: Run) -> None:
    done = run.hpcrun("logs", "--err")
    assert (done.code, done.out, done.err) == (0, "", "no errors in these logs\n")


@pytest.mark.slow
def test_parse_masks_secrets_in_metric_names(run: Run) -> None:
    run.write("logs/0/rank-0.log", f"step 1 loss 2.5\n{DRAWN}: 0.5 step 2 loss 2.25\n")
    page = run.hpcrun.project / "page.html"
    done = run.hpcrun("parse", "--json", "--html", str(page))
    assert done.code == 0 and "loss" in done.json["runs"][0]["metrics"], done
    assert DRAWN not in done.out and DRAWN not in page.read_text()


def test_files_with_secrets_are_not_shown(run: Run) -> None:
    for name in ("secrets.env", ".secrets.env.part-1", "attempts/0/environment"):
        run.write(name, "export MY_WORD=1")
        assert run.hpcrun("show", "--file", name).code == 2, name
    assert not {"secrets.env", "environment"} & set(run.hpcrun("show").out.split())


@pytest.mark.slow
def test_secrets_remain_masked_in_the_last_report(run: Run, tmp_path: Path) -> None:
    """The values are deleted with the end of the run, before the report is printed."""
    (run.path / "secrets.env").write_text("export MY_WORD=$'sesame_street\\nand 2nd line'\n")
    lines = [
        f"step {n} loss {2.5 - n / 9:.3f} sesame_street=0.{n}5 MY_WORD=0.{n}5" for n in range(9)
    ]
    run.write("logs/0/rank-0.log", "\n".join([*lines[:8], "and 2nd line", ""]))
    run.write("attempts/0/begin.json", begun(0, "n[1-2]"))
    run.write("attempts/0/beat", str(int(time.time())))
    replay(run.hpcrun.tools, "squeue", (0, "", ""))
    replay(run.hpcrun.tools, "sacct", (1, "", ""))
    csv = ("parse", "-f", "--csv", str(tmp_path / "a.csv"), "--full")
    following, secrets = [], run.path / "secrets.env"
    for words in (("parse", "-f"), ("parse", "-f", "--json", "--full"), csv, ("logs", "-f")):
        os.utime(secrets, (0, secrets.stat().st_mtime))
        following.append(run.hpcrun.start(*words))
        deadline = time.monotonic() + 20  # if the file system records no access times
        while secrets.stat().st_atime == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
    secrets.unlink()
    run.write("logs/0/rank-0.log", "\n".join([*lines[:8], "and 2nd line", lines[8], ""]))
    run.write("attempts/0/end.json", ended(0, exit_code=0, first_failure=None))
    shown = [process.communicate()[0].decode() for process in following]
    shown.append((tmp_path / "a.csv").read_text())
    assert not [text for text in shown if "sesame" in text or "2nd line" in text], shown
    assert "1.611" in shown[-1] and "MY_WORD" not in shown[-1]


TORCHRUN = """\
E1121 10:21 7 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) rank: 1
Traceback (most recent call last):
  File "/opt/conda/bin/torchrun", line 8, in <module>
  File "/x/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 23345)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
CAUSE = "Traceback (most recent call last):\n  File x\nValueError: the cause\n"


def test_err_shows_the_cause_first_and_shortens_launcher_tracebacks(run: Run) -> None:
    run.write("logs/0/rank-3.log", CAUSE)
    for node in range(2):
        run.write(f"logs/0/node-{node}.log", f"[rank0]: warning: slow error\n{TORCHRUN}")
    run.write("attempts/0/begin.json", begun(0, "n[1-2]"))
    run.write("attempts/0/end.json", ended(0, first_failure=failure(3)))
    out = run.logs("--err")
    assert out.startswith("==> rank 3 failed first <==\n[rank3]: Traceback")
    assert "ChildFailedError" not in out and "exitcode" not in out and "slow error" in out
    only = (
        "==> the launchers on nodes 0, 1 report that a process failed: hpcrun logs --node 0 <==\n"
    )
    assert out.count(only) == 1
    # If no rank wrote anything, only the launcher's output remains.
    run.write("logs/0/rank-3.log", "step 1\n")
    run.write("attempts/0/end.json", ended(0))
    assert "ChildFailedError" in run.logs("--err")


def test_err_finds_the_cause_in_the_log_of_another_job(
    hpcrun: Caller, tools: Path, tmp_path: Path
) -> None:
    out = tmp_path / "9.out"
    out.write_text(f"step 1\n{CAUSE}step 2\n{TORCHRUN}srun: error: n1: task 0: Exited\n")
    replay(tools, "scontrol", (0, show_job(out, "FAILED"), ""))
    done = hpcrun("logs", "9", "--err")
    assert "ValueError: the cause\nsrun: error: n1: task 0: Exited\n" in done.out, done
    assert "ChildFailedError" not in done.out and f"a process failed: {out} <==" in done.out


def test_secrets_are_masked_except_with_raw(run: Run) -> None:
    (run.path / "secrets.env").unlink()  # as at the end of a run
    text = f"mine is {DRAWN}\nexport WANDB_API_KEY={HEX}\nMY_WORD=x git {HEX}\n"
    run.write("logs/0/rank-0.log", text)
    masked = f"mine is ***\nexport WANDB_API_KEY=***\nMY_WORD=*** git {HEX}\n"
    assert run.logs("--rank", "0") == masked
    assert [each["line"] for each in run.json("--rank", "0")] == masked.splitlines()
    assert run.logs("--rank", "0", "--raw") == text
    assert run.hpcrun("show", "--file", "logs/0/rank-0.log").out == masked
    marks = run.path / "secret_marks.json"
    assert marks.stat().st_mode & 0o777 == 0o600
    assert DRAWN not in marks.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--grep", "("), "--grep (: not a regular expression: missing )"),
        (("--rank", "9"), "--rank 9: no log of it; there are logs of ranks 0-3"),
        (("--rank", "0", "--node", "n2"), "--rank 0: not on n2, which has ranks 2-3"),
        (("--rank", "0", "--node", "7"), "--node 7: no log of it; there are logs of nodes 0-1"),
        (("--rank", "3-1"), "--rank 3-1: not a rank"),
        (("--rank", "x"), "--rank x: not a rank"),
        (("--node", "n9"), "--node n9: no such node of the run; there are n1, n2"),
        (("--attempt", "4"), "--attempt 4: no log of it; there are logs of attempt 0 alone"),
        (("--attempt", "x"), "--attempt x: not an attempt"),
        (("-n", "many"), "--lines many: not a number of lines"),
        (("--since", "noon"), "--since noon: not a time"),
    ],
)
def test_invalid_options_are_refused(run: Run, options: tuple[str, ...], words: str) -> None:
    done = run.hpcrun("logs", *options)
    assert (done.code, done.out) == (2, ""), done
    assert words in done.err and "Traceback" not in done.err


# ---- jobs that hpcrun did not submit


def show_job(path: Path, state: str, *, err: str = "", restarts: int = 0, **keys: Any) -> str:
    fields = {
        "JobState": state,
        "Reason": "None",
        "Restarts": restarts,
        "ExitCode": "3:0" if state == "FAILED" else "0:0",
        "NodeList": "n1",
        "WorkDir": "/w",
        "StdErr": err or path,
        "StdIn": "/dev/null",
        "StdOut": path,
        "TresPerNode": "x",
    }
    head = " ".join(f"{key}={value}" for key, value in {"JobId": 9, **keys, "JobName": "x"}.items())
    return "\n   ".join([head, *(f"{key}={value}" for key, value in fields.items())]) + "\n\n"


@pytest.fixture
def tools(hpcrun: Caller) -> Path:
    return hpcrun.tools


def test_logs_of_a_job_not_submitted_by_hpcrun(hpcrun: Caller, tools: Path, tmp_path: Path) -> None:
    out, err = tmp_path / "o 9.out", tmp_path / "e 9.err"
    replay(tools, "scontrol", (0, show_job(out, "RUNNING", err=str(err)), ""))
    waiting = hpcrun("logs", "9")
    assert waiting.code == 0 and f"job 9: RUNNING; no output yet ({out})" in waiting.err
    replay(tools, "scontrol", (0, show_job(out, "FAILED", err=str(err)), ""))
    assert f"job 9: FAILED; no output ({out})" in hpcrun("logs", "9").err, "and none will come"
    asked = replay(tools, "scontrol", (0, show_job(out, "RUNNING", err=str(err)), ""))
    asked.unlink()
    out.write_text(f"step 1\nHF_TOKEN=hf_{DRAWN}\n")
    err.write_text("oops\n")
    done = hpcrun("logs", "9")
    assert done.out == "step 1\nHF_TOKEN=***\n[stderr]: oops\n"
    assert hpcrun("logs", "9", "--err").out == "[stderr]: oops\n"
    shown = [json.loads(line) for line in hpcrun("logs", "9", "--json").out.splitlines()]
    for each in shown:
        check_json("logs", each)
    assert [each["stream"] for each in shown] == [None, None, "stderr"]
    assert len(asked.read_text().splitlines()) == 3
    refused = hpcrun("logs", "9", "--rank", "1")
    assert refused.code == 2 and "hpcrun did not submit this job" in refused.err


@pytest.mark.slow
def test_job_not_submitted_by_hpcrun_is_followed_to_its_end(
    hpcrun: Caller, tools: Path, tmp_path: Path
) -> None:
    out = tmp_path / "9.out"
    out.write_text("step 1\nslurmstepd: error: *** JOB 9 ON n1 CANCELLED ***\n")
    replay(tools, "scontrol", (0, show_job(out, "FAILED"), ""))
    done = hpcrun("logs", "-f", "9")
    assert done.code == 1
    assert done.out == out.read_text()
    assert done.err == "job 9: FAILED, exit code 3, and its log does not say why\n"


def test_follower_first_shows_the_state_of_another_job(
    hpcrun: Caller, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(tools, "scontrol", (0, show_job(tmp_path / "9.out", "RUNNING"), ""))

    def ended(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobLogs.follow, "__kwdefaults__", {"with_lines": True, "sleep": ended})
    done = hpcrun("logs", "-f", "9")
    assert done.err.startswith("job 9: RUNNING\n"), done


def test_unresolved_placeholders_in_output_names_are_resolved(
    hpcrun: Caller, tools: Path, tmp_path: Path
) -> None:
    """scontrol shows %N and %t unresolved; a node resolves them when it opens the file."""
    replay(tools, "scontrol", (0, show_job(tmp_path / "o-%N-%2t.out", "RUNNING"), ""))
    (tmp_path / "o-n1-00.out").write_text("by its node\n")
    (tmp_path / "o-n2-00.out").write_text("another job's\n")
    assert hpcrun("logs", "9").out == "by its node\n"
    (tmp_path / "o-n1-00.out").unlink()
    assert hpcrun("logs", "9").out == "another job's\n", "a host may have another name"
    (tmp_path / "o-n3-00.out").write_text("whose is which?\n")
    assert hpcrun("logs", "9").out == ""


def test_logs_of_array_tasks_have_prefixes(hpcrun: Caller, tools: Path, tmp_path: Path) -> None:
    answer = ""
    for task in (1, 0):
        path = tmp_path / f"9_{task}.out"
        path.write_text(f"task {task}\n")
        answer += show_job(path, "COMPLETED", ArrayJobId=9, ArrayTaskId=task)
    waiting = tmp_path / "9_4294967294.out"
    answer += show_job(waiting, "PENDING", ArrayJobId=9, ArrayTaskId="2,4-5%2")
    replay(tools, "scontrol", (0, answer, ""))
    assert hpcrun("logs", "9").out == "[task0]: task 0\n[task1]: task 1\n"
    (tmp_path / "9_4.out").write_text("it has begun since\n")
    assert hpcrun("logs", "9").out.endswith("\n[task4]: it has begun since\n")


@pytest.mark.parametrize(
    "answer", ["", "garbage\n", "JobId=9\n", "JobId= x\0\n", "JobId=9 StdOut="]
)
def test_malformed_output_of_slurm_is_reported(hpcrun: Caller, tools: Path, answer: str) -> None:
    replay(tools, "scontrol", (0, answer, ""))
    replay(tools, "squeue", (0, "garbage", ""))
    replay(tools, "sacct", (0, "garbage|", ""))
    done = hpcrun("logs", "9")
    assert done.code in (0, 2, 4) and "Traceback" not in done.err, done
