"""hpcrun report on a real Slurm with accounting, and without."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.plain_sbatch import sbatch
from tests.cluster.site import Site
from tests.json_schemas import check_json
from tests.waiting import PATIENCE

# A training of six seconds; the watcher notices its first step.
COMMAND = """\
command: [bash, -c, "for n in 1 2 3 4 5 6; do sleep 1; echo step $n loss 2.$n; done"]
resources: {gpus_per_node: 1}
"""


def report(site: Site, *words: str) -> dict[str, Any]:
    done = site.hpcrun("report", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    check_json("report", found)
    return found


def test_report_measures_runs_sweeps_and_other_jobs(site: Site) -> None:
    (site.project / "short.yaml").write_text(COMMAND)
    (site.project / "lr.yaml").write_text(
        'command: [bash, -c, "sleep 1"]\nresources: {gpus_per_node: 0}\nsweep: {env.LR: [1, 2]}\n'
    )
    run = site.submit("short.yaml")
    sweep_id = json.loads(site.hpcrun("submit", "--json", "lr.yaml").stdout)["sweep_id"]
    by_hand = sbatch(site, "sleep 2", "--gres=gpu:2", "--array=0-1")
    site.hpcrun("wait", run.job_id, sweep_id, by_hand)

    (row,) = report(site, run.job_id)["runs"]
    assert (row["run_id"], row["state"], row["gpus"]) == (run.run_id, "COMPLETED", 1)
    assert 6 <= row["elapsed_seconds"] < PATIENCE and row["limit_seconds"] > 60
    assert row["gpu_hours"] * 3600 >= 6 and row["queue_seconds"] < PATIENCE
    assert row["memory_asked_bytes"] and row["cpus"] and row["gpu_use"] is None, row

    tasks = report(site, sweep_id)
    assert [each["run_id"].split("-")[2] for each in tasks["runs"]] == ["lr.0", "lr.1"]
    assert all(each["gpus"] is None and each["node_hours"] > 0 for each in tasks["runs"])
    other = report(site, by_hand)
    assert [each["job_id"] for each in other["runs"]] == [f"{by_hand}_0", f"{by_hand}_1"]
    assert all(each["gpus"] == 2 and each["gpu_hours"] > 0 for each in other["runs"])
    assert all(each["run_id"] is None and each["goodput"] is None for each in other["runs"])

    everything = report(site, "--since", "1h")
    assert everything["total"]["runs"] == 3
    assert "no samples" in site.hpcrun("report", f"{by_hand}_0").stdout

    site.rig.stop_accounting()
    try:
        (without,) = report(site, run.job_id)["runs"]
    finally:
        site.rig.start_accounting()
    assert without["gpu_hours"] == row["gpu_hours"] and without["state"] == "COMPLETED"
