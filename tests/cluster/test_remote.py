"""hpcrun on a laptop with a cluster behind SSH, whose paths do not exist on the laptop."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.laptop import (
    FAR_HOME,
    SAY,
    SLEEPER,
    Laptop,
)
from tests.cluster.laptop import laptop as laptop
from tests.cluster.laptop import link as link
from tests.remote.link import Link
from tests.source import ROOT
from tests.waiting import until


@pytest.mark.parametrize(
    ("laptop", "way"),
    [
        ("", "paramiko"),
        pytest.param("bash", "jump", marks=pytest.mark.thorough),
        pytest.param("bash", "openssh", marks=pytest.mark.thorough),
    ],
    indirect=["laptop"],
)
def test_run_is_submitted_followed_and_parsed_over_ssh(laptop: Laptop, way: str) -> None:
    """submit, status, wait, logs and parse work with any login shell and banner."""
    config = laptop.folder / "home" / ".ssh" / "config"
    if way == "jump":
        gate = config.read_text().replace("mycluster", "gate")
        config.write_text(f"{gate}Host mycluster\n  ProxyJump gate\n{config.read_text()}")
    elif way == "openssh":
        laptop.write("hpcrun.yaml", (laptop.project / "hpcrun.yaml").read_text() + "ssh: openssh\n")
    laptop.write("say.sh", SAY)
    laptop.write("job.yaml", SLEEPER)
    assert laptop.does("status") == (
        "no runs yet in mycluster:~/my runs; hpcrun jobs lists what can be submitted\n"
    )
    made = laptop.json("submit", "job.yaml")
    far_run = laptop.far_runs / made["run_id"]
    assert made["run_dir"] == str(far_run)
    assert (far_run / "code" / "say.sh").read_text() == SAY
    laptop.does("wait", made["job_id"])
    assert str(far_run / "code") in laptop.does("logs", made["job_id"])
    assert laptop.json("status", made["job_id"])["runs"][0]["state"] == "COMPLETED"
    assert f"mycluster:{far_run}\n" in laptop.does("status", made["job_id"])
    parsed = laptop.json("parse", made["job_id"])["runs"][0]
    assert parsed["metrics"]["loss"]["last"]["value"] == 0.3
    assert not (laptop.project / "my runs").exists()
    clusters = laptop.folder / "home" / ".config" / "hpcrun" / "clusters"
    clusters.mkdir(parents=True)
    profile = (laptop.project / "hpcrun.yaml").read_text().replace("name: mine", "name: second")
    (clusters / "second.yaml").write_text(profile.replace("my runs", "other runs"))
    other = laptop.json("submit", "job.yaml", "--cluster", "second")
    laptop.does("wait", other["job_id"], "--cluster", "second")
    each = laptop.json("status", "--all")["runs"]
    assert {(one["cluster"], one["run_id"]) for one in each} == {
        ("mine", made["run_id"]),
        ("second", other["run_id"]),
    }
    if way == "openssh":
        laptop.does("connect", "--close")


@pytest.mark.thorough
def test_range_of_nodes_works_over_ssh(laptop: Laptop) -> None:
    """Files for each number of nodes are uploaded, and the allocated number is shown."""
    laptop.write(
        "say.sh", "echo $HPCRUN_NODES of 1-2 accumulate $HPCRUN_GRADIENT_ACCUMULATION_STEPS"
    )
    resources = "resources: {nodes: 1-2, gpus_per_node: 1, time: 5}"
    laptop.write("job.yaml", f"command: [bash, say.sh]\n{resources}\n")
    laptop.rig.run("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    try:
        made = laptop.json("submit", "job.yaml")
        laptop.does("wait", made["job_id"])
    finally:
        laptop.rig.run("scontrol", "update", "nodename=node2", "state=resume")
    assert "1 of 1-2 accumulate 2" in laptop.does("logs", made["job_id"])
    assert "1 × 1 GPUs" in laptop.does("status", made["job_id"])
    again = laptop.json("submit", "job.yaml")
    laptop.does("wait", again["job_id"])
    assert laptop.does("logs", again["job_id"]).count("2 of 1-2 accumulate 1") == 2
    assert "2 × 1 GPUs" in laptop.does("status", again["job_id"])


SERVER = """\
import http.server, sys
handler = http.server.SimpleHTTPRequestHandler
http.server.HTTPServer(("", int(sys.argv[1])), handler).serve_forever()
"""
ROLES = """\
resources: {gpus_per_node: 0, time: 10}
roles:
  server: {command: [python3, server.py, "{port}"], ready: "http://{host}:{port}/"}
  train: {command: [bash, -c, "echo step 1 loss 0.5 from $0", "{server.host}"]}
