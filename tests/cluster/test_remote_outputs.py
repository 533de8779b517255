"""Outputs and ports of remote runs on the laptop, and every command over SSH."""

# ruff: noqa: F811 - a fixture is imported, and is what the tests have as an argument

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.cluster.laptop import SLEEPER, Laptop, laptop  # noqa: F401
from tests.cluster.rig import HEAD
from tests.cluster.site import Site
from tests.cluster.sshd import SSHD
from tests.remote.link import Link
from tests.torch_extensions import CACHE
from tests.waiting import until

WRITES = """\
mkdir -p "$HPCRUN_CHECKPOINT_DIR/step 1" out
head -c 3000000 /dev/urandom >"$HPCRUN_CHECKPOINT_DIR/step 1/model.pt"
echo png >out/a.png
"""


@contextmanager
def started(laptop: Laptop, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Start hpcrun on the laptop."""
    process = subprocess.Popen(
        laptop.argv(*args),
        cwd=laptop.project,
        env=laptop.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_outputs_are_fetched_despite_a_cut_link(laptop: Laptop) -> None:
    """Checkpoints and plots are complete, even if the link is cut during the transfer."""
    laptop.write("write.sh", WRITES)
    laptop.write("job.yaml", SLEEPER.replace("say.sh", "write.sh"))
    job = laptop.json("submit", "job.yaml")
    laptop.does("wait", job["job_id"])
    far_run = laptop.far_runs / job["run_id"]
    plot = laptop.json("fetch", job["job_id"], "out/*.png")
    assert [one["name"] for one in plot["files"]] == ["code/out/a.png"]
    assert (laptop.project / job["run_id"] / "code/out/a.png").read_text() == "png\n"
    link = Link(2222, f"{laptop.rig.network.prefix}.2")
    laptop.through(link)
    link.start()
    assert not laptop.json("fetch", "--to", "all")["files"][0]["reason"]
    assert link.count > 40  # in so many pieces it came
    link.start(link.count * 2 // 3)
    done = laptop.hpcrun("fetch", "--to", "here")
    link.close()
    assert link.is_cut and done.returncode == 0 and "retrying in" in done.stderr, done
    for target in ("all", "here"):
        come = laptop.project / target / "checkpoints" / "step 1"
        assert [path.name for path in come.iterdir()] == ["model.pt"]
        model = far_run / "checkpoints" / "step 1" / "model.pt"
        assert (come / "model.pt").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("laptop", ["narrow"], indirect=True)
def test_transfer_host_is_used_for_code_and_outputs(laptop: Laptop) -> None:
    """Code and outputs are transferred through transfer_host; sbatch runs on the login node."""
    keys = laptop.rig.shared / "laptop-keys"
    config = (keys / "config").read_text().replace("Port 2222", "Port 2223")
    (keys / "dtn").write_text(re.sub("ForceCommand.*\n", "", config))
    address = f"{laptop.rig.network.prefix}.2"
    ssh = laptop.folder / "home" / ".ssh"
    host_key = " ".join((keys / "host_key.pub").read_text().split()[:2])
    with (ssh / "known_hosts").open("a") as known:
        known.write(f"[{address}]:2223 {host_key}\n")
    login = (ssh / "config").read_text()
    dtn = login.replace("mycluster", "dtn").replace("Port 2222", "Port 2223")
    (ssh / "config").write_text(login + dtn)
    laptop.write("write.sh", WRITES)
    laptop.write("weights.bin", "").write_bytes(os.urandom(300_000))
    laptop.write("job.yaml", SLEEPER.replace("say.sh", "write.sh"))
    refused = laptop.hpcrun("submit", "job.yaml")
    assert refused.returncode == 4 and "arrived incomplete" in refused.stderr, refused
    assert laptop.jobs() == [] and not [*laptop.far_runs.glob("2*")]
    with (laptop.project / "hpcrun.yaml").open("a") as profile:
        profile.write("transfer_host: dtn\n")
    argv = laptop.rig.argv_on(HEAD, [SSHD, "-D", "-e", "-f", str(keys / "dtn")])
    with (keys / "dtn.log").open("wb") as log:
        quiet = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        server = subprocess.Popen(argv, stderr=log, env=quiet, start_new_session=True)
    until(lambda: b"Server listening" in (keys / "dtn.log").read_bytes(), "sshd")
    job = laptop.json("submit", "job.yaml")
    laptop.does("wait", job["job_id"])
    far_run = laptop.far_runs / job["run_id"]
    assert (far_run / "code/weights.bin").read_bytes() == (
        laptop.project / "weights.bin"
    ).read_bytes()
    assert not laptop.json("fetch", "--to", "all")["files"][0]["reason"]
    model = "checkpoints/step 1/model.pt"
    assert (laptop.project / "all" / model).read_bytes() == (far_run / model).read_bytes()
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


@pytest.mark.parametrize(
    ("way", "bind"),
    [
        ("paramiko", "0.0.0.0"),
        ("openssh", "0.0.0.0"),
        pytest.param("paramiko", "127.0.0.1", marks=pytest.mark.thorough),
        pytest.param("openssh", "127.0.0.1", marks=pytest.mark.thorough),
    ],
)
def test_port_of_a_node_is_forwarded(laptop: Laptop, way: str, bind: str) -> None:
    """Servers that listen only on the node's loopback, such as a notebook, work as well.

    The laptop is no Linux.
    """
    laptop.be_no_linux()
    profile = laptop.project / "hpcrun.yaml"
    profile.write_text(f"{profile.read_text()}ssh: {way}\n")
    laptop.write("page.txt", "from the node\n")
    (laptop.project / "bytes").write_bytes(bytes(range(256)) * 4000)
    serve = f"command: [{sys.executable}, -m, http.server, '7431', --bind, {bind}]"
    laptop.write("job.yaml", f"{serve}\nresources: {{gpus_per_node: 0}}\n")
    job = laptop.json("submit", "job.yaml")["job_id"]
    until(lambda: laptop.json("status", job)["runs"][0]["state"] == "RUNNING", "a start")
    with started(laptop, "open", job, "7431") as opened:
        assert opened.stdout is not None
        url = opened.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", url), opened.communicate()
        with urllib.request.urlopen(f"{url.strip()}page.txt") as page:
            assert page.read() == b"from the node\n"
        with urllib.request.urlopen(f"{url.strip()}bytes") as page:
            assert page.read() == bytes(range(256)) * 4000
        opened.send_signal(signal.SIGINT)
        _, err = opened.communicate()
        assert opened.returncode == 130 and "that is port 7431 of node1" in err, err
    laptop.does("cancel", job)
    laptop.hpcrun("wait", job)
    gone = laptop.hpcrun("open", job, "7431")
    assert gone.returncode == 2 and "is CANCELLED" in gone.stderr
    if way == "openssh":
        laptop.does("connect", "--close")


def test_open_on_the_login_node_explains_the_forwarding(site: Site) -> None:
    """It prints the command for the laptop; servers on the node's loopback are refused."""
    serve = f"{sys.executable} -m http.server"
    (site.project / "serve.sh").write_text(
        f"cd /tmp; {serve} 7434 --bind 127.0.0.1 & {serve} 7435 & wait\n"
    )
    (site.project / "job.yaml").write_text(SLEEPER.replace("say.sh", "serve.sh"))
    run = site.submit("job.yaml")

    def opened() -> str:
        done = site.hpcrun("open", run.job_id, "7435")
        return done.stderr if done.returncode == 0 and "nothing responds" not in done.stderr else ""

    told = until(opened, "the server")
    address = site.rig.addresses["node1"]
    assert f"from your laptop: ssh -N -L 7435:{address}:7435 " in told
    alone = site.hpcrun("open", run.job_id, "7434")
    assert alone.returncode == 2 and "port 7434 of node1 responds only on that node" in alone.stderr
    assert "--bind_all" in alone.stderr
    site.hpcrun("cancel", run.job_id)


@pytest.mark.parametrize(
    "laptop",
    ["", *(pytest.param(shell, marks=pytest.mark.thorough) for shell in ("fish", "tcsh"))],
    indirect=True,
)
def test_every_command_works_over_ssh(laptop: Laptop) -> None:
    """Commands that read or change a run work over SSH, with different login shells.

    The laptop is no Linux.
    """
    laptop.be_no_linux()
    laptop.write("say.sh", "echo step 1 loss 0.5\nfalse\n")
    laptop.write("job.yaml", SLEEPER)
    first = laptop.json("submit", "job.yaml", "--set", "snapshot=true")
    laptop.does("wait", first["job_id"], code=1)
    laptop.write("say.sh", "for i in 1 2 3; do echo step $i loss 0.$i; done; sleep ${WAIT-0}\n")
    second = laptop.json("submit", "job.yaml", "--set", "env={WAIT: '300'}")
    job = second["job_id"]
    why = laptop.json("why", first["job_id"])
    assert "exit" in json.dumps(why), why
    shown = laptop.json("show", first["run_id"])
    assert first["run_id"] in json.dumps(shown)
    until(lambda: "loss 0.3" in laptop.hpcrun("logs", job).stdout, "its lines")
    compared = laptop.json("compare", first["run_id"], second["run_id"])
    assert len(compared["runs"]) == 2, compared
    assert laptop.does("hostfile", job).split() == ["node1", "slots=1"]
    usage = laptop.json("top", job)["jobs"][0]
    assert usage["job_id"] == job, usage
    (reported,) = laptop.json("report", first["run_id"])["runs"]
    assert reported["state"] == "FAILED" and reported["memory_asked_bytes"], reported
    assert laptop.does("shell", job, "--", "uname", "-n").endswith("node1\n")
    with started(laptop, "parse", "-f", "--json", job) as parse:
        assert laptop.json("requeue", job)["runs"][0]["requeued"]
        laptop.does("cancel", job)
        out, err = parse.communicate()
    assert json.loads(out)["runs"][0]["metrics"]["loss"]["last"]["value"] == 0.3, err
    laptop.does("cancel", laptop.json("resubmit", job)["job_id"])


def test_bad_nodes_are_recorded_on_the_cluster(laptop: Laptop) -> None:
    """As on the login node, they are listed, excluded and cleared."""
    laptop.write("say.sh", "true\n")
    laptop.write("job.yaml", SLEEPER + "slurm: {hold: true}\n")
    folder = laptop.far_runs.parent / "cache" / "bad-nodes"
    folder.mkdir(parents=True)
    found = {"node": "node2", "why": 'it\'s "odd"', "at": int(time.time()) - 60, "run_id": "r-1"}
    for name, mode in (("node2", 0o644), ("node1", 0o666)):
        (folder / name).write_text(json.dumps(found | {"node": name, "cluster": "mine"}) + "\n")
        (folder / name).chmod(mode)
    with laptop.at_most(1):
        (listed,) = laptop.json("nodes")["nodes"]
    assert (listed["node"], listed["why"]) == ("node2", found["why"])
    made = laptop.json("submit", "job.yaml")
    assert "node2 is excluded: it's" in "".join(made["notes"]), made
    shown = laptop.rig.run("scontrol", "show", "job", made["job_id"]).stdout
    assert "ExcNodeList=node2\n" in shown
    laptop.does("cancel", made["job_id"])
    assert "node2 may be used again" in laptop.does("nodes", "--clear", "node2")
    assert [path.name for path in folder.iterdir()] == ["node1"]
    with laptop.at_most(2):
        assert "node2" not in laptop.does("submit", "job.yaml", "--dry-run")
    assert "no nodes excluded" in laptop.does("nodes")


def test_remote_folders_are_checked(laptop: Laptop) -> None:
    """They are checked before the upload."""
    laptop.write("say.sh", "true\n")
    laptop.write("job.yaml", SLEEPER)
    profile = laptop.project / "hpcrun.yaml"
    before = profile.read_text()
    profile.write_text(before.replace("~/my runs", "/dev/null/runs"))
    done = laptop.hpcrun("submit", "job.yaml")
    assert done.returncode == 2 and "runs_dir: /dev/null: not a folder" in done.stderr, done
    profile.write_text(before.replace("~/my runs", "/proc/runs"))
    done = laptop.hpcrun("submit", "job.yaml")
    assert done.returncode == 2 and "/proc: cannot be written to" in done.stderr, done


# A remote Python, which is queried for modules, DeepSpeed's version, and validation.
ANSWERS = """\
#!/bin/bash
echo "${2:0:40}" >>"$HOME/asked"
case $2 in
  *find_spec*) echo - ;;
  *'version("deepspeed")'*) echo 9.9 ;;
  *) cat >"$HOME/config"; echo '{"version": "9.9", "problems": [["zero_optimization.x", "no"]]}' ;;
esac
"""


def test_remote_data_and_deepspeed_json_are_checked(laptop: Laptop) -> None:
    """This needs no additional round trips, and DeepSpeed's result is cached."""
    profile = laptop.project / "hpcrun.yaml"
    profile.write_text(profile.read_text().replace(sys.executable, "~/bin/python"))
    home = laptop.far_runs.parent
    python = home / "bin" / "python"
    python.parent.mkdir()
    python.write_text(ANSWERS)
    python.chmod(0o755)
    data = laptop.rig.shared / "data"
    data.mkdir(exist_ok=True)
    (data / "train.bin").touch()
    subprocess.run(["git", "init", "-q", str(laptop.project)], check=True)
    laptop.write(".gitignore", "*.bin\n")
    laptop.write("val.bin", "1")
    laptop.write("train.py", "import sys\n")
    laptop.write("ds.json", '{"zero_optimization": {"x": 1}}')
    here = laptop.write("here.txt", "1")
    job = "script: train.py\nresources: {gpus_per_node: 1}\nframework: deepspeed\n"
    job += "launcher: torchrun\nargs: ["
    job += f"--data-a, {data}/train.bin, --data-b, {data}/test.bin, "
    job += f"--data-c, {here}, --data-d, val.bin, --save-dir, /no/such, --data-e, {data}/prefix]\n"
    laptop.write("job.yaml", job)
    with laptop.at_most(3):
        notes = laptop.json("submit", "job.yaml", "--dry-run")["notes"]
    about = [note for note in notes if note.startswith("args: --data-")]
    assert about == [
        "args: --data-d val.bin: git ignores it, so it is not uploaded with the code; copy it to "
        "the cluster, and give its path there",
        f"args: --data-b {data}/test.bin: mycluster has no such file or folder",
        f"args: --data-c {here}: a path of this machine, which does not exist on mycluster",
    ], notes
    with laptop.at_most(2):  # the Python has all modules
        laptop.does("submit", "job.yaml", "--dry-run")
    laptop.write("job.yaml", job + "deepspeed: {config_file: ds.json}\n")
    for _ in range(2):
        done = laptop.hpcrun("submit", "job.yaml", "--dry-run")
        assert done.returncode == 2 and "DeepSpeed 9.9 refuses it: no" in done.stderr
    assert json.loads((home / "config").read_text())["zero_optimization"]["x"] == 1
    asked = (home / "asked").read_text()
    assert asked.count("Check a config with the installed") == 1, asked
    shutil.rmtree(data)


LOADS = """\
import sys, torch
from pathlib import Path
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as gather
(file,) = Path(sys.argv[1]).rglob("mp_rank_00_model_states.pt")
model = torch.load(file, weights_only=False)["module"]
whole = gather(str(file.parent.parent), tag=file.parent.name)
assert all(torch.equal(whole[name], model[name]) for name in whole)
print("parameters", sum(one.numel() for one in whole.values()))
"""


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_training_on_two_remote_hosts_is_fetched(laptop: Laptop) -> None:
    """A ZeRO-2 checkpoint with parts from both hosts is fetched."""
    profile = laptop.project / "hpcrun.yaml"
    known = yaml.safe_load(profile.read_text())
    known |= {"cache_dir": str(CACHE), "env": {"OMP_NUM_THREADS": "1"}}
    profile.write_text(yaml.safe_dump(known))
    shape = ("--nodes", "2", "--gpus-per-node", "1", "--time", "10", "--set", "precision=fp32")
    argv = ("submit", "zero2-4gpu", "--json", *shape, "--", "--steps", "20")
    made = json.loads(laptop.does(*argv))
    done = laptop.hpcrun("logs", "-f", made["job_id"], timeout=600)  # two trainings on few CPUs
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    steps = re.findall(r'"step": (\d+), "loss"', done.stdout)
    assert steps == [str(step) for step in range(1, 21)], done.stdout
    (run,) = laptop.json("parse", made["job_id"], "--full")["runs"]
    loss = run["metrics"]["loss"]
    assert loss["steps"] == list(range(1, 21)) and loss["values"][-1] < loss["values"][0]
    assert laptop.json("status", made["job_id"])["runs"][0]["state"] == "COMPLETED"
    laptop.does("fetch", made["job_id"], "--to", "brought")
    brought, there = laptop.project / "brought", laptop.far_runs / made["run_id"]
    parts = sorted(path.name for path in brought.rglob("*optim_states.pt"))
    assert [name[:9] for name in parts] == ["zero_pp_r", "zero_pp_r"]
    for path in brought.rglob("*.pt"):
        assert path.read_bytes() == (there / path.relative_to(brought)).read_bytes()
    loads = [sys.executable, "-c", LOADS, str(brought)]
    loaded = subprocess.run(loads, capture_output=True, text=True, check=False)
    assert loaded.stdout.endswith("parameters 459392\n"), loaded
