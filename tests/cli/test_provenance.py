"""The origin of a run: recorded by submit, shown by status."""

from __future__ import annotations

import json
import subprocess

from tests.cli.calling import Caller, replay
from tests.json_schemas import check_json


def test_submission_records_its_origin_and_status_shows_it(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("job.yaml", "script: train.py\nsecrets: [MY_PASS]\n")
    own = ("git", "-C", str(hpcrun.project), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x")):
        subprocess.run([*own, *command], check=True)
    head = subprocess.check_output([*own, "rev-parse", "HEAD"], text=True).strip()
    hpcrun.write("train.py", "import torch\n\n")
    hpcrun.environ |= {"MY_PASS": "open sesame", "LOGNAME": "ada"}
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    words = ("submit", "job.yaml", "--no-check", "--set", "env.NOTE=open sesame")
    assert hpcrun(*words).code == 0
    (run,) = hpcrun.runs.iterdir()
    origin = json.loads((run / "plan.json").read_text())["provenance"]
    assert origin == {
        "user": "ada",
        "project": str(hpcrun.project),
        "command": "hpcrun submit job.yaml --no-check --set 'env.NOTE=***'",
        "git_commit": head,
        "git_dirty": True,
    }
    assert json.loads((run / "submitted.json").read_text())["project"] == str(hpcrun.project)
    shown = hpcrun("status", run.name)
    assert f"{head[:12]}, with uncommitted changes" in shown.out, shown
    assert f"  {hpcrun.project}\n" in shown.out and "by ada, hpcrun 0" in shown.out, shown
    detail = hpcrun("status", run.name, "--json").json
    check_json("status", detail)
    assert detail["runs"][0]["provenance"]["git_commit"] == head


def test_submission_records_arguments_without_secrets_and_own_paths(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "import torch\n")
    args = "[--lr, 3e-4, optim.wd=0, --fast, --api-key, abc, --out, '{run_dir}/out']"
    hpcrun.write("job.yaml", f"script: train.py\nargs: {args}\n")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    assert hpcrun("submit", "job.yaml", "--no-check").code == 0
    (run,) = hpcrun.runs.iterdir()
    recorded = json.loads((run / "submitted.json").read_text())["arguments"]
    assert recorded == {"--lr": "3e-4", "optim.wd": "0", "--fast": ""}
