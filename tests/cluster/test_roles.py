"""Jobs of several programs on a real Slurm with several hosts."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cluster.site import Site
from tests.cluster.survive_job import TRAIN as SAVING
from tests.cluster.survive_job import insist_on_the_whole_curve, preempt, preempting, steps_of
from tests.waiting import until

SERVER = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("GPUs", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        if os.path.exists(os.environ["BREAK"]):
            print("RuntimeError: the server has broken", file=sys.stderr, flush=True)
            os._exit(7)
        self.send_response(200), self.end_headers(), self.wfile.write(b"ok")
http.server.HTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
TRAIN = """
import os, pathlib, sys, time, urllib.request
rank = int(os.environ["RANK"])
print("GPUs", os.environ["CUDA_VISIBLE_DEVICES"], "of rank", rank, flush=True)
for step in range(1, int(sys.argv[1]) + 1):
    for url in sys.argv[2:]:
        urllib.request.urlopen(url, timeout=120).read()
    if rank == 0:
        print(f"step {step} loss {1 / step}", flush=True)
    if rank == 0 and step == 5 and sys.argv[1] == "500":
        pathlib.Path(os.environ["BREAK"]).touch()
    time.sleep(0.05)
"""
JOB = """
resources: {gpus_per_node: 4, time: 10}
env: {BREAK: "{project_dir}/break"}
roles:
  server: {gpus: 1, script: server.py, launcher: srun, framework: torch, args: ["{port}"],
           ready: "http://{host}:{port}/"}
  judge: {command: [PYTHON, server.py, "{port}"]}
  train: {nodes: 2, gpus: 2, script: train.py, launcher: srun, framework: torch,
          args: ["STEPS", "http://{server.host}:{server.port}", "http://{judge.host}:{judge.port}"]}
"""

# Needs the server in each step, also when it saves because it was asked to end.
NEEDING = SAVING.replace(
    "    step += 1\n",
    "    step += 1\n"
    "    if rank == 0:\n"
    "        import urllib.request\n"
    "        urllib.request.urlopen(sys.argv[1], timeout=120).read()\n",
)
LASTING = """
resources: {gpus_per_node: 1, time: 30}
slurm: {exclusive: true}
survive: {when: [preempted]}
checkpoint: {resume: "--resume {resume}"}
env: {BREAK: "{project_dir}/break", TOTAL: "16", STEP: "0.3", AGAIN: "0.05"}
roles:
  server: {command: [PYTHON, server.py, "{port}"], ready: "http://{host}:{port}/"}
  train: {nodes: 10, script: train.py, launcher: srun, framework: torch,
          args: ["http://{server.host}:{server.port}"]}
"""


def prepare(site: Site, steps: int) -> None:
    job = JOB.replace("STEPS", str(steps)).replace("PYTHON", sys.executable)
    (site.project / "server.py").write_text(SERVER)
    (site.project / "train.py").write_text(TRAIN)
    (site.project / "job.yaml").write_text(job)


def test_three_roles_run_on_their_own_nodes_and_gpus(wide_site: Site) -> None:
    prepare(wide_site, 3)
    run = wide_site.submit("./job.yaml")
    assert wide_site.follow(run).returncode == 0, run.log()
    roles = wide_site.status(run)["attempts"][0]["roles"]
    first, second = roles["train"]["hosts"]
    assert roles["server"]["hosts"] == [first]  # with GPUs that are left there
    assert roles["judge"]["hosts"] not in ([first], [second])
    assert {each["state"] for each in roles.values()} == {"ended"}
    assert "127." not in roles["server"]["address"] + roles["judge"]["address"]

    def gpus(path: str) -> set[str]:
        text = (run.folder / path).read_text()
        return set(text.split("GPUs ")[1].split()[0].split(","))

    of_train, of_server = gpus("logs/0/rank-0.log"), gpus("roles/server/logs/0/rank-0.log")
    assert len(of_train) == 2 and len(of_server) == 1 and not of_train & of_server
    assert len(gpus("roles/judge/logs/0/node-0.log")) == 4
    shown = wide_site.hpcrun("logs", run.run_id, "--role", "train", "--rank", "0").stdout
    assert "step 3 loss" in shown and "[server]" not in shown
    lines = wide_site.hpcrun("logs", run.run_id, "--role", "server", "--json").stdout.splitlines()
    assert {json.loads(line)["role"] for line in lines} == {"server"}


def test_the_failure_of_a_server_ends_the_job_and_is_named(wide_site: Site) -> None:
    prepare(wide_site, 500)
    run = wide_site.submit("./job.yaml")
    assert wide_site.follow(run).returncode == 1
    answer = json.loads(wide_site.hpcrun("why", run.run_id, "--json").stdout)["runs"][0]["cause"]
    first = run.record("end.json")["first_failure"]
    assert first["role"] in ("server", "judge"), run.log()
    assert answer["title"].startswith(f"role {first['role']}: "), answer
    assert answer["host"] == first["host"] and first["exit_code"] == 7
    assert answer["rank"] == first["rank"]
    assert f"roles/{first['role']}/logs/0/" in answer["file"]
    assert f"role {first['role']}" in wide_site.hpcrun("status", run.run_id).stdout


@pytest.mark.thorough
def test_a_role_that_never_becomes_ready_ends_the_job_and_is_named(wide_site: Site) -> None:
    prepare(wide_site, 500)
    job = (wide_site.project / "job.yaml").read_text()
    deaf = "ready: 'http://{host}:{port}/', ready_within: 5s"
    job = job.replace(
        f'{{command: [{sys.executable}, server.py, "{{port}}"]}}',
        f"{{command: [sleep, '600'], {deaf}}}",
    )
    assert deaf in job
    (wide_site.project / "job.yaml").write_text(job)
    run = wide_site.submit("./job.yaml")
    assert wide_site.follow(run).returncode == 1
    answer = json.loads(wide_site.hpcrun("why", run.run_id, "--json").stdout)["runs"][0]["cause"]
    assert "role judge" in answer["title"] and "not ready within 5 s" in json.dumps(answer), answer
    assert "refused" in json.dumps(answer), answer
    roles = wide_site.status(run)["attempts"][0]["roles"]
    assert [roles[name]["state"] for name in ("judge", "train")] == ["failed", "waiting"]
    assert not (run.folder / "logs/0/rank-0.log").exists(), "the training never started"


HETEROGENEOUS = """
resources: {gpus_per_node: 1, time: 10}
env: {BREAK: "{project_dir}/break"}
roles:
  server: {command: [PYTHON, server.py, "{port}"],
           resources: {partition: high, gpus_per_node: 3, cpus_per_gpu: 1},
           ready: "http://{host}:{port}/"}
  train: {nodes: 2, script: train.py, launcher: srun, framework: torch,
          args: ["STEPS", "http://{server.host}:{server.port}"]}
