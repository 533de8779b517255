"""The environment of a job on its nodes: modules, environments, copies, commands, local folder.

Every node of the rig has its own /tmp, which contains hpcrun's folder on the local disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.environment_job import TELL, left_on_nodes, run_job, shown, write_data, write_job
from tests.cluster.site import Site, Submitted
from tests.needs import require
from tests.waiting import until


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_every_node_copies_data_and_runs_node_commands(site: Site, launcher: str) -> None:
    """Copies and commands run once per node; exported variables reach all its ranks."""
    write_data(site)
    once = site.project / "once"
    counts = site.project / "counts"
    counts.mkdir()
    other_user = "setpriv --reuid=games --clear-groups"
    write_job(
        site,
        {
            "launcher": launcher,
            "resources": {"nodes": 2, "gpus_per_node": 2},
            "args": ["--data={local_dir}/in/data", "${HPCRUN_LOCAL_DIR}", "$HOME"],
            "env": {"CACHE": "{local_dir}/ca'che", "PLAIN": "a, b"},
            "stage": {"data set": "in/data", "$CORPUS": "{local_dir}/one"},
            "secrets": ["TOKEN"],
            "setup": {
                "commands": [f"echo once >>{once}", "export BATCH='from the batch'"],
                "node_commands": [
                    f"echo x >>{counts}/$(uname -n)",
                    # Files readable by others, and files on this disk that contain the secret.
                    f"{{ {other_user} ls $HPCRUN_LOCAL_DIR; "
                    f"grep -rs $TOKEN $HPCRUN_LOCAL_DIR; }} >>{site.project}/leaks || true",
                    'export SEEN="$(uname -n)\'s\n two lines" CACHE_SEEN=$CACHE',
                    "unset PLAIN",
                    "cd /",
                ],
            },
        },
    )
    corpus = str(site.project / "one.txt")
    run = run_job(site, env={"CORPUS": corpus, "TOKEN": "sesame_street"})
    assert once.read_text() == "once\n"
    assert (site.project / "leaks").read_text() == ""
    assert {path.name: path.read_text() for path in counts.iterdir()} == dict.fromkeys(
        site.rig.node_names, "x\n"
    )
    hosts = []
    for rank in range(4):
        seen = shown(run, rank)
        environ, host = seen["environ"], seen["host"]
        hosts.append(host)
        local = environ["HPCRUN_LOCAL_DIR"]
        assert local == f"/tmp/hpcrun-{run.run_id}.0.{environ['HPCRUN_NODE_RANK']}"
        assert seen["argv"] == [f"--data={local}/in/data", local, "$HOME"]
        assert environ["CACHE"] == environ["CACHE_SEEN"] == f"{local}/ca'che"
        assert environ["SEEN"] == f"{host}'s\n two lines"
        assert environ["BATCH"] == "from the batch"
        assert "PLAIN" not in environ
        assert seen["cwd"] == "/"
        assert environ["TORCH_EXTENSIONS_DIR"].endswith(f"/{environ['HPCRUN_ARCHITECTURE']}")
        assert seen["files"] == {
            "in/data/a.txt": "a\n",
            "in/data/link": "a\n",
            "in/data/locked/b.txt": "b\n",
            "one": "one\n",
        }
    assert sorted(hosts) == sorted(site.rig.node_names * 2)
    assert left_on_nodes(site) == {}
    assert (site.project / "data set" / "a.txt").exists()


HOLD = """
import os, pathlib, time
run, rank = os.environ["HPCRUN_RUN_DIR"], os.environ["RANK"]
pathlib.Path(run, f"told-{rank}").touch()
while not (rank == "3" and os.path.exists("fail")):
    time.sleep(0.1)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["cancel", "killed"])
