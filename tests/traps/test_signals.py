"""Traps of signals, exit codes, requeues and buffers (35 to 46, 55), with stubs of Slurm."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from hpcrun.errors import SpecError
from hpcrun.runs.records import read_ending
from tests.plan.making import job as parse_job
from tests.traps.conftest import Maker
from tests.traps.standing_in import Job

pytestmark = pytest.mark.slow

SAVES = """
import os, pathlib, signal, sys, time
def save(number, frame):
    time.sleep(1)
    pathlib.Path("saved-" + os.environ["RANK"]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready-" + os.environ["RANK"]).write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.fixture
def saves(tmp_path: Path) -> Path:
    """A program that needs a second to save after a stop signal."""
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    return script


def ready(job: Job) -> list[int]:
    """Wait until both ranks run; return their processes."""
    files = [job.folder / f"ready-{rank}" for rank in (0, 1)]
    job.until(lambda: all(file.exists() and file.read_text() for file in files), "both ranks")
    return [int(file.read_text()) for file in files]


def test_ranks_have_time_to_save_when_slurm_stops_the_job(make_job: Maker, saves: Path) -> None:
    """Slurm sends SIGTERM to every process of the job, including the batch script and wrappers."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}", script=saves)
    batch = job.start()
    for rank in ready(job):
        os.killpg(os.getpgid(rank), signal.SIGTERM)
    os.killpg(batch.pid, signal.SIGTERM)
    assert job.finish(batch) == 143
    assert sorted(file.name for file in job.folder.glob("saved-*")) == ["saved-0", "saved-1"]
    end = job.record()
    assert (end["exit_code"], end["stopped_by"], end["first_failure"]) == (143, "TERM", None)


def test_preemption_is_recorded_while_the_ranks_save(make_job: Maker, saves: Path) -> None:
    """Slurm shows such a job as RUNNING until its grace time is over."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}", script=saves)
    (job.bin / "scontrol").rename(job.bin / "real-scontrol")
    shown = "JobId=7 JobState=RUNNING PreemptTime=2026-11-20T08:14:55 Restarts=0"
    real = f'exec {job.bin}/real-scontrol "$@"'
    job.stand_in("scontrol", f'case $* in *"show job"*) echo "{shown}" ;; *) {real} ;; esac')
    batch = job.start()
    for rank in ready(job):
        os.killpg(os.getpgid(rank), signal.SIGTERM)
    attempt = job.run_dir / "attempts/0"
    job.until(lambda: read_ending(attempt) == "preempted", "the record")
    os.killpg(batch.pid, signal.SIGTERM)
    job.finish(batch)


def test_stop_signal_is_handled_while_the_job_runs(make_job: Maker, saves: Path) -> None:
    """Bash runs a trap only after the foreground command has ended, which may take hours."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}", script=saves)
    batch = job.start()
    ranks = ready(job)
    log = job.run_dir / "logs/batch.log"
    try:
        os.kill(batch.pid, signal.SIGTERM)
        job.until(lambda: "received SIGTERM: stopping" in log.read_text(), "the trap")
    finally:
        for rank in ranks:
            os.killpg(os.getpgid(rank), signal.SIGTERM)
        job.finish(batch)


CHECKPOINTS = """
import pathlib, time
for step in (1, 2, 3):
    with open(f"step-{step}.pt", "w") as file:
        file.write("a checkpoint of hardly any blocks")
        file.truncate(8 * 10**12)
    begun = time.monotonic()
    while step > 1 and pathlib.Path(f"step-{step - 1}.pt").exists():
        assert time.monotonic() < begun + 100, "the older one is still there"
        time.sleep(0.05)
