"""Bash runs the rendered scripts, and processes get arguments and environment of the plan.

Only harness.sh is replaced, by a script that prints its arguments and its environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.errors import InputError
from hpcrun.plan.build import build_plan
from hpcrun.plan.job import LOCAL_DIR
from hpcrun.plan.launchers import launch_argv
from hpcrun.plan.setup import literal
from hpcrun.plan.types import Plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from tests.plan.making import PLACE, cluster, job, plan, variables
from tests.render.golden import GOLDEN

TELL = "#!/bin/bash\nprintf '%s\\0' \"$@\"\nprintf '\\n\\0'\nenv -0\n"
HOSTILE = 'it\'s "a" $(touch oops) `b`; c\\*é\t%j'


def written(made: Plan) -> Path:
    """Write a run folder with a harness that prints its arguments and environment."""
    run_dir = Path(made.run_dir)
    (run_dir / "attempts" / "0").mkdir(parents=True)
    (run_dir / "disk").mkdir()
    setup = structs.replace(made.setup, local_dir=literal(f"{run_dir}/disk"))
    made = structs.replace(made, setup=setup)
    for file in render_files(made, open_templates(None)):
        text = TELL if file.name == "harness.sh" else file.text
        (run_dir / file.name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return run_dir


def shown(script: Path, *words: str, **env: str) -> tuple[list[str], dict[str, str]]:
    """Run a script; return the arguments and the environment that the harness printed."""
    done = subprocess.run(
        ["bash", str(script), *words],
        cwd=script.parent,
        env={
            "PATH": os.environ["PATH"],
            "HPCRUN_RUN_DIR": str(script.parent),
            "HPCRUN_ATTEMPT": "0",
            "HPCRUN_NODE_RANK": "0",
            **env,
        },
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    # The messages of node.sh go to the same log.
    expected = re.sub(rb"\A(hpcrun: [^\n]*\n)*", b"", done.stdout)
    arguments, _, rest = expected.partition(b"\n\0")
    pairs = (os.fsdecode(pair).partition("=") for pair in rest.split(b"\0") if pair)
    words_shown = [os.fsdecode(word) for word in arguments.split(b"\0")[:-1]]
    return words_shown, {name: value for name, _, value in pairs}


def on_disk(words: list[str], folder: str) -> list[str]:
    """Insert the folder on the node's disk."""
    return [word.replace(LOCAL_DIR, folder) for word in words]


def write_torchrun(made: Plan) -> None:
    """Replace the interpreter by a stub of torchrun that runs one rank."""
    python = Path(made.python)
    python.parent.mkdir()
    python.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" >"$HPCRUN_RUN_DIR/torchrun"\n'
        'while [ "$1" != --no_python ]; do shift; done\nshift\nexec "$@"\n'
    )
    python.chmod(0o755)


@pytest.fixture
def hostile(tmp_path: Path) -> Plan:
    """Plan the job of the golden case `hostile`, in folders with similar names."""
    made = build_plan(
        job((GOLDEN / "hostile" / "job.yaml").read_text()),
        cluster((GOLDEN / "hostile" / "cluster.yaml").read_text()),
        structs.replace(
            PLACE,
            run_dir=str(tmp_path / HOSTILE / "run"),
            project_dir=str(tmp_path / HOSTILE / "project"),
            cache_dir=str(tmp_path / HOSTILE / "cache"),
            python=str(tmp_path / HOSTILE / "bin" / "python"),
        ),
        extra_args=["--bytes", "\udcff\udcfe", "{run_id}", "{other}"],
    )
    staged = Path(made.project_dir) / "it's" / "{data}"
    staged.parent.mkdir(parents=True)
    staged.write_text("staged\n")
    return made


def test_batch_script_sets_the_environment_and_starts_srun(hostile: Plan) -> None:
    words, env = shown(written(hostile) / "job.sbatch", "body")
    assert words == ["launch", *launch_argv(hostile)]
    assert env["HPCRUN_RUN_DIR"] == hostile.run_dir
    assert env["PWD"] == hostile.project_dir
    wanted = variables(hostile)
    # Values known only on the node are set there: see the next test.
    del wanted["TORCH_EXTENSIONS_DIR"], wanted["SCRATCH"]
    del wanted["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"], wanted["TRITON_CACHE_DIR"]
    assert {name: env.get(name) for name in wanted} == wanted
    assert env["PATH"].split(":")[0] == str(Path(hostile.python).parent)
    assert env["PYTHONPATH"] == f"{hostile.run_dir}/code:{hostile.run_dir}/hook.pyz"
    assert [path.name for path in Path(hostile.project_dir).iterdir()] == ["it's"]
    assert not list(Path(hostile.run_dir).glob("oops"))


