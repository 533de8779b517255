"""A real Slurm estimates when several shapes of a job would start."""

from __future__ import annotations

import json

from tests.cluster.site import Site
from tests.json_schemas import check_json


def test_when_asks_slurm_for_each_shape_and_submits_nothing(site: Site) -> None:
    job = "command: [hostname]\nresources: {gpus_per_node: 1, time: 10m, account: research}\n"
    (site.project / "job.yaml").write_text(job)
    before = site.rig.run("squeue", "-h", "-o", "%i").stdout
    limit = ("sacctmgr", "-i", "modify", "account", "research", "set")
    try:
        site.rig.run(*limit, "GrpTRESMins=gres/gpu=6000")
        done = site.hpcrun("when", "job.yaml", "--nodes", "1,2,500", "--json")
    finally:
        site.rig.run(*limit, "GrpTRESMins=gres/gpu=-1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    check_json("when", answer)
    shapes = {shape["nodes"]: shape for shape in answer["shapes"]}
    assert answer["shapes"][-1]["nodes"] == 500 and shapes[500]["refused"]
    for nodes in (1, 2):
        assert shapes[nodes]["start"] and not shapes[nodes]["refused"], shapes
        assert shapes[nodes]["limit_seconds"] == 600
        assert round(shapes[nodes]["gpu_hours"], 3) == round(nodes / 6, 3)
    assert site.rig.run("squeue", "-h", "-o", "%i").stdout == before
    (limited,) = answer["limits"]
    assert (limited["owner"], limited["resource"]) == ("account research", "GPU")
    assert limited["allowed_hours"] == 100 and limited["used_hours"] >= 0
