"""Code, working directory, templates and environment of a job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.site import Site, Submitted

TELL = """
import json, os, sys
told = {"version": VERSION, "argv": sys.argv[1:], "cwd": os.getcwd(), "name": __name__,
        "file": __file__, "host": os.uname().nodename, "environ": dict(os.environ)}
rank = os.environ.get("RANK", "0")
open(f"{os.environ['HPCRUN_RUN_DIR']}/told-{rank}.json", "w").write(json.dumps(told))
"""


def write_program(path: Path, version: int) -> None:
    """Write a program that reports its environment, its version and that of the library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"import road_library\nVERSION = {version}, road_library.VERSION\n{TELL}")
    (path.parent / "__init__.py").touch()
    (path.parents[1] / "road_library.py").write_text(f"VERSION = {version}\n")


def shown(run: Submitted, rank: int = 0) -> dict[str, object]:
    """Return the report of the program."""
    answer: dict[str, object] = json.loads((run.folder / f"told-{rank}.json").read_text())
    return answer


@pytest.fixture
def gate(site: Site) -> Iterator[Submitted]:
    """A running job on which other jobs depend; it ends when the file ``go`` is created."""
    path = site.rig.shared / f"{site.project.name}-go"
    command = f"until [ -e '{path}' ]; do sleep 0.1; done"
    run = site.submit("--name", str(path), "--", "bash", "-c", command)
    site.wait_for(run, "attempts/0/begin.json")
    yield run
    path.touch()


def open_gate(site: Site) -> None:
    """Let the waiting jobs run."""
    (site.rig.shared / f"{site.project.name}-go").touch()


def test_job_uses_the_code_of_its_submission(site: Site, gate: Submitted) -> None:
    """Edits while jobs are pending affect only those that run in place."""
    project = site.project
    outside = project.with_name(project.name + "-outside")
    write_program(project / "pkg" / "train.py", 1)
    write_program(outside / "pkg" / "train.py", 1)
    (project / "read.sh").write_text("cat words.txt >out.txt\n")
    jobs = {
        "script": "script: pkg/train.py",
        "absolute": f"script: {project}/pkg/train.py",
        "module": "module: pkg.train",
        "in-place": "script: pkg/train.py\nsnapshot: false",
        "module-in-place": "module: pkg.train\nsnapshot: false",
        "outside": f"script: ../{outside.name}/pkg/train.py",
        "command": "command: [bash, read.sh]",
    }
    runs = {}
    for name, lines in jobs.items():
        (project / f"{name}.yaml").write_text(
            f"{lines}\nresources: {{gpus_per_node: 0}}\n"
            + ("" if name == "command" else "launcher: srun\nargs: [x]\n")
        )
        runs[name] = site.submit(f"./{name}.yaml", "--after", gate.run_id)
    write_program(project / "pkg" / "train.py", 2)
    write_program(outside / "pkg" / "train.py", 2)
    (project / "words.txt").write_text("of now\n")
    open_gate(site)
    for run in runs.values():
        done = site.follow(run)
        assert done.returncode == 0, done.stdout + done.stderr
    versions = {name: shown(run)["version"] for name, run in runs.items() if name != "command"}
    # The version of the program, and that of the project's library.
    assert versions == {
        **{name: [1, 1] for name in ("script", "absolute", "module")},
        **{name: [2, 2] for name in ("in-place", "module-in-place")},
        "outside": [2, 1],
    }
    folders = {
        name: project if name.endswith("in-place") else run.folder / "code"
        for name, run in runs.items()
    }
    folders["outside"] = outside
    for name in versions:
        here = shown(runs[name])
        assert (here["cwd"], here["argv"], here["name"]) == (str(project), ["x"], "__main__"), name
        assert Path(str(here["file"])).resolve() == folders[name] / "pkg" / "train.py"
    assert (project / "out.txt").read_text() == "of now\n"


