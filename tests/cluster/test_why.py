"""Real failures: status shows cause, rank and host as soon as the job has ended."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.cluster.plain_sbatch import sbatch
from tests.cluster.site import Site, Submitted
from tests.cluster.survive_job import preempt, preempting
from tests.json_schemas import check_json
from tests.waiting import until

# Rank 1 fails as requested, the others wait for it.
SCRIPT = """
import os, resource, signal, socket, sys, time
how, rank, batch = sys.argv[1], int(os.environ["RANK"]), sys.argv[2]
for step in range(3):
    print(f"step {step} loss 2.{step}", flush=True)
if rank != 1:
    time.sleep(300)
if how == "code":
    raise ValueError("a bad batch")
if how == "module":
    import no_such_module
if how == "file":
    open("/no/such/data/train.bin")
if how == "port":
    first = socket.create_server(("", 0))
    socket.create_server(("", first.getsockname()[1]))
if how == "memory":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytes(2 << 30)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "gpu":  # no GPU is here
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full")
if how == "driver":
    raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")
if how == "disk":
    with open("/mnt/full/step-1.pt", "wb") as file:
        file.write(bytes(4 << 20))
if how == "interface":
    import torch.distributed
    os.environ["GLOO_SOCKET_IFNAME"] = "nope0"
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
if how == "rendezvous":  # nobody listens at this address
    import datetime, torch.distributed
    wait = datetime.timedelta(seconds=2)
    init = {"init_method": "tcp://127.0.0.1:9", "rank": 1, "world_size": 2, "timeout": wait}
    torch.distributed.init_process_group("gloo", **init)
if how == "nan":
    import torch
    with torch.autograd.detect_anomaly():
        torch.tensor([-1.0], requires_grad=True).sqrt().sum().backward()
if how == "shm":  # as a data loader that hands its batches over
    import mmap
    file = os.open("/dev/shm/torch_1", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 4 << 20)
    mmap.mmap(file, 4 << 20).write(bytes(4 << 20))
if how == "hub":
    os.environ["HF_HUB_OFFLINE"] = "1"
    from huggingface_hub import hf_hub_download
    hf_hub_download("meta-llama/Llama-3.1-8B", "config.json", cache_dir="/no/such/cache")
