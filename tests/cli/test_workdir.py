"""workdir: the folder in which a program starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.start_folder import find_start_folder
from hpcrun.context import load_context
from hpcrun.errors import SpecError
from hpcrun.plan import build_plan
from hpcrun.render import open_templates, render_files
from hpcrun.render.files import build_container_options
from hpcrun.spec import Cluster
from hpcrun.spec.job import JobSpec, Role
from tests.cli.calling import Caller
from tests.plan.making import PLACE, cluster, job, plan


@pytest.mark.parametrize(
    ("workdir", "start"),
    [
        ("pygcn", f"{PLACE.project_dir}/pygcn"),
        ("./a/../pygcn/", f"{PLACE.project_dir}/pygcn"),
        ("it's a 'folder'", f"{PLACE.project_dir}/it's a 'folder'"),
        (".", PLACE.project_dir),
        ("/scratch/data", "/scratch/data"),
        ("{run_dir}", PLACE.run_dir),
    ],
)
def test_program_starts_in_the_workdir(workdir: str, start: str) -> None:
    made = plan(f'script: pygcn/train.py\nworkdir: "{workdir}"')
    assert made.start_dir == start
    assert made.program[1] == f"{PLACE.code_dir}/pygcn/train.py"
    assert made.project_dir == PLACE.project_dir


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("..", "outside of the project"),
        ("a/../../b", "outside of the project"),
        ("$SCRATCH", "or an absolute path"),
        ("~/data", "or an absolute path"),
        ("{local_dir}", "or an absolute path"),
        ("{nothing}", "no such placeholder"),
    ],
)
def test_other_workdirs_are_refused(workdir: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(f'script: a.py\nworkdir: "{workdir}"')


def test_role_replaces_the_workdir_of_its_job() -> None:
    serve = Role(script="a.py", workdir=".")
    spec = JobSpec(workdir="pygcn", roles={"serve": serve, "train": Role(script="b.py")})
    assert [spec.for_role(name).workdir for name in spec.roles] == [".", "pygcn"]


def test_missing_workdir_is_refused(hpcrun: Caller) -> None:
    hpcrun.write("pygcn/train.py", "")
    hpcrun.write("job.yaml", "script: pygcn/train.py\nworkdir: pygnc\n")
    done = hpcrun("submit", "--dry-run", "job.yaml")
    assert done.code == 2 and "workdir: pygnc: the project has no such folder" in done.err


def test_missing_absolute_workdir_is_refused_unless_a_command_or_an_image_has_it(
    hpcrun: Caller, tmp_path: Path
) -> None:
    hpcrun.write("train.py", "")
    hpcrun.write("a.sif", "")
    missing = f"{tmp_path}/typo"
    text = f"script: train.py\nworkdir: {missing}\nresources: {{gpus_per_node: 0}}\n"
    message = f"workdir: {missing}: there is no such folder"
    for more, is_refused in (
        ("", True),
        (f"setup: {{commands: [mkdir {missing}]}}\n", False),
        ("setup: {container: {image: a.sif}}\n", False),
    ):
        hpcrun.write("job.yaml", text + more)
        done = hpcrun("submit", "--dry-run", "job.yaml")
        assert (message in done.err) == is_refused, done
        hpcrun.write("job.yaml", text.replace(missing, str(tmp_path)) + more)
        assert "such folder" not in hpcrun("submit", "--dry-run", "job.yaml").err


@pytest.mark.parametrize("is_there", [True, False])
def test_container_mounts_only_a_workdir_of_the_host(is_there: bool) -> None:
    place = structs.replace(PLACE, mounts_workdir=is_there)
    spec = job("script: a.py\nworkdir: /work\nsetup: {container: {image: a.sif}}")
    made = build_plan(spec, cluster(), place)
    container = made.setup.container
    assert container is not None and ("/work:/work" in container.mounts) == is_there
    assert "--pwd /work" in build_container_options(made)


@pytest.mark.parametrize(
    ("workdir", "container", "code", "expected"),
    [
        ("{run_dir}/it's/out", "", 0, "runs/r/it's/out"),
        ("{code_dir}/typo", "", 1, "workdir: the program cannot start in "),
        ("typo", "", 1, "workdir: the program cannot start in "),
        ("typo", "{image: a.sif}", 0, "project"),
        ("here", "{image: a.sif}", 0, "project/here"),
    ],
)
def test_job_starts_in_its_workdir_or_names_the_key(
    tmp_path: Path, workdir: str, container: str, code: int, expected: str
) -> None:
    (tmp_path / "project/here").mkdir(parents=True)
    place = structs.replace(
        PLACE,
        **{name: f"{tmp_path}/{name[:-4]}" for name in ("project_dir", "cache_dir")},
        run_dir=f"{tmp_path}/runs/r",
    )
    setup = f"setup: {{container: {container}}}\n" if container else ""
    made = build_plan(job(f'script: a.py\nworkdir: "{workdir}"\n{setup}'), cluster(), place)
    text = next(
        file.text
        for file in render_files(made, open_templates(tmp_path))
        if file.name == "job.sbatch"
    )
    script = text[text.index("# ---- Launch") :].partition("HPCRUN_PREFLIGHT=")[0]
    script = script.rpartition("\n")[0] + "\npwd\necho ${HPCRUN_WORKDIR-unset}\n"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == code, done
    if code:
        assert expected in done.stderr
        return
    start = f"{tmp_path}/{expected}"
    # Launching on hosts without Slurm reads the variable.
    assert done.stdout == f"{start}\n{'unset' if expected == 'project' else start}\n", done


def test_arguments_are_paths_in_the_workdir(hpcrun: Caller) -> None:
    hpcrun.write("pygcn/train.py", "")
    hpcrun.write("pygcn/data/cora.json", "")
    for name, is_missing in (("data/cora.json", False), ("data/corra.json", True)):
        text = f"script: pygcn/train.py\nargs: [--data_file, {name}]\nworkdir: pygcn\n"
        hpcrun.write("job.yaml", text)
        said = hpcrun("submit", "--dry-run", "--no-check", "job.yaml").err
        missing = f"{name}: the project has no such file; did you mean data/cora.json?"
        assert (missing in said) == is_missing, said


@pytest.mark.parametrize(
    ("workdir", "is_refused"),
    [
        ("{project_dir}/train", False),
        ("{project_dir}/other", True),
        ("{run_dir}/out", False),
        ("{code_dir}/train", False),
    ],
)
def test_command_of_a_workdir_with_placeholders(
    hpcrun: Caller, workdir: str, is_refused: bool
) -> None:
    hpcrun.write("train/run.sh", "#!/bin/bash\n").chmod(0o755)
    hpcrun.write("other/notes.txt", "")
    hpcrun.write("job.yaml", f'command: [./run.sh]\nworkdir: "{workdir}"\n')
    done = hpcrun("submit", "--dry-run", "job.yaml")
    assert ("command: ./run.sh: no such file" in done.err) == is_refused, done


def test_configuration_in_the_workdir_that_requests_deepspeed_is_refused_on_cpus(
    hpcrun: Caller,
) -> None:
    hpcrun.write("train/train.py", "from transformers import Trainer, TrainingArguments\n")
    hpcrun.write("train/conf.yaml", "deepspeed: ds.json\n")
    for given in ("conf.yaml", '"{project_dir}/train/conf.yaml"'):
        job = f"script: train/train.py\nframework: transformers\nargs: [{given}]\nworkdir: train\n"
        hpcrun.write("job.yaml", f"{job}resources: {{gpus_per_node: 0, nodes: 2}}\n")
        done = hpcrun("submit", "--dry-run", "job.yaml")
        assert done.code == 2 and "conf.yaml: deepspeed" in done.err, done


@pytest.mark.parametrize(
    ("workdir", "runs", "expected"),
    [
        ("/p/train", "/runs", "/p/train"),
        ("train", "/p/runs", "/p/train"),
        ("/p/runs/r/out", "/p/runs", None),
        ("/p/train", "/", "/p/train"),
        ("/r/code", "/r", None),
        ("{run_dir}", "/runs", None),
        ("{project_dir}/a/..", "/runs", "/p"),
        (None, "/runs", "/p"),
    ],
)
def test_start_folder_is_unknown_before_the_run_exists(
    hpcrun: Caller, workdir: str | None, runs: str, expected: str | None
) -> None:
    loaded = load_context(hpcrun.environ, hpcrun.project)
    context = structs.replace(loaded, cluster=Cluster(name="here"), runs_dir=Path(runs))
    found = find_start_folder(context, workdir, "/p").path
    assert found == (None if expected is None else Path(expected))


def test_start_folder_of_a_remote_job_is_that_of_the_project(hpcrun: Caller) -> None:
    loaded = load_context(hpcrun.environ, hpcrun.project)
    far = Cluster(name="far", host="far")
    context = structs.replace(loaded, cluster=far, project=Path("/mine"))
    assert find_start_folder(context, "train", "/far/code").path == Path("/mine/train")
    assert find_start_folder(context, "/far/code/train", "/far/code").path == Path("/mine/train")
    assert find_start_folder(context, "/scratch/data", "/far/code").path is None


@pytest.mark.slow
def test_script_reads_and_writes_in_the_workdir(hpcrun: Caller) -> None:
    hpcrun.write("pygcn/own.py", "NAME = 'own'\n")
    hpcrun.write(
        "pygcn/train.py",
        "import own\nprint(own.NAME, open('data.txt').read())\nopen('out.txt', 'w').close()\n",
    )
    hpcrun.write("pygcn/data.txt", "beside the script")
    hpcrun.write("settings.sh", "")
    hpcrun.write(
        "job.yaml",
        f"script: pygcn/train.py\nlauncher: srun\nworkdir: pygcn\nresources: {{gpus_per_node: 0}}\n"
        f"setup: {{python: {sys.executable}, commands: [source settings.sh]}}\n",
    )
    done = hpcrun.process("run", "job.yaml", "--no-check")
    assert done.code == 0 and "own beside the script" in done.out, done
    assert (hpcrun.project / "pygcn/out.txt").exists()
