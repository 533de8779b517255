"""hpcrun shell --new and notebook without a cluster: refusals, waiting in the queue, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from hpcrun.actions.interactive import _NO_JUPYTER, _START_JUPYTER
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


def test_notebook_needs_one_node_and_a_python_with_jupyter(hpcrun: Caller) -> None:
    done = hpcrun("notebook", "--set", "resources.nodes=2")
    assert done.code == 2 and "2 nodes" in done.err, done
    bare = hpcrun.write("bare", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = hpcrun("notebook", "--set", f"setup.python={bare}")
    assert done.code == 2 and f"{bare} has no Jupyter" in done.err, done
    assert not hpcrun.runs.exists()
    # On a node, the same is found by what the job runs.
    command = [sys.executable, "-S", "-c", _START_JUPYTER]
    started = subprocess.run(command, capture_output=True, check=False)
    assert started.returncode == 1 and _NO_JUPYTER.search(started.stderr), started