"""


@pytest.mark.thorough
def test_roles_on_nodes_of_two_kinds_are_a_heterogeneous_job(wide_site: Site) -> None:
    prepare(wide_site, 3)
    (wide_site.project / "job.yaml").write_text(
        HETEROGENEOUS.replace("STEPS", "3").replace("PYTHON", sys.executable)
    )
    run = wide_site.submit("./job.yaml")
    assert wide_site.follow(run).returncode == 0, run.log()
    roles = wide_site.status(run)["attempts"][0]["roles"]
    assert len({*roles["server"]["hosts"], *roles["train"]["hosts"]}) == 3
    assert {each["state"] for each in roles.values()} == {"ended"}
    log = (run.folder / "roles/server/logs/0/node-0.log").read_text()
    assert len(log.split("GPUs ")[1].split()[0].split(",")) == 3
    assert "step 3 loss" in (run.folder / "logs/0/rank-0.log").read_text()
    shown = wide_site.hpcrun("status", run.run_id)
    assert shown.returncode == 0 and "COMPLETED" in shown.stdout, shown
    until(lambda: not wide_site.rig.leftovers(), "the processes of the job to end")
    # The failure of the server in its component ends the job, and is named.
    (wide_site.project / "job.yaml").write_text(
        HETEROGENEOUS.replace("STEPS", "500").replace("PYTHON", sys.executable)
    )
    run = wide_site.submit("./job.yaml")
    assert wide_site.follow(run).returncode == 1
    assert run.record("end.json")["first_failure"]["role"] == "server", run.log()
    cause = json.loads(wide_site.hpcrun("why", run.run_id, "--json").stdout)["runs"][0]["cause"]
    assert cause["title"].startswith("role server: "), cause
    (wide_site.project / "break").unlink()
    # Cancelling ends both components.
    (wide_site.project / "job.yaml").write_text(
        HETEROGENEOUS.replace("STEPS", "400").replace("PYTHON", sys.executable)
    )
    run = wide_site.submit("./job.yaml")
    until(lambda: "step 3 loss" in run.log(), "the training")
    assert wide_site.hpcrun("cancel", run.job_id).returncode == 0
    until(lambda: not wide_site.rig.leftovers(), "the processes of the job to end")
    assert wide_site.status(run)["state"] == "CANCELLED"


@pytest.mark.parametrize("mode", ["REQUEUE", pytest.param("CANCEL", marks=pytest.mark.thorough)])
def test_roles_resume_after_preemption(wide_site: Site, mode: str) -> None:
    """Slurm signals the servers, too, when it preempts a job."""
    site = wide_site
    (site.project / "server.py").write_text(SERVER)
    (site.project / "train.py").write_text(NEEDING)
    (site.project / "job.yaml").write_text(LASTING.replace("PYTHON", sys.executable))
    with preempting(site, f"GraceTime=30 PreemptMode={mode}"):
        run = site.submit("./job.yaml")
        until(lambda: len(steps_of(run, 0)) >= 6, "some steps")
        preempt(site)
        shown = insist_on_the_whole_curve(site, run, 16)
    first, second = shown["attempts"]
    assert first["end"]["why"] == "preempted", first
    assert {each["state"] for each in second["roles"].values()} == {"ended"}
