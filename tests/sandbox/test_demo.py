"""The demo, as `make demo` runs it: sandbox up, ZeRO-2, the curve, sandbox down."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import require
from tests.torch_extensions import CACHE

DEMO = Path(__file__).parents[2] / ".ci" / "demo"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_demo_runs_to_its_curve(tmp_path: Path, place: Path) -> None:
    require(shutil.which("slurmctld", path="/usr/sbin:/usr/bin"), "slurmctld")
    home = tmp_path / "home"
    (home / "hpcrun").mkdir(parents=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    (home / "hpcrun" / "cache").symlink_to(CACHE)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "HPCRUN_SANDBOX_DIR": str(place),
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(
        # Half the ranks, a quarter of the text: CPUs are slow with bf16.
        ["bash", str(DEMO), "--gpus-per-node", "2", "--", "--seq-len", "32"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"^steps +1 to 60\b", done.stdout, re.MULTILINE), done.stdout
    assert not place.exists(), "the demo takes its sandbox away"
    (run,) = (home / "hpcrun" / "runs").iterdir()
    assert json.loads((run / "attempts/0/end.json").read_text())["exit_code"] == 0
    parsed = subprocess.run(
        [sys.executable, "-m", "hpcrun", "parse", "--json"],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loss = json.loads(parsed.stdout)["runs"][0]["metrics"]["loss"]
    assert loss["last"]["value"] < 0.5 * loss["first"]["value"]
