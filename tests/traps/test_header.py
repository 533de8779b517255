"""Traps of the batch script's header and of what a submission brings along (1 to 9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.slurm import client
from tests.remote.scripted import ScriptedTransport
from tests.traps.conftest import Maker
from tests.traps.standing_in import JOB_ID

pytestmark = pytest.mark.slow


def test_only_standard_output_has_the_job_id() -> None:
    """sbatch waits and reports that on standard error, where sites put words of their own too."""
    shown = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.\n12\n"
    transport = ScriptedTransport({"sbatch": (0, "45;cluster\n", shown)})
    assert client.submit(transport, [Path("/runs/r")], {}) == "45"


def test_the_logs_folder_is_there_before_the_job(make_job: Maker) -> None:
    """Before 23.02 Slurm makes no folder: the job ends at once, without a word."""
    job = make_job()
    directives = dict(job.plan.directives)
    assert (job.run_dir / str(directives["output"])).parent.is_dir()
    assert job.go() == 0


def test_a_second_start_keeps_the_log_of_the_first(make_job: Maker) -> None:
    """Slurm empties a job's log at a requeue unless it is asked to append."""
    job = make_job("slurm: {requeue: true}")
    assert job.go() == 0
    (job.run_dir / "attempts/0/again").touch()  # as `hpcrun requeue` does: it had ended
    assert job.go(restarts=1) == 0
    batch = (job.run_dir / "logs/batch.log").read_text()
    assert all(f"attempt {attempt} of job {JOB_ID} begins" in batch for attempt in (0, 1))
    assert len(job.shown(0)) == len(job.shown(1)) == 1


def test_values_arrive_as_they_are(make_job: Maker) -> None:
    """--export parts its list at commas, and unquoted values break at blanks."""
    values = {
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "http_proxy": "http://proxy:3128",
        "QUOTED": 'a "b" it\'s $HOME `id` \\',
        "LINES": "one\ntwo",
        "ELSE": "größer",
    }
    listed = "".join(f"  {name}: {_yaml(value)}\n" for name, value in values.items())
    job = make_job(f"resources: {{nodes: 2}}\nenv:\n{listed}")
    # A value that the caller's shell has does not win over the job's.
    assert job.go(NCCL_IB_HCA="of the login node", CALLERS="stays, too") == 0
    for shown in job.shown():
        environ = {name: _bytes(value) for name, value in shown["environ"].items()}
        assert {name: environ[name] for name in values} == values
        assert environ["CALLERS"] == "stays, too"


def test_export_none_of_a_site_does_not_empty_the_ranks(make_job: Maker) -> None:
    """sbatch --export=NONE sets SLURM_EXPORT_ENV=NONE, by which srun drops everything."""
    job = make_job("resources: {nodes: 2}\nenv: {MINE: here}")
    assert job.go(SLURM_EXPORT_ENV="NONE") == 0, job.log()
    assert [shown["environ"].get("MINE") for shown in job.shown()] == ["here", "here"]


def test_a_directive_that_a_site_forbids_is_not_there(make_job: Maker) -> None:
    job = make_job("slurm: {mem: false}\nresources: {memory_per_node: 1G}", "slurm: {gres: false}")
    assert not {"mem", "gres"} & dict(job.plan.directives).keys()
    assert job.go() == 0, job.log()


def test_a_script_of_the_job_is_no_second_header(make_job: Maker, tmp_path: Path) -> None:
    """Directives below the first command are comments: hpcrun's own stand above all commands."""
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
