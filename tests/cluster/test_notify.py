"""A job on the real Slurm sends its own notifications, once each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.site import Site
from tests.http_recorder import read_requests
from tests.waiting import until

PORT = 18973
SCRIPT = """
import sys, time
for step in range(1, 31):
    print(f"step {step} loss {3 - step / 10:.2f}", flush=True)
    time.sleep(0.1)
raise RuntimeError("the data is gone")
"""
JOB = f"""
script: train.py
launcher: torchrun
notify:
  on: [started, failed, done, "loss < 1.0", time_left < 2h]
  to: [{{ntfy: "http://127.0.0.1:{PORT}/runs"}}, {{webhook: $HOOK}}]
"""


@pytest.fixture
def record(site: Site, tmp_path: Path) -> Iterator[Path]:
    """Run an HTTP server on the first node."""
    program = Path(__file__).parent.parent / "http_recorder.py"
    record = site.project / "requests"
    argv = [sys.executable, str(program), str(record), str(PORT)]
    argv = site.rig.argv_on(site.rig.node_names[0], argv)
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as server:
        yield record
        server.communicate()


def test_failing_job_sends_its_events_once_with_the_cause(site: Site, record: Path) -> None:
    (site.project / "train.py").write_text(SCRIPT)
    (site.project / "told.yaml").write_text(JOB)
    run = site.submit(
        *("./told.yaml", "--gpus-per-node", "1", "--time", "60"),
        *("--set", f"slurm.nodelist={site.rig.node_names[0]}"),
        env={"HOOK": f"http://127.0.0.1:{PORT}/secret-hook", "HPCRUN_NOTIFY_EVERY": "0.5"},
    )
    assert site.follow(run).returncode == 1
    sent = until(lambda: [*read_requests(record)] if len(read_requests(record)) > 7 else None, "8")
    texts = [request["body"] for request in sent if request["path"] == "/runs"]
    name = "told on rig"
    assert len(texts) == 4 and texts[0].startswith(f"{name} started"), texts
    assert any("time limit" in text for text in texts), texts
    assert any(f"{name}: loss < 1" in text for text in texts), texts
    assert "the data is gone" in texts[-1] or "RuntimeError" in texts[-1], texts
    assert "step 30, loss 0" in texts[-1] and f"hpcrun why {run.run_id}" in texts[-1], texts
    print(*texts, sep="\n")
    hooks = [request for request in sent if request["path"] == "/secret-hook"]
    assert len(hooks) == 4
    config = run.folder / "notify.json"
    assert config.stat().st_mode & 0o777 == 0o600
    open_files = [file for file in run.folder.rglob("*") if file.is_file() and file != config]
    assert not any(b"secret-hook" in file.read_bytes() for file in open_files)