def test_module_is_importable_in_worker_processes(site: Site) -> None:
    """Worker processes import modules from the run's copy."""
    (site.project / "pkg").mkdir()
    (site.project / "pkg" / "__init__.py").touch()
    (site.project / "pkg" / "work.py").write_text(
        "import multiprocessing\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(*pool.map(double, [21]))\n"
    )
    (site.project / "job.yaml").write_text(
        "module: pkg.work\nlauncher: srun\nresources: {gpus_per_node: 0}\n"
    )
    run = site.submit("./job.yaml")
    assert site.follow(run).returncode == 0, run.log()
    assert "\n42\n" in run.log()


def test_files_ignored_by_git_are_not_copied(site: Site) -> None:
    """A script that is not part of the copy is refused before submission."""
    subprocess.run(["git", "init", "-q", site.project], check=True)
    (site.project / ".gitignore").write_text("made/\n")
    write_program(site.project / "made" / "train.py", 1)
    (site.project / "job.yaml").write_text("script: made/train.py\nlauncher: srun\n")
    done = site.hpcrun("submit", "./job.yaml")
    assert done.returncode == 2
    assert "made/train.py" in done.stderr
    assert "snapshot: false" in done.stderr
    assert list((site.rig.shared / "runs").glob("*")) == []


def test_submodules_are_copied(site: Site) -> None:
    """A git checkout inside the project is copied, except for files that it ignores."""
    inner = site.project / "lib"
    inner.mkdir()
    (inner / ".gitignore").write_text("data\n")
    (inner / "data").write_text("many bytes")
    (inner / "road_lib.py").write_text("WORD = 'of the submodule'\n")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost"]
    for folder in (inner, site.project):
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        subprocess.run(["git", "add", "."], cwd=folder, check=True, capture_output=True)
        subprocess.run([*git, "commit", "-qm", "first"], cwd=folder, check=True)
    (inner / "road_lib.py").write_text("WORD = 'of the submodule, edited'\n")
    (site.project / "train.py").write_text("import lib.road_lib\nprint(lib.road_lib.WORD)\n")
    (site.project / "job.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {gpus_per_node: 0}\n"
    )
    run = site.submit("./job.yaml")
    assert site.follow(run).returncode == 0, run.log()
    assert "of the submodule, edited" in run.log()
    copied = {path.name for path in (run.folder / "code" / "lib").iterdir()}
    assert copied - {"__pycache__"} == {".gitignore", "road_lib.py"}


def test_project_template_is_used(site: Site) -> None:
    (site.project / "templates").mkdir()
    (site.project / "templates" / "job.sbatch.j2").write_text(
        '{% extends "hpcrun/job.sbatch.j2" %}\n'
        "{% block job_environment %}\n{{ super() }}\n"
        "export OF_TEMPLATE={{ plan.name | bash }}\n{% endblock %}\n"
    )
    run = site.submit("--name", "it's me", "--", "bash", "-c", 'echo "<$OF_TEMPLATE> <$OF_JOB>"',
                      "--", env={"OF_JOB": "login"})  # fmt: skip
    assert site.follow(run).returncode == 0, run.log()
    assert "<it's me> <login>" in run.log()


