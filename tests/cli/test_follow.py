"""Following a run: to its end, through missing responses, and stopping without affecting it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cli.calling import Caller
from tests.cli.followed import END, Followed
from tests.cli.slurm_rows import captured, row

pytestmark = pytest.mark.slow

BEGIN = {"attempt": 0, "job_id": "7", "host": "n1", "pid": 1, "nodes": "n1", "begun_at": 1.0}


@pytest.fixture
def followed(hpcrun: Caller) -> Iterator[Followed]:
    made = Followed(hpcrun)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.communicate()


def test_follower_survives_missing_responses_until_the_end(followed: Followed) -> None:
    followed.squeue(captured("squeue", "no-controller"))
    followed.follow()
    followed.hear(b"job 7: UNKNOWN (Slurm does not answer")
    # Its log is read even if Slurm does not respond.
    followed.write("logs/0/node-0.log", "step 1\nstep")
    followed.hear(b"step 1\n")
    assert followed.process is not None and followed.process.poll() is None
    followed.state("COMPLETED")
    followed.write("attempts/0/end.json", json.dumps(END))
    followed.hear(b"job 7: COMPLETED")
    assert followed.code() == 0
    assert b"step 1\nstep\n" in followed.received
    assert not followed.scancel.exists()


def test_following_one_attempt_ends_at_the_next(followed: Followed) -> None:
    followed.state("RUNNING")
    followed.write("logs/0/node-0.log", "step 1\n")
    followed.write("logs/batch.log", "hpcrun: attempt 0 of job 7 begins on n1\n")
    followed.follow("--attempt", "0")
    followed.hear(b"attempt 0 of job 7")
    followed.append("logs/batch.log", "requeued\nhpcrun: attempt 1 of job 7 begins on n2\n")
    followed.write("logs/1/node-0.log", "step 2\n")
    followed.hear(b"requeued\n")
    followed.append("logs/batch.log", "later\n")
    followed.state("COMPLETED")
    followed.write("attempts/1/end.json", json.dumps({**END, "attempt": 1}))
    followed.hear(b"job 7: COMPLETED")
    assert followed.code() == 0
    assert not any(word in followed.received for word in (b"attempt 1", b"step 2", b"later"))


def test_failed_job_sets_the_exit_code(followed: Followed) -> None:
    followed.state("RUNNING")
    followed.follow()
    followed.hear(b"job 7: RUNNING")
    followed.state("FAILED")
    failed = {**END, "exit_code": 3}
    followed.write("attempts/0/end.json", json.dumps(failed))
    followed.hear(b"job 7: FAILED, exit code 3")
    assert followed.code() == 1


def test_ctrl_c_stops_following_but_not_the_run(followed: Followed) -> None:
    followed.state("RUNNING")
    followed.follow()
    followed.hear(b"job 7: RUNNING")
    assert followed.process is not None
    followed.process.send_signal(signal.SIGINT)
    followed.hear(b"stopped following; the run continues: hpcrun logs -f")
    assert followed.code() == 130
    assert not followed.scancel.exists() and not (followed.run / "cancelled.json").exists()


def test_pending_job_is_queried_rarely(followed: Followed) -> None:
    followed.squeue((0, row(followed.run, "7", "PENDING", "Priority"), ""))
    begun = time.monotonic()
    followed.follow()
    followed.hear(b"job 7: PENDING (Priority)")
    time.sleep(1.0)
    calls = (followed.tools / "aside" / "squeue.calls").read_text().count("--noheader")
    assert calls <= 2 + (time.monotonic() - begun) / 5  # a busy machine may take longer


def test_new_attempt_is_announced(followed: Followed) -> None:
    followed.state("RUNNING")
    followed.write("attempts/0/begin.json", json.dumps(BEGIN))
    followed.write("logs/0/rank-0.log", "step 1\n")
    followed.follow()
    followed.hear(b"step 1\n")
    failed = {**END, "exit_code": 143, "stopped_by": "TERM"}
    followed.write("attempts/0/end.json", json.dumps(failed))
    followed.append("logs/0/rank-0.log", "last words\n")
    followed.write("attempts/1/begin.json", json.dumps({**BEGIN, "attempt": 1, "nodes": "n2"}))
    followed.write("logs/1/rank-0.log", "step 2\n")
    followed.hear(b"step 2\n")
    marker = b"last words\n==> attempt 1 on n2; attempt 0 was stopped by SIGTERM <==\nstep 2\n"
    assert marker in followed.received.replace(
        b"job 7: RUNNING\n", b""
    )  # may be printed in between


def test_truncated_log_is_read_from_its_start(followed: Followed) -> None:
    followed.state("RUNNING")
    followed.write("logs/0/rank-0.log", "first line\n")
    followed.follow()
    followed.hear(b"first line\n")
    followed.write("logs/0/rank-0.log", "another, and longer than before\n")
    followed.hear(b"another, and longer than before\n")
    assert b"rank-0.log was rewritten <==\nanother" in followed.received


def test_hundreds_of_ranks_are_followed_in_turn(followed: Followed) -> None:
    followed.state("RUNNING")
    for rank in range(100):
        followed.write(f"logs/0/rank-{rank}.log", f"here {rank}.\n")
    followed.follow("--grep", "last|here 99")
    followed.hear(b"[rank99]: here 99.\n")
    for rank in (0, 50, 99):
        followed.append(f"logs/0/rank-{rank}.log", f"the last of {rank}\n")
        followed.hear(f"the last of {rank}\n".encode())
    assert b"here 50" not in followed.received


def test_follow_json_prints_only_json_lines(followed: Followed) -> None:
    followed.state("RUNNING")
    followed.write("logs/0/rank-0.log", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCD\n10%\r20%\r\n")
    followed.follow("--json", "-n", "9")
    followed.hear(b'"line": "20%"')
    followed.state("COMPLETED")
    followed.write("attempts/0/end.json", json.dumps(END))
    followed.hear(b"job 7: COMPLETED")
    lines = [line for line in followed.received.splitlines() if line.startswith(b"{")]
    assert [json.loads(line)["line"] for line in lines] == ["HF_TOKEN=***", "10%", "20%"]
    assert followed.code() == 0
