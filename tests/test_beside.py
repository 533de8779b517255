"""Steps of the harness beside those of the ranks, by stand-ins for Slurm; and the guard."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcrun.assets import build_archive, shipped_folder
from hpcrun.render.files import ARCHIVE
from tests.harness_job import Job, job

__all__ = ["job"]

TEMPLATES = shipped_folder("templates")
# Of two nodes; a step begins late, and knows what srun was given.
STAND_INS = {
    "srun": """#!/bin/bash
        until [ "$1" = bash ]; do
            [[ $1 != --job-name=* ]] || { name=${1#*=}; sleep 0.5; }
            shift
        done
        echo "${name-ranks} ${SLURM_EXPORT_ENV-} ${SLURM_MEM_PER_NODE-}" >>"$HPCRUN_RUN_DIR/steps"
        exec "$@"
        """,
    "scontrol": """#!/bin/bash
        [[ $* != "show hostnames"* ]] || tr , '\\n' <<<"$3"
        """,
    "squeue": "#!/bin/bash\n",
}


def stand_ins(folder: Path, programs: dict[str, str]) -> str:
    """Write programs, and return a PATH that has them first."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.slow
def test_ranks_with_a_spare_node_begin_once_the_guard_stands(job: Job) -> None:
    """Under a site's --export=NONE, too, which would leave the guard no environment."""
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1,n2", "SLURM_JOB_NUM_NODES": "2"}
    env |= {"HPCRUN_SPARE_NODES": "1", "SLURMD_NODENAME": "n1", "SLURM_EXPORT_ENV": "NONE"}
    env |= {"SLURM_MEM_PER_NODE": "4096", "HPCRUN_SURVIVE": "node_fail", "HPCRUN_MAX_ATTEMPTS": "9"}
    env["PATH"] = stand_ins(job.run.path / "bin", STAND_INS)
    assert job.finish(job.start(**env))[0] == 0, job.log()
    assert (job.run.path / "steps").read_text() == "hpcrun-guard ALL \nranks ALL 4096\n"


def test_a_bare_command_is_asked_to_save(job: Job) -> None:
    """By a step that knows the run and its attempt alone, as the batch script does."""
    job.write(
        'trap "touch asked; exit" TERM; touch ready; while :; do sleep 0.02; done',
        setup="export HPCRUN_LAUNCHER=none",
    )
    process = job.start(SLURMD_NODENAME="n1")
    job.wait_for("ready")
    env = {"PATH": os.environ["PATH"], "HPCRUN_RUN_DIR": str(job.run.path), "HPCRUN_ATTEMPT": "0"}
    harness = str(job.run.path / "harness.sh")
    # The step's srun has the same words; in a sandbox the guards of other nodes are here, too.
    others = [
        subprocess.Popen(
            [name, "-c", "read", harness, "node"],
            executable="/bin/bash",
            env={**env, "SLURMD_NODENAME": node},
            stdin=subprocess.PIPE,
        )
        for name, node in (("srun", "n1"), ("bash", "n2"))
    ]
    subprocess.run(["bash", harness, "ask"], env={**env, "SLURMD_NODENAME": "n1"}, check=True)
    job.wait_for("asked")
    assert job.finish(process)[0] == 0
    for other in others:
        other.communicate(b"\n")
        assert other.returncode == 0


@pytest.mark.slow
def test_a_job_whose_script_has_died_with_its_node_is_started_again(tmp_path: Path) -> None:
    """By the guard on another node: where the beat stands, and Slurm has taken the node away."""
    for made in ("attempts/0", "logs"):
        (tmp_path / made).mkdir(parents=True)
    (tmp_path / "attempts/0/beat").write_text("1\n")
    for name in ("batch.sh", "jobside.sh"):
        (tmp_path / name).write_bytes((TEMPLATES / name).read_bytes())
    (tmp_path / ARCHIVE).write_bytes(build_archive())
    scontrol = """#!/bin/bash
        echo "$*" >>asked
        case $* in
        *"show job"*)
            n=$(grep -c "show job" asked)
            echo "JobId=7 NodeList=n$((n > 2 ? 2 : 1)),n3"
            ;;
        "show hostnames"*) tr , '\\n' <<<"$3" ;;
        esac
        """
    path = stand_ins(tmp_path / "bin", {"sleep": "#!/bin/bash\n", "scontrol": scontrol})
    given = {"HPCRUN_RUN_DIR": ".", "HPCRUN_ATTEMPT": "0", "SLURM_JOB_ID": "7"}
    subprocess.run(
        ["bash", str(TEMPLATES / "harness.sh"), "guard", "n1"],
        cwd=tmp_path,
        env={"PATH": path, **given},
        stdin=subprocess.DEVNULL,
        check=True,
    )
    asked = (tmp_path / "asked").read_text().splitlines()
    ours = [line for line in asked if line.split()[0] in ("requeue", "update")]
    assert ours == ["requeue 7", "update JobId=7 ExcNodeList=n1"]
    assert sum("show job" in line for line in asked) >= 3
    assert "n1 has died" in (tmp_path / "logs/batch.log").read_text()