def run_in(site: Site, allocation: list[str]) -> tuple[subprocess.CompletedProcess[str], Submitted]:
    """Run hpcrun run inside an salloc of two nodes."""
    done = subprocess.run(
        [
            *("salloc", "--nodes=2", *allocation, sys.executable, "-m", "hpcrun", "run"),
            *("./job.yaml", "--nodes", "2", "--gpus-per-node", "2"),
        ],
        cwd=site.project,
        env=site.environ() | site.rig.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    (folder,) = (site.rig.shared / "runs").iterdir()
    return done, Submitted(folder.name, "", folder)


@pytest.mark.parametrize("allocation", [["--gres=gpu:2"], ["--gres=gpu:2", "--ntasks-per-node=4"]])
def test_run_uses_its_allocation(site: Site, allocation: list[str]) -> None:
    """hpcrun run inside salloc uses both nodes with all four ranks, and submits nothing.

    This holds if the allocation has fewer CPUs than ranks, or other tasks than the job.
    """
    write_program(site.project / "pkg" / "train.py", 1)
    (site.project / "job.yaml").write_text("script: pkg/train.py\nlauncher: srun\n")
    done, run = run_in(site, allocation)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    ranks = [shown(run, rank) for rank in range(4)]
    names = site.rig.node_names
    assert [rank["host"] for rank in ranks] == [names[0], names[0], names[1], names[1]]
    environs = [rank["environ"] for rank in ranks]
    assert len({(e["SLURM_JOB_ID"], e["MASTER_ADDR"]) for e in environs}) == 1  # type: ignore[index]
    assert all(e["WORLD_SIZE"] == "4" for e in environs)  # type: ignore[index]
    jobs = site.rig.run("squeue", "-h", "--states=all", "-o", "%Z").stdout
    assert run.run_id not in jobs
    assert site.status(run)["state"] == "COMPLETED"


def test_uneven_allocation_is_refused(site: Site) -> None:
    """srun would start three ranks on the node with more CPUs."""
    write_program(site.project / "pkg" / "train.py", 1)
    (site.project / "job.yaml").write_text("script: pkg/train.py\nlauncher: srun\n")
    done, run = run_in(site, ["--gres=gpu:2", "--ntasks=6"])
    assert done.returncode == 1
    assert "more ranks than the 2 that the job wants on each node" in run.log()


AROUND = """
SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_NNODES=9 SLURM_NTASKS=99 SLURM_NTASKS_PER_NODE=9
SLURM_CPUS_PER_TASK=77 SLURM_MEM_PER_CPU=99999 SLURM_NODEID=8 SLURM_PROCID=5 SLURM_LOCALID=5
SLURM_RESTART_COUNT=3 SLURM_CLUSTERS=other SLURM_EXPORT_ENV=NONE SLURM_JOB_NAME=other
SLURM_SUBMIT_DIR=/nowhere SLURM_OVERCOMMIT=9 SBATCH_PARTITION=nosuch SBATCH_JOB_NAME=other
SBATCH_REQUEUE=9 SBATCH_NO_REQUEUE=9 SRUN_CPUS_PER_TASK=77 SALLOC_PARTITION=nosuch
SLURMD_NODENAME=nosuch RANK=3 LOCAL_RANK=3 WORLD_SIZE=8 LOCAL_WORLD_SIZE=8 NODE_RANK=9 GROUP_RANK=9
MASTER_ADDR=10.9.9.9 MASTER_PORT=1 TORCHELASTIC_RUN_ID=x OMPI_COMM_WORLD_RANK=2 PMI_RANK=9
HPCRUN_RUN_DIR=/nowhere HPCRUN_ATTEMPT=4 HPCRUN_WORLD_SIZE=8 HPCRUN_NODE_RANK=9
GLOO_SOCKET_IFNAME=nosuch0 NCCL_SOCKET_IFNAME=nosuch0 CUDA_VISIBLE_DEVICES=7
"""


def test_job_inherits_nothing_from_an_enclosing_job(site: Site) -> None:
    """Variables of a surrounding job or launcher are not passed on."""
    write_program(site.project / "pkg" / "train.py", 1)
    (site.project / "job.yaml").write_text("script: pkg/train.py\nlauncher: srun\n")
    around = dict(word.split("=") for word in AROUND.split()) | {"MINE": "stays"}
    run = site.submit("./job.yaml", "--nodes", "2", "--gpus-per-node", "1", env=around)
    done = site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        environ = shown(run, rank)["environ"]
        assert isinstance(environ, dict)
        assert environ["MINE"] == "stays"
        kept = {name for name, value in around.items() if environ.get(name) == value}
        assert kept == {"MINE"}
        assert environ["SLURM_JOB_ID"] == run.job_id
        assert environ["WORLD_SIZE"] == "2"
    assert site.status(run)["state"] == "COMPLETED"
