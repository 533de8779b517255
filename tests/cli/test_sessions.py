"""hpcrun shell --new without a cluster: refusals, waiting in the queue, and Ctrl-C."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cli.calling import Caller, replay
from tests.cli.slurm_rows import row
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gpus", "1", "--", "true"], "only a new job can be changed"),
        (["--keep", "--", "true"], "only a new job can be changed"),
        (["7", "--new", "--", "true"], "a job that exists, and --new"),
        (["--new"], "a shell needs a terminal"),
        (["--new", "--set", "resources.nodes=1-2", "--", "true"], "a single job of a fixed size"),
        (["--new", "--set", "resources.gpu=1", "--", "true"], "unknown key"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    hpcrun: Caller, options: list[str], expected: str
) -> None:
    done = hpcrun("shell", *options)
    assert done.code == 2 and expected in done.err, done
    assert not hpcrun.runs.exists()


@pytest.mark.slow
def test_ctrl_c_in_the_queue_cancels_the_new_job(hpcrun: Caller) -> None:
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    cancels = replay(hpcrun.tools, "scancel", (0, "", ""))
    replay(hpcrun.tools, "squeue", (0, "", ""))
    process = hpcrun.start("shell", "--new", "--", "true")
    deadline = time.monotonic() + PATIENCE
    while not (hpcrun.tools / "sbatch.calls").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    (run,) = hpcrun.runs.iterdir()
    aside = hpcrun.tools / "aside"
    aside.mkdir()
    replay(aside, "squeue", (0, row(run, "7", "PENDING", "Priority"), ""))
    (aside / "squeue").replace(hpcrun.tools / "squeue")
    err = b""
    while b"waits for its turn in the queue" not in err:
        assert process.stderr is not None
        err += process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err + rest
    assert b"cancelled job 7" in rest
    assert "7" in cancels.read_text()
