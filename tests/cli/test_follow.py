"""Following a run: to its end, through missing responses, and stopping without affecting it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.test_slurm_verbs import captured, row
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

END = {
    "attempt": 0,
    "job_id": "7",
    "exit_code": 0,
    "signal": None,
    "stopped_by": None,
    "first_failure": None,
    "begun_at": 1.0,
    "ended_at": 2.0,
}
BEGIN = {"attempt": 0, "job_id": "7", "host": "n1", "pid": 1, "nodes": "n1", "begun_at": 1.0}


class Followed:
    """A run with scripted answers of Slurm, and a follower."""

    def __init__(self, hpcrun: Caller) -> None:
        self.tools = hpcrun.tools
        hpcrun.write("job.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
        replay(self.tools, "sbatch", (0, "7\n", ""))
        assert hpcrun("submit", "job.yaml").code == 0
        (self.run,) = hpcrun.runs.iterdir()
        self.scancel = replay(self.tools, "scancel", (0, "", ""))
        self.received = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.hpcrun = hpcrun

    def squeue(self, answer: tuple[int, str, str]) -> None:
        # Replace it atomically, because the follower may query at any time.
        aside = self.tools / "aside"
        aside.mkdir(exist_ok=True)
        replay(aside, "squeue", answer)
        (aside / "squeue").replace(self.tools / "squeue")

    def state(self, word: str) -> None:
        self.squeue((0, row(self.run, "7", word), ""))

    def follow(self, *options: str) -> None:
        self.process = self.hpcrun.start("logs", "-f", "7", *options)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def hear(self, text: bytes) -> None:
        """Wait until the follower has printed a text."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        while text not in self.received:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                self.received += stream.read() or b""
            assert time.monotonic() < deadline, self.received
            time.sleep(0.02)

    def write(self, name: str, text: str) -> None:
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").replace(path)

    def append(self, name: str, text: str) -> None:
        with (self.run / name).open("a") as file:
            file.write(text)

    def code(self) -> int:
        assert self.process is not None
        return self.process.wait()


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
    followed.follow()
    followed.hear(b"job 7: PENDING (Priority)")
    time.sleep(1.0)
    calls = (followed.tools / "aside" / "squeue.calls").read_text().count("--noheader")
    assert calls <= 2


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