time.sleep(300)
"""
JOB = "script: rank.py\nlauncher: srun\nbatch: {micro_batch_per_gpu: 4}\n"


def submit(site: Site, how: str, *options: str, script: str = SCRIPT) -> Submitted:
    """Submit two ranks on one node of which the second fails."""
    (site.project / "rank.py").write_text(script)
    (site.project / "jobs").mkdir(exist_ok=True)
    (site.project / "jobs" / "fails.yaml").write_text(JOB)
    size = ("--nodes", "1", "--gpus-per-node", "2", "--time", "10")
    return site.submit("fails", *size, *options, "--", how, "{micro_batch_per_gpu}")


def cause_of(site: Site, run: Submitted) -> dict[str, Any]:
    """Return the cause as soon as the end record of the run exists."""
    site.wait_for(run, "attempts/0/end.json")
    shown = until(lambda: _over(site, run), "the end")
    return dict(shown["diagnosis"]["cause"] or {})


def _over(site: Site, run: Submitted) -> dict[str, Any] | None:
    shown = site.status(run)
    return shown if shown["final"] else None


def insist(site: Site, run: Submitted, wanted: str) -> None:
    """Assert class, rank and host of a failure."""
    cause, host = cause_of(site, run), run.record("begin.json")["host"]
    assert (cause.get("class"), cause.get("rank"), cause.get("host")) == (wanted, 1, host), cause


def test_status_names_cause_rank_and_host(site: Site) -> None:
    wanted = {
        "code": "code_error",
        "module": "import",
        "file": "missing_file",
        "port": "port",
        "memory": "oom_host",
        "killed": "oom_host",
        "gpu": "oom_gpu",
        "driver": "driver",
        "hub": "auth_network",
    }
    runs = {how: submit(site, how) for how in wanted}
    for how, run in runs.items():
        insist(site, run, wanted[how])
    # All commands show the same sentence, and the line of the log.
    run = runs["code"]
    answer = json.loads(site.hpcrun("why", "--json", run.job_id).stdout)
    check_json("why", answer)
    cause = answer["runs"][0]["cause"]
    assert cause["file"] == str(run.folder / "logs/0/rank-1.log")
    line = (run.folder / "logs/0/rank-1.log").read_text().split("\n")[cause["line"] - 1]
    assert line == "ValueError: a bad batch"
    sentence = "the program stopped with ValueError: a bad batch"
    assert sentence in site.hpcrun("why", run.run_id).stdout
    assert sentence in site.hpcrun("status", run.run_id).stdout
    assert sentence in site.hpcrun("wait", run.run_id).stdout
    assert sentence in site.hpcrun("logs", "-f", run.run_id).stderr
    assert sentence in site.hpcrun("why", "--json", run.job_id).stdout
    killed = site.status(runs["killed"])["diagnosis"]["cause"]
    assert killed["text"] == f"hpcrun: rank 1 on {killed['host']}: Signal 9 (SIGKILL)"
    assert "setpriv" not in runs["killed"].log(), "bash shows no source of the harness"
    # The suggested commands work.
    for how, each in runs.items():
        for fix in site.status(each)["diagnosis"]["fixes"]:
            words = shlex.split(fix, comments=True) if fix.startswith("hpcrun ") else []
            more = ["--dry-run"] if "resubmit" in words else []
            assert not words or site.hpcrun(*words[1:], *more).returncode == 0, (how, fix)
    fix = json.loads(site.hpcrun("why", "--json", runs["gpu"].job_id).stdout)["runs"][0]["fixes"][0]
    words = shlex.split(fix, comments=True)
    assert words[:3] == ["hpcrun", "resubmit", runs["gpu"].job_id]
    again = site.hpcrun(*words[1:], "--dry-run", "--json")
    assert again.returncode == 0, again.stderr
    plan = json.loads(json.loads(again.stdout)["plan.json"])
    # The script does not accumulate gradients, so the fix does not ask it to.
    assert (plan["micro_batch_per_gpu"], plan["gradient_accumulation_steps"]) == (2, 1)


def test_status_of_a_sweep_explains_every_run(site: Site) -> None:
    (site.project / "rank.py").write_text(SCRIPT)
    (site.project / "two.yaml").write_text(
        f"{JOB}sweep: {{how: [code, module]}}\nargs: ['{{how}}', x]\n"
    )
    size = ("--nodes", "1", "--gpus-per-node", "2", "--time", "10")
    sweep = json.loads(site.hpcrun("submit", "--json", "./two.yaml", *size).stdout)["sweep_id"]
    waited = site.hpcrun("wait", sweep).stdout
    for text in (waited, site.hpcrun("status", sweep).stdout, site.hpcrun("why", sweep).stdout):
        assert "the program stopped with ValueError: a bad batch" in text
        assert "no_such_module" in text


def test_why_explains_other_jobs_from_slurms_records(site: Site) -> None:
    """Missing output file, failed step, cancellation, signal, invalid interpreter."""
    scripts = {
        "output": ["echo hi", "--output=/no/such/folder/x.out"],
        "step": ["srun /bin/true; srun /bin/bash -c 'exit 3'; srun /bin/true"],
        "cancel": ["sleep 300"],
        "signal": ["echo step 1; kill -9 $$"],
        "execve": ["srun /no/such/program"],
        "env": ["exec /usr/bin/env nosuchpython train.py"],
        "code": ["echo step 1; exit 137"],
    }
    jobs, shown, waited = {}, {}, {}
    for how, script in scripts.items():
        # One after the other, because Slurm forgets the output file seconds after the end.
        jobs[how] = sbatch(site, *script)
        if how == "cancel":
            site.rig.run("scancel", jobs[how])
        waited[how] = site.hpcrun("wait", jobs[how]).stdout
        shown[how] = json.loads(site.hpcrun("status", "--json", jobs[how]).stdout)["runs"][0]
    causes = {how: one["diagnosis"]["cause"] or {} for how, one in shown.items()}
    assert causes["output"]["id"] == "no_output"
    assert (causes["step"], shown["step"]["state"]) == ({}, "COMPLETED")
    assert "a step of it ended with exit code 3" in shown["step"]["notes"][0]
    assert causes["signal"]["title"].startswith("the job was ended by signal 9")
    assert causes["execve"]["title"].startswith("the program /no/such/program could not be started")
    assert "nosuchpython" in causes["env"]["title"]
    assert "exit code 137 (as after signal 9)" in causes["code"]["title"]
    # The same in wait, without keys of hpcrun.
    assert causes["execve"]["title"] in waited["execve"]
    assert not any("setup:" in fix for fix in shown["execve"]["diagnosis"]["fixes"])
    # The accounting, which is delayed by seconds, shows the user who cancelled it.
    until(lambda: "by its user" in site.hpcrun("why", jobs["cancel"]).stdout, "the accounting")


def test_status_shows_the_resource_use_of_an_ended_run(site: Site) -> None:
    failed = submit(site, "code")
    assert site.hpcrun("wait", failed.run_id).returncode == 1

    def used() -> dict[str, Any] | None:
        answer = site.hpcrun("status", "--json", failed.run_id)
        check_json("status", json.loads(answer.stdout))
        found: dict[str, Any] = json.loads(answer.stdout)["runs"][0]["used"]
        return found if found["memory_asked_bytes"] else None

    found = until(used, "the accounting")
    assert (found["memory_asked_bytes"], found["cpus"]) == (8000 << 20, 4)
    assert (found["gpu_share"], found["gpu_looks"]) == (None, 0)
    assert (
        "of 7.8 GiB" in (text := site.hpcrun("status", failed.run_id).stdout) or "(7.8 GiB" in text
    )


def test_why_explains_a_failed_job_and_no_successful_one(site: Site) -> None:
    job = sbatch(site, "echo step 1; no_such_program --x; exit 127", "--error=%j.err")
    well = sbatch(site, "echo 'OSError: [Errno 28] No space left on device'")
    site.hpcrun("wait", job, well)
    answer = json.loads(site.hpcrun("why", "--json", job).stdout)["runs"][0]
    assert (answer["cause"]["class"], answer["cause"]["line"]) == ("missing_file", 1)
    assert answer["cause"]["file"].endswith(f"{job}.err")
    answer = json.loads(site.hpcrun("why", "--json", well).stdout)["runs"][0]
    assert (answer["cause"], answer["verdict"]) == (None, None)


@pytest.mark.thorough
def test_full_disk_is_the_cause(site: Site) -> None:
    node, full = site.rig.node_names[0], str(site.rig.shared / "full")
    (site.rig.shared / "full").mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "small", full]
    assert site.rig.on_node(node, mount).returncode == 0
    try:
        script, there = SCRIPT.replace("/mnt/full", full), f"slurm.nodelist={node}"
        insist(site, submit(site, "disk", "--set", there, script=script), "disk")
    finally:
        site.rig.on_node(node, ["umount", full])


@pytest.mark.thorough
def test_full_shared_memory_is_the_cause(site: Site) -> None:
    node = site.rig.node_names[0]
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "small", "/dev/shm"]
    assert site.rig.on_node(node, mount).returncode == 0
    try:
        there = f"slurm.nodelist={node}"
        insist(site, submit(site, "shm", "--set", there), "shm")
    finally:
        site.rig.on_node(node, ["umount", "/dev/shm"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "wanted"),
    [("interface", "nccl"), ("rendezvous", "rendezvous"), ("nan", "numerics")],
)
def test_errors_reported_by_torch_are_causes(site: Site, how: str, wanted: str) -> None:
    insist(site, submit(site, how), wanted)


@pytest.mark.thorough
def test_time_limit_is_the_cause(site: Site) -> None:
    run = submit(site, "sleep", "--time", "1")
    assert site.hpcrun("wait", run.run_id).returncode == 1
    assert cause_of(site, run)["class"] == "time_limit"
    fix = site.status(run)["diagnosis"]["fixes"][0]
    assert fix.startswith(f"hpcrun resubmit {run.job_id} --time 0:02:00")


@pytest.mark.thorough
def test_preemption_is_the_cause(site: Site) -> None:
    with preempting(site, "GraceTime=0 PreemptMode=CANCEL"):
        run = submit(site, "sleep")
        site.wait_for(run, "attempts/0/launched")
        preempt(site)
        assert site.hpcrun("wait", run.run_id).returncode == 1
        assert cause_of(site, run)["class"] == "preempted"


@pytest.mark.thorough
def test_dead_node_is_the_cause(site: Site) -> None:
    run = submit(site, "sleep")
    site.wait_for(run, "attempts/0/launched")
    host = run.record("begin.json")["host"]
    site.rig.kill_node(host)
    try:
        site.hpcrun("wait", run.run_id)
        cause = site.status(run)["diagnosis"]["cause"]
        assert cause["class"] == "node_fail"
        assert ": Not responding" in cause["title"], "the node's reason"
    finally:
        site.rig.revive_node(host)


@pytest.mark.thorough
def test_stalled_run_is_explained(site: Site) -> None:
    own = ("--set", "survive.when=[stalled]", "--set", "survive.stalled_after=30s")
    run = submit(site, "sleep", *own, "--set", "survive.max_attempts=1")
    assert site.hpcrun("wait", run.run_id).returncode == 1
    cause = cause_of(site, run)
    assert cause["id"] == "stalled", cause