def test_node_script_expands_values_known_only_on_the_node(hostile: Plan) -> None:
    run_dir = written(hostile)
    write_torchrun(hostile)
    words, env = shown(run_dir / "node.sh", SLURM_PROCID="0")
    folder = f"{run_dir}/disk/hpcrun-{run_dir.name}.0.0"
    assert env["HPCRUN_LOCAL_DIR"] == folder
    assert env["SCRATCH"] == f"{folder}/it's #1"
    assert env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == f"{folder}/flight-"
    assert f"--at={folder}/{{x}}" in words
    cpu = re.escape(os.uname().machine) + r"-[0-9a-f]{8}(-sm[0-9-]+)?"
    assert re.fullmatch(rf".*/torch_extensions/[0-9a-f]{{8}}/{cpu}", env["TORCH_EXTENSIONS_DIR"])
    assert (Path(folder) / "a b").read_text() == "staged\n"
    assert Path(folder).stat().st_mode & 0o777 == 0o700


def test_search_paths_are_prepended(hostile: Plan) -> None:
    _, env = shown(written(hostile) / "job.sbatch", "body", PYTHONPATH="/mine:/theirs")
    own = f"{hostile.run_dir}/code:{hostile.run_dir}/hook.pyz"
    assert env["PYTHONPATH"] == f"{own}:/mine:/theirs"


def test_batch_script_without_body_starts_the_harness(hostile: Plan) -> None:
    words, env = shown(written(hostile) / "job.sbatch")
    assert words == ["batch"]
    assert "HPCRUN_FABRIC" not in env  # set by the body


def test_rank_under_torchrun_runs_the_program(hostile: Plan) -> None:
    run_dir = written(hostile)
    words, _ = shown(run_dir / "node.sh", "rank", HPCRUN_LOCAL_DIR="/its/disk")
    assert words == ["rank", *on_disk(hostile.program, "/its/disk")]
    assert words[-3:] == ["\udcff\udcfe", PLACE.run_id, "{other}"]


def test_torchrun_gets_world_size_and_address_and_starts_the_rank(hostile: Plan) -> None:
    run_dir = written(hostile)
    write_torchrun(hostile)
    words, _ = shown(
        run_dir / "node.sh",
        HPCRUN_RUN_DIR=str(run_dir),
        HPCRUN_NODE_RANK="1",
        MASTER_ADDR="10.0.0.1",
        MASTER_PORT="12345",
    )
    assert words == ["rank", *on_disk(hostile.program, f"{run_dir}/disk/hpcrun-run.0.1")]
    given = (run_dir / "torchrun").read_text().splitlines()
    assert given[:2] == ["-m", "torch.distributed.run"]
    assert {"--nnodes=1", "--nproc_per_node=1", "--node_rank=1"} <= set(given)
    assert {"--rdzv_backend=static", "--master_addr=10.0.0.1", "--master_port=12345"} <= set(given)


def test_ranks_of_srun_are_numbered_by_slurm(tmp_path: Path) -> None:
    made = structs.replace(
        plan("script: a.py\nlauncher: srun\nresources: {nodes: 2, gpus_per_node: 4}"),
        run_dir=str(tmp_path / "run"),
    )
    script = written(made) / "node.sh"
    shown(script, HPCRUN_NODE_RANK="1", SLURM_LOCALID="0")  # prepares the node for all its tasks
    words, env = shown(
        script,
        HPCRUN_NODE_RANK="1",
        SLURM_PROCID="5",
        SLURM_LOCALID="1",
        SLURM_NTASKS="8",
    )
    assert words == ["rank", *made.program]
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == ("5", "1", "8")


def test_bare_command_runs_unchanged(tmp_path: Path) -> None:
    made = structs.replace(
        plan("command: [printf, '%s\\0', \"it's\", '$HOME']"), run_dir=str(tmp_path / "run")
    )
    run_dir = written(made)
    env = {"HPCRUN_RUN_DIR": str(run_dir), "HPCRUN_ATTEMPT": "0", "HPCRUN_NODE_RANK": "0"}
    done = subprocess.run(
        ["bash", str(run_dir / "node.sh")],
        env={**os.environ, **env},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"it's\0$HOME\0"


def test_setup_commands_run_in_order_and_stop_at_a_failure(tmp_path: Path) -> None:
    def run(*commands: str) -> tuple[int, str]:
        made = structs.replace(
            plan("script: a.py"),
            run_dir=str(tmp_path / str(len(commands))),
            project_dir=str(tmp_path),
        )
        made = structs.replace(made, setup=structs.replace(made.setup, commands=list(commands)))
        done = subprocess.run(
            ["bash", str(written(made) / "job.sbatch"), "body"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.partition("launch")[0] + done.stderr

    host = os.uname().nodename
    assert run("echo one", "echo two") == (0, "one\ntwo\n")
    failed = f"hpcrun: error: {host}: a command of the setup failed with code 7\n"
    assert run("echo one", "(exit 7)", "echo two") == (7, f"one\n{failed}")
    ended = f"hpcrun: error: {host}: the setup ended before the training was started\n"
    assert run("exit 0") == (1, ended)


def test_srun_argv_depends_on_the_launcher() -> None:
    torchrun = plan("script: a.py\nresources: {nodes: 2, gpus_per_node: 4}")
    assert launch_argv(torchrun) == [
        *("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=16"),
        *("--kill-on-bad-exit=1", "--mpi=none", "--wait=600"),
    ]
    ranks = plan("script: a.py\nlauncher: srun\nresources: {nodes: 2, gpus_per_node: 4}")
    assert {"--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=4"} <= set(launch_argv(ranks))
    # It is not a failure if a bare command ends early on one node.
    assert "--wait=600" not in launch_argv(plan("command: [a]"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% extends 'hpcrun/job.sbatch.j2' %}\n{% block nccl %}{{ nope }}{% endblock %}", "nope"),
        ("{% extends 'hpcrun/job.sbatch.j2' %}\n\n{% block %}", "job.sbatch.j2:3"),
        ("{% extends 'nowhere.j2' %}", "nowhere.j2"),
    ],
)
def test_invalid_template_is_reported(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "job.sbatch.j2").write_text(text)
    with pytest.raises(InputError) as caught:
        render_files(plan("script: a.py"), open_templates(tmp_path))
    assert expected in caught.value.message
    assert caught.value.fix == "fix the template in templates/"


@pytest.mark.parametrize(
    ("inside", "message"),
    [("", "rendering takes more than 0.2 s"), ("x" * 2000, "more than 10,000,000 characters")],
)
def test_template_without_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, message: str
) -> None:
    monkeypatch.setattr("hpcrun.render.files._RENDER_LIMIT_S", 0.2 if not inside else 20.0)
    loops = "{% for i in range(90000) %}" * 2 + inside + "{% endfor %}" * 2
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "job.sbatch.j2").write_text(
        "{% extends 'hpcrun/job.sbatch.j2' %}{% block run %}" + loops + "{% endblock %}"
    )
    with pytest.raises(InputError, match=message):
        render_files(plan("script: a.py"), open_templates(tmp_path))


