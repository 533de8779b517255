"""Notifications on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.jobside.delivery import write_config
from tests.cli.calling import Caller, replay
from tests.cli.status_runs import NOW, answers, make_run, queued
from tests.http_recorder import Recorder, recording

URL = "https://hooks.slack.com/services/T0/B0/abcdef"


def test_submission_writes_the_urls_only_where_nobody_else_reads_them(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("job.yaml", "script: train.py\nnotify: {to: [slack: $HOOK, teams: $NONE]}\n")
    hpcrun.environ["HOOK"] = URL
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    done = hpcrun("submit", "job.yaml", "--no-check")
    assert done.code == 0, done
    assert "notify: teams: NONE is not set: export NONE=..." in done.out + done.err, done
    (run,) = hpcrun.runs.iterdir()
    config = json.loads((run / "notify.json").read_text())
    assert config["to"] == [["slack", URL], ["teams", ""]]
    assert config["on"] == ["failed", "stalled", "done"] and config["run_id"] == run.name
    assert (run / "notify.json").stat().st_mode & 0o777 == 0o600
    others = [path for path in run.rglob("*") if path.is_file() and path.name != "notify.json"]
    assert not any(b"abcdef" in path.read_bytes() for path in others)
    plan = json.loads((run / "plan.json").read_text())
    assert plan["notify"]["to"] == [["slack", "$HOOK"], ["teams", "$NONE"]]
    assert "notify.json" not in hpcrun("show", run.name).out


def test_status_reports_a_channel_that_fails(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("job.yaml", "script: train.py\n")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    assert hpcrun("submit", "job.yaml", "--no-check").code == 0
    (run,) = hpcrun.runs.iterdir()
    claim = run / "notify" / "failed@slack.0"
    claim.mkdir(parents=True)
    (claim / "failed").write_text("hooks.slack.com answered HTTP 404\n")
    shown = hpcrun("status", run.name).out
    assert "notify: slack: failed not sent: hooks.slack.com answered HTTP 404" in shown


def told_run(hpcrun: Caller, url: str, **config: object) -> Path:
    """Make a run that has just failed, and whose job could not send its notifications."""
    log = "step=1 loss=3.0\nstep=2 loss=1.5\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    run = make_run(
        *(hpcrun, "20261120-081455-train-7k3q", "15"), ended=NOW - 60, exit_code=1, log=log
    )
    own = {"name": "train", "run_id": run.run_id, "on": ["started", "failed", "loss < 2"]}
    write_config(str(run.notify), {**own, "to": [["ntfy", url]], **config})
    answers(hpcrun.tools, "squeue", rest=queued(run, "15", "FAILED", M="30:00"))
    answers(hpcrun.tools, "scontrol")
    answers(hpcrun.tools, "sacct")
    return run.path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Recorder]:
    with recording(tmp_path / "requests") as found:
        yield found


def test_notify_sends_what_the_job_has_not_sent_once(hpcrun: Caller, server: Recorder) -> None:
    run = told_run(hpcrun, server.url("runs"))
    (run / "notify" / "started@ntfy.0").mkdir(parents=True)
    (run / "notify" / "started@ntfy.0" / "sent").touch()
    for _ in range(2):
        assert hpcrun("notify").code == 0
    condition, failed = server.texts
    assert condition.startswith("train: loss < 2; step 2, loss 1.5"), condition
    assert failed.startswith("train failed: out of GPU memory"), failed
    assert failed.endswith(f"hpcrun why {run.name}"), failed


def test_wait_sends_notifications_at_the_end(hpcrun: Caller, server: Recorder) -> None:
    told_run(hpcrun, server.url("runs"), on=["failed"])
    assert hpcrun("wait", "15").code == 1
    assert len(server.texts) == 1


def test_old_events_are_no_news(hpcrun: Caller, server: Recorder) -> None:
    run = told_run(hpcrun, server.url("runs"))
    end = run / "attempts" / "0" / "end.json"
    record = json.loads(end.read_text())
    end.write_text(json.dumps(record | {"begun_at": NOW - 300_000, "ended_at": NOW - 200_000}))
    assert hpcrun("notify").code == 0
    assert server.texts == []


def test_url_that_was_unknown_at_submission_is_found_later(
    hpcrun: Caller, server: Recorder
) -> None:
    own = {"to": [["slack", ""]], "asked": [["slack", "$HOOK"]], "on": ["failed"]}
    told_run(hpcrun, "", **own)
    assert hpcrun("notify").code == 0 and server.texts == []
    hpcrun.environ["HOOK"] = server.url("hook")
    assert hpcrun("notify").code == 0
    assert [request["path"] for request in server.requests] == ["/hook"]


def test_test_messages_report_each_channel(hpcrun: Caller, server: Recorder) -> None:
    done = hpcrun("notify", "--test")
    assert done.code == 2 and "no channel is configured" in done.err, done
    hpcrun.environ["HOOK"] = server.url("hook")
    hpcrun.write("train.py", "")
    hpcrun.write(
        "job.yaml",
        "script: train.py\nnotify: {to: [slack: $HOOK, teams: $NONE, command: exit 3]}\n",
    )
    hpcrun.environ["HPCRUN_TRUST"] = str(hpcrun.project)
    done = hpcrun("notify", "--test", "job.yaml")
    assert done.code == 1 and done.out.splitlines()[0] == "slack: sent", done
    assert "teams: teams: NONE is not set" in done.out and "command: exit code 3" in done.out
    assert "test of hpcrun's notifications" in server.texts[0]


def test_test_messages_run_and_send_nothing_that_an_untrusted_project_names(
    hpcrun: Caller, server: Recorder, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    hook, command = "{webhook: $HOOK}", f"{{command: 'touch {trace}'}}"
    hpcrun.environ["HOOK"] = server.url("hook")
    hpcrun.write("train.py", "")
    hpcrun.write("job.yaml", f"script: train.py\nnotify: {{to: [{hook}, {command}]}}\n")
    profile = hpcrun.project / "hpcrun.yaml"
    profile.write_text(profile.read_text() + f"notify: {{to: [{hook}, {command}]}}\n")
    for words in ((), ("job.yaml",)):
        done = hpcrun("notify", "--test", *words)
        assert done.code == 2 and "webhook: $HOOK, command: touch" in done.err, done
        assert f"export HPCRUN_TRUST={hpcrun.project}" in done.err, done
        assert server.texts == [] and not trace.exists()
    hpcrun.environ["HPCRUN_TRUST"] = str(hpcrun.project)
    assert hpcrun("notify", "--test").code == 0
    assert len(server.texts) == 1 and trace.exists()


def test_schedules_name_the_project_and_the_path(hpcrun: Caller) -> None:
    line = hpcrun("notify", "--cron").out
    assert line.startswith(f"*/5 * * * * cd '{hpcrun.project}' && PATH="), line
    done = hpcrun("notify", "--systemd")
    assert done.code == 0 and "systemctl --user enable --now hpcrun-notify.timer" in done.err
    (service,) = Path(hpcrun.environ["HOME"]).rglob("hpcrun-notify.service")
    assert f"WorkingDirectory={hpcrun.project}\n" in service.read_text()