def test_cancelled_and_killed_jobs_leave_nothing_on_the_nodes(site: Site, end: str) -> None:
    """A cancelled job, and one whose step Slurm kills, leave nothing on any node."""
    write_data(site)
    stage = {"data set": "data"}
    write_job(site, {"resources": {"nodes": 2, "gpus_per_node": 2}, "stage": stage}, HOLD)
    run = site.submit("./job.yaml")
    for rank in range(4):
        site.wait_for(run, f"told-{rank}")
    assert left_on_nodes(site).keys() == set(site.rig.node_names)
    if end == "cancel":
        site.hpcrun("cancel", run.run_id)
    else:
        (site.project / "fail").touch()
    assert site.follow(run).returncode == 1
    until(lambda: not left_on_nodes(site), f"clean nodes: {left_on_nodes(site)}")
    assert not list((run.folder / "attempts/0/local").glob("*[0-9]"))


def test_users_own_torchrun_leaves_nothing(site: Site) -> None:
    """torchrun creates a folder of logs in /tmp, unless another folder is set."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no_python"]
    show = "ls -d $PET_LOG_DIR/*_* /tmp/torchelastic_* || true"
    run = site.submit("--gpus-per-node", "0", "--", *torchrun, "bash", "-c", show)
    assert site.follow(run).returncode == 0, run.log()
    assert f"/tmp/hpcrun-{run.run_id}.0.0/" in run.log(), run.log()
    left = [site.rig.on_node(name, ["ls", "/tmp"]).stdout for name in site.rig.node_names]
    assert "torchelastic" not in "".join(left) and left_on_nodes(site) == {}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false", "a command of the setup failed with code 1"),
        ("exit 0", "the setup ended before the training was started"),
    ],
)
def test_failing_node_command_names_the_node(site: Site, command: str, message: str) -> None:
    last = site.rig.node_names[-1]
    write_job(
        site,
        {
            "resources": {"nodes": 2, "gpus_per_node": 2},
            "setup": {"node_commands": [f'[ "$(uname -n)" != {last} ] || {command}']},
        },
    )
    run = run_job(site, code=1)
    assert f"hpcrun: error: {last}: {message}" in run.log()
    assert run.record("end.json")["first_failure"]["host"] == last
    assert not list(run.folder.glob("told-*"))
    assert left_on_nodes(site) == {}


# Like DeepSpeed's ranks on CPUs: csrc/cpu/comm/shm.cpp.
SHARE_MEMORY = """
import os
name = "deepspeed_allreduce_buffer_{}_{MASTER_ADDR}_{MASTER_PORT}_{RANK}"
path = "/dev/shm/" + name.format(os.getuid(), **os.environ)
open(path, "w").close()
print("shared", path, flush=True)
"""


def test_shared_memory_of_deepspeed_is_removed(site: Site) -> None:
    write_job(site, {}, SHARE_MEMORY)
    run = run_job(site)
    _, _, path = (run.folder / "logs/0/rank-0.log").read_text().partition("shared ")
    assert path.startswith("/dev/shm/deepspeed_")
    left = [site.rig.on_node(name, ["ls", "/dev/shm"]).stdout for name in site.rig.node_names]
    assert Path(path.strip()).name not in str(left)


def test_full_local_disk_ends_the_job(site: Site) -> None:
    """A copy that does not fit ends the job before training."""
    last = site.rig.node_names[-1]
    disk = Path("/tmp/disk")
    for name in site.rig.node_names:
        site.rig.on_node(name, ["mkdir", str(disk)])
    small = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)]
    assert site.rig.on_node(last, small).returncode == 0
    site = Site(site.rig, site.project, {"local_dir": "$DISK"}).prepare()
    (site.project / "big").write_bytes(b"x" * 30_000_000)
    write_job(site, {"resources": {"nodes": 2}, "stage": {"big": "data/big"}})
    run = run_job(site, env={"DISK": str(disk)}, code=1)
    assert f"hpcrun: error: {last}: stage: cannot copy {site.project}/big to {disk}/hpcrun-" in (
        run.log()
    )
    assert "No space left on device" in run.log()
    assert f"(free on {disk}: " in run.log()
    assert left_on_nodes(site, str(disk)) == {}
    assert site.rig.on_node(last, ["umount", str(disk)]).returncode == 0
    # A folder that does not exist on a node, and an unset variable.
    for text, message in (
        ("/no/such", "local_dir: /no/such: no such folder"),
        ("$NOWHERE/x", "NOWHERE: not set on this node"),
    ):
        site = Site(site.rig, site.project, {"local_dir": text}).prepare()
        assert message in run_job(site, code=1).log()


@pytest.mark.parametrize("export", [None, "NONE"])
def test_clean_environment_contains_only_variables_of_the_job(
    site: Site, export: str | None
) -> None:
    """Variables of the shell are not passed, those of the job are; also with --export=NONE."""
    values = {"commas": "a,b=c,", "Lower_case": 'it\'s "x"\n$HOME', "EMPTY": ""}
    job: dict[str, Any] = {"environment": "clean", "env": values, "secrets": ["TOKEN"]}
    job["resources"] = {"nodes": 2}
    if export:
        job["slurm"] = {"export": export}
    write_job(site, job)
    shell = {"MINE": "x", "TOKEN": "s3cret", "LC_TIME": "C", "LD_PRELOAD": ""}
    run = run_job(site, env=shell)
    for rank in range(2):
        environ = shown(run, rank)["environ"]
        assert {name: environ[name] for name in values} == values
        assert "MINE" not in environ and "LD_PRELOAD" not in environ
        assert environ["TOKEN"] == "s3cret"
        assert environ["HOME"]
        assert environ["HPCRUN_RUN_ID"] == run.run_id
    job["environment"] = "inherit"
    write_job(site, job)
    if not export:
        assert shown(run_job(site, env=shell))["environ"]["MINE"] == "x"


# ---- Modules -----------------------------------------------------------------------------------

LMOD = Path("/usr/share/lmod/lmod/init/bash")
TCL = Path("/usr/share/modules/init/bash")


@pytest.mark.parametrize("environment", ["inherit", "clean"])
def test_modules_are_loaded_and_missing_ones_are_reported(site: Site, environment: str) -> None:
    """Modules are loaded in a batch shell without login profile; a missing one is named."""
    require(LMOD.exists() or TCL.exists(), "Lmod or Environment Modules")
    folder = site.project / "modulefiles"
    (folder / "tool").mkdir(parents=True)
    for version in ("1.0", "2.0"):
        (folder / "tool" / version).write_text(
            f"#%Module1.0\nsetenv TOOL_VERSION {version}\nprepend-path PATH /tool/{version}\n"
        )
    use = {"MODULEPATH": str(folder)}
    # Without the shell's MODULEPATH, the site's own is used; the profile adds to it.
    profile = {"setup": {"commands": [f"module use {folder}", "module load tool/1.0"]}}
    if environment == "clean":
        site = Site(site.rig, site.project, profile).prepare()
        write_job(site, {"environment": "clean"})
        assert shown(run_job(site))["environ"]["TOOL_VERSION"] == "1.0"
        return
    write_job(site, {"setup": {"modules": ["tool/1.0"], "node_commands": ["module load tool/2.0"]}})
    environ = shown(run_job(site, env=use))["environ"]
    assert environ["TOOL_VERSION"] == "2.0"
    assert "/tool/2.0" in environ["PATH"].split(":")
    write_job(site, {"setup": {"modules": ["tool", "no-such-module/9"]}})
    run = run_job(site, env=use, code=1)
    assert "module load no-such-module/9 failed: see above" in run.log()
    assert not list(run.folder.glob("told-*"))


def test_venv_is_created_on_each_local_disk(site: Site) -> None:
    """As on Alliance Canada: a module from a given folder, and SLURM_TMPDIR on the nodes."""
    require(LMOD.exists(), "Lmod")
    python, own = sysconfig.get_path("purelib"), "lib/python3*/site-packages"
    (site.project / "modulefiles" / "python").mkdir(parents=True)
    (site.project / "modulefiles" / "python" / "3.lua").write_text(
        f'prepend_path("PATH", "{Path(sys.executable).resolve().parent}")\nsetenv("MADE_BY", "3")\n'
    )
    job: dict[str, Any] = {
        "launcher": "torchrun",
        "resources": {"nodes": 2, "gpus_per_node": 1},
        "setup": {
            "module_paths": ["$PROJECT/modulefiles"],
            "modules": ["python/3"],
            "venv": "$SLURM_TMPDIR/env",
            "node_commands": [
                "python3 -m venv --without-pip $SLURM_TMPDIR/env",
                f"echo {python} >$(echo $SLURM_TMPDIR/env/{own})/torch.pth",  # for pip install
                f"echo WHERE = \"'$(uname -n)'\" >$(echo $SLURM_TMPDIR/env/{own})/of_node.py",
            ],
        },
    }
    write_job(site, job, "import of_node, sys\nsys.argv += [of_node.WHERE]\n" + TELL)
    for name in site.rig.node_names:
        site.rig.on_node(name, ["mkdir", "-p", "/tmp/of-job"])
    profile = {"local_dir": "$SLURM_TMPDIR", "env": {"SLURM_TMPDIR": "/tmp/of-job"}}
    Site(site.rig, site.project, profile).prepare()
    run = run_job(site, env={"PROJECT": str(site.project)})
    for rank, name in enumerate(site.rig.node_names):
        seen = shown(run, rank)
        assert (seen["host"], seen["argv"]) == (name, [name])
        assert seen["prefix"] == "/tmp/of-job/env" and seen["python"].startswith(seen["prefix"])
        assert seen["environ"]["MADE_BY"] == "3"
        assert seen["environ"]["HPCRUN_LOCAL_DIR"].startswith("/tmp/of-job/hpcrun-")
        site.rig.on_node(name, ["rm", "-r", "/tmp/of-job"])
    assert left_on_nodes(site) == {}


# ---- Interpreters ------------------------------------------------------------------------------


UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_uv_environment_is_created_from_the_lock_file(site: Site) -> None:
    """The project's .venv is created on the node according to uv.lock, and used for training."""
    require(UV, "uv")
    (site.project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.10"\n'
    )
    write_job(site, {"setup": {"uv": True, "commands": ["echo $VIRTUAL_ENV"]}})
    refused = site.hpcrun("submit", "./job.yaml")
    assert (refused.returncode, "uv.lock: no such file" in refused.stderr) == (2, True)
    (site.project / "uv.lock").write_text(
        'version = 1\nrequires-python = ">=3.10"\n\n[[package]]\nname = "p"\nversion = "1"\n'
        'source = { virtual = "." }\n'
    )
    path = f"{Path(UV or '').parent}:{os.environ['PATH']}"
    run = run_job(site, env={"PATH": path, "UV_CACHE_DIR": str(site.project / "uv-cache")})
    seen = shown(run)
    assert seen["prefix"] == seen["environ"]["VIRTUAL_ENV"] == str(site.project / ".venv")
    assert f"\n{site.project}/.venv\n" in run.log()


def test_limits_of_the_login_node_are_not_propagated(site: Site) -> None:
    """Slurm would propagate them (PropagateResourceLimits), but RDMA needs more locked memory."""
    limits = """
import json, os, pathlib, resource
told = {n: resource.getrlimit(getattr(resource, "RLIMIT_" + n)) for n in ("NOFILE", "CORE")}
pathlib.Path(os.environ["HPCRUN_RUN_DIR"], "told-0").write_text(json.dumps(told))
"""
    write_job(site, {}, limits)
    submit = ["prlimit", "--nofile=300", "--core=0", sys.executable, "-m", "hpcrun"]
    done = subprocess.run(
        [*submit, "submit", "./job.yaml", "--json"],
        cwd=site.project,
        env=site.environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    run = Submitted(answer["run_id"], answer["job_id"], Path(answer["run_dir"]))
    assert site.follow(run).returncode == 0, run.log()
    assert shown(run)["NOFILE"][0] > 300
    assert shown(run)["CORE"][0] == 0
