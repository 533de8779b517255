"""Notifications on the command line."""

from __future__ import annotations

import json

from tests.cli.calling import Caller, replay

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
