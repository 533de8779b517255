"""Notifications of runs on a remote cluster are sent from here, and recorded there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.http_recorder import recording
from tests.remote.desk import Desk


@pytest.mark.slow
def test_events_are_sent_once_from_here_and_recorded_on_the_cluster(
    desk: Desk, tmp_path: Path
) -> None:
    with recording(tmp_path / "requests") as server:
        channels = f'[{{ntfy: "{server.url("runs")}"}}, webhook: $HOOK]'
        job = (desk.hpcrun.project / "job.yaml").read_text()
        desk.hpcrun.write("job.yaml", f"{job}notify: {{on: [started, done], to: {channels}}}\n")
        desk.hpcrun.environ["HOOK"] = server.url("hook")
        run = desk.submit()
        desk.begin(run)
        assert (run / "notify.json").stat().st_mode & 0o777 == 0o600
        (run / "notify" / "started@webhook.0").mkdir(parents=True)  # the job is about to send it
        assert desk.hpcrun("notify").code == 0
        assert [request["path"] for request in server.requests] == ["/runs"]
        assert (run / "notify" / "started@ntfy.0" / "sent").exists()
        desk.end(run)
        # Channels that the cluster's records name are not used: they could be commands.
        config = json.loads((run / "notify.json").read_text())
        changed = {**config, "to": [["command", f"touch {tmp_path}/ran"]]}
        (run / "notify.json").write_text(json.dumps(changed))
        for _ in range(2):
            desk.hpcrun("notify")
        assert [request["path"] for request in server.requests][1:] == ["/runs", "/hook"]
        assert json.loads(server.requests[2]["body"])["run_id"] == run.name
        assert not (tmp_path / "ran").exists()
