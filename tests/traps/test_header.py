"""Traps of the batch script's header and of submissions (1 to 9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.slurm import client
from tests.remote.scripted import ScriptedTransport
from tests.traps.conftest import Maker
from tests.traps.standing_in import JOB_ID

pytestmark = pytest.mark.slow


def test_job_id_is_read_only_from_stdout() -> None:
    """sbatch and sites print messages to stderr."""
    shown = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.\n12\n"
    transport = ScriptedTransport({"sbatch": (0, "45;cluster\n", shown)})
    assert client.submit_script(transport, [Path("/runs/r")], {}) == "45"


def test_logs_folder_exists_before_the_job(make_job: Maker) -> None:
    """Before 23.02 Slurm does not create the folder, and the job fails silently."""
    job = make_job()
    directives = dict(job.plan.directives)
    assert (job.run_dir / str(directives["output"])).parent.is_dir()
    assert job.go() == 0


def test_restart_keeps_the_log_of_the_first_start(make_job: Maker) -> None:
    """Slurm truncates a job's log at a requeue, unless open-mode is append."""
    job = make_job("slurm: {requeue: true}")
    assert job.go() == 0
    (job.run_dir / "attempts/0/again").touch()  # as in `hpcrun requeue` after the end of the job
    assert job.go(restarts=1) == 0
    batch = (job.run_dir / "logs/batch.log").read_text()
    assert all(f"attempt {attempt} of job {JOB_ID} begins" in batch for attempt in (0, 1))
    assert len(job.shown(0)) == len(job.shown(1)) == 1


def test_environment_values_are_preserved(make_job: Maker) -> None:
    """--export splits its list at commas, and unquoted values are split at blanks."""
    values = {
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "http_proxy": "http://proxy:3128",
        "QUOTED": 'a "b" it\'s $HOME `id` \\',
        "LINES": "one\ntwo",
        "ELSE": "größer",
    }
    listed = "".join(f"  {name}: {_yaml(value)}\n" for name, value in values.items())
    job = make_job(f"resources: {{nodes: 2}}\nenv:\n{listed}")
    # A value of the caller's shell does not override that of the job.
    assert job.go(NCCL_IB_HCA="of the login node", CALLERS="stays, too") == 0
    for shown in job.shown():
        environ = {name: _bytes(value) for name, value in shown["environ"].items()}
        assert {name: environ[name] for name in values} == values
        assert environ["CALLERS"] == "stays, too"


def test_export_none_does_not_clear_the_environment_of_ranks(make_job: Maker) -> None:
    """sbatch --export=NONE sets SLURM_EXPORT_ENV=NONE, which makes srun drop everything."""
    job = make_job("resources: {nodes: 2}\nenv: {MINE: here}")
    assert job.go(SLURM_EXPORT_ENV="NONE") == 0, job.log()
    assert [shown["environ"].get("MINE") for shown in job.shown()] == ["here", "here"]


def test_dropped_directive_is_not_rendered(make_job: Maker) -> None:
    job = make_job("slurm: {mem: false}\nresources: {memory_per_node: 1G}", "slurm: {gres: false}")
    assert not {"mem", "gres"} & dict(job.plan.directives).keys()
    assert job.go() == 0, job.log()


def test_sbatch_lines_of_the_users_script_are_ignored(make_job: Maker, tmp_path: Path) -> None:
    """Directives below the first command are comments; those of hpcrun are above all commands."""
    script = tmp_path / "train.py"
    script.write_text("#SBATCH --nodes=9\nprint('ran')\n")
    job = make_job("setup: {commands: ['echo before']}", script=script)
    lines = (job.run_dir / "job.sbatch").read_text().splitlines()
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    last_directive = max(n for n, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last_directive < first_command
    assert "$" not in "".join(line for line in lines if line.startswith("#SBATCH"))
    assert job.go() == 0


def _yaml(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _bytes(latin1: str) -> str:
    return latin1.encode("latin-1").decode()