def test_runs_of_a_sweep_share_the_text_of_shipped_files() -> None:
    """Otherwise a dry run of 10,000 runs takes gigabytes."""
    templates = open_templates(None)
    one, other = (
        {file.name: file.text for file in render_files(plan("script: a.py"), templates)}
        for _ in range(2)
    )
    assert one["harness.sh"] is other["harness.sh"] and one["jobside.pyz"] is other["jobside.pyz"]


def test_directive_with_a_newline_is_refused() -> None:
    made = structs.replace(plan("script: a.py"), directives=[("comment", "a\nb")])
    with pytest.raises(InputError, match=r"slurm\.comment"):
        render_files(made, open_templates(None))


def test_module_is_imported_from_the_copy(tmp_path: Path) -> None:
    for folder, text in (("project", "now"), ("code", "then")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helping.py").write_text(f"SAID = {text!r}\n")
        (tmp_path / folder / "training.py").write_text(
            "import sys, helping\nprint(helping.SAID, __name__, sys.argv[1:])\n"
        )
    done = subprocess.run(
        [sys.executable, *plan("module: training\nargs: [-x, 1]").program[1:]],
        cwd=tmp_path / "project",
        env={"HPCRUN_CODE_DIR": str(tmp_path / "code"), "PYTHONPATH": str(tmp_path / "code")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "then __main__ ['-x', '1']\n"


def test_caches_in_the_home_are_used_only_if_they_exist(tmp_path: Path) -> None:
    files = {
        file.name: file.text for file in render_files(plan("script: a.py"), open_templates(None))
    }
    script = files["job.sbatch"] + files["node.sh"]
    lines = [line for line in script.splitlines() if re.match(r"\[ -n \"\$\{(HF|TRITON)", line)]
    assert len(lines) == 2

    def shown(**env: str) -> list[str]:
        there = {"HOME": str(tmp_path), "HPCRUN_CACHE_DIR": "/c", "HPCRUN_ARCHITECTURE": "x"}
        show = "\n".join([*lines, 'echo "${HF_HOME-}"', 'echo "$TRITON_CACHE_DIR"'])
        argv = ["bash", "-c", show]
        done = subprocess.run(argv, env=there | env, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert shown() == ["/c/huggingface", "/scratch/cache/triton/x"]
    assert shown(HF_HOME="/h", TRITON_CACHE_DIR="/t") == ["/h", "/t"]
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    assert shown()[0] == ""
    assert shown(XDG_CACHE_HOME="/x")[0] == "/c/huggingface"
    assert shown(XDG_CACHE_HOME=f"{tmp_path}/.cache", HOME="/h")[0] == ""


def test_rocm_uses_device_cuda_with_its_own_caches_and_container_options() -> None:
    text = "script: a.py\nsetup: {container: {image: a.sif}}"
    made = plan(text, "accelerator: rocm")
    assert made.accelerator == "cuda" and variables(made)["HPCRUN_DEVICE"] == "cuda"
    assert variables(made)["MIOPEN_USER_DB_PATH"] == "${HPCRUN_LOCAL_DIR}/miopen"
    files = {file.name: file.text for file in render_files(made, open_templates(None))}
    assert "--rocm" in files["node.sh"] and "--nv" not in files["node.sh"]
    assert "MIOPEN_USER_DB_PATH" not in variables(plan(text))
