"""hpcrun status on a real Slurm with accounting."""

from __future__ import annotations

import json

from tests.cluster.plain_sbatch import sbatch
from tests.cluster.site import Site

COMMAND = 'command: [bash, -c, "echo step 3 loss 2.5; exit 7"]\nresources: {gpus_per_node: 0}\n'


def test_status_shows_listing_runs_and_other_jobs(site: Site) -> None:
    (site.project / "fails.yaml").write_text(COMMAND)
    run = site.submit("fails.yaml")
    by_hand = sbatch(site, "exit 3")
    array = sbatch(site, "exit $SLURM_ARRAY_TASK_ID", "--array=0-1")
    held = sbatch(site, "true", "--hold")
    waited = site.hpcrun("wait", run.job_id, by_hand, array)
    assert waited.returncode == 1, waited.stdout + waited.stderr

    (row,) = json.loads(site.hpcrun("status", "--json").stdout)["runs"]
    assert (row["run_id"], row["state"], row["step"], row["loss"]) == (run.run_id, "FAILED", 3, 2.5)
    detail = site.hpcrun("status", run.job_id)
    assert detail.returncode == 0 and "exit code 7" in detail.stdout, detail.stdout

    alone = site.hpcrun("status", by_hand).stdout
    assert "state     FAILED" in alone and "left no record" not in alone, alone
    tasks = site.hpcrun("status", array).stdout
    states = dict(line.split()[:2] for line in tasks.splitlines() if line.startswith(f"{array}_"))
    assert states == {f"{array}_0": "COMPLETED", f"{array}_1": "FAILED"}, tasks
    waits = site.hpcrun("status", held).stdout
    assert "PENDING (JobHeldUser)" in waits and f"scontrol release {held}" in waits, waits
    assert site.hpcrun("cancel", held).returncode == 0
