"""The page for coding agents: every command, with its exit code and JSON, on a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.json_schemas import check_json
from tests.needs import require
from tests.sandbox.using import taken_down
from tests.source import ROOT
from tests.tutorial import steps

PAGE = ROOT / "docs" / "agents.md"
_JSON = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_agent_submits_fixes_and_resubmits_by_the_page(tmp_path: Path) -> None:
    require(shutil.which("slurmctld", path="/usr/sbin:/usr/bin"), "slurmctld")
    place = Path("/tmp") / f"hpa{os.getpid()}"  # the sockets of a sandbox need a short path
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hpcrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcrun "$@"\n')
    (tmp_path / "bin" / "hpcrun").chmod(0o755)
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "HPCRUN_SANDBOX_DIR": str(place),
        "LANG": "C.UTF-8",
    }
    page = PAGE.read_text(encoding="utf-8")
    answers: list[tuple[str, Any]] = []
    run_id = ""
    with taken_down(place):
        subprocess.run([f"{tmp_path}/bin/hpcrun", "sandbox", "up"], env=env, check=True)
        for step in steps(page):
            if step.name:
                path = tmp_path / step.name
                path.parent.mkdir(exist_ok=True)
                path.write_text(step.text)
                continue
            command = step.command.replace("RUN", run_id)
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == step.exit_code, (command, done)
            if command.startswith("hpcrun "):
                verb, answer = command.split()[1], json.loads(done.stdout)
                check_json(verb, answer)
                answers.append((verb, answer))
                run_id = answer.get("run_id") or answer.get("runs", [{}])[0].get("run_id", run_id)
    assert [verb for verb, _ in answers] == ["submit", "wait", "why", "resubmit", "wait", "parse"]
    submission, diagnosis = map(json.loads, _JSON.findall(page))
    assert submission.keys() == answers[0][1].keys()
    assert submission["notes"] == answers[0][1]["notes"]
    shown, found = diagnosis["runs"][0], answers[2][1]["runs"][0]
    for varying in ("file", "source"):
        shown["cause"].pop(varying, None)
        found["cause"].pop(varying, None)
    assert shown | {"source": found["source"]} == found
    loss = answers[-1][1]["runs"][0]["metrics"]["loss"]
    assert (loss["count"], loss["last"]["step"]) == (20, 20)
