"""Notifications are sent once per channel, again after a failure, and never more than the limit."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.jobside import delivery
from hpcrun.jobside.delivery import deliver, list_failures, read_config, read_tries, write_config
from hpcrun.jobside.events import RunFacts, decide_events, read_loss
from hpcrun.jobside.notifier import JobNotifier
from tests.http_recorder import Recorder, recording

FAILED = RunFacts(attempt=0, step=40, losses=[2.5], end="failed", cause="out of memory")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Recorder]:
    with recording(tmp_path / "requests") as found:
        yield found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def config(*channels: tuple[str, str], on: list[str] | None = None, **more: Any) -> dict[str, Any]:
    own = {"name": "lm", "run_id": "20261128-000000-lm-abcd", "cluster": "lumi"}
    return {**own, "on": on or ["started", "failed", "done"], "to": list(channels), **more}


def age_tries(run: Path, seconds: float) -> None:
    for path in (run / "notify").iterdir():
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


def test_each_event_is_sent_once_to_each_channel(run: Path, server: Recorder) -> None:
    own = config(("ntfy", server.url("runs")), ("slack", server.url("hook")))
    for _ in range(3):
        assert deliver(str(run), own, FAILED) == []
    assert [request["path"] for request in server.requests] == ["/runs", "/hook"] * 2
    assert server.texts[2] == (
        "lm on lumi failed: out of memory; step 40, loss 2.5. hpcrun why 20261128-000000-lm-abcd"
    )
    assert json.loads(server.texts[3]) == {"text": server.texts[2]}


def test_concurrent_senders_send_an_event_once(run: Path, server: Recorder) -> None:
    own = config(("ntfy", server.url("runs")), on=["failed"])
    threads = [threading.Thread(target=deliver, args=(str(run), own, FAILED)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1


def test_failed_message_is_retried_after_a_pause_and_reported(run: Path, server: Recorder) -> None:
    own = config(("webhook", server.url("secret")), on=["failed"])
    server.status = 503
    assert deliver(str(run), own, FAILED) == ["webhook: 127.0.0.1 answered HTTP 503"]
    failures = list_failures(read_tries(str(run)))
    assert failures == {"webhook": "failed not sent: 127.0.0.1 answered HTTP 503"}
    server.status = 200
    assert deliver(str(run), own, FAILED) == [] and len(server.requests) == 1  # too soon
    age_tries(run, delivery.FIRST_PAUSE_S)
    assert deliver(str(run), own, FAILED) == [] and len(server.requests) == 2
    assert list_failures(read_tries(str(run))) == {}
    assert not any(b"secret" in path.read_bytes() for path in run.rglob("*") if path.is_file())


def test_channel_that_never_works_is_given_up(run: Path, server: Recorder) -> None:
    own = config(("ntfy", server.url("runs")), on=["failed"])
    server.status = 404
    for _ in range(delivery.MAX_TRIES + 3):
        deliver(str(run), own, FAILED)
        age_tries(run, delivery.LONGEST_PAUSE_S)
    assert len(server.requests) == delivery.MAX_TRIES


def test_event_of_a_sender_that_died_is_sent_by_another(run: Path, server: Recorder) -> None:
    own = config(("ntfy", server.url("runs")), on=["failed"])
    (run / "notify" / "failed@ntfy.0").mkdir(parents=True)  # claimed, and nothing since
    assert deliver(str(run), own, FAILED) == [] and server.requests == []
    age_tries(run, delivery.ABANDONED_AFTER_S)
    assert deliver(str(run), own, FAILED) == [] and len(server.requests) == 1


def test_messages_of_an_hour_are_limited(run: Path, server: Recorder) -> None:
    on = [f"step > {number}" for number in range(5)]
    own = config(("ntfy", server.url("runs")), on=on, per_hour=3)
    deliver(str(run), own, FAILED)
    assert len(server.requests) == 3
    age_tries(run, 3600)
    deliver(str(run), own, FAILED)
    assert len(server.requests) == 5


def test_redirected_message_counts_as_failed(run: Path, server: Recorder) -> None:
    server.status = 302
    own = config(("slack", server.url("hook")), on=["failed"])
    assert deliver(str(run), own, FAILED) == ["slack: 127.0.0.1 answered HTTP 302"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/secret", "file:///etc/secret", "nonsense"])
def test_unusable_url_is_reported_without_the_url(run: Path, url: str) -> None:
    (error,) = deliver(str(run), config(("webhook", url), on=["failed"]), FAILED)
    assert "secret" not in error and "nonsense" not in error, error


def test_command_gets_the_text_and_the_facts(run: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f'printf "%s|" "$HPCRUN_NOTIFY_EVENT" "$HPCRUN_NOTIFY_STEP" >{told}; cat >>{told}'
    assert deliver(str(run), config(("command", command), on=["failed"]), FAILED) == []
    assert told.read_text().startswith("failed|40|lm on lumi failed: out of memory")
    run = tmp_path
    assert deliver(str(run), config(("command", "exit 3"), on=["failed"]), FAILED) == [
        "command: exit code 3"
    ]


def test_mail_is_passed_to_sendmail(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\ncat >"{tmp_path}/mail"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert deliver(str(run), config(("mail", "ada@example.org"), on=["failed"]), FAILED) == []
    mail = (tmp_path / "mail").read_text()
    assert "To: ada@example.org" in mail and "Subject: hpcrun: lm failed" in mail
    assert "out of memory" in mail


def test_image_is_attached_where_the_channel_takes_one(run: Path, server: Recorder) -> None:
    own = config(("ntfy", server.url("runs")), ("discord", server.url("hook")), on=["failed"])
    assert deliver(str(run), own, FAILED, image=lambda: b"\x89PNG-curve") == []
    ntfy, discord = server.requests
    assert ntfy["Filename"] == "curve.png" and "PNG-curve" in ntfy["body"]
    assert ntfy["Message"].startswith("=?utf-8?B?")
    assert "multipart/form-data" in discord["Content-Type"] and "PNG-curve" in discord["body"]


def test_config_of_another_user_is_ignored(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(str(run / "notify.json"), config(("mail", "")))
    assert (run / "notify.json").stat().st_mode & 0o777 == 0o600
    assert read_config(str(run))["name"] == "lm"
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert read_config(str(run)) == {}


# ---- from within a job


def notifier(run: Path, own: dict[str, Any]) -> JobNotifier:
    write_config(str(run / "notify.json"), {"in_job": True, **own})
    return JobNotifier({"HPCRUN_RUN_DIR": str(run), "HPCRUN_ATTEMPT": "0"}, print)


def write_end(run: Path, why: str, **more: Any) -> None:
    (run / "attempts" / "0").mkdir(parents=True, exist_ok=True)
    end = {"why": why, "exit_code": 1, "first_failure": None, **more}
    (run / "attempts" / "0" / "end.json").write_text(json.dumps(end))


def test_job_sends_conditions_and_its_end(run: Path, server: Recorder) -> None:
    (run / "logs" / "0").mkdir(parents=True)
    log = run / "logs" / "0" / "rank-0.log"
    log.write_text("step 1 loss 3.0\nstep 2 loss 1.5\n")
    write_end(run, "node_fail")
    own = config(("ntfy", server.url("runs")), on=["loss < 2", "nan", "failed"])
    job = notifier(run, own)
    job.check()
    job.finish()
    assert server.texts == [
        "lm on lumi: loss < 2; step 2, loss 1.5. hpcrun status 20261128-000000-lm-abcd"
    ]
    with log.open("a") as file:
        file.write("step 3 loss nan\n")
    job.send_end(None)
    assert len(server.texts) == 3 and "the loss is not finite" in server.texts[1]
    assert "failed: node fail; step 3, loss nan" in server.texts[2]


def test_job_that_is_restarted_or_stopped_has_not_ended(run: Path, server: Recorder) -> None:
    own = config(("ntfy", server.url("runs")), on=["failed", "done", "preempted"])
    write_end(run, "error")
    notifier(run, own).send_end("requeue")
    write_end(run, "stopped")
    notifier(run, own).send_end(None)
    assert server.requests == []
    write_end(run, "preempted")
    notifier(run, own).send_end("requeue")
    assert ["attempt 0 was preempted" in text for text in server.texts] == [True]


def test_stall_is_sent_with_the_rank(run: Path, server: Recorder) -> None:
    (run / "attempts" / "0").mkdir(parents=True)
    stall = {"silent_seconds": 720, "ranks": [2]}
    (run / "attempts" / "0" / "stall.json").write_text(json.dumps(stall))
    job = notifier(run, config(("ntfy", server.url("runs")), on=["stalled"]))
    for _ in range(2):
        job.check()
        job.finish()
    assert len(server.texts) == 1
    assert "has stalled: no progress for 12 min; rank 2 stopped first" in server.texts[0]


def test_sweep_sends_its_first_failure_and_one_summary(tmp_path: Path, server: Recorder) -> None:
    folder = tmp_path / "s.array"
    folder.mkdir()
    own = config(("ntfy", server.url("runs")), on=["started", "failed", "done"])
    write_config(str(folder / "notify.json"), {**own, "name": "lr"})
    runs = [tmp_path / f"s.{index}-x" for index in range(5)]
    ends = ["done", "error", "error", "done", "pruned"]
    for index, (run, why) in enumerate(zip(runs, ends, strict=True)):
        write_end(run, why)
        sweep = {"folder": str(folder), "before": str(tmp_path / "s."), "after": "-x", "runs": 5}
        job = notifier(run, {**own, "sweep": {**sweep, "label": f"lr={index}"}})
        job.check()
        job.finish()
        if not index:  # the start is sent when the first run starts
            assert [text.partition(".")[0] for text in server.texts] == ["lr on lumi started"]
        job.send_end(None)
    started, failed, over = server.texts
    assert "lr on lumi started" in started
    assert "lr=1 failed: exit code 1; 2 of 5 runs are over" in failed
    assert "lr on lumi is over: of 5 runs 2 are done, 1 was pruned, 2 failed" in over


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("loss: 1,234.5 lr: 1", 1234.5),
        ("loss: 12,345,678.25", 12345678.25),
        ("loss: 1,234", None),  # one number, two, or a decimal comma
        ("loss=2,acc=3", 2.0),
        ("loss=2.5,300 tok/s", 2.5),
        ("best loss: inf", None),
        ("best loss: inf, loss: 2.5", 2.5),
        ("loss: 2.5, best loss: 1.5", 2.5),
        ("best: loss 1.5", None),
        ("best acc 0.5 loss 2.5", 2.5),
        ("aux loss: 0.01", None),
        ("dev loss: 1.5", None),
        ("[dev] epoch 1 loss: 1.5", None),
        ("/dev/nvidia0 dev0 loss: 2.5", 2.5),
        ("validate loss: 1.5", None),
        ("validating: loss 1.5", None),
        ("evaluated loss 1.5", None),
        ("total loss: 2.5", 2.5),
        ("train loss 2.5 | val loss 1.5", 2.5),
    ],
)
def test_loss_in_a_line_is_that_of_the_training(line: str, loss: float | None) -> None:
    assert read_loss(line) == loss


def test_conditions_on_near_numbers_are_different_events() -> None:
    facts = RunFacts(step=2_000_000, losses=[0.5])
    events = decide_events(["step >= 1234567", "step >= 1234568", "loss < 2.0"], facts)
    assert [event.key for event in events] == [
        "step-ge-1234567.0",
        "step-ge-1234568.0",
        "loss-lt-2",
    ]


def test_loss_that_has_risen_again_is_sent_with_the_one_that_met_the_condition() -> None:
    for losses, text in (([3.0, 1.5], "loss < 2"), ([3.0, 1.5, 2.5], "loss < 2 was reached (1.5)")):
        assert [each.text for each in decide_events(["loss < 2"], RunFacts(losses=losses))] == [
            text
        ]


def test_slow_channel_does_not_hold_up_the_watcher(run: Path, tmp_path: Path) -> None:
    job = notifier(run, config(("command", "sleep 0.5"), on=["started"]))
    begun = time.monotonic()
    job.check()
    job.check()
    assert time.monotonic() - begun < 0.4
    job.finish()
    assert (run / "notify" / "started@command.0" / "sent").exists()