"""
SEARCH = """\
command: [bash, -c, "echo step 1 eval_loss $0", "{x}"]
resources: {gpus_per_node: 0, time: 10}
sweep: {search: METHOD, trials: 3, metric: eval_loss, x: {float: [1, 9]}}
"""


@pytest.mark.thorough
def test_roles_and_searches_work_over_ssh(laptop: Laptop) -> None:
    laptop.write("server.py", SERVER)
    laptop.write("roles.yaml", ROLES)
    roles = laptop.json("submit", "roles.yaml")
    searches = {}
    for method in ("random", "tpe"):
        laptop.write(f"{method}.yaml", SEARCH.replace("METHOD", method))
        searches[method] = laptop.json("submit", f"{method}.yaml")
    laptop.does("wait", roles["job_id"])
    shown = laptop.json("status", roles["job_id"])["runs"][0]["attempts"][0]["roles"]
    assert {each["state"] for each in shown.values()} == {"ended"}
    assert "step 1 loss 0.5 from " in laptop.does("logs", roles["job_id"], "--role", "train")
    for method, search in searches.items():
        laptop.does("wait", search["job_id"])
        found = laptop.json("status", search["job_id"])["search"]
        trials = found["trials"]
        assert [trial["rank"] for trial in trials] == [1, 2, 3], method
        values = [trial["value"] for trial in trials]
        assert values == sorted(values) == [float(trial["values"]["x"]) for trial in trials]
    again = laptop.json("resubmit", searches["tpe"]["sweep_id"], "--fresh")
    laptop.does("wait", again["job_id"])
    repeated = laptop.json("status", again["job_id"])["search"]["trials"]
    assert [trial["values"] for trial in repeated] == [trial["values"] for trial in trials]


def test_deleted_mirror_is_fetched_again(laptop: Laptop) -> None:
    """Names, records and logs are fetched again."""
    laptop.write("say.sh", SAY)
    laptop.write("job.yaml", SLEEPER)
    made = laptop.json("submit", "job.yaml")
    laptop.does("wait", made["job_id"])
    shutil.rmtree(laptop.state)
    assert [run["job_id"] for run in laptop.json("status")["runs"]] == [made["job_id"]]
    shutil.rmtree(laptop.state)
    assert "step 3 loss 0.3" in laptop.does("logs", made["job_id"])
    (mirror,) = laptop.state.glob("*/runs/2*")
    shutil.rmtree(mirror / "logs")
    shutil.rmtree(mirror / "attempts")
    (mirror / "attempts").symlink_to(laptop.project)
    assert "step 3 loss 0.3" in laptop.does("logs", made["run_id"])
    shutil.rmtree(laptop.far_runs / made["run_id"])
    assert laptop.json("status")["runs"] == []


def test_running_job_is_followed_cancelled_and_requeued(laptop: Laptop) -> None:
    """Every line is shown exactly once."""
    laptop.write("say.sh", SAY)
    laptop.write("job.yaml", SLEEPER + "env: {WAIT: '300'}\n")
    made = laptop.json("submit", "job.yaml")
    job = made["job_id"]
    follow = subprocess.Popen(
        laptop.argv("logs", "-f", job),
        cwd=laptop.project,
        env=laptop.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    seen = [""]
    while seen[-1] != "step 3 loss 0.3\n":
        seen.append(follow.stdout.readline())
        assert seen[-1], follow.communicate()
    # Lines of the batch script's log are interleaved.
    steps = [line for line in seen if line.startswith("step")]
    assert steps == [f"step {step} loss 0.{step}\n" for step in (1, 2, 3)]
    assert laptop.json("status", job)["runs"][0]["state"] == "RUNNING"
    assert laptop.does("shell", job, "--", "bash", "-c", "hostname; pwd").split() == [
        "node1",
        *f"{laptop.far_runs}/{made['run_id']}/code".split(),
    ]
    shown = laptop.does("top", "--json")
    assert f'"{job}"' in shown, shown
    laptop.does("cancel", job)
    out, err = follow.communicate()
    assert "loss" not in out, (out, err)
    assert (laptop.far_runs / made["run_id"] / "cancelled.json").exists()
    assert laptop.json("wait", job, code=1)["runs"][0]["state"] == "CANCELLED"
    again = laptop.json("resubmit", job)["runs"][0]
    assert (laptop.far_runs / again["run_id"] / "resubmitted.json").exists()
    laptop.does("cancel", again["job_id"])
    laptop.hpcrun("wait", again["job_id"])
    laptop.does("clean", "--yes", made["run_id"])
    assert [path.name for path in laptop.far_runs.glob("2*")] == [again["run_id"]]


def test_sweep_after_a_run_works_over_ssh(laptop: Laptop) -> None:
    laptop.write("say.sh", SAY)
    laptop.write("job.yaml", SLEEPER)
    laptop.write("sweep.yaml", SLEEPER + "sweep: {a: [1, 2]}\nenv: {A: '{a}'}\n")
    assert f"{laptop.far_runs}/" in laptop.does("submit", "job.yaml", "--dry-run")
    assert not laptop.far_runs.exists()
    first = laptop.json("submit", "job.yaml")
    sweep = laptop.json("submit", "sweep.yaml", "--after", first["job_id"])
    laptop.does("wait", sweep["job_id"])
    runs = laptop.json("parse", sweep["job_id"])["runs"]
    assert [run["metrics"]["loss"]["last"]["value"] for run in runs] == [0.3, 0.3]


def _cut(laptop: Laptop, link: Link, at: int) -> None:
    """Submit while the link is cut at message `at`, or a few earlier if there are fewer.

    Their number varies, because TCP determines the size of messages.
    """
    before = set(laptop.jobs())
    link.start(at)
    done = laptop.hpcrun("submit", "job.yaml", "--json")
    new = [folder for folder in laptop.jobs() if folder not in before]
    if done.returncode == 0:
        assert new == [json.loads(done.stdout)["run_dir"]], (at, done)
        assert (Path(new[0]) / "submitted.json").is_file(), (at, done)
    else:  # it was cut before the login
        assert (done.returncode, new) == (4, []), (at, done)
    if not link.is_cut:
        _cut(laptop, link, link.count - 3)


def test_cut_link_causes_no_second_job(laptop: Laptop, link: Link) -> None:
    laptop.does("submit", "job.yaml")  # it uploads the project, which later submissions need not do
    link.start()
    laptop.does("submit", "job.yaml")
    whole = link.count
    print("messages", whole)
    for part in (0.55, 0.75, 0.9):
        _cut(laptop, link, int(whole * part))


def test_follower_survives_a_cut_connection(laptop: Laptop, link: Link) -> None:
    """Every line is shown once, although the link is cut in between."""
    laptop.write("job.yaml", SLEEPER)
    goes_on = 'until [ -e "$HPCRUN_RUN_DIR/go" ]; do sleep 0.1; done'
    laptop.write("say.sh", f"echo first line; {goes_on}; echo last line\n")
    made = laptop.json("submit", "job.yaml")
    follow = subprocess.Popen(
        laptop.argv("logs", "-f", made["job_id"]),
        cwd=laptop.project,
        env=laptop.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    seen = [follow.stdout.readline()]
    while seen[-1] != "first line\n":
        seen.append(follow.stdout.readline())
        assert seen[-1], seen
    link.start(1)
    (laptop.far_runs / made["run_id"] / "go").touch()
    out, _ = follow.communicate()
    assert link.is_cut and follow.returncode == 0
    assert ("".join(seen) + out).count("line\n") == 2 and "last line\n" in out


@pytest.mark.thorough
def test_link_cut_at_any_message_causes_no_second_job(laptop: Laptop, link: Link) -> None:
    link.start()
    laptop.does("submit", "job.yaml")
    for at in range(1, link.count + 1):
        _cut(laptop, link, at)


def test_commands_of_the_readme_work(laptop: Laptop) -> None:
    text = (ROOT / "README.md").read_text().partition("## From your laptop\n")[2]
    text = text.partition("\n## ")[0]
    init, submit, fetch = re.findall(r"^\$ hpcrun ([^#\n]*)", text, re.MULTILINE)
    commands = [init, submit, "logs -f", "parse", fetch]
    profile = yaml.safe_load((laptop.project / "hpcrun.yaml").read_text())
    profile |= {"runs_dir": "$SCRATCH/hpcrun/runs", "python": "~/venv/bin/python"}
    laptop.write("hpcrun.yaml", yaml.safe_dump(profile))
    python = laptop.far_runs.parent / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    laptop.write("jobs/train.yaml", "script: train.py\nresources: {gpus_per_node: 0}\n")
    saves = "import os, pathlib\nsaves = pathlib.Path(os.environ['HPCRUN_CHECKPOINT_DIR'])\n"
    saves += "saves.mkdir(exist_ok=True)\n(saves / 'model.pt').touch()\n"
    steps = "for step in (1, 2):\n    print(f'step {step} loss {2 - step}')\n"
    laptop.write("train.py", saves + steps)
    said = [laptop.does(*command.split()) for command in commands]
    assert "hpcrun.yaml" in said[0] and "step 2 loss 0" in said[2] and "loss" in said[3]
    assert f"folder    {laptop.far_runs.parent}/scratch/hpcrun/runs/2" in said[1]
    assert [path.name for path in (laptop.far_runs.parent / "scratch").rglob("train.py")]
    assert list(laptop.project.glob("2*/checkpoints/model.pt"))


def test_invalid_remote_paths_are_found_before_submission(laptop: Laptop) -> None:
    laptop.write("jobs/train.yaml", "script: train.py\nsetup: {venv: ~/no-such}\n")
    laptop.write("train.py", "")
    done = laptop.hpcrun("submit", "train", "--gpus-per-node", "0")
    assert done.returncode == 2 and not laptop.far_runs.exists(), done
    assert f"{FAR_HOME}/no-such/bin/python: no such interpreter" in done.stderr
    laptop.write("say.sh", SAY)
    laptop.write("job.yaml", SLEEPER)
    assert "step 3 loss 0.3" in laptop.does("run", "job.yaml")  # here


def test_laptop_without_linux_features_works(laptop: Laptop) -> None:
    """init, submit, logs, parse, fetch and clean work without them."""
    laptop.be_no_linux()
    subprocess.run(["git", "init", "-q", str(laptop.project)], check=True)
    assert "partitions.high" in laptop.does("init", "--host", "mycluster", "--check", code=1)
    assert "kept" not in laptop.does("connect")
    laptop.write("say.sh", f'{SAY}mkdir -p "$HPCRUN_CHECKPOINT_DIR"; echo 1 >"$_/model.pt"\n')
    laptop.write("job.yaml", SLEEPER + "env: {WAIT: '1'}\n")
    job = laptop.json("submit", "job.yaml")["job_id"]
    assert "step 3 loss 0.3" in laptop.does("logs", "-f", job)
    assert laptop.json("status", job)["runs"][0]["state"] == "COMPLETED"
    assert "step 3 loss 0.3" in laptop.does("logs", job)
    assert laptop.json("parse", job)["runs"][0]["metrics"]["loss"]["last"]["value"] == 0.3
    laptop.does("fetch", job, "--to", "brought")
    assert list(laptop.project.glob("brought/**/model.pt"))
    assert len(laptop.json("status", "--all")["runs"]) == 1
    laptop.does("nodes")
    laptop.does("clean", "--yes", job)


def test_script_runs_in_the_copy_of_its_project_over_ssh(laptop: Laptop) -> None:
    """Arguments, folder and output files are those of sbatch, and all commands find the run."""
    text = (
        "#!/bin/bash\n#SBATCH --job-name=old --gres=gpu:1\n#SBATCH -o logs/%x.%j\n"
        'pwd; echo $SLURM_SUBMIT_DIR\nsrun bash ../say.sh\necho "step 1 loss 2.$1"\n'
        "echo fails >&2\nexit $2\n"
    )
    laptop.write("say.sh", 'echo from $(basename "$PWD"), host $SLURMD_NODENAME\n')
    laptop.write("sub/old.sbatch", text)
    (laptop.project / "sub" / "logs").mkdir()
    folder = laptop.project / "sub"
    laptop.sub = "sub"
    made = json.loads(laptop.does("submit", "old.sbatch", "--json", "--", "5", "3"))
    laptop.does("wait", made["job_id"], code=1)
    far_run = laptop.far_runs / made["run_id"]
    place = far_run / "code" / "sub"
    output = (place / "logs" / f"old.{made['job_id']}").read_text()
    assert output.splitlines()[:2] == [str(place)] * 2 and "from sub, host node" in output
    sent = (far_run / "job.sbatch").read_text().splitlines(keepends=True)
    assert "".join(line for line in sent if "inserted by hpcrun" not in line) == text
    assert laptop.does("logs", made["job_id"]) == output
    shown = laptop.json("status", made["job_id"])["runs"][0]
    assert (shown["state"], shown["exit_code"], shown["name"]) == ("FAILED", 3, "old")
    read = laptop.json("parse", made["job_id"])["runs"][0]
    assert read["metrics"]["loss"]["last"]["value"] == 2.5
    assert "exit code 3" in laptop.does("why", made["job_id"])
    assert list(folder.glob("logs/*")) == []

    # The original script and code, with the same arguments, also from the copy on the cluster.
    laptop.write("sub/old.sbatch", text + "# changed\n")
    laptop.write("say.sh", "echo new\n")
    shutil.rmtree(laptop.state)
    again = laptop.json("resubmit", made["job_id"])
    laptop.does("wait", again["job_id"], code=1)
    assert "from sub, host node" in laptop.does("logs", again["job_id"])
    laptop.write("sub/old.sbatch", text.replace("exit $2", "sleep 300"))
    now = laptop.json("resubmit", again["job_id"], "--code", "now")
    until(lambda: "step 1 loss 2.5" in laptop.does("logs", now["job_id"]), "the second job")
    assert "new\n" in laptop.does("logs", now["job_id"])
    laptop.does("cancel", now["job_id"])
    laptop.does("wait", now["job_id"], code=1)
    assert laptop.json("status", now["job_id"])["runs"][0]["state"] == "CANCELLED"


def test_array_of_a_script_runs_in_a_project_on_the_cluster(laptop: Laptop) -> None:
    folder = laptop.rig.shared / "pro ject"
    (folder / "out puts").mkdir(parents=True)
    (folder / "only here").write_text("exists\n")
    laptop.write(
        "old.sbatch",
        f"#!/bin/bash\n#SBATCH --array=3,5\n#SBATCH -o '{folder}/out puts/%a.out'\n"
        "echo task $SLURM_ARRAY_TASK_ID; cat 'only here'; pwd >$SLURM_ARRAY_TASK_ID\n"
        "exit $((SLURM_ARRAY_TASK_ID - 3))\n",
    )
    profile = (laptop.project / "hpcrun.yaml").read_text()
    laptop.write("hpcrun.yaml", f"{profile}project_dir: {folder}/missing\n")
    assert "missing does not exist on" in laptop.hpcrun("submit", "old.sbatch").stderr
    laptop.write("hpcrun.yaml", f"{profile}project_dir: {folder}\n")
    try:
        made = laptop.json("submit", "old.sbatch")
        laptop.does("wait", made["job_id"], code=1)
        assert laptop.does("logs", f"{made['job_id']}_5") == "task 5\nexists\n"
        assert (folder / "3").read_text() == f"{folder}\n"
        shown = laptop.json("status", made["job_id"])["runs"]
        states = {one["job_id"].rpartition("_")[2]: one["state"] for one in shown}
        assert states == {"3": "COMPLETED", "5": "FAILED"}
    finally:
        shutil.rmtree(folder)


def test_script_is_resubmitted_in_the_project_of_its_run(laptop: Laptop) -> None:
    """Called in another project of the same cluster, whose profile names another folder."""
    folders = [laptop.rig.shared / name for name in ("mine", "other")]
    for folder in folders:
        folder.mkdir()
    other = dataclasses.replace(laptop, sub="../other")
    profile = (laptop.project / "hpcrun.yaml").read_text()
    laptop.write("hpcrun.yaml", f"{profile}project_dir: {folders[0]}\n")
    laptop.write("../other/hpcrun.yaml", f"{profile}project_dir: {folders[1]}\n")
    laptop.write("go.sbatch", "#!/bin/bash\npwd >>ran\n")
    try:
        made = laptop.json("submit", "go.sbatch")
        laptop.does("wait", made["job_id"])
        again = other.json("resubmit", made["job_id"])
        other.does("wait", again["job_id"])
        assert (folders[0] / "ran").read_text() == f"{folders[0]}\n" * 2
        laptop.write("hpcrun.yaml", f"{profile}project_dir: {folders[1]}\n")
        refused = other.hpcrun("resubmit", made["job_id"])
        assert refused.returncode == 2, refused
        assert f"the earlier run worked in {folders[0]}, the new one" in refused.stderr
    finally:
        for folder in folders:
            shutil.rmtree(folder)