"""


def test_checkpoints_are_checked_while_the_ranks_run(make_job: Maker, tmp_path: Path) -> None:
    """What waits for the end of its input must have one: a list that ends with & has none."""
    script = tmp_path / "train.py"
    script.write_text("import os; os.chdir(os.environ['HPCRUN_CHECKPOINT_DIR'])\n" + CHECKPOINTS)
    job = make_job("resources: {gpus_per_node: 1}\ncheckpoint: {keep: 1}", script=script)
    Path(job.plan.checkpoint_dir).mkdir()
    assert job.go(HPCRUN_CHECKPOINTS_EVERY="0.2") == 0, job.log()
    assert "removed checkpoint step-1.pt; newer ones that are whole: 1" in job.log()
    assert re.search(r"has \S+B free: the next checkpoint may need 8\.0TB", job.log())


def test_signal_option_of_sbatch_is_refused() -> None:
    """--signal=USR1@600 kills programs that do not handle it, such as torchrun."""
    with pytest.raises(SpecError, match=r"slurm\.signal: survive: {save_before_end"):
        parse_job("script: a.py\nslurm: {signal: 'B:USR1@600'}")


def test_exit_code_is_that_of_the_first_failure(make_job: Maker) -> None:
    job = make_job(f"command: [sh, -c, '{_FAILS}']\nresources: {{nodes: 2, gpus_per_node: 1}}")
    job.stand_in("srun", f"{_srun(job)}\nexit 0")
    assert job.go() == 5, job.log()
    assert job.record()["exit_code"] == 5


def test_setup_may_use_unset_variables(make_job: Maker) -> None:
    """The scripts of conda and modules do this, so setup must run without set -u."""
    job = make_job("setup: {commands: ['export FOUND=x$NOT_SET_ANYWHERE']}")
    assert job.go() == 0, job.log()
    assert job.shown()[0]["environ"]["FOUND"] == "x"


def test_failing_setup_ends_the_job(make_job: Maker) -> None:
    job = make_job("setup: {commands: ['export FOUND=1', 'false']}")
    assert job.go() == 1
    assert job.shown() == []


def test_first_start_has_restart_count_zero(make_job: Maker) -> None:
    """Slurm sets SLURM_RESTART_COUNT only from the second start on."""
    job = make_job()
    assert (job.go(), job.go(restarts=3)) == (0, 0)
    assert [job.shown(0)[0]["attempt"], job.shown(1)[0]["attempt"]] == [0, 1]


def test_failed_job_is_not_requeued(make_job: Maker, tmp_path: Path) -> None:
    """A failed job is not restarted by default, because it would fail in the same way."""
    script = tmp_path / "typo.py"
    script.write_text("import sys\nsys.exit(1)\n")
    job = make_job(script=script)
    for name in ("scontrol", "sbatch"):
        keep = f'exec {job.bin}/real-{name} "$@"' if name == "scontrol" else "exit 1"
        if name == "scontrol":
            (job.bin / name).rename(job.bin / f"real-{name}")
        job.stand_in(name, f'echo "$*" >>{job.folder}/asked\n{keep}')
    assert job.go() == 1
    asked = (job.folder / "asked").read_text() if (job.folder / "asked").exists() else ""
    assert "requeue" not in asked and "job.sbatch" not in asked
    assert "no-requeue" in dict(job.plan.directives)


def test_output_is_unbuffered(make_job: Maker, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import os, time\nprint('step 1')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\nprint('step 2')\n"
    )
    job = make_job(script=script)
    batch = job.start()
    log = job.run_dir / "logs/0/rank-0.log"
    try:
        job.until(lambda: log.exists() and "step 1" in log.read_text(), "the first line")
    finally:
        (job.folder / "go").touch()
        assert job.finish(batch) == 0


def test_lines_of_ranks_are_not_mixed(make_job: Maker, tmp_path: Path) -> None:
    """Python writes a line in pieces, which would be mixed if ranks shared a file."""
    script = tmp_path / "chatty.py"
    script.write_text("for step in range(300):\n    print(step, 'of', 'this', 'rank')\n")
    job = make_job("resources: {gpus_per_node: 4}", script=script)
    assert job.go() == 0
    lines = [f"{step} of this rank" for step in range(300)]
    for rank in range(4):
        text = (job.run_dir / f"logs/0/rank-{rank}.log").read_text()
        assert [line for line in text.splitlines() if line] == lines


_FAILS = "exit 5"


def _srun(job: Job) -> str:
    return (job.bin / "srun").read_text().partition("exec ")[2].strip()
